"""EcoTTA (Song et al., CVPR 2023, arXiv:2303.01904): small meta networks around a frozen encoder.

No official code; checked against the community's (Lily-Le/EcoTTA, convolutional networks only). The
encoder is split into K segments F_k, each with a meta network. On a convolutional network each
stage is a segment: x̃_k = BN(F_k(x̃_{k-1})) + ReLU(BN(Conv(x̃_{k-1}))). No form for transformers
was published; ours is x̃_k = a ⊙ F_k(x̃_{k-1}) + b + c ⊙ ReLU(LN(W x̃_{k-1})), with a = 1, b = 0
and c = 0 at the start, which is exactly the source model. On a convolutional network the meta
networks start at random, so they need the warm-up. On segmentation (also ours) a segment is a stage
of the encoder, inside which width and map size change: W takes F_k(x̃_{k-1}) itself, and BatchNorm
uses the source statistics.

The loss is the entropy of the images, or pixels, below 0.4 ln C, plus λ Σ R_k, where R_k is the
mean absolute distance of x̃_k from F_k(x̃_{k-1}); R_k updates its own segment only. The paper makes
one step on both; the community's code makes one step on each, and scores the pass between them
(`steps: two`).

Differs from the community's code, unless `faithful: true`: an empty selection makes no update
(theirs makes a momentum step), and stored BatchNorm statistics, which are not used, do not change.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import relu

from ctta_bench.method import (
    Method,
    OptimizerHyperparameters,
    WarmupHyperparameters,
    softmax_entropy,
)
from ctta_bench.model import BATCH_NORMS
from ctta_bench.parts.encoder import Segment, encoder_segments, is_stage
from ctta_bench.registry import METHODS

PROBE_SIDE = 64  # of images that give the shapes, if the model has no input size
GATE_WITH_WARMUP = 1e-2


class TokenMeta(nn.Module):
    """a ⊙ F(x) + b + c ⊙ ReLU(LN(W x)) on tokens [n, t, width]; d² + 5d parameters."""

    def __init__(self, width: int, gate: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        # The gate starts at 0, not the norm's scale: as ReLU'(0) = 0, that would stay 0.
        self.gate = nn.Parameter(torch.full((width,), gate))
        self.linear = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, output: Tensor, entered: Tensor) -> Tensor:
        """The segment's adapted output, from its frozen output and its input."""
        branch = relu(self.norm(self.linear(entered)))
        return self.scale * output + self.shift + self.gate * branch


class StageMeta(TokenMeta):
    """The same on maps [n, width, h, w] of a stage: a ⊙ F(x) + b + c ⊙ ReLU(LN(W F(x)))."""

    def forward(self, output: Tensor, entered: Tensor) -> Tensor:
        """The stage's adapted output, from its frozen output only."""
        places = output.movedim(1, -1)
        return super().forward(places, places).movedim(-1, 1)


class MapMeta(nn.Module):
    """BN(F(x)) + ReLU(BN(Conv(x))) on feature maps [n, channels, h, w]."""

    def __init__(self, inputs: int, outputs: int, stride: int, track: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(outputs, track_running_stats=track)
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv_norm = nn.BatchNorm2d(outputs, track_running_stats=track)

    def forward(self, output: Tensor, entered: Tensor) -> Tensor:
        """The segment's adapted output, from its frozen output and its input."""
        return self.norm(output) + relu(self.conv_norm(self.conv(entered)))


@METHODS.register_module("ecotta")
class EcoTTA(Method):
    """Entropy minimisation over meta networks around a frozen encoder, close to its outputs."""

    display_name = "EcoTTA"
    year = 2023
    venue = "CVPR"
    citation = "song2023ecotta"
    adapts_layers = "meta networks around a frozen encoder"
    losses = "entropy of certain images, distance to the encoder's features"
    extra_memory = "meta networks"
    paper = "https://arxiv.org/abs/2303.01904"
    checked_against = "second implementation (no official one)"
    warmup_access = "labelled"
    stream_only = frozenset({"regularizer", "margin", "steps"})
    tasks = frozenset({"classification", "segmentation"})
    segmentation_form = "EcoTTAMaps"
    passes_per_image = (1, 1)
    search_space = {"lr": (1e-5, 1e-1)}
    checked_with = {"margin": 1.1}  # every image is below it

    class Hyperparameters(OptimizerHyperparameters, WarmupHyperparameters):
        """Hyper-parameters of EcoTTA."""

        lr: float = Field(5e-3, ge=0, description="learning rate of the meta networks")
        parts: int = Field(6, ge=1, description="K, segments of a transformer; at most its blocks")
        regularizer: float = Field(0.5, ge=0, description="λ of the distance to the frozen outputs")
        margin: float = Field(0.4, ge=0, description="H0 as a share of ln C: used below it")
        steps: Literal["joint", "two"] = Field(
            "joint", description="one step on both losses, or one on each as the community's code"
        )
        grad_through_frozen: bool = Field(
            True, description="gradients pass frozen blocks; false: the meta networks only"
        )
        warmup_epochs: int = Field(0, ge=0, description="warm-up epochs on labelled source data")
        warmup_lr: float = Field(1e-4, ge=0, description="AdamW's learning rate in the warm-up")
        warmup_batch_size: int = Field(64, ge=1, description="batch size of the warm-up")
        faithful: bool = Field(False, description="reproduce the faults of the community's code")

    def setup(self) -> None:
        """Split the encoder into segments and add a meta network to each."""
        ends = encoder_segments(self.model, self.hp.parts, asked_by=self.title)
        self.parts = nn.ModuleList(Segment(first, last) for first, last in ends)
        convolutional = is_stage(ends[0][0])
        if convolutional:
            self.probe()
        self.use_statistics_of_the_batch()
        for segment, (first, last) in zip(self.each_segment(), ends, strict=True):
            meta = self.meta_of(segment, first, last, convolutional=convolutional)
            segment.meta = meta.to(self.model.mean)
            segment.through_frozen = self.hp.grad_through_frozen
        self.adapt_only(dict(self.parts.named_parameters()))
        self.optimizer = self.build_optimizer()
        self.margin = self.hp.margin * math.log(self.model.num_classes)

    @torch.no_grad()
    def probe(self) -> None:
        """Pass two blank images: the segments record the shapes of inputs and outputs."""
        side = self.model.preprocessing.size or (PROBE_SIDE, PROBE_SIDE)
        self.model(self.model.mean.new_zeros(2, 3, *side))

    def use_statistics_of_the_batch(self) -> None:
        """In frozen BatchNorms; their stored statistics change only with `faithful`."""
        if self.hp.faithful:
            norms = [m for m in self.model.network.modules() if isinstance(m, BATCH_NORMS)]
            self.batch_dependent = bool([norm.train() for norm in norms])
        else:
            self.batch_dependent = self.model.use_batch_statistics()

    def meta_of(
        self, segment: Segment, first: nn.Module, last: nn.Module, *, convolutional: bool
    ) -> nn.Module:
        """The meta network of a stage, or of successive blocks, with the width of their norms."""
        if convolutional:
            return self.map_meta(segment)
        norm = next(m for m in first.modules() if isinstance(m, nn.LayerNorm))
        return TokenMeta(*self.sizes(norm))

    def sizes(self, norm: nn.Module) -> tuple[int, float]:
        """Width (of the norm layer) and initial gate of a meta network."""
        assert isinstance(norm, nn.LayerNorm)
        return norm.normalized_shape[-1], GATE_WITH_WARMUP if self.hp.warms_up else 0.0

    def map_meta(self, segment: Segment) -> MapMeta:
        """The meta network of a convolutional stage, with the shapes that the probe recorded."""
        (_, inputs, _, before), (_, outputs, _, after) = segment.shapes
        return MapMeta(inputs, outputs, round(before / after), track=self.hp.faithful)

    def adapt(self, images: Tensor) -> Tensor:
        """One step on entropy and distances; returns the logits from before the step."""
        if self.hp.steps == "two":
            return self.adapt_in_two_steps(images)
        with self.measuring():
            logits = self.model(images)
        self.update(self.entropy(logits) + self.distance())
        return logits

    def adapt_in_two_steps(self, images: Tensor) -> Tensor:
        """A step on the distances, then one on the entropy; returns the logits between them."""
        with self.measuring(), torch.no_grad():
            logits = self.model(images)
        # The first backward pass goes through the meta networks only, where it is not counted.
        self.passes.backward_images += len(images)
        if not self.update(self.distance()):
            return logits
        logits = self.model(images)
        self.update(self.entropy(logits))
        return logits

    def entropy(self, logits: Tensor) -> Tensor:
        """Mean entropy of the images, or pixels, below H0; NaN if there are none."""
        entropy = softmax_entropy(self.model.rows(logits))
        return entropy[entropy < self.margin].mean()

    def distance(self) -> Tensor:
        """λ Σ R_k of the last forward pass."""
        total = torch.zeros((), device=self.device)
        for segment in self.each_segment():
            assert segment.distance is not None
            total = total + segment.distance
            segment.distance = None
        return self.hp.regularizer * total

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Within the block every forward pass measures its distances from the frozen outputs."""
        for segment in self.each_segment():
            segment.measuring = True
        try:
            yield
        finally:
            for segment in self.each_segment():
                segment.measuring = False

    def each_segment(self) -> list[Segment]:
        """The segments, in order."""
        return [segment for segment in self.parts if isinstance(segment, Segment)]

    def update(self, loss: Tensor) -> bool:
        """One guarded step; the community's code has no guard."""
        guard = not self.hp.faithful
        return self.backward(loss, guard=guard) and self.optimizer_step(guard=guard)


class EcoTTAMaps(EcoTTA):
    """Segmentation: a segment is a stage of the encoder."""

    def use_statistics_of_the_batch(self) -> None:
        """Do nothing: BatchNorm uses the source statistics."""

    def meta_of(
        self, segment: Segment, first: nn.Module, last: nn.Module, *, convolutional: bool
    ) -> nn.Module:
        """The meta network of a stage, with the width of its last norm."""
        return StageMeta(*self.sizes(last.get_submodule("norm")))
