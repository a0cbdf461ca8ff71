"""PETAL (Brahma and Rai, CVPR 2023, arXiv:2212.09713): CoTTA, with a posterior of the source
weights as prior, and a restore of those weights that matter least.

Official code: dhanajitb/petal. As in CoTTA, from which this class derives, a student learns from an
averaged teacher, whose prediction is averaged over augmented views where the source model is
unsure. The posterior is that of SWAG: training on labelled source images goes on for some epochs,
and mean μ and variance σ² of every weight are taken over snapshots. It is the warm-up here.
Student, teacher and source model start from μ, and the loss has the term w/2 Σ (θ - μ)² /
(σ² + 1e-6). After the step, weights whose squared gradient is below the δ quantile of all go back
to their start (`restore: fim`, after the Fisher information), or random ones, as in CoTTA
(`restore: sres`). Only tensors named weight or bias learn.

Without a warm-up (`prior: l2`) μ are the source weights and σ² is 1: a plain pull to the source,
not what the paper has. The presets have the posterior.

Differs from the official code, unless `faithful: true`: σ² is at least 0 (theirs, E[θ²] - E[θ]²
with rounding, is negative for weights that hardly change); forward passes whose result is not used
are not made; and a gradient that is rounding noise makes no step. Always: Adam, which theirs makes
again at a reset, returns to its start; snapshots are taken at equal intervals after the first one.
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.method import OptimizerHyperparameters, WarmupHyperparameters, ema_update
from ctta_bench.registry import METHODS

COTTA: Any = METHODS.get("cotta")  # registered classes have no static type
DAMPING = 1e-6  # of the variance
SAMPLED = 2**16  # values of which a quantile is estimated


@METHODS.register_module("petal")
class PETAL(COTTA):  # type: ignore[misc]
    """Self-training towards a source posterior; the least important weights are restored."""

    display_name = "PETAL"
    year = 2023
    venue = "CVPR"
    citation = "brahma2023petal"
    adapts_layers = "all weights, with a teacher and a prior"
    losses = "cross-entropy to the teacher, prior of the weights"
    extra_memory = "teacher, source model, mean and variance of each weight"
    paper = "https://arxiv.org/abs/2212.09713"
    checked_against = "official code"
    tasks = frozenset({"classification"})
    segmentation_form = ""
    warmup_access = "labelled"
    stream_only = frozenset(
        {"loss", "views", "confidence_threshold", "teacher_momentum", "restore", "restore_share"}
        | {"restore_probability", "prior_weight", "min_gradient_norm", "faithful"}
    )
    passes_per_image = (3, 1)  # plus `views` - 1 where the source model is unsure
    search_space = {
        "lr": (1e-5, 1e-2),
        "confidence_threshold": [0.1, 0.5, 0.72, 0.92],
        "restore_share": [0.003, 0.03],
    }
    # No views, but a gradient.
    checked_with = {"loss": "symmetric", "confidence_threshold": 0.0}

    class Hyperparameters(OptimizerHyperparameters, WarmupHyperparameters):
        """Hyper-parameters of PETAL."""

        optimizer: Literal["sgd", "adam", "adamw"] = Field("adam", description="update rule")
        loss: Literal["cross_entropy", "symmetric"] = Field(
            "cross_entropy", description="to the teacher, or the mean of both directions"
        )
        views: int = Field(32, ge=1, description="N, augmented views")
        confidence_threshold: float = Field(
            0.92, ge=0, description="p_th: views if the source model's mean confidence is lower"
        )
        teacher_momentum: float = Field(0.999, ge=0, le=1, description="α of the teacher")
        restore: Literal["fim", "sres"] = Field(
            "fim", description="of weights with the smallest squared gradients, or of random ones"
        )
        restore_share: float = Field(0.03, ge=0, lt=1, description="δ, share of weights (fim)")
        restore_probability: float = Field(0.01, ge=0, le=1, description="p of a weight (sres)")
        prior: Literal["posterior", "l2"] = Field(
            "l2", description="of the warm-up, or the source weights with variance 1"
        )
        prior_weight: float = Field(1e-9, ge=0, description="w of the prior")
        snapshots: int = Field(4, ge=1, description="of the warm-up's weights, for μ and σ²")
        min_gradient_norm: float = Field(1e-6, ge=0, description="no step below this norm")
        warmup_epochs: int = Field(0, ge=0, description="epochs of training on source labels")
        warmup_batch_size: int = Field(200, ge=1, description="batch size of the warm-up")
        warmup_optimizer: Literal["sgd", "adamw"] = Field("sgd", description="of the warm-up")
        warmup_lr: float = Field(0.01, ge=0, description="largest learning rate of the warm-up")
        warmup_schedule: Literal["constant", "cosine", "steps", "linear", "swag"] = Field(
            "swag", description="of that rate; swag: from 8 % of it, within three fifths"
        )
        warmup_weight_decay: float = Field(5e-4, ge=0, description="weight decay of the warm-up")
        faithful: bool = Field(False, description="make all passes and faults of the code")

        @property
        def warms_up(self) -> bool:
            """Whether there is a posterior to learn."""
            return super().warms_up and self.prior == "posterior"

    def setup(self) -> None:
        """Adapt every weight and bias; copy the model as teacher and as anchor."""
        if self.hp.prior == "posterior" and not self.hp.warms_up:
            raise MethodError(
                "PETAL needs a warm-up for prior: posterior, as training on source images makes "
                "it; set warmup_epochs (5 on CIFAR, 2 on ImageNet), or prior: l2 for a plain pull "
                "to the source weights."
            )
        super().setup()
        self.prior_mean = self.source  # the anchor's weights, to which others are restored
        # Of a warm-up for every weight, otherwise the same number for all of them.
        one = self.model.mean.new_tensor(1 / (1 + DAMPING))
        self.prior_precision = [
            torch.zeros_like(start) if self.hp.warms_up else one for start in self.source
        ]
        self.snapshots = 0

    # -- the posterior of the source weights

    def warm_up(self, images: Tensor, labels: Tensor | None) -> None:
        """One update on the cross-entropy, with weight decay."""
        for group in self.optimizer.param_groups:
            group["weight_decay"] = self.hp.warmup_weight_decay
        super().warm_up(images, labels)

    @torch.no_grad()
    def warmup_updated(self, done: int, total: int) -> None:
        """A snapshot after each of the equal parts of the warm-up, but the first.

        Until its end, `prior_precision` holds the means of the squares.
        """
        parts = self.hp.snapshots + 1
        if done not in {total * part // parts for part in range(2, parts + 1)}:
            return
        self.snapshots += 1
        weights: list[Tensor] = list(self.trainable.values())
        squares = [weight.square() for weight in weights]
        torch._foreach_lerp_(self.source, weights, 1 / self.snapshots)
        torch._foreach_lerp_(self.prior_precision, squares, 1 / self.snapshots)

    def warmup_result(self) -> dict[str, Tensor]:
        """The means of weights and of their squares."""
        means = dict(zip(self.trainable, self.source, strict=True))
        squares = zip(self.trainable, self.prior_precision, strict=True)
        return means | {f"{name}.square": square for name, square in squares}

    @torch.no_grad()
    def warmed_up(self) -> None:
        """Start student and teacher from the mean; make the precision of the prior."""
        self.snapshots = 0
        for network in (self.model, self.teacher):
            ema_update(network.parameters(), self.anchor.parameters(), 0.0)
        for mean, square in zip(self.prior_mean, self.prior_precision, strict=True):
            variance = square.sub_(mean.square())
            if not self.hp.faithful:
                variance.clamp_min_(0)
            variance.add_(DAMPING).reciprocal_()

    # -- the stream

    def adapt(self, images: Tensor) -> Tensor:
        """A step towards teacher and prior, the EMA, the restore; teacher's logits from before."""
        target = self.predict(images)  # first, before the student's activations take memory
        loss = self.total_loss(self.model(images), target) + self.hp.prior_weight * self.penalty()
        if not self.backward(loss):
            return target
        if not self.hp.faithful and bool(self.gradient_norm() < self.hp.min_gradient_norm):
            self.optimizer_zero_grad()
            return target
        squares = self.squared_gradients() if self.hp.restore == "fim" else []
        if self.optimizer_step():
            ema_update(self.teacher.parameters(), self.model.parameters(), self.hp.teacher_momentum)
            self.restore_least(squares) if squares else self.stochastic_restore()
        return target

    def penalty(self) -> Tensor:
        """-log of the prior, up to a constant: ½ Σ (θ - μ)² / (σ² + 1e-6)."""
        weights = self.trainable.values()
        found: Tensor = Quadratic.apply(self.prior_mean, self.prior_precision, *weights)
        return found / 2

    def squared_gradients(self) -> list[Tensor]:
        """F = g² of every weight, of this batch alone; 0 without a gradient."""
        return [
            torch.zeros_like(p) if p.grad is None else p.grad.square()
            for p in self.trainable.values()
        ]

    @torch.no_grad()
    def restore_least(self, squares: list[Tensor]) -> None:
        """Set the weights with F below the δ quantile of all of them back to their start."""
        together = torch.cat([square.flatten() for square in squares])
        threshold = quantile(together, self.hp.restore_share)
        of_weight = zip(self.trainable.values(), self.source, squares, strict=True)
        for parameter, start, square in of_weight:
            parameter.copy_(torch.where(square < threshold, start, parameter))


class Quadratic(torch.autograd.Function):
    """Σ p (θ - μ)², without the intermediate values that autograd would store."""

    @staticmethod
    def forward(
        ctx: Any, means: list[Tensor], precisions: list[Tensor], *weights: Tensor
    ) -> Tensor:
        """The sum over all weights, a scalar."""
        ctx.means, ctx.precisions = means, precisions
        ctx.save_for_backward(*weights)
        terms = zip(weights, means, precisions, strict=True)
        return torch.stack([(w - m).square_().mul_(p).sum() for w, m, p in terms]).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """2 p (θ - μ) for every weight."""
        terms = zip(ctx.saved_tensors, ctx.means, ctx.precisions, strict=True)
        return None, None, *((w - m).mul_(p).mul_(2 * gradient) for w, m, p in terms)


def quantile(values: Tensor, share: float) -> Tensor:
    """As `torch.quantile(values, share)` of values [n], which takes at most 2^24 of them."""
    place = share * (len(values) - 1)
    below = int(place)
    few = values
    if len(values) > SAMPLED:  # those above the quantile of a sample, with a margin, are not sorted
        sample = values[:: len(values) // SAMPLED]
        bound = sample.kthvalue(min(len(sample), int(1.1 * share * len(sample)) + 100)).values
        few = values[values <= bound]
        few = few if len(few) > below + 1 else values
    lower = few.kthvalue(below + 1).values
    if place == below:
        return lower
    return torch.lerp(lower, few.kthvalue(below + 2).values, place - below)
