"""LoRA (Hu et al., ICLR 2022, arXiv:2106.09685), trained with PAID's alignment loss: a control of
PAID.

W_eff = W + s B A; A and B learn. Layers, loss, source statistics and step are PAID's; only the
adapter differs. The PAID paper gives the error of this control but none of its settings, and the
PAID code does not contain it: rank 6 has (nearly) as many values as PAID's 12 reflections. The
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
    losses = "distance of feature moments to the source's"
    extra_memory = "source statistics"
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
        """One step on the alignment loss; returns the logits from before the step."""
        if self.hp.chunks > 1:
            return self.adapt_in_chunks(images)
        features, logits = self.features_and_logits(images)
        loss = self.distance(features)  # ‖μ_t - μ_s‖₂ + λ ‖σ_t - σ_s‖₂
        self.step(loss, guard=not self.hp.faithful)  # of A and B only
        return logits
