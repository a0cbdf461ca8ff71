"""ROID (Marsden, Döbler and Yang, WACV 2024, arXiv:2306.00650): weighted self-training whose
weights are drawn back to the source's after every step.

Official code: mariodoebler/test-time-adaptation. Images predicted unlike the average of those
before and with certainty weigh most; half of a batch is left out. Of those kept the soft likelihood
ratio is raised, and their predictions and those of a random view are drawn together, the gradient
going to both. Scores are the logits times the smoothed mean prediction of the batch, as in the
official code: they say which class, but hardly how sure, for that mean is small. The paper has
probabilities in mind (`prior: probabilities`), whose calibration is a matter of interest.

Differs from it: a batch in which no two images differ, as one image alone, has no weights and moves
nothing (theirs makes every parameter nan), and a single image is scored without a prior. What a
batch's loss is divided by is the size of the largest batch so far, theirs the configured one: the
same but for windows over single images, where theirs sums.
"""

from pydantic import Field
from torch import Tensor

from ctta_bench.method import pull_to_source
from ctta_bench.parts.families.weighted import SampleWeightingHyperparameters, SampleWeightingMethod
from ctta_bench.registry import METHODS


@METHODS.register_module("roid")
class ROID(SampleWeightingMethod):
    """Weighted self-training with weights averaged with the source's."""

    display_name = "ROID"
    year = 2024
    venue = "WACV"
    citation = "marsden2024roid"
    adapts_layers = "norm layers, pulled to the source weights"
    paper = "https://arxiv.org/abs/2306.00650"
    checked_against = "official code"
    passes_per_image = (1.5, 1.5)  # half of the images are seen twice

    class Hyperparameters(SampleWeightingHyperparameters):
        """Hyper-parameters of ROID."""

        lr: float = Field(2.5e-4, ge=0, description="learning rate")
        source_momentum: float = Field(
            0.99, ge=0, le=1, description="share that the weights keep of themselves after a step"
        )

    def adapt(self, images: Tensor) -> Tensor:
        """One step, after which the weights go back; returns the corrected logits from before."""
        logits = self.model(images)
        if self.update(images, logits):
            pull_to_source(self.trainable.values(), self.source, self.hp.source_momentum)
        return self.corrected(logits.detach())
