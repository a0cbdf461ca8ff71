"""EcoTTA (Song et al., CVPR 2023, arXiv:2303.01904): small meta parts around a frozen encoder.

No official code; checked against the community's (Lily-Le/EcoTTA, convolutional networks only).
The encoder is cut into K parts F_k. On a convolutional network each of its stages is a part, with
x̃_k = BN(F_k(x̃_{k-1})) + ReLU(BN(Conv(x̃_{k-1}))). A transformer's form is ours, for none was ever
published: x̃_k = a ⊙ F_k(x̃_{k-1}) + b + c ⊙ ReLU(LN(W x̃_{k-1})), with a = 1, b = 0 and c = 0 at the
start, which is the source model to the bit. On a convolutional network the meta parts start at
random, and so need the warm-up. On segmentation, ours too, a part is a stage of the encoder, whose
width and map change inside: W sees F_k(x̃_{k-1}) itself; BatchNorm keeps the source's statistics.

The loss is the entropy of the images, or pixels, below 0.4 ln C plus λ Σ R_k, where R_k is the
mean absolute distance of x̃_k from F_k(x̃_{k-1}); R_k moves its own part alone. The paper takes one
step on both; the community's code one on each, and scores the pass between them (`steps: two`).

Differs from the community's code, unless `faithful: true`: an empty selection moves nothing (theirs
takes a momentum step), and stored BatchNorm statistics, which nothing reads, stay as they are.
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

PROBE_SIDE = 64  # images that only show the shapes, where the model has no size of its own
GATE_WITH_WARMUP = 1e-2


class TokenMeta(nn.Module):
    """a ⊙ F(x) + b + c ⊙ ReLU(LN(W x)) on tokens [n, t, width]; d² + 5d parameters."""

    def __init__(self, width: int, gate: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        # The gate starts at nought, not the norm's scale: ReLU'(0) = 0 would close it for ever.
        self.gate = nn.Parameter(torch.full((width,), gate))
        self.linear = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, output: Tensor, entered: Tensor) -> Tensor:
        """The part's adapted output, from its frozen one and what entered it."""
        branch = relu(self.norm(self.linear(entered)))
        return self.scale * output + self.shift + self.gate * branch


class StageMeta(TokenMeta):
    """The same on maps [n, width, h, w] of a stage: a ⊙ F(x) + b + c ⊙ ReLU(LN(W F(x)))."""

    def forward(self, output: Tensor, entered: Tensor) -> Tensor:
        """The stage's adapted output, from its frozen one alone."""
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
        """The part's adapted output, from its frozen one and what entered it."""
        return self.norm(output) + relu(self.conv_norm(self.conv(entered)))


@METHODS.register_module("ecotta")
class EcoTTA(Method):
    """Entropy minimisation over meta parts around a frozen encoder, held near its outputs."""

    display_name = "EcoTTA"
    year = 2023
    venue = "CVPR"
    citation = "song2023ecotta"
    adapts_layers = "meta networks around a frozen encoder"
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

        lr: float = Field(5e-3, ge=0, description="learning rate of the meta parts")
        parts: int = Field(6, ge=1, description="K on a transformer, at most its blocks")
        regularizer: float = Field(0.5, ge=0, description="λ of the distance to frozen outputs")
        margin: float = Field(0.4, ge=0, description="H0 as a share of ln C: kept below it")
        steps: Literal["joint", "two"] = Field(
            "joint", description="one step on both losses, or the community code's two"
        )
        grad_through_frozen: bool = Field(
            True, description="whether gradients cross frozen blocks, or the meta parts alone"
        )
        warmup_epochs: int = Field(0, ge=0, description="epochs on source labels")
        warmup_lr: float = Field(1e-4, ge=0, description="AdamW's learning rate in the warm-up")
        warmup_batch_size: int = Field(64, ge=1, description="batch size of the warm-up")
        faithful: bool = Field(False, description="reproduce the faults of the community's code")

    def setup(self) -> None:
        """Cut the encoder into parts and put a meta part around each."""
        ends = encoder_segments(self.model, self.hp.parts, asked_by="EcoTTA")
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
        """Let two blank images show the parts what shapes enter and leave them."""
        side = self.model.preprocessing.size or (PROBE_SIDE, PROBE_SIDE)
        self.model(self.model.mean.new_zeros(2, 3, *side))

    def use_statistics_of_the_batch(self) -> None:
        """For frozen BatchNorms; only the faithful form goes on moving what they have stored."""
        if self.hp.faithful:
            norms = [m for m in self.model.network.modules() if isinstance(m, BATCH_NORMS)]
            self.batch_dependent = bool([norm.train() for norm in norms])
        else:
            self.batch_dependent = self.model.use_batch_statistics()

    def meta_of(
        self, segment: Segment, first: nn.Module, last: nn.Module, *, convolutional: bool
    ) -> nn.Module:
        """The meta part of a stage, or of a run of blocks of one width, that of their norms."""
        if convolutional:
            return self.map_meta(segment)
        norm = next(m for m in first.modules() if isinstance(m, nn.LayerNorm))
        return TokenMeta(*self.sizes(norm))

    def sizes(self, norm: nn.Module) -> tuple[int, float]:
        """Width, that of a norm layer, and first gate of a meta part."""
        assert isinstance(norm, nn.LayerNorm)
        return norm.normalized_shape[-1], GATE_WITH_WARMUP if self.hp.warms_up else 0.0

    def map_meta(self, segment: Segment) -> MapMeta:
        """The meta part of a convolutional stage, of the shapes that the probe showed."""
        (_, inputs, _, before), (_, outputs, _, after) = segment.shapes
        return MapMeta(inputs, outputs, round(before / after), track=self.hp.faithful)

    def adapt(self, images: Tensor) -> Tensor:
        """One step on entropy and distances; returns the logits from before it."""
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
        # The first pass back crosses the meta parts alone, where nothing counts it.
        self.passes.backward_images += len(images)
        if not self.update(self.distance()):
            return logits
        logits = self.model(images)
        self.update(self.entropy(logits))
        return logits

    def entropy(self, logits: Tensor) -> Tensor:
        """Mean entropy of the images, or pixels, below H0; nan if there are none."""
        entropy = softmax_entropy(self.model.rows(logits))
        return entropy[entropy < self.margin].mean()

    def distance(self) -> Tensor:
        """λ Σ R_k of the forward pass before."""
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
        """The parts, in order."""
        return [segment for segment in self.parts if isinstance(segment, Segment)]

    def update(self, loss: Tensor) -> bool:
        """One guarded step; the community's code has no guard."""
        guard = not self.hp.faithful
        return self.backward(loss, guard=guard) and self.optimizer_step(guard=guard)


class EcoTTAMaps(EcoTTA):
    """On segmentation: a part is a stage of the encoder."""

    def use_statistics_of_the_batch(self) -> None:
        """Nothing: BatchNorm keeps the source's statistics."""

    def meta_of(
        self, segment: Segment, first: nn.Module, last: nn.Module, *, convolutional: bool
    ) -> nn.Module:
        """The meta part of a stage, of the width of its last norm."""
        return StageMeta(*self.sizes(last.get_submodule("norm")))
