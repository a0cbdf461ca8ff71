"""T3A (Iwasawa and Matsuo, NeurIPS 2021): the last layer is made anew from the stream's surest
features.

Official code: matsuolab/T3A. Each class has a set of supports, which begins with the rows of the
last layer. Each batch's features join the set of the class that they are predicted as; of each set
the K with the least entropy stay; the sum of their directions, at length 1, is the class's weight
vector, without a bias. No parameter of the network changes. A batch is in the sets before it is
scored. As in theirs, a row of the last layer may belong to the class of another, and a class that
is left without a support scores 0. Differs: features that are not finite do not join, and each
batch keeps K of a class at most, which gives the same.
"""

import copy

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from ctta_bench.method import Method, MethodHyperparameters, softmax_entropy
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS


@METHODS.register_module("t3a")
class T3A(Method):
    """A last layer of class means over the surest features so far."""

    display_name = "T3A"
    year = 2021
    venue = "NeurIPS"
    citation = "iwasawa2021t3a"
    adapts_layers = "the last layer, from confident features"
    paper = "https://openreview.net/forum?id=e_yvNqkJKAW"
    checked_against = "official code"
    passes_per_image = (1, 0)
    search_space = {"supports": [1, 5, 20, 50, 100]}
    exempt = {"scored_logits": "a batch is among the supports by which it is scored"}

    class Hyperparameters(MethodHyperparameters):
        """Hyper-parameters of T3A."""

        supports: int = Field(20, ge=1, description="K, supports of a class")

    def setup(self) -> None:
        """The rows of the last layer are the first supports, of the classes that they predict."""
        rows = self.model.classifier.weight.detach()
        self.supports = rows.new_zeros(0, rows.shape[1])
        self.labels = torch.zeros(0, dtype=torch.long, device=rows.device)
        self.entropies = rows.new_zeros(0)
        with torch.no_grad():
            self.take_in(rows, self.model.head(rows))

    @torch.no_grad()
    def adapt(self, images: Tensor) -> Tensor:
        """Take the batch in; its logits by the supports then."""
        features, logits = self.model.features_and_logits(images)
        self.take_in(features, logits)
        return self.scores(features)

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits by the supports so far."""
        return self.scores(self.model.features(images))

    def scores(self, features: Tensor) -> Tensor:
        """Products [n, classes] of features [n, d] with the classes' unit vectors."""
        return features.to(self.supports.dtype) @ self.class_vectors().T

    def class_vectors(self) -> Tensor:
        """The sum of each class's support directions [classes, d], at length 1."""
        members = one_hot(self.labels, self.model.num_classes).to(self.supports.dtype)
        return normalize(members.T @ normalize(self.supports))

    def take_in(self, features: Tensor, logits: Tensor) -> None:
        """Add features [n, d] by their predicted classes; keep the surest K of each."""
        entropies = softmax_entropy(logits).to(self.entropies.dtype)
        finite = entropies.isfinite() & features.isfinite().all(1)
        supports = torch.cat([self.supports, features[finite].to(self.supports.dtype)])
        labels = torch.cat([self.labels, logits[finite].argmax(-1)])
        entropies = torch.cat([self.entropies, entropies[finite]])
        kept = surest(labels, entropies, self.hp.supports)
        self.supports, self.labels, self.entropies = supports[kept], labels[kept], entropies[kept]

    @property
    def scored_model(self) -> SourceModel:
        """The model, with the class vectors for its last layer."""
        moved = copy.deepcopy(self.model)
        layer, vectors = moved.classifier, self.class_vectors()
        layer.weight = nn.Parameter(vectors.to(layer.weight), requires_grad=False)
        if layer.bias is not None:
            layer.bias = nn.Parameter(torch.zeros_like(layer.bias), requires_grad=False)
        return moved


def surest(labels: Tensor, entropies: Tensor, count: int) -> Tensor:
    """Positions of the `count` lowest entropies of each label, class by class, lowest first."""
    order = entropies.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]
    sorted_labels = labels[order]
    first = torch.searchsorted(sorted_labels, sorted_labels)  # where each one's class begins
    rank = torch.arange(len(order), device=order.device) - first
    return order[rank < count]
