"""TENT (Wang et al., ICLR 2021, arXiv:2006.10726): entropy minimisation over norm parameters.

Official code: DequanWang/tent (BatchNorm); its LayerNorm form is that of mr-eggplant/SAR. On a
network with BatchNorm the batch's statistics replace the source's, as in the official code. The
scored logits are those of the forward pass before the update.
"""

from pydantic import Field
from torch import Tensor

from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.registry import METHODS


@METHODS.register_module("tent")
class Tent(Method):
    """Entropy minimisation over the affine parameters of all norm layers."""

    paper = "https://arxiv.org/abs/2006.10726"
    checked_against = "official code"
    passes_per_image = (1, 1)

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of TENT."""

        steps: int = Field(1, ge=1, description="updates a batch; the last forward is scored")
        episodic: bool = Field(False, description="reset before every batch")

    def setup(self) -> None:
        """Adapt the affine parameters of every norm layer."""
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_only(self.model.norm_parameters())
        self.optimizer = self.build_optimizer()

    def adapt(self, images: Tensor) -> Tensor:
        """Minimise the batch's mean entropy; returns the logits of the last forward pass."""
        if self.hp.episodic:
            self.reset()
        for _ in range(self.hp.steps):
            logits = self.model(images)
            self.step(softmax_entropy(logits).mean())
        return logits
