"""T3A (Iwasawa and Matsuo, NeurIPS 2021): the last layer is rebuilt from the most confident
features of the stream.

Official code: matsuolab/T3A. Each class has a set of supports, which starts with the rows of the
last layer. The features of each batch are added to the set of their predicted class; the K supports
with the lowest entropy stay in each set. The weight vector of a class is the sum of its supports'
directions, normalised, without a bias. No parameter of the network changes. A batch is added before
it is scored. As in theirs, a row of the last layer may belong to the set of another class, and a
class without a support scores 0. Differs: features that are not finite are not added, and after
each batch at most K per class are stored, which gives the same result.
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
    """A last layer of class means, over the most confident features of each class so far."""

    display_name = "T3A"
    year = 2021
    venue = "NeurIPS"
    citation = "iwasawa2021t3a"
    adapts_layers = "the last layer, from confident features"
    losses = "none"
    extra_memory = "features of confident images, by class"
    paper = "https://openreview.net/forum?id=e_yvNqkJKAW"
    checked_against = "official code"
    passes_per_image = (1, 0)
    search_space = {"supports": [1, 5, 20, 50, 100]}
    exempt = {"scored_logits": "a batch is among the supports that score it"}

    class Hyperparameters(MethodHyperparameters):
        """Hyper-parameters of T3A."""

        supports: int = Field(20, ge=0, description="K, supports per class; 0: all")

    def setup(self) -> None:
        """The rows of the last layer are the first supports, in the classes that they predict."""
        rows = self.model.classifier.weight.detach()
        self.supports = rows.new_zeros(0, rows.shape[1])
        self.labels = torch.zeros(0, dtype=torch.long, device=rows.device)
        self.entropies = rows.new_zeros(0)
        with torch.no_grad():
            self.take_in(rows, self.model.head(rows))

    @torch.no_grad()
    def adapt(self, images: Tensor) -> Tensor:
        """Add the batch to the supports; returns its logits with the new supports."""
        features, logits = self.model.features_and_logits(images)
        self.take_in(features, logits)
        return self.scores(features)

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits with the current supports."""
        return self.scores(self.model.features(images))

    def scores(self, features: Tensor) -> Tensor:
        """Products [n, classes] of features [n, d] with the classes' unit vectors."""
        return features.to(self.supports.dtype) @ self.class_vectors().T

    def class_vectors(self) -> Tensor:
        """The sum of each class's support directions [classes, d], normalised."""
        members = one_hot(self.labels, self.model.num_classes).to(self.supports.dtype)
        return normalize(members.T @ normalize(self.supports))

    def take_in(self, features: Tensor, logits: Tensor) -> None:
        """Add features [n, d] by predicted class; keep the K with the lowest entropy of each."""
        entropies = softmax_entropy(logits).to(self.entropies.dtype)
        finite = entropies.isfinite() & features.isfinite().all(1)
        supports = torch.cat([self.supports, features[finite].to(self.supports.dtype)])
        labels = torch.cat([self.labels, logits[finite].argmax(-1)])
        entropies = torch.cat([self.entropies, entropies[finite]])
        kept = surest(labels, entropies, self.hp.supports or len(labels))
        self.supports, self.labels, self.entropies = supports[kept], labels[kept], entropies[kept]

    @property
    def scored_model(self) -> SourceModel:
        """The model, with the class vectors as its last layer."""
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
