"""TENT (Wang et al., ICLR 2021, arXiv:2006.10726): entropy minimisation over norm parameters.

Official code: DequanWang/tent (BatchNorm); its LayerNorm form is that of mr-eggplant/SAR. On a
network with BatchNorm the batch's statistics replace the source's, as in the official code. The
scored logits are those of the forward pass before the update.

On segmentation the entropy is that of each pixel of the logits, and BatchNorm keeps the source's
statistics. What codes for ACDC (of CoTTA, SVDP) call TENT is the cross-entropy against the model's
own argmax at the labels' size: `loss: hard`. They predict twice by equal passes, one of which is
left out here, and make Adam anew at every domain and round: borders that a method must not know.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.method import NEWER, Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.parts.segmentation.scales import MapHyperparameters, enlarged, hard_loss
from ctta_bench.registry import METHODS


@METHODS.register_module("tent")
class Tent(Method):
    """Entropy minimisation over the affine parameters of all norm layers."""

    display_name = "TENT"
    year = 2021
    venue = "ICLR"
    citation = "wang2021tent"
    adapts_layers = "norm layers"
    paper = "https://arxiv.org/abs/2006.10726"
    checked_against = "official code and two more"
    tasks = frozenset({"classification", "segmentation"})
    segmentation_form = "TentMaps"
    passes_per_image = (1, 1)
    search_space = {"lr": (1e-5, 1e-1)}

    class Hyperparameters(OptimizerHyperparameters, MapHyperparameters):
        """Hyper-parameters of TENT."""

        steps: int = Field(1, ge=1, description="updates a batch; the last forward is scored")
        episodic: bool = Field(False, description="reset before every batch")
        loss: Literal["entropy", "hard"] = Field(
            "entropy",
            description="or, segmentation: cross-entropy against the own argmax",
            json_schema_extra=NEWER,
        )

    def setup(self) -> None:
        """Adapt the affine parameters of every norm layer."""
        if self.hp.loss == "hard":
            raise MethodError(
                f"Tent's loss: hard is for segmentation; on {self.model.name}, which classifies, "
                "the method of that loss is pseudo_label."
            )
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_norms()

    def adapt_norms(self) -> None:
        """The affine parameters of every norm layer, and their optimiser."""
        self.adapt_only(self.model.norm_parameters())
        self.optimizer = self.build_optimizer()

    def adapt(self, images: Tensor) -> Tensor:
        """Minimise the batch's mean entropy; returns the logits of the last forward pass."""
        if self.hp.episodic:
            self.reset()
        for _ in range(self.hp.steps):
            logits = self.logits(images)
            self.step(self.total_loss(logits))
        return logits

    def logits(self, images: Tensor) -> Tensor:
        """Logits [n, classes] before the step."""
        return self.model(images)

    def total_loss(self, logits: Tensor) -> Tensor:
        """Mean entropy of the images."""
        return softmax_entropy(logits).mean()


class TentMaps(Tent):
    """On segmentation: the entropy of each pixel, or its cross-entropy against the own argmax."""

    def setup(self) -> None:
        """Adapt the affine parameters of every norm layer; BatchNorm keeps its statistics."""
        self.adapt_norms()

    def logits(self, images: Tensor) -> Tensor:
        """Logits [n, classes, h, w], at the size that `output_scale` says."""
        return enlarged(self.model(images), images, self.hp.output_scale)

    def total_loss(self, logits: Tensor) -> Tensor:
        """Mean entropy of the pixels, or their cross-entropy against the own argmax."""
        if self.hp.loss == "hard":
            return hard_loss(logits, logits.detach())
        return softmax_entropy(self.model.rows(logits)).mean()
