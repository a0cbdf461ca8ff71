"""TENT (Wang et al., ICLR 2021, arXiv:2006.10726): entropy minimisation over norm parameters.

Official code: DequanWang/tent (BatchNorm); the LayerNorm form is that of mr-eggplant/SAR. On a
network with BatchNorm the batch statistics replace the source statistics, as in the official code.
The scored logits are those of the forward pass before the update.

On segmentation the entropy is that of each pixel of the logits, and BatchNorm uses the source
statistics. What the codes for ACDC (of CoTTA, SVDP) call TENT is the cross-entropy against the
model's own argmax at the size of the labels: `loss: hard`. They make two equal forward passes, one
of which is left out here, and a new Adam at every domain and round, whose boundaries a method must
not see.
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
    losses = "entropy"
    extra_memory = "nothing"
    paper = "https://arxiv.org/abs/2006.10726"
    checked_against = "official code and two more"
    tasks = frozenset({"classification", "segmentation"})
    segmentation_form = "TentMaps"
    passes_per_image = (1, 1)
    search_space = {"lr": (1e-5, 1e-1)}

    class Hyperparameters(OptimizerHyperparameters, MapHyperparameters):
        """Hyper-parameters of TENT."""

        steps: int = Field(
            1, ge=1, description="updates per batch; the last forward pass is scored"
        )
        episodic: bool = Field(False, description="reset before every batch")
        loss: Literal["entropy", "hard"] = Field(
            "entropy",
            description="hard (segmentation): cross-entropy against the own argmax",
            json_schema_extra=NEWER,
        )

    def setup(self) -> None:
        """Adapt the affine parameters of every norm layer."""
        if self.hp.loss == "hard":
            raise MethodError(
                f"TENT supports loss: hard on segmentation only, and {self.model.name} is a "
                "classifier; run `pseudo_label`, which has that loss."
            )
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_norms()

    def adapt_norms(self) -> None:
        """Choose the affine parameters of every norm layer, and build their optimiser."""
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
    """Segmentation: entropy per pixel, or cross-entropy against the own argmax."""

    def setup(self) -> None:
        """Adapt the affine parameters of every norm layer; BatchNorm uses the source statistics."""
        self.adapt_norms()

    def logits(self, images: Tensor) -> Tensor:
        """Logits [n, classes, h, w] at the size of `output_scale`."""
        return enlarged(self.model(images), images, self.hp.output_scale)

    def total_loss(self, logits: Tensor) -> Tensor:
        """Mean entropy of the pixels, or their cross-entropy against the own argmax."""
        if self.hp.loss == "hard":
            return hard_loss(logits, logits.detach())
        return softmax_entropy(self.model.rows(logits)).mean()
