"""ViDA (Liu et al., ICLR 2024, arXiv:2306.04344): a low-rank and a high-rank adapter next to every
attention projection, scaled by the teacher's uncertainty.

Official code: Yangsenqiao/vida. y = W x + b + λ_low U₁ D₁ x + λ_high U₂ D₂ x. The adapters have one
learning rate, all source weights another. The teacher is a moving average and is what is scored.
The uncertainty U is a tenth of the variance of its logits over augmented views. Without a warm-up
the start is the source model itself. Published figures start from a checkpoint whose adapters were
trained on labelled source data by an unpublished recipe; `warmup_epochs` replaces it.

The form for segmentation is in vida_maps.py.

Differs from the official code, unless `faithful: true`: λ_high is applied (theirs sets λ_low only,
as an `elif` tests for an attribute that every layer has); a reset sets both back to 1 (theirs does
not); and a gradient that is rounding noise makes no step (if the teacher is equal, the gradient of
the cross-entropy is zero, and Adam would turn it into full steps). Theirs copies an anchor that it
never uses.
"""

import copy
import math
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import linear

from ctta_bench.errors import MethodError
from ctta_bench.method import (
    NEWER,
    Method,
    OptimizerHyperparameters,
    WarmupHyperparameters,
    ema_update,
    soft_cross_entropy,
    stochastic_restore,
    symmetric_cross_entropy,
)
from ctta_bench.model import SourceModel
from ctta_bench.parts.adapters.injection import RoleLayer, role_layers
from ctta_bench.parts.segmentation.scales import MapHyperparameters
from ctta_bench.parts.views.batch import random_view
from ctta_bench.parts.views.passes import Augment, at_least_float32, over_views
from ctta_bench.registry import METHODS

# Names in the official code, by ours.
PUBLISHED = {
    "low_down": "vida_down.weight",
    "low_up": "vida_up.weight",
    "high_down": "vida_down2.weight",
    "high_up": "vida_up2.weight",
}
SHARE = 0.1  # U is this share of the variance


@dataclass
class Scales:
    """λ of the two branches; all layers of student and teacher share one object."""

    low: float = 1.0
    high: float = 1.0


class ViDALinear(nn.Module):
    """W plus two products as one weight: W + λ_low U₁ D₁ + λ_high U₂ D₂.

    `low_down` [r₁, in], `low_up` [out, r₁], `high_down` [r₂, in], `high_up` [out, r₂]; W and b
    learn, too. `low_up` and `high_up` start at 0.
    """

    def __init__(self, base: nn.Linear, rank_low: int, rank_high: int, scales: Scales) -> None:
        super().__init__()
        self.weight, self.bias, self.scales = base.weight, base.bias, scales
        self.low_down, self.low_up = self._branch(rank_low)
        self.high_down, self.high_up = self._branch(rank_high)

    def _branch(self, rank: int) -> tuple[nn.Parameter, nn.Parameter]:
        down = torch.randn(rank, self.weight.shape[1]).to(self.weight) / rank**2
        return nn.Parameter(down), nn.Parameter(self.weight.new_zeros(len(self.weight), rank))

    def share_down(self, other: "ViDALinear") -> None:
        """Use the down-projections of a layer with the same input."""
        self.low_down, self.high_down = other.low_down, other.high_down

    def adapters(self) -> list[nn.Parameter]:
        """The parameters of both branches."""
        return [self.low_down, self.low_up, self.high_down, self.high_up]

    def effective_weight(self) -> Tensor:
        """[out, in]; cheaper than separate outputs, as there are more tokens than ranks."""
        low = self.scales.low * (self.low_up @ self.low_down)
        return self.weight + low + self.scales.high * (self.high_up @ self.high_down)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., out]."""
        return linear(x, self.effective_weight(), self.bias)


def inject_adapters(
    model: SourceModel, rank_low: int, rank_high: int, scales: Scales
) -> list[tuple[RoleLayer, ViDALinear]]:
    """Add adapters to q, k, v and o of every block. Raises MethodError if there are none."""
    injected = []
    for layer in role_layers(model):
        if layer.roles != "m":
            adapted = ViDALinear(layer.module, rank_low, rank_high, scales)
            model.network.set_submodule(layer.name, adapted)
            injected.append((layer, adapted))
    if not injected:
        raise MethodError(
            f"ViDA does not support {model.name}: it adds adapters to attention projections, and "
            "this model has none; choose a transformer."
        )
    return injected


@METHODS.register_module("vida")
class ViDA(Method):
    """Low- and high-rank adapters of attention projections, trained with an averaged teacher."""

    display_name = "ViDA"
    year = 2024
    venue = "ICLR"
    citation = "liu2024vida"
    adapts_layers = "low- and high-rank adapters, and all weights, with a teacher"
    losses = "cross-entropy to the teacher"
    extra_memory = "teacher"
    paper = "https://arxiv.org/abs/2306.04344"
    checked_against = "official code"
    warmup_access = "labelled"
    stream_only = frozenset(
        {"lr_adapters", "loss", "views", "uncertainty_threshold", "teacher_momentum"}
        | {"adapter_momentum", "min_gradient_norm", "restore_probability", "faithful"}
    )
    tasks = frozenset({"classification", "segmentation"})
    passes_per_image = (12, 1)  # ten views, teacher, student
    search_space = {"lr_adapters": (1e-7, 1e-2)}
    checked_with = {"lr": 1e-3, "lr_adapters": 1e-3}  # steps large enough for float32
    exempt = {"learning_rate_zero_is_source": "the adapters have their own learning rate"}
    segmentation_form = "vida_maps:ViDAMaps"

    class Hyperparameters(OptimizerHyperparameters, WarmupHyperparameters, MapHyperparameters):
        """Hyper-parameters of ViDA."""

        lr: float = Field(5e-7, ge=0, description="learning rate of the source weights")
        lr_adapters: float = Field(2e-7, ge=0, description="learning rate of the adapters")
        nesterov: bool = Field(True, description="Nesterov's momentum (SGD)")
        loss: Literal["cross_entropy", "symmetric"] = Field(
            "symmetric", description="to the teacher, or the mean of both directions"
        )
        rank_low: int = Field(1, ge=1, description="r₁, rank of the domain-specific branch")
        rank_high: int = Field(128, ge=1, description="r₂, rank of the domain-agnostic branch")
        views: int = Field(10, ge=2, description="N, views for the uncertainty")
        confidence_threshold: float = Field(
            0.69,
            ge=0,
            description="segmentation: below this confidence of the anchor, all views are used",
            json_schema_extra=NEWER,
        )
        uncertainty_threshold: float = Field(0.2, ge=0, description="Θ: uncertain at or above it")
        teacher_momentum: float = Field(0.999, ge=0, le=1, description="α of the source weights")
        adapter_momentum: float = Field(0.8, ge=0, le=1, description="α_v of the adapters")
        min_gradient_norm: float = Field(1e-6, ge=0, description="no step below this norm")
        restore_probability: float = Field(
            0.0, ge=0, le=1, description="p of the stochastic restore"
        )
        warmup_epochs: int = Field(0, ge=0, description="epochs of the adapters on source labels")
        warmup_lr: float = Field(1e-4, ge=0, description="AdamW's learning rate in the warm-up")
        warmup_batch_size: int = Field(128, ge=1, description="batch size of the warm-up")
        faithful: bool = Field(False, description="reproduce the faults of the official code")

    augment: Augment = staticmethod(random_view)

    def setup(self) -> None:
        """Add adapters to q, k, v and o; copy the student as teacher."""
        self.scales = Scales()
        self.split_parameters({id(p) for layer in self.inject() for p in layer.adapters()})
        # The copy shares the scales: they are set for student and teacher together.
        self.teacher = copy.deepcopy(self.model, {id(self.scales): self.scales})
        self.teacher.requires_grad_(False)
        if self.hp.restore_probability:
            self.remember_source()

    def inject(self) -> list[ViDALinear]:
        """Add the adapters to the model."""
        hp = self.hp
        found = inject_adapters(self.model, hp.rank_low, hp.rank_high, self.scales)
        return [adapted for _, adapted in found]

    def split_parameters(self, adapters: set[int]) -> None:
        """Two groups with their own learning rates and momenta: adapters, and all other weights."""
        named = dict(self.model.network.named_parameters())
        self.adapters = {n: p for n, p in named.items() if id(p) in adapters}
        self.weights = {n: p for n, p in named.items() if id(p) not in adapters}
        self.adapt_only(named)
        self.optimizer = self.build_optimizer(self.weights.values())
        group = {"params": list(self.adapters.values()), "lr": self.hp.lr_adapters}
        self.optimizer.add_param_group(group)

    def warmup_parameters(self) -> dict[str, nn.Parameter]:
        """The adapters; the source weights are frozen."""
        return self.adapters

    def published_names(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        """Of ViDA's code: `LAYER.vida_down.weight`, ..., `LAYER.linear_vida.weight` and `.bias`."""
        learnt = {}
        for ours in self.adapters:
            layer, _, kind = ours.rpartition(".")
            learnt[f"{layer}.{PUBLISHED[kind]}"] = ours
        adapted = {ours.rpartition(".")[0] for ours in self.adapters}
        source = {}
        for name, tensor in self.model.network.state_dict().items():
            layer, _, kind = name.rpartition(".")
            if name not in self.adapters:
                theirs = f"{layer}.linear_vida.{kind}" if layer in adapted else name
                source[theirs] = tensor
        return learnt, source

    def warmed_up(self) -> None:
        """Teacher and restore values start from the warmed-up adapters."""
        self.ema_update_teacher(0.0, 0.0)
        if self.hp.restore_probability:
            self.remember_source()

    def adapt(self, images: Tensor) -> Tensor:
        """Set the scales, then one step towards the teacher and its EMA; returns its logits."""
        self.scale_by_uncertainty(self.uncertainty(images))
        target = self.predict(images)
        self.update(images, target)
        return target

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """The teacher's logits."""
        return self.teacher(images)

    @torch.no_grad()
    def uncertainty(self, images: Tensor) -> float:
        """U: a tenth of the variance of the teacher's logits over N views (one draw per view)."""
        size, views = self.model.preprocessing.size, self.hp.views
        seen = over_views(images, self.teacher, views, size=size, augment=self.augment)
        values = at_least_float32(torch.cat(list(seen)))
        return SHARE * float(values.var(0).mean())

    def scale_by_uncertainty(self, uncertainty: float) -> None:
        """Homeostatic knowledge allotment: λ_high is larger for uncertain batches."""
        if not math.isfinite(uncertainty):
            return  # its update is skipped as well
        certain = uncertainty < self.hp.uncertainty_threshold
        self.scales.low = 1 + uncertainty if certain else 1 - uncertainty
        if not self.hp.faithful:
            self.scales.high = 1 - uncertainty if certain else 1 + uncertainty

    def update(self, images: Tensor, target: Tensor) -> None:
        """One step towards the teacher's logits, then its EMA update."""
        loss = self.total_loss(self.model(images), target)
        if self.step(loss, least_norm=0.0 if self.hp.faithful else self.hp.min_gradient_norm):
            self.ema_update_teacher(self.hp.teacher_momentum, self.hp.adapter_momentum)
            if self.hp.restore_probability:
                self.stochastic_restore()

    def total_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy of logits [n, classes] to the teacher's, or the mean of both ways."""
        symmetric = self.hp.loss == "symmetric"
        between = symmetric_cross_entropy if symmetric else soft_cross_entropy
        return between(logits, target).mean()

    def ema_update_teacher(self, weights: float, adapters: float) -> None:
        """Move the teacher towards the student, with a momentum for each group."""
        teacher = dict(self.teacher.network.named_parameters())
        for group, momentum in ((self.weights, weights), (self.adapters, adapters)):
            ema_update([teacher[name] for name in group], group.values(), momentum)

    def remember_source(self) -> None:
        """Store the parameters of the stochastic restore, and their values."""
        self.restored = list(self.trainable.values())
        self.source = [parameter.detach().clone() for parameter in self.restored]

    def stochastic_restore(self) -> None:
        """Set each learning scalar to its source value with probability p."""
        stochastic_restore(self.restored, self.source, self.hp.restore_probability)

    @property
    def scored_model(self) -> SourceModel:
        """The teacher."""
        return self.teacher

    def reset(self) -> None:
        """Return to the start; the official code does not reset the scales."""
        last = copy.copy(self.scales)
        super().reset()
        if self.hp.faithful:
            self.scales.low, self.scales.high = last.low, last.high
