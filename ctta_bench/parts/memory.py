"""A memory bank of features and predictions, and pseudo labels from nearest neighbours."""

import torch
from torch import Tensor
from torch.nn.functional import normalize


class Bank:
    """The last `size` features [size, d] and probabilities [size, classes], first in, first out."""

    def __init__(self, size: int, width: int, classes: int, like: Tensor) -> None:
        self.features, self.probs = like.new_zeros(size, width), like.new_zeros(size, classes)
        self.pointer = self.filled = 0

    @torch.no_grad()
    def add(self, features: Tensor, probs: Tensor) -> None:
        """Overwrite the oldest entries; rows that are not finite are not added."""
        size, finite = len(self.features), features.isfinite().all(1) & probs.isfinite().all(1)
        features, probs = features[finite][-size:], probs[finite][-size:]
        places = (self.pointer + torch.arange(len(features), device=features.device)) % size
        self.features[places], self.probs[places] = features, probs
        self.pointer = (self.pointer + len(features)) % size
        self.filled = min(self.filled + len(features), size)


def neighbour_probs(features: Tensor, bank: Tensor, probs: Tensor, count: int) -> Tensor:
    """Mean probabilities [n, classes] of the `count` nearest entries by cosine (at most all)."""
    with torch.autocast(features.device.type, enabled=False):
        similarity = normalize(features, dim=1) @ normalize(bank, dim=1).T
    nearest = similarity.topk(min(count, len(bank)), dim=1).indices
    return probs[nearest].mean(1)
