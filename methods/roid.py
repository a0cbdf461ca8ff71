"""ROID (Marsden, Döbler and Yang, WACV 2024, arXiv:2306.00650): weighted self-training, whose
weights are pulled to the source after every step.

Official code: mariodoebler/test-time-adaptation. Images with a certain prediction that differs from
the average of earlier ones weigh most; half of a batch is not used. For the used images the soft
likelihood ratio is increased, and their predictions and those of a random view are made consistent,
with a gradient through both. The scores are the logits times the smoothed mean prediction of the
batch, as in the official code: they show the class, but hardly the confidence, as that mean is
small. The paper means probabilities (`prior: probabilities`), which matters for calibration.

Differs from it: a batch whose images are all equal, such as a single image, has no weights and
makes no update (theirs makes every parameter NaN), and a single image is scored without a prior.
The loss of a batch is divided by the size of the largest batch so far (theirs: by the configured
one), which is the same except for windows over single images, where theirs sums.
"""

from pydantic import Field
from torch import Tensor

from ctta_bench.method import pull_to_source
from ctta_bench.parts.families.weighted import SampleWeightingHyperparameters, SampleWeightingMethod
from ctta_bench.registry import METHODS


@METHODS.register_module("roid")
class ROID(SampleWeightingMethod):
    """Weighted self-training, with weights pulled to the source after every step."""

    display_name = "ROID"
    year = 2024
    venue = "WACV"
    citation = "marsden2024roid"
    adapts_layers = "norm layers, pulled to the source weights"
    losses = "likelihood ratio, weighted, and consistency with a view"
    extra_memory = "source weights and an average prediction"
    paper = "https://arxiv.org/abs/2306.00650"
    checked_against = "official code"
    passes_per_image = (1.5, 1.5)  # half of the images are seen twice

    class Hyperparameters(SampleWeightingHyperparameters):
        """Hyper-parameters of ROID."""

        lr: float = Field(2.5e-4, ge=0, description="learning rate")
        source_momentum: float = Field(
            0.99, ge=0, le=1, description="m of θ ← m θ + (1 - m) θ_source after a step"
        )

    def adapt(self, images: Tensor) -> Tensor:
        """One step, then the pull to the source; returns the corrected logits from before."""
        logits = self.model(images)
        if self.update(images, logits):
            pull_to_source(self.trainable.values(), self.source, self.hp.source_momentum)
        return self.corrected(logits.detach())
