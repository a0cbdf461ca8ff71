"""LoRA (Hu et al., ICLR 2022, arXiv:2106.09685), trained by PAID's alignment: a control of PAID.

W_eff = W + s B A, with A and B learning. Same layers, loss, source statistics and step as PAID;
only the adapter differs. The paper of PAID gives this control's error and none of its settings,
and its code does not hold it: rank 6 has (nearly) as many values as PAID's 12 reflections. The
adapter is that of huggingface/peft.
"""

from typing import Any

from torch import Tensor

from ctta_bench.parts.adapters.weights import LowRankWeight
from ctta_bench.parts.families.alignment import AlignmentMethod, LowRankHyperparameters
from ctta_bench.registry import METHODS


@METHODS.register_module("lora")
class LoRA(AlignmentMethod):
    """Alignment of features by adding a matrix of low rank to each weight."""

    display_name = "LoRA"
    year = 2022
    venue = "ICLR"
    citation = "hu2022lora"
    adapts_layers = "low-rank matrices of linear layers, with PAID's loss"
    paper = "https://arxiv.org/abs/2106.09685"
    checked_against = "second implementation (peft's layer)"
    passes_per_image = (1, 1)
    source_access = "unlabelled"
    warmup_access = "labelled"
    tasks = frozenset({"classification", "segmentation"})

    class Hyperparameters(LowRankHyperparameters):
        """Hyper-parameters of LoRA; `lr` is that of A and B."""

    @staticmethod
    def adapter(weight: Tensor, hp: Any) -> LowRankWeight:
        """W + s B A."""
        return LowRankWeight(weight, hp.rank, hp.scale)

    def adapt(self, images: Tensor) -> Tensor:
        """Features, loss, step; returns the logits from before the step."""
        if self.hp.chunks > 1:
            return self.adapt_in_chunks(images)
        features, logits = self.features_and_logits(images)
        loss = self.distance(features)  # ‖μ_t - μ_s‖₂ + λ ‖σ_t - σ_s‖₂
        self.step(loss, guard=not self.hp.faithful)  # of A and B alone
        return logits
