"""Pseudo-label (Lee, 2013) as a test-time method: cross-entropy against the model's own argmax.

There is no official code for this setting. Everything except the loss is as in TENT, so that the
two rows of a table differ in one thing. With a threshold of 0 all images are used. On segmentation
the samples are the pixels of the logits (with `output_scale`, of enlarged logits, as in the codes
for ACDC that call this loss TENT), and BatchNorm uses the source statistics.
"""

import torch
from pydantic import Field
from torch import Tensor

from ctta_bench.method import Method, OptimizerHyperparameters
from ctta_bench.parts.segmentation.scales import MapHyperparameters, enlarged
from ctta_bench.registry import METHODS


@METHODS.register_module("pseudo_label")
class PseudoLabel(Method):
    """Cross-entropy against the model's own hard labels, over all norm layers."""

    display_name = "Pseudo-label"
    year = 2013
    venue = "ICML Workshop"
    citation = "lee2013pseudolabel"
    adapts_layers = "norm layers"
    losses = "cross-entropy to the own argmax"
    extra_memory = "nothing"
    paper = "Lee, ICML 2013 workshop on challenges in representation learning"
    checked_against = "the formula alone"
    tasks = frozenset({"classification", "segmentation"})
    segmentation_form = "PseudoLabelMaps"
    passes_per_image = (1, 1)
    search_space = {"lr": (1e-5, 1e-1)}

    class Hyperparameters(OptimizerHyperparameters, MapHyperparameters):
        """Hyper-parameters of Pseudo-label."""

        threshold: float = Field(
            0.0, ge=0, le=1, description="samples with a higher maximum probability are used"
        )
        parameters: str = Field(
            "norm", pattern="^(norm|all)$", description="adapt norm layers or all weights"
        )

    def setup(self) -> None:
        """Adapt the norm layers, or the whole network."""
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_chosen()

    def adapt_chosen(self) -> None:
        """Choose the parameters that `parameters` names, and build their optimiser."""
        everything = dict(self.model.network.named_parameters())
        self.adapt_only(everything if self.hp.parameters == "all" else self.model.norm_parameters())
        self.optimizer = self.build_optimizer()

    def adapt(self, images: Tensor) -> Tensor:
        """One step on -log p of the predicted class; returns the logits from before the step."""
        logits = self.model(images)
        self.step(self.total_loss(logits))
        return logits

    def total_loss(self, rows: Tensor) -> Tensor:
        """Mean -log p of the predicted class over the logits [n, classes] above the threshold."""
        log_p = rows.log_softmax(-1, dtype=torch.promote_types(rows.dtype, torch.float32))
        confidence = log_p.max(-1).values  # log-probability of the pseudo-label
        kept = confidence.detach().exp() > self.hp.threshold
        return -confidence[kept].mean()


class PseudoLabelMaps(PseudoLabel):
    """Segmentation: pixels are the samples, and BatchNorm uses the source statistics."""

    def setup(self) -> None:
        """Adapt the norm layers, or the whole network."""
        self.adapt_chosen()

    def adapt(self, images: Tensor) -> Tensor:
        """One step on -log p of each pixel's predicted class; returns the logits before it."""
        logits = enlarged(self.model(images), images, self.hp.output_scale)
        self.step(self.total_loss(self.model.rows(logits)))
        return logits
