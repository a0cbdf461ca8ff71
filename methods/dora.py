"""DoRA (Liu et al., ICML 2024, arXiv:2402.09353), trained by PAID's alignment: a control of PAID.

V = W + s B A and W_eff = m ⊙ V / ‖V‖ by rows (neurons), with m, A and B learning. Same layers,
loss, source statistics and step as PAID; only the adapter differs. The paper of PAID gives this
control's error and none of its settings, and its code does not hold it: rank 6 has exactly as many
values as PAID's 12 reflections. The adapter is that of huggingface/peft, where no gradient passes
through ‖V‖ (DoRA, section 4.3); it differs in that norms have a floor: a neuron of zeros makes no
NaN.
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ctta_bench.alignment import AlignmentHyperparameters, AlignmentMethod
from ctta_bench.injection import LowRankWeight
from ctta_bench.registry import METHODS

NORM_FLOOR = 1e-12


class DecomposedLowRankWeight(LowRankWeight):
    """m ⊙ V / ‖V‖ with V = W + s B A; weight [out, in], `magnitude` m [out, 1] starts at ‖W‖."""

    def __init__(self, weight: Tensor, rank: int, scale: float, detach_norm: bool) -> None:
        super().__init__(weight, rank, scale)
        self.detach_norm = detach_norm
        self.magnitude = nn.Parameter(row_norm(weight))

    def forward(self) -> Tensor:
        """W_eff [out, in]: at the start W to the bit, for m / ‖W‖ is 1 in every row."""
        direction = super().forward()
        norm = row_norm(direction.detach() if self.detach_norm else direction)
        return self.magnitude / norm * direction


def row_norm(weight: Tensor) -> Tensor:
    """Euclidean norms [out, 1] of the rows of a weight [out, in], at least NORM_FLOOR."""
    return torch.linalg.vector_norm(weight, dim=1, keepdim=True).clamp_min(NORM_FLOOR)


@METHODS.register_module("dora")
class DoRA(AlignmentMethod):
    """Alignment of features by scaling neurons and turning them within a low rank."""

    paper = "https://arxiv.org/abs/2402.09353"
    checked_against = "second implementation"
    passes_per_image = (1, 1)
    source_access = "unlabelled"

    class Hyperparameters(AlignmentHyperparameters):
        """Hyper-parameters of DoRA; `lr` is that of m, A and B."""

        rank: int = Field(6, ge=1, description="ρ, rank of the added matrix")
        scale: float = Field(1.0, gt=0, description="s = α/ρ of the added matrix s B A")
        detach_norm: bool = Field(True, description="no gradient through the norm of V")

    @staticmethod
    def adapter(weight: Tensor, hp: Any) -> DecomposedLowRankWeight:
        """m ⊙ V / ‖V‖."""
        return DecomposedLowRankWeight(weight, hp.rank, hp.scale, hp.detach_norm)
