"""DoRA (Liu et al., ICML 2024, arXiv:2402.09353), trained with PAID's alignment loss: a control of
PAID.

V = W + s B A and W_eff = m ⊙ V / ‖V‖ by rows (neurons); m, A and B learn. Layers, loss, source
statistics and step are PAID's; only the adapter differs. The PAID paper gives the error of this
control but none of its settings, and the PAID code does not contain it: rank 6 has exactly as many
values as PAID's 12 reflections. The adapter is that of huggingface/peft, where no gradient passes
through ‖V‖ (DoRA, section 4.3). It differs in that norms have a floor, so that a neuron of zeros
makes no NaN.
"""

from dataclasses import replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ctta_bench.parts.adapters.weights import Factors, LowRankWeight
from ctta_bench.parts.families.alignment import AlignmentMethod, LowRankHyperparameters
from ctta_bench.registry import METHODS

NORM_FLOOR = 1e-12


class DecomposedLowRankWeight(LowRankWeight):
    """m ⊙ V / ‖V‖ with V = W + s B A; weight [out, in], `magnitude` m [out, 1] starts at ‖W‖."""

    def __init__(self, weight: Tensor, rank: int, scale: float, detach_norm: bool) -> None:
        super().__init__(weight, rank, scale)
        self.detach_norm = detach_norm
        self.magnitude = nn.Parameter(row_norm(weight))

    def factors(self) -> Factors:
        """m / ‖V‖ by rows and s B A. At the start exactly W: m / ‖W‖ is 1 in every row."""
        summed = super().factors()
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.detach_norm):
            norm = row_norm(summed.of(self.weight))
        return replace(summed, scale=self.magnitude / norm)


def row_norm(weight: Tensor) -> Tensor:
    """Euclidean norms [out, 1] of the rows of a weight [out, in], at least NORM_FLOOR."""
    return torch.linalg.vector_norm(weight, dim=1, keepdim=True).clamp_min(NORM_FLOOR)


@METHODS.register_module("dora")
class DoRA(AlignmentMethod):
    """Alignment of features by scaling neurons and a low-rank change of their directions."""

    display_name = "DoRA"
    year = 2024
    venue = "ICML"
    citation = "liu2024dora"
    adapts_layers = "scale and low-rank matrices of linear layers, with PAID's loss"
    losses = "distance of feature moments to the source's"
    extra_memory = "source statistics"
    paper = "https://arxiv.org/abs/2402.09353"
    checked_against = "second implementation (peft's layer)"
    passes_per_image = (1, 1)
    source_access = "unlabelled"
    warmup_access = "labelled"
    tasks = frozenset({"classification", "segmentation"})

    class Hyperparameters(LowRankHyperparameters):
        """Hyper-parameters of DoRA; `lr` is that of m, A and B."""

        detach_norm: bool = Field(True, description="no gradient through the norm of V")

    @staticmethod
    def adapter(weight: Tensor, hp: Any) -> DecomposedLowRankWeight:
        """m ⊙ V / ‖V‖."""
        return DecomposedLowRankWeight(weight, hp.rank, hp.scale, hp.detach_norm)

    def adapt(self, images: Tensor) -> Tensor:
        """One step on the alignment loss; returns the logits from before the step."""
        if self.hp.chunks > 1:
            return self.adapt_in_chunks(images)
        features, logits = self.features_and_logits(images)
        loss = self.distance(features)  # ‖μ_t - μ_s‖₂ + λ ‖σ_t - σ_s‖₂
        self.step(loss, guard=not self.hp.faithful)  # of m, A and B only
        return logits
