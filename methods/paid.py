"""PAID (Wang et al., NeurIPS 2025): rotate all neurons of a layer together, and scale each.

Official code: wangkunyu241/PAID. W = m ⊙ Ŵ by rows (neurons); W_eff = m ⊙ (Ŵ O) with
O = H_1 ... H_r a chain of Householder reflections of the *input* space, which keeps all angles
between neurons (the paper's formula puts O on the other side, its code does not). O is computed
in the compact WY form O = I - U T⁻¹ Uᵀ with T = striu(UᵀU) + ½ diag(UᵀU). Only m and U learn, by
aligning the batch's feature mean and deviation with the source's.

Differs from the official code, unless `faithful: true`: a part of one image leaves the deviation
term out (theirs becomes NaN for good), and the loss of a batch in parts is divided by the number
of parts there are (theirs always by the number asked for).
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ctta_bench.alignment import AlignmentHyperparameters, AlignmentMethod
from ctta_bench.injection import WeightAdapter
from ctta_bench.registry import METHODS

Component = Literal[
    "magnitude", "direction", "orthogonal", "magnitude_direction", "magnitude_orthogonal"
]


class DecomposedWeight(WeightAdapter):
    """m ⊙ direction, where the direction is frozen, free, or rotated as a whole.

    weight: [out, in]. Parameters by component: `magnitude` [out, 1], `vectors` U [in, r],
    `direction` V [out, in] (used with its rows normalised).
    """

    def __init__(self, weight: Tensor, component: Component, rank: int, paired: bool) -> None:
        super().__init__()
        self.magnitude: Tensor
        self.direction: Tensor
        norm = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
        direction = weight / norm.clamp_min(torch.finfo(weight.dtype).tiny)
        self._store("magnitude", norm, learn="magnitude" in component)
        self._store("direction", direction, learn="direction" in component)
        self.vectors: nn.Parameter | None = None
        if "orthogonal" in component:
            columns = rank // 2 if paired else rank
            start = torch.empty(weight.shape[1], columns, dtype=weight.dtype, device=weight.device)
            nn.init.kaiming_uniform_(start, a=5**0.5)
            # Equal neighbours cancel, H H = I: the start is the source model itself.
            self.vectors = nn.Parameter(start.repeat_interleave(2, 1) if paired else start)

    def _store(self, name: str, value: Tensor, *, learn: bool) -> None:
        if learn:
            setattr(self, name, nn.Parameter(value.clone()))
        else:
            self.register_buffer(name, value, persistent=False)

    def forward(self) -> Tensor:
        """W_eff [out, in]."""
        direction = self.direction
        if isinstance(direction, nn.Parameter):
            norm = torch.linalg.vector_norm(direction, dim=1, keepdim=True)
            direction = direction / norm.clamp_min(torch.finfo(norm.dtype).tiny)
        if self.vectors is not None:
            direction = rotate(direction, self.vectors)
        return self.magnitude * direction


def rotate(direction: Tensor, vectors: Tensor) -> Tensor:
    """direction [out, in] times H_1 ... H_r, reflections across the columns of vectors [in, r]."""
    with torch.autocast(direction.device.type, enabled=False):
        # The reflections do not depend on the columns' lengths; unit ones condition T best.
        unit = vectors / torch.linalg.vector_norm(vectors, dim=0).clamp_min(1e-12)
        gram = unit.T @ unit
        t = torch.triu(gram, 1) + 0.5 * torch.diag(torch.diagonal(gram))
        return direction - (direction @ unit) @ torch.linalg.solve_triangular(t, unit.T, upper=True)


@METHODS.register_module("paid")
class PAID(AlignmentMethod):
    """Alignment of features by scaling neurons and rotating them together."""

    paper = "https://neurips.cc/virtual/2025 (PAID)"
    checked_against = "official code"
    passes_per_image = (1, 1)
    source_access = "unlabelled"

    class Hyperparameters(AlignmentHyperparameters):
        """Hyper-parameters of PAID; `lr` is that of m and U."""

        rank: int = Field(12, ge=1, description="r, number of reflections")
        component: Component = Field("magnitude_orthogonal", description="what learns")
        paired_init: bool = Field(True, description="equal pairs of columns: start at identity")

        def model_post_init(self, _: Any) -> None:
            """An odd number of columns cannot be made of equal pairs."""
            if self.paired_init and self.rank % 2 and "orthogonal" in self.component:
                raise ValueError(f"rank must be even with paired_init, not {self.rank}")

    @staticmethod
    def adapter(weight: Tensor, hp: Any) -> DecomposedWeight:
        """Decompose a weight; m, U or V learn as the component says."""
        return DecomposedWeight(weight, hp.component, hp.rank, hp.paired_init)

    def directions(self) -> Iterator[tuple[str, DecomposedWeight]]:
        """The decomposed weights by name, for the analysis of their geometry."""
        for name, module in self.model.network.named_modules():
            if isinstance(module, DecomposedWeight):
                yield name, module
