"""Selection and weights of images for entropy minimisation.

Introduced by EATA (Niu et al., ICML 2022, arXiv:2204.02610) and used by its successors: images of
high entropy H are excluded as unreliable, and images whose prediction is similar to the average of
earlier ones as redundant. The others have the weight exp(E0 - H), larger for certain images.
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
    """Selects reliable, non-redundant images; stores the average prediction, and counts.

    `margin` is E0 as a share of ln C, the largest possible entropy; `max_similarity` is ε: an image
    is redundant from this cosine on.
    """

    def __init__(self, margin: float, max_similarity: float, num_classes: int) -> None:
        self.margin = margin * math.log(num_classes)  # in nats
        self.max_similarity = max_similarity
        self.average: Tensor | None = None
        self.reliable_images = self.selected_images = 0

    def choose(self, entropy: Tensor, predictions: Tensor) -> Tensor:
        """Mask [n] of the selected images.

        entropy: [n] in nats; predictions: probabilities [n, classes]. While there is no average
        prediction, every reliable image is selected.
        """
        selected = reliable = entropy < self.margin
        if self.average is not None:
            similarity = cosine_similarity(self.average[None], predictions)
            selected = reliable & (similarity.abs() < self.max_similarity)
        self.reliable_images += int(reliable.sum())
        self.selected_images += int(selected.sum())
        return selected

    def weigh(self, entropy: Tensor) -> Tensor:
        """Mean of entropies [n] with weights exp(E0 - H), which have no gradient."""
        return ((self.margin - entropy.detach()).exp() * entropy).mean()

    def update_average(self, predictions: Tensor) -> None:
        """EMA of the average prediction [classes] with these probabilities [n, classes]."""
        mean = predictions.mean(0)
        if self.average is None:
            self.average = mean
        else:
            self.average = (1 - BATCH_SHARE) * self.average + BATCH_SHARE * mean
