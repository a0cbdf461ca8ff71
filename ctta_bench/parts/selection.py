"""Which images entropy minimisation learns from, and with what weight.

As EATA (Niu et al., ICML 2022, arXiv:2204.02610) introduced it and its followers took it over:
images of high entropy H are left out as unreliable, images predicted like the average of those
before as redundant, and those that are left weigh the more the surer they are, exp(E0 - H).
"""

import math
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.functional import cosine_similarity

from ctta_bench.names import OldNames, renamed

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)

BATCH_SHARE = 0.1  # share of a batch in the average prediction


class Selection(OldNames):
    """Reliable images unlike the average prediction; keeps that average and counts.

    `margin` is E0 as a share of ln C, the largest entropy there is; `max_similarity` is ε, the
    cosine from which on an image is redundant.
    """

    def __init__(self, margin: float, max_similarity: float, num_classes: int) -> None:
        self.margin = margin * math.log(num_classes)  # in nats
        self.max_similarity = max_similarity
        self.average: Tensor | None = None
        self.reliable_images = self.selected_images = 0

    def choose(self, entropy: Tensor, predictions: Tensor) -> Tensor:
        """Mask [n] of entropies [n] in nats and predicted probabilities [n, classes].

        Before there is an average, every reliable image is chosen.
        """
        selected = reliable = entropy < self.margin
        if self.average is not None:
            similarity = cosine_similarity(self.average[None], predictions)
            selected = reliable & (similarity.abs() < self.max_similarity)
        self.reliable_images += int(reliable.sum())
        self.selected_images += int(selected.sum())
        return selected

    def weigh(self, entropy: Tensor) -> Tensor:
        """Mean of entropies [n] weighted by exp(E0 - H), which is no part of the gradient."""
        return ((self.margin - entropy.detach()).exp() * entropy).mean()

    def update_average(self, predictions: Tensor) -> None:
        """Move the average prediction [classes] by a tenth towards these [n, classes]."""
        mean = predictions.mean(0)
        if self.average is None:
            self.average = mean
        else:
            self.average = (1 - BATCH_SHARE) * self.average + BATCH_SHARE * mean
