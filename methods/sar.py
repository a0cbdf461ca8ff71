"""SAR (Niu et al., ICLR 2023, arXiv:2302.12400): reliable, sharpness-aware entropy minimisation.

Official code: mr-eggplant/SAR. Differs from it, unless `faithful: true`: a recovery also resets the
moving average and the optimiser's momentum; its threshold is the configured one (theirs is always
0.2); and a batch without reliable images makes no update (theirs still makes momentum steps).
`faithful: mariodoebler` is the second implementation, which resets the average and uses the
threshold, but shares the rest. Layers are skipped by position, not by name.

For segmentation nothing was published: here the samples are the pixels of the logits, and the last
of four stages and everything after it are frozen. BatchNorm uses the source statistics.
"""

import contextlib
import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter, ValidationError
from torch import Tensor

from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.parts.sharpness import ascend, descend
from ctta_bench.registry import METHODS

Reproduced = Literal["none", "official", "mariodoebler"]


def named(typed: Any) -> Any:
    """The name for a typed or recorded value: false, true or a name."""
    with contextlib.suppress(ValidationError):
        return "official" if TypeAdapter(bool).validate_python(typed) else "none"
    return typed  # a name


def recorded(name: Reproduced) -> bool | Reproduced:
    """The value in cell.yaml, as since 0.1.0."""
    return name if name == "mariodoebler" else name == "official"


@METHODS.register_module("sar")
class SAR(Method):
    """Entropy minimisation on reliable images, towards flat minima, with model recovery."""

    display_name = "SAR"
    year = 2023
    venue = "ICLR"
    citation = "niu2023sar"
    adapts_layers = "norm layers, except the last ones"
    losses = "entropy of certain images at a perturbed point"
    extra_memory = "nothing"
    paper = "https://arxiv.org/abs/2302.12400"
    checked_against = "official code and one more"
    tasks = frozenset({"classification", "segmentation"})
    segmentation_form = "SARMaps"
    passes_per_image = (2, 2)
    search_space = {"lr": (1e-5, 1e-1)}
    checked_with = {"margin": 10.0}  # every image is reliable

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of SAR."""

        margin: float = Field(0.4, ge=0, description="E0 as a share of ln C: reliable below it")
        rho: float = Field(0.05, ge=0, description="radius of the perturbation")
        recovery_threshold: float = Field(
            0.2, ge=0, description="e_m in nats: the model is reset below it"
        )
        skip_last_blocks: int | None = Field(
            None, ge=0, description="last blocks with frozen norms; a quarter if not given"
        )
        faithful: Annotated[Reproduced, BeforeValidator(named), PlainSerializer(recorded)] = Field(
            "none", description="code whose faults are reproduced; false: none, true: official"
        )

    def setup(self) -> None:
        """Adapt the norm layers, except those of the last blocks and the final one."""
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_early_norms()

    def adapt_early_norms(self) -> None:
        """Choose the norm layers; set their optimiser, margin and threshold."""
        self.adapt_only(self.model.early_norm_parameters(self.hp.skip_last_blocks))
        self.optimizer = self.build_optimizer()
        self.margin = self.hp.margin * math.log(self.model.num_classes)
        official = self.hp.faithful == "official"
        self.threshold = 0.2 if official else self.hp.recovery_threshold
        self.average: float | None = None

    def adapt(self, images: Tensor) -> Tensor:
        """Two passes: ascend to the sharpest point nearby, descend from it; logits of the first."""
        logits = self.model(images)
        entropy = self.entropy(logits)
        reliable = entropy < self.margin
        guard = self.hp.faithful == "none"
        if not self.backward(entropy[reliable].mean(), guard=guard):
            return logits
        self.ascend()
        entropy = self.entropy(self.model(images))[reliable]
        loss = entropy[entropy < self.margin].mean()
        self.optimizer_zero_grad()
        stepped = self.backward(loss, guard=guard)
        self.undo_perturbation()
        if stepped and self.optimizer_step(guard=guard):
            self.recover(float(loss.detach()))
        return logits

    def entropy(self, logits: Tensor) -> Tensor:
        """Entropy per image [n], in nats."""
        return softmax_entropy(logits)

    def ascend(self) -> None:
        """θ ← θ + ρ g / ‖g‖ over all adapted tensors; stores the old θ."""
        self.kept = ascend(list(self.trainable.values()), self.hp.rho)

    def undo_perturbation(self) -> None:
        """Return exactly to θ."""
        descend(list(self.trainable.values()), self.kept)
        self.kept = []

    def recover(self, loss: float) -> None:
        """Update the moving average of the loss; reset the model if it is below e_m."""
        if math.isfinite(loss):
            self.average = loss if self.average is None else 0.9 * self.average + 0.1 * loss
        if self.average is None or self.average >= self.threshold:
            return
        average, momentum = self.average, self.optimizer.state_dict()
        self.reset()
        if self.hp.faithful != "none":
            self.optimizer.load_state_dict(momentum)
        if self.hp.faithful == "official":
            self.average = average


class SARMaps(SAR):
    """Segmentation: pixels are the samples, and BatchNorm uses the source statistics."""

    def setup(self) -> None:
        """Adapt the norm layers, except those of the last stage and after it."""
        self.adapt_early_norms()

    def entropy(self, logits: Tensor) -> Tensor:
        """Entropy per pixel [n·h·w] of logits [n, classes, h, w], in nats."""
        return softmax_entropy(self.model.rows(logits))
