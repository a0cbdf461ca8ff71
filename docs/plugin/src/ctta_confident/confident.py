"""Confident (an example, after Wang et al., 2021): TENT on the images of low entropy.

The reference outputs in cases/ are those of record.py, which is written without ctta-bench.
"""

import math

from pydantic import Field

from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.registry import METHODS


@METHODS.register_module("confident")
class Confident(Method):
    """Entropy minimisation on the images whose entropy is below a share of its maximum."""

    display_name = "Confident"
    year = 2026
    citation = "example2026confident"
    adapts_layers = "norm layers"
    checked_against = "record.py of this package"
    passes_per_image = (1, 1)
    checked_with = {"share": 1.0}  # the checks have an untrained model, which is never confident
    search_space = {"lr": (1e-5, 1e-1), "share": [0.2, 0.4, 0.8]}

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of Confident."""

        share: float = Field(0.4, gt=0, le=1, description="of ln(classes): images below it count")

    def setup(self):
        """Adapt the affine parameters of every norm layer."""
        self.adapt_only(self.model.norm_parameters())
        self.optimizer = self.build_optimizer()

    def adapt(self, images):
        """Minimise the mean entropy of the confident images."""
        logits = self.model(images)
        entropy = softmax_entropy(logits)
        limit = self.hp.share * math.log(logits.shape[1])
        confident = ~(entropy.detach() >= limit)  # NaN too: `step` then counts a skipped update
        if confident.any():
            self.step(entropy[confident].mean())
        return logits
