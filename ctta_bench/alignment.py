"""Alignment of features with the source's: statistics, loss, and the method that steps along it.

PAID and its controls LoRA and DoRA are the same method with another weight adapter, so that a
comparison of them changes one thing.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from ctta_bench.errors import ConfigError, DataError, MethodError
from ctta_bench.injection import WeightAdapter, bypassed, inject
from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.model import SourceModel


@dataclass
class SourceStatistics:
    """Mean and unbiased standard deviation [d] of source features, and how many made them."""

    mean: Tensor
    std: Tensor
    images: int


@torch.no_grad()
def source_statistics(
    model: SourceModel, batches: Iterable[Tensor], *, samples: int, entropy_limit: float | None
) -> SourceStatistics:
    """Statistics of the features of the first `samples` source images that pass the filter.

    batches: images [n, 3, H, W]; entropy_limit: keep images whose prediction has less entropy
    (nats), as the official code of PAID and DPCore does; None keeps all. Takes what there is if
    there are fewer. Raises DataError if no image, or a single one, is left.
    """
    kept: list[Tensor] = []
    count = 0
    for images in batches:
        features = model.features(images)
        if entropy_limit is not None:
            features = features[softmax_entropy(model.head(features)) < entropy_limit]
        kept.append(features if features.dtype == torch.float64 else features.float())
        count += len(features)
        if count >= samples:
            break
    features = torch.cat(kept)[:samples] if kept else torch.empty(0, 1)
    if len(features) < 2:
        raise DataError(
            f"{len(features)} source images are left for the statistics (filter: entropy < "
            f"{entropy_limit}); at least 2 are needed: raise source_samples or switch the "
            "entropy filter off."
        )
    return SourceStatistics(features.mean(0), features.std(0), len(features))


def filter_limit(num_classes: int) -> float:
    """Entropy limit ln(C)/2 - 1 of the official PAID and DPCore code; > 0 from 8 classes on.

    Raises ConfigError where no image can pass.
    """
    limit = math.log(num_classes) / 2 - 1
    if limit <= 0:
        raise ConfigError(
            f"entropy_filter needs at least 8 classes (limit ln(C)/2 - 1), not {num_classes}."
        )
    return limit


def alignment_loss(
    features: Tensor,
    source: SourceStatistics,
    std_weight: float,
    *,
    single: Literal["skip", "error", "nan"] = "skip",
) -> Tensor:
    """‖μ_t - μ_s‖₂ + λ‖σ_t - σ_s‖₂ over features [n, d] (PAID, its objective), a scalar >= 0.

    σ_t is unbiased and undefined for one image: `single` says whether the term is left out, is an
    error (MethodError), or becomes NaN as in the official code (even for λ = 0).
    """
    features = features if features.dtype == torch.float64 else features.float()
    mean_term = torch.linalg.vector_norm(features.mean(0) - source.mean)
    if len(features) < 2 and single != "nan":
        if single == "error":
            raise MethodError(
                "one image has no standard deviation: use a batch of at least 2, a window, or "
                "single_image=skip."
            )
        return mean_term
    std = features.std(0) if len(features) > 1 else features[0] * torch.nan
    return mean_term + std_weight * torch.linalg.vector_norm(std - source.std)


class AlignmentHyperparameters(OptimizerHyperparameters):
    """What PAID, LoRA and DoRA share."""

    optimizer: Literal["sgd", "adam", "adamw"] = Field("adamw", description="update rule")
    lr: float = Field(2e-4, ge=0, description="learning rate of the adapters")
    std_weight: float = Field(1.0, ge=0, description="λ of the deviation term")
    layers: str = Field("qkvom", pattern="^[qkvom]+$", description="roles of adapted layers")
    skip_last_blocks: int = Field(0, ge=0, description="last blocks left out")
    source_samples: int = Field(500, ge=2, description="source images for the statistics")
    entropy_filter: bool = Field(False, description="only those of entropy < ln(C)/2 - 1")
    chunks: int = Field(1, ge=1, description="parts of a batch, each with own statistics")
    single_image: Literal["skip", "error"] = Field(
        "skip", description="the deviation term of one image"
    )
    faithful: bool = Field(False, description="reproduce the faults of PAID's official code")

    @field_validator("layers")
    @classmethod
    def _each_role_once(cls, roles: str) -> str:
        if len(set(roles)) != len(roles):
            raise ValueError("names a role twice")
        return roles


class AlignmentMethod(Method):
    """Adapts linear layers by aligning the batch's features with the source's, a step a batch."""

    source_access = "unlabelled"

    class Hyperparameters(AlignmentHyperparameters):
        """Hyper-parameters of the alignment."""

    @staticmethod
    def adapter(weight: Tensor, hp: Any) -> WeightAdapter:
        """The adapter of a frozen weight [out, in]; each method's own."""
        raise MethodError("an alignment method defines adapter(weight, hp); this one does not.")

    def setup(self) -> None:
        """Swap adapters into the selected layers; only they learn."""
        hp = self.hp
        parameters = inject(
            self.model,
            hp.layers,
            lambda weight: self.adapter(weight, hp),
            skip_last_blocks=hp.skip_last_blocks,
        )
        self.adapt_only(parameters)
        self.optimizer = self.build_optimizer()

    def prepare(self, source: Any) -> None:
        """Feature statistics of the source weights on source images."""
        limit = filter_limit(self.model.num_classes) if self.hp.entropy_filter else None
        with bypassed(self.model):
            self.source = source_statistics(
                self.model,
                source.batches(),
                samples=self.hp.source_samples,
                entropy_limit=limit,
            )

    def adapt(self, images: Tensor) -> Tensor:
        """One step towards the source statistics; returns the logits from before it."""
        parts = images.chunk(self.hp.chunks)
        divisor = self.hp.chunks if self.hp.faithful else len(parts)
        scored, finite = [], True
        for part in parts:
            features = self.model.features(part)
            with torch.no_grad():
                scored.append(self.model.head(features))
            finite = finite and self.backward(
                self.objective(features) / divisor, guard=not self.hp.faithful
            )
        if finite:
            self.optimizer_step(guard=not self.hp.faithful)
        return torch.cat(scored)

    def objective(self, features: Tensor) -> Tensor:
        """The alignment loss of one part of the batch."""
        single: Any = "nan" if self.hp.faithful else self.hp.single_image
        return alignment_loss(features, self.source, self.hp.std_weight, single=single)
