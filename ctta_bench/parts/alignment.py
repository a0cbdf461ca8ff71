"""The method that steps along the alignment of features with the source's (see moments.py).

PAID and its controls LoRA and DoRA are the same method with another weight adapter, so that a
comparison of them changes one thing.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.method import NEWER, Method, OptimizerHyperparameters, WarmupHyperparameters
from ctta_bench.parts.adapters import WeightAdapter
from ctta_bench.parts.injection import bypassed, inject, steady
from ctta_bench.parts.moments import (
    RunningMoments,
    SourceStatistics,
    alignment_loss,
    filter_limit,
    moment_distance,
    source_statistics,
)
from ctta_bench.source_models.weights import fingerprint


class AlignmentHyperparameters(OptimizerHyperparameters, WarmupHyperparameters):
    """What PAID, LoRA and DoRA share."""

    optimizer: Literal["sgd", "adam", "adamw"] = Field("adamw", description="update rule")
    lr: float = Field(2e-4, ge=0, description="learning rate of the adapters")
    std_weight: float = Field(1.0, ge=0, description="λ of the deviation term")
    layers: str = Field("qkvom", pattern="^[qkvom]+$", description="roles of adapted layers")
    skip_last_blocks: int = Field(0, ge=0, description="last blocks left out")
    source_samples: int = Field(500, ge=2, description="source images for the statistics")
    entropy_filter: bool = Field(False, description="only those of entropy < ln(C)/2 - 1")
    statistics_model: Literal["source", "warmed"] = Field(
        "source",
        description="whose features: of the source weights, or after the warm-up",
        json_schema_extra=NEWER,
    )
    warmup_optimizer: Literal["sgd", "adamw"] = Field(
        "sgd", description="its update rule; SGD has momentum 0.9", json_schema_extra=NEWER
    )
    warmup_lr: float = Field(
        0.05, ge=0, description="learning rate of the warm-up", json_schema_extra=NEWER
    )
    chunks: int = Field(1, ge=1, description="parts of a batch, each with own statistics")
    two_pass: bool = Field(
        False,
        description="parts share the whole batch's statistics, for one more forward pass",
        json_schema_extra=NEWER,
    )
    single_image: Literal["skip", "ema", "error"] = Field(
        "skip", description="one image: no deviation term, running moments, or an error"
    )
    faithful: bool = Field(False, description="reproduce the faults of PAID's official code")

    @field_validator("layers")
    @classmethod
    def _each_role_once(cls, roles: str) -> str:
        if len(set(roles)) != len(roles):
            raise ValueError("names a role twice")
        return roles


class LowRankHyperparameters(AlignmentHyperparameters):
    """What LoRA and DoRA share: the matrix of low rank that is added to a weight."""

    rank: int = Field(6, ge=1, description="ρ, rank of the added matrix")
    scale: float = Field(1.0, gt=0, description="s = α/ρ of the added matrix s B A")


class AlignmentMethod(Method):
    """Adapts linear layers by aligning the batch's features with the source's, a step a batch."""

    passes_per_image = (1, 1)
    source_access = "unlabelled"
    warmup_access = "labelled"
    stream_only = frozenset(
        {"std_weight", "source_samples", "entropy_filter", "statistics_model", "chunks"}
        | {"single_image", "faithful", "two_pass"}
    )

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
            by=type(self).__name__,
        )
        self.adapt_only(parameters)
        self.optimizer = self.build_optimizer()

    def prepare(self, source: Any) -> None:
        """Feature statistics on source images, of the source weights unless it is said otherwise.

        Both the paper of PAID and its code take the source weights', also after a warm-up.
        """
        of_source = self.hp.statistics_model == "source"
        facts = {
            "samples": self.hp.source_samples,
            "entropy_filter": self.hp.entropy_filter,
            "adapters": "" if of_source else fingerprint(nn.ParameterDict(self._plain_names())),
        }
        with bypassed(self.model) if of_source else contextlib.nullcontext():
            found = source.once("statistics", facts, lambda: self._statistics(source))
        mean, std = found["mean"].to(self.device), found["std"].to(self.device)
        self.source = SourceStatistics(mean, std, int(found["images"]))
        self.running = RunningMoments(self.source) if self.hp.single_image == "ema" else None

    def _plain_names(self) -> dict[str, nn.Parameter]:
        return {name.replace(".", "/"): value for name, value in self.trainable.items()}

    def _statistics(self, source: Any) -> dict[str, Tensor]:
        limit = filter_limit(self.model.num_classes) if self.hp.entropy_filter else None
        found = source_statistics(
            self.model,
            source.batches(),
            samples=self.hp.source_samples,
            entropy_limit=limit,
        )
        images = torch.tensor(found.images)
        return {"mean": found.mean, "std": found.std, "images": images}

    def adapt(self, images: Tensor) -> Tensor:
        """One step towards the source statistics; returns the logits from before it."""
        parts = images.chunk(self.hp.chunks)
        with steady(self.model) if len(parts) > 1 else contextlib.nullcontext():
            whole = self.hp.two_pass and len(parts) > 1
            scored, finite = self.two_passes(parts) if whole else self.one_pass(parts)
        if finite:
            self.optimizer_step(guard=not self.hp.faithful)
        return scored

    def one_pass(self, parts: Sequence[Tensor]) -> tuple[Tensor, bool]:
        """Logits, and gradients with each part's own statistics; whether all were finite."""
        divisor = self.hp.chunks if self.hp.faithful else len(parts)
        scored, finite = [], True
        for part in parts:
            features = self.features(part)
            with torch.no_grad():
                scored.append(self.model.head(features))
            finite = finite and self.backward(
                self.objective(features) / divisor, guard=not self.hp.faithful
            )
        return torch.cat(scored), finite

    def two_passes(self, parts: Sequence[Tensor]) -> tuple[Tensor, bool]:
        """The same with the statistics of all parts together: exactly those of the whole batch.

        The first pass gives the features and the loss's gradient to them, the second carries it
        through the network part by part.
        """
        with torch.no_grad():
            features = torch.cat([self.features(part) for part in parts])
            scored = self.model.head(features)
        features.requires_grad_()
        loss = self.objective(features)
        (upstream,) = torch.autograd.grad(loss, features)
        finite = True
        for part, gradient in zip(parts, upstream.split([len(p) for p in parts]), strict=True):
            carried = (self.features(part) * gradient).sum()
            finite = finite and self.backward(carried, guard=not self.hp.faithful)
        self.loss = loss.detach()
        return scored, finite

    def features(self, images: Tensor) -> Tensor:
        """Features [n, d] of images, with gradient to the adapters."""
        return self.model.features(images)

    def objective(self, features: Tensor) -> Tensor:
        """The alignment loss of one part of the batch."""
        if self.running is not None and not self.hp.faithful:
            mean, std = self.running.follow(features)
            if len(features) < 2:
                return moment_distance(mean, std, self.source, self.hp.std_weight)
        single: Any = "nan" if self.hp.faithful else self.hp.single_image
        return alignment_loss(features, self.source, self.hp.std_weight, single=single)
