"""LoRA (Hu et al., ICLR 2022, arXiv:2106.09685), trained by PAID's alignment: a control of PAID.

W_eff = W + s B A, with A and B learning. Same layers, loss, source statistics and step as PAID;
only the adapter differs. The paper of PAID gives this control's error and none of its settings,
and its code does not hold it: rank 6 has (nearly) as many values as PAID's 12 reflections. The
adapter is that of huggingface/peft.
"""

from typing import Any

from pydantic import Field
from torch import Tensor

from ctta_bench.alignment import AlignmentHyperparameters, AlignmentMethod
from ctta_bench.injection import LowRankWeight
from ctta_bench.registry import METHODS


@METHODS.register_module("lora")
class LoRA(AlignmentMethod):
    """Alignment of features by adding a matrix of low rank to each weight."""

    paper = "https://arxiv.org/abs/2106.09685"
    checked_against = "second implementation"
    passes_per_image = (1, 1)
    source_access = "unlabelled"

    class Hyperparameters(AlignmentHyperparameters):
        """Hyper-parameters of LoRA; `lr` is that of A and B."""

        rank: int = Field(6, ge=1, description="ρ, rank of the added matrix")
        scale: float = Field(1.0, gt=0, description="s = α/ρ of the added matrix s B A")

    @staticmethod
    def adapter(weight: Tensor, hp: Any) -> LowRankWeight:
        """W + s B A."""
        return LowRankWeight(weight, hp.rank, hp.scale)
