"""Alignment of features with source statistics by adapters: the base class of PAID, LoRA and DoRA.

The controls LoRA and DoRA differ from PAID only in the weight adapter. The aligned features
(source/features.py) depend on the task of the model.
"""

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator, model_validator
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.method import NEWER, Method, OptimizerHyperparameters, WarmupHyperparameters
from ctta_bench.model import fingerprint
from ctta_bench.parts.adapters.injection import adapters_disabled, cached_weights, inject
from ctta_bench.parts.adapters.weights import WeightAdapter
from ctta_bench.parts.source.features import FEATURES, ImageFeatures, StageFeatures
from ctta_bench.parts.source.moments import (
    RunningMoments,
    SourceStatistics,
    alignment_loss,
    cached_statistics_of_maps,
    moment_distance,
)


class AlignmentHyperparameters(OptimizerHyperparameters, WarmupHyperparameters):
    """Hyper-parameters of PAID, LoRA and DoRA."""

    optimizer: Literal["sgd", "adam", "adamw"] = Field("adamw", description="update rule")
    lr: float = Field(2e-4, ge=0, description="learning rate of the adapters")
    std_weight: float = Field(1.0, ge=0, description="λ of the deviation term")
    layers: str = Field("qkvom", pattern="^[qkvom]+$", description="roles of adapted layers")
    skip_last_blocks: int = Field(0, ge=0, description="last blocks without adapters")
    source_samples: int = Field(500, ge=2, description="source images for the statistics")
    entropy_filter: bool = Field(False, description="only images of entropy < ln(C)/2 - 1")
    entropy_limit: float | None = Field(
        None,
        gt=0,
        description="limit of the entropy filter in nats, instead of ln(C)/2 - 1",
        json_schema_extra=NEWER,
    )
    statistics_model: Literal["source", "warmed"] = Field(
        "source",
        description="features of the source weights, or of the model after the warm-up",
        json_schema_extra=NEWER,
    )
    stats_preproc: Literal["stream", "official"] = Field(
        "stream",
        description="pre-processing of source images: the stream's, or the checkpoint's own",
        json_schema_extra=NEWER,
    )
    warmup_optimizer: Literal["sgd", "adamw"] = Field(
        "sgd", description="its optimiser; SGD with momentum 0.9", json_schema_extra=NEWER
    )
    warmup_lr: float = Field(
        0.05, ge=0, description="learning rate of the warm-up", json_schema_extra=NEWER
    )
    chunks: int = Field(1, ge=1, description="chunks of a batch, each with its own statistics")
    two_pass: bool = Field(
        False,
        description="chunks use the whole batch's statistics, for one more forward pass",
        json_schema_extra=NEWER,
    )
    single_image: Literal["skip", "ema", "error"] = Field(
        "skip", description="for one image: no deviation term, running moments, or an error"
    )
    stages: str = Field(
        "4",
        pattern="^[1-4]+$",
        description="segmentation: stages whose maps are aligned, each with a loss",
        json_schema_extra=NEWER,
    )
    source_moments: Literal["per_image", "pooled"] = Field(
        "per_image",
        description="segmentation: source statistics averaged over images, or of all positions",
        json_schema_extra=NEWER,
    )
    faithful: bool = Field(False, description="reproduce the faults of PAID's official code")

    @field_validator("layers", "stages")
    @classmethod
    def _each_once(cls, letters: str, info: ValidationInfo) -> str:
        if len(set(letters)) != len(letters):
            raise ValueError(f"names a {'role' if info.field_name == 'layers' else 'stage'} twice")
        return letters

    @model_validator(mode="after")
    def _limit_of_a_filter(self) -> "AlignmentHyperparameters":
        if self.entropy_limit is not None and not self.entropy_filter:
            raise ValueError("entropy_limit needs entropy_filter: true")
        return self


class LowRankHyperparameters(AlignmentHyperparameters):
    """Hyper-parameters of LoRA and DoRA: the matrix of low rank that is added to a weight."""

    rank: int = Field(6, ge=1, description="ρ, rank of the added matrix")
    scale: float = Field(1.0, gt=0, description="s = α/ρ of the added matrix s B A")


class AlignmentMethod(Method):
    """Adapters in linear layers, source statistics, and the distance of features from them.

    A subclass defines `adapter` and `adapt`; its hyper-parameters derive from
    `AlignmentHyperparameters`.
    """

    tasks = frozenset({"classification", "segmentation"})
    passes_per_image = (1, 1)
    search_space = {"lr": (1e-5, 1e-1), "std_weight": [0.1, 1.0]}
    source_access = "unlabelled"
    warmup_access = "labelled"
    stream_only = frozenset(
        {"std_weight", "source_samples", "entropy_filter", "statistics_model", "chunks"}
        | {"stats_preproc", "entropy_limit"}
        | {"single_image", "faithful", "two_pass", "stages", "source_moments"}
    )

    class Hyperparameters(AlignmentHyperparameters):
        """Hyper-parameters of the alignment."""

    @staticmethod
    def adapter(weight: Tensor, hp: Any) -> WeightAdapter:
        """The adapter of a frozen weight [out, in]; a subclass defines it."""
        raise MethodError("an alignment method must define adapter(weight, hp).")

    def setup(self) -> None:
        """Inject adapters into the selected layers; only they are trained."""
        hp = self.hp
        self.aligned.check(asked_by=self.title)
        parameters = inject(
            self.model,
            hp.layers,
            lambda weight: self.adapter(weight, hp),
            skip_last_blocks=hp.skip_last_blocks,
            by=self.title,
        )
        self.adapt_only(parameters)
        self.optimizer = self.build_optimizer()

    def prepare(self, source: Any) -> None:
        """Statistics of the features of source images, by default of the source weights.

        Both the paper of PAID and its code use the source weights, also after a warm-up.
        """
        of_source = self.hp.statistics_model == "source"
        facts = {
            "samples": self.hp.source_samples,
            "entropy_filter": self.hp.entropy_filter,
            "adapters": "" if of_source else fingerprint(nn.ParameterDict(self._plain_names())),
        } | self.aligned.facts()
        if self.hp.entropy_limit is not None:
            facts["entropy_limit"] = self.hp.entropy_limit
        normalised = self.hp.stats_preproc == "official"
        if normalised:
            facts["normalised"] = self.model.trained_preprocessing().record()

        def make() -> list[SourceStatistics]:
            return self.aligned.statistics(source, lambda x: self.features_and_logits(x)[0])

        with (
            adapters_disabled(self.model) if of_source else contextlib.nullcontext(),
            self.model.with_trained_preprocessing() if normalised else contextlib.nullcontext(),
        ):
            self.sources = cached_statistics_of_maps(source, facts, make, self.model.mean)
        self.source_used = self.sources[0].images
        self.runnings = [
            RunningMoments(source) if self.hp.single_image == "ema" else None
            for source in self.sources
        ]

    def _plain_names(self) -> dict[str, nn.Parameter]:
        return {name.replace(".", "/"): value for name, value in self.trainable.items()}

    @property
    def aligned(self) -> ImageFeatures | StageFeatures:
        """The aligned features of a model of this task."""
        return FEATURES[self.model.task](self.model, self.hp)

    @property
    def source_statistics(self) -> SourceStatistics:
        """The source statistics; with several aligned stages, of the first."""
        return self.sources[0]

    @property
    def running_moments(self) -> RunningMoments | None:
        """The running moments of the same features; None unless `single_image` is "ema"."""
        return self.runnings[0]

    def adapt(self, images: Tensor) -> Tensor:
        """Deprecated: the step of methods written for 0.1.0."""
        warnings.warn(
            f"{self.title} inherits adapt from AlignmentMethod, which will be removed in "
            "0.3.0; define adapt in the class itself, as methods/paid.py does.",
            FutureWarning,
            stacklevel=2,
        )
        return self.adapt_in_chunks(images)

    # -- steps for `adapt`

    def features_and_logits(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        """Features with gradient to the adapters, and logits without, by one forward pass.

        Features: [n, d] for classification; for segmentation the positions [n·h·w, d] of each
        aligned stage.
        """
        return self.aligned.features_and_logits(images)

    def distance(self, features: Sequence[Tensor]) -> Tensor:
        """‖μ_t - μ_s‖₂ + λ ‖σ_t - σ_s‖₂ of features, summed over stages: a scalar."""
        losses = [self.distance_of(*place) for place in enumerate(features)]
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

    def distance_of(self, place: int, features: Tensor) -> Tensor:
        """The distance of the features [n, d] of stage number `place`."""
        source, running = self.sources[place], self.runnings[place]
        if running is not None and not self.hp.faithful:
            mean, std = running.update_statistics(features)
            if len(features) < 2:
                return moment_distance(mean, std, source, self.hp.std_weight)
        single: Any = "nan" if self.hp.faithful else self.hp.single_image
        return alignment_loss(features, source, self.hp.std_weight, single=single)

    def adapt_in_chunks(self, images: Tensor) -> Tensor:
        """One step with the gradients of all `chunks` of a batch; returns logits from before it."""
        chunks = images.chunk(self.hp.chunks)
        with cached_weights(self.model) if len(chunks) > 1 else contextlib.nullcontext():
            whole = self.hp.two_pass and len(chunks) > 1
            scored, finite = self.two_passes(chunks) if whole else self.one_pass(chunks)
        if finite:
            self.optimizer_step(guard=not self.hp.faithful)
        return scored

    def one_pass(self, chunks: Sequence[Tensor]) -> tuple[Tensor, bool]:
        """Logits, and whether all losses were finite; each chunk has its own statistics."""
        divisor = self.hp.chunks if self.hp.faithful else len(chunks)
        scored, finite = [], True
        for chunk in chunks:
            features, logits = self.features_and_logits(chunk)
            scored.append(logits)
            finite = finite and self.backward(
                self.distance(features) / divisor, guard=not self.hp.faithful
            )
        return torch.cat(scored), finite

    def two_passes(self, chunks: Sequence[Tensor]) -> tuple[Tensor, bool]:
        """The same with the statistics of the whole batch.

        The first pass computes all features and the gradient of the loss with respect to them; the
        second propagates it through the network chunk by chunk.
        """
        with torch.no_grad():
            first = [self.features_and_logits(chunk) for chunk in chunks]
        whole = [torch.cat(of_place) for of_place in zip(*(f for f, _ in first), strict=True)]
        loss = self.distance([features.requires_grad_() for features in whole])
        upstream = torch.autograd.grad(loss, whole)
        split = [
            gradient.split([len(features[place]) for features, _ in first])
            for place, gradient in enumerate(upstream)
        ]
        finite = True
        for chunk, *gradients in zip(chunks, *split, strict=True):
            features, _ = self.features_and_logits(chunk)
            carried = torch.stack(
                [(f * g).sum() for f, g in zip(features, gradients, strict=True)]
            ).sum()
            finite = finite and self.backward(carried, guard=not self.hp.faithful)
        self.loss = loss.detach()
        return torch.cat([logits for _, logits in first]), finite
