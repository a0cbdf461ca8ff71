"""PAID (Wang et al., NeurIPS 2025, arXiv:2506.02453): rotate all neurons of a layer together, and
scale each.

Official code: wangkunyu241/PAID. W = m ⊙ Ŵ by rows (neurons); W_eff = m ⊙ (Ŵ O), where O = H_1 ...
H_r is a chain of Householder reflections of the *input* space, which preserves all angles between
neurons. (The paper's formula has O on the other side, its code does not; `side: output` follows the
formula: then O mixes neurons and preserves no angle between them.) O is computed in the compact WY
form O = I - U T⁻¹ Uᵀ with T = striu(UᵀU) + ½ diag(UᵀU). Only m and U learn, by aligning mean and
deviation of the batch's features with those of the source.

Differs from the official code, unless `faithful: true`: a chunk of one image leaves the deviation
term out (theirs becomes NaN for the rest of the run), and the loss of a batch in chunks is divided
by the number of chunks that exist (theirs always by the configured number).
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ctta_bench.method import NEWER
from ctta_bench.parts.adapters.injected import InjectedLinear
from ctta_bench.parts.adapters.weights import Factors, WeightAdapter
from ctta_bench.parts.families.alignment import AlignmentHyperparameters, AlignmentMethod
from ctta_bench.registry import METHODS

PUBLISHED = {"vectors": "hra_u", "magnitude": "m"}  # names in the official code, by ours
Component = Literal[
    "magnitude", "direction", "orthogonal", "magnitude_direction", "magnitude_orthogonal"
]
Side = Literal["input", "output"]
Rotation = tuple[Tensor, Tensor]


class DecomposedWeight(WeightAdapter):
    """m ⊙ direction, where the direction is frozen, free, or rotated as a whole.

    weight: [out, in]. Parameters by component: `magnitude` [out, 1], `vectors` U [in, r] ([out, r]
    for a rotation on the output side), `direction` V [out, in] (its rows are normalised before
    use). `chained` multiplies by one reflection after another, as the official code does: the same
    result, slower, for comparison.
    """

    def __init__(
        self,
        weight: Tensor,
        component: Component,
        rank: int,
        paired: bool,
        side: Side = "input",
    ) -> None:
        super().__init__()
        self.register_frozen_weight(weight)
        self.norm: Tensor
        norm = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
        self.register_buffer("norm", positive(norm), persistent=False)
        self.magnitude = nn.Parameter(norm) if "magnitude" in component else None
        self.direction = nn.Parameter(weight / self.norm) if "direction" in component else None
        self.vectors: nn.Parameter | None = None
        if "orthogonal" in component:
            columns = rank // 2 if paired else rank
            width = weight.shape[1 if side == "input" else 0]
            start = torch.empty(width, columns, dtype=weight.dtype, device=weight.device)
            nn.init.kaiming_uniform_(start, a=5**0.5)
            # Equal neighbours cancel, as H H = I: the start is the source model itself.
            self.vectors = nn.Parameter(start.repeat_interleave(2, 1) if paired else start)
        self.side = side
        self.chained = False
        self.ready: Rotation | None = None

    def factors(self) -> Factors | None:
        """c = m / ‖W‖, and P = W U and Q = -T⁻¹ Uᵀ of the rotation; None for a free direction."""
        if self.direction is not None or self.chained:
            return None
        scale = None if self.magnitude is None else self.magnitude / self.norm
        if self.vectors is None:
            return Factors(scale)
        unit, down = self.ready or rotation(self.vectors)
        if self.side == "output":  # O Ŵ, with its rows scaled to the norms of W
            return Factors(scale, self.norm * unit.T, down @ self.unit_neurons())
        return Factors(scale, (unit @ self.weight.T).T, down)

    def forward(self) -> Tensor:
        """W_eff [out, in]."""
        if self.direction is None and not self.chained:
            return super().forward()
        with torch.autocast(self.weight.device.type, enabled=False):
            weight = self.unit_neurons()
            if self.vectors is not None:
                unit = unit_rows(self.vectors)
                mirrored = self.side == "output"  # O Ŵ is the transpose of Ŵᵀ Oᵀ
                weight = (
                    reflected(weight.T, unit.flip(0)).T if mirrored else reflected(weight, unit)
                )
            return (self.norm if self.magnitude is None else self.magnitude) * weight

    def unit_neurons(self) -> Tensor:
        """Ŵ [out, in], the unrotated directions of the neurons; rows of zeros stay zero."""
        if self.direction is None:
            return self.weight / self.norm
        norm = torch.linalg.vector_norm(self.direction, dim=1, keepdim=True)
        return self.direction / positive(norm)


def positive(norm: Tensor) -> Tensor:
    """Norms with a lower limit, for division."""
    return norm.clamp_min(torch.finfo(norm.dtype).tiny)


def unit_rows(vectors: Tensor) -> Tensor:
    """The columns of U [..., in, r] as rows [..., r, in] of length 1.

    The reflections do not depend on the lengths, and T is best conditioned for unit vectors.
    Products with few rows are twice as fast as with few columns.
    """
    rows = vectors.mT.contiguous()
    return rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min(1e-12)


def rotation(vectors: Tensor) -> Rotation:
    """Unit vectors Uᵀ and -T⁻¹ Uᵀ, both [..., r, in], of O = H_1 ... H_r = I - U T⁻¹ Uᵀ."""
    unit = unit_rows(vectors)
    # 2 T has a diagonal of ones, as lengths are 1; only what is above the diagonal is read.
    doubled = 2 * (unit @ unit.mT)
    down = torch.linalg.solve_triangular(doubled, -2 * unit, upper=True, unitriangular=True)
    return unit, down


@contextlib.contextmanager
def rotated_together(weights: Iterable[DecomposedWeight]) -> Iterator[None]:
    """Within the block (one forward pass), rotations of equal shape are computed together.

    They are small and many: one by one, most of the time would be overhead of torch's calls.
    """
    by_shape: dict[torch.Size, list[DecomposedWeight]] = {}
    for weight in weights:
        if weight.vectors is not None:
            by_shape.setdefault(weight.vectors.shape, []).append(weight)
    for group in by_shape.values():
        stacked = torch.stack([w.vectors for w in group if w.vectors is not None])
        with torch.autocast(stacked.device.type, enabled=False):
            units, downs = rotation(stacked)
        for weight, unit, down in zip(group, units, downs, strict=True):
            weight.ready = (unit, down)
    try:
        yield
    finally:
        for group in by_shape.values():
            for weight in group:
                weight.ready = None


def reflected(neurons: Tensor, unit: Tensor) -> Tensor:
    """neurons [out, in] times H_1 ... H_r, one reflection after another; unit: [r, in]."""
    for vector in unit:
        neurons = neurons - 2 * torch.outer(neurons @ vector, vector)
    return neurons


@METHODS.register_module("paid")
class PAID(AlignmentMethod):
    """Alignment of features by scaling neurons and rotating them together."""

    display_name = "PAID"
    year = 2025
    venue = "NeurIPS"
    citation = "wang2025paid"
    adapts_layers = "scale and joint rotation of linear layers"
    losses = "distance of feature moments to the source's"
    extra_memory = "source statistics"
    paper = "https://arxiv.org/abs/2506.02453"
    checked_against = "official code"
    passes_per_image = (1, 1)
    source_access = "unlabelled"
    warmup_access = "labelled"
    tasks = frozenset({"classification", "segmentation"})

    class Hyperparameters(AlignmentHyperparameters):
        """Hyper-parameters of PAID; `lr` is that of m and U."""

        rank: int = Field(12, ge=1, description="r, number of reflections")
        component: Component = Field("magnitude_orthogonal", description="what learns")
        paired_init: bool = Field(True, description="equal pairs of columns: start at the identity")
        side: Side = Field(
            "input",
            description="side of O: input as in the code, output as in the paper's formula",
            json_schema_extra=NEWER,
        )

        def model_post_init(self, _: Any) -> None:
            """Raises ValueError for an odd rank: its columns cannot be equal pairs."""
            if self.paired_init and self.rank % 2 and "orthogonal" in self.component:
                raise ValueError(f"rank must be even with paired_init, not {self.rank}")

    @staticmethod
    def adapter(weight: Tensor, hp: Any) -> DecomposedWeight:
        """Decompose a weight; `component` chooses whether m, U or V learn."""
        return DecomposedWeight(weight, hp.component, hp.rank, hp.paired_init, hp.side)

    def adapt(self, images: Tensor) -> Tensor:
        """One step on the alignment loss; returns the logits from before the step."""
        if self.hp.chunks > 1:
            return self.adapt_in_chunks(images)
        features, logits = self.features_and_logits(images)
        loss = self.distance(features)  # ‖μ_t - μ_s‖₂ + λ ‖σ_t - σ_s‖₂
        self.step(loss, guard=not self.hp.faithful)  # of m and U only
        return logits

    def features_and_logits(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        """Features with gradient, and logits, of one forward pass."""
        with rotated_together(weight for _, weight in self.directions()):
            return super().features_and_logits(images)

    def published_names(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        """Of PAID's code: `LAYER.ROLE.hra_u`, `.m`, `.unit_w` and `.bias` in adapted layers."""
        learnt = {}
        for ours in self.trainable:
            layer, _, kind = ours.rpartition(".")
            learnt[f"{layer}.{PUBLISHED[kind]}"] = ours
        layers = {
            name: module
            for name, module in self.model.network.named_modules()
            if isinstance(module, InjectedLinear)
        }
        source: dict[str, Tensor] = {}
        for name, tensor in self.model.network.state_dict().items():
            layer, _, kind = name.rpartition(".")
            if layer not in layers:
                source |= {name: tensor} if ".adapters." not in name else {}
                continue
            roles = layers[layer].roles
            for role, rows in zip(roles, tensor.chunk(len(roles)), strict=True):
                place = f"{layer}.{role}" if len(roles) > 1 else layer
                if kind == "weight":
                    norm = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
                    source[f"{place}.unit_w"] = rows / positive(norm)
                else:
                    source[f"{place}.{kind}"] = rows
        return learnt, source

    def directions(self) -> Iterator[tuple[str, DecomposedWeight]]:
        """The decomposed weights by name, for the analysis of their geometry."""
        for name, module in self.model.network.named_modules():
            if isinstance(module, DecomposedWeight):
                yield name, module
