"""RDumb (Press et al., NeurIPS 2023, arXiv:2306.05401): ETA with a full reset at regular intervals.

Official code: oripress/CCC, which adapts BatchNorm only; checked against the reset counter of
mariodoebler/test-time-adaptation (there over TENT) and against this suite's ETA. Every batch
counts, also one without a selected image. On a stream shorter than the interval RDumb equals ETA:
give the interval in images if the batch size is not 64.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.parts.selection import Selection
from ctta_bench.registry import METHODS


@METHODS.register_module("rdumb")
class RDumb(Method):
    """Entropy minimisation on selected images, with a reset after every T batches."""

    display_name = "RDumb"
    year = 2023
    venue = "NeurIPS"
    citation = "press2023rdumb"
    adapts_layers = "norm layers, reset periodically"
    losses = "as ETA"
    extra_memory = "an average prediction"
    paper = "https://arxiv.org/abs/2306.05401"
    checked_against = "second implementation (the reset)"
    passes_per_image = (1, 1)
    search_space = {"lr": (1e-5, 1e-1), "max_similarity": [0.05, 0.1, 0.4]}
    checked_with = {"margin": 1.0, "max_similarity": 2.0, "reset_every": 3}  # all are selected

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of RDumb."""

        lr: float = Field(2.5e-4, ge=0, description="learning rate")
        reset_every: int = Field(1000, ge=1, description="T, interval of the resets")
        reset_unit: Literal["batches", "images"] = Field("batches", description="unit of T")
        loss: Literal["eta", "tent"] = Field("eta", description="loss between the resets")
        margin: float = Field(0.4, ge=0, description="E0 as a share of ln C: reliable below it")
        max_similarity: float = Field(
            0.05,
            ge=0,
            description="ε: redundant if more similar (cosine) to the average prediction",
        )

    def setup(self) -> None:
        """Adapt the affine parameters of every norm layer."""
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_only(self.model.norm_parameters())
        self.optimizer = self.build_optimizer()
        self.selection = Selection(self.hp.margin, self.hp.max_similarity, self.model.num_classes)
        self.since_reset = 0

    def adapt(self, images: Tensor) -> Tensor:
        """One step, and a reset if it is due; returns the logits from before both."""
        logits = self.model(images)
        if self.hp.loss == "tent":
            self.step(softmax_entropy(logits).mean())
        else:
            self.learn_from_selected(logits)
        self.since_reset += len(images) if self.hp.reset_unit == "images" else 1
        if self.since_reset >= self.hp.reset_every:
            self.reset()
        return logits

    def learn_from_selected(self, logits: Tensor) -> None:
        """One step of ETA."""
        entropy = softmax_entropy(logits)
        predictions = logits.detach().softmax(-1, dtype=entropy.dtype)
        selected = self.selection.choose(entropy.detach(), predictions)
        if not bool(selected.any()):
            self.skip_update()
        elif self.step(self.selection.weigh(entropy[selected])):
            self.selection.update_average(predictions[selected])
