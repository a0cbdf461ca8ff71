"""Contrast of an image, its view and the nearest source prototype: the base class of RMT and SANTA.

Prototypes are the mean features of labelled source images per class. A projector is trained with
the method. All 3 n vectors are anchors; the positives of each are the other two of its image.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctta_bench.errors import DataError
from ctta_bench.method import Method, OptimizerHyperparameters

PROTOTYPE_BATCH = 64  # source images per forward pass
VIEWS = 3


class ContrastHyperparameters(OptimizerHyperparameters):
    """Hyper-parameters of methods with a contrastive loss."""

    nesterov: bool = Field(True, description="Nesterov's momentum (SGD)")
    contrast_weight: float = Field(1.0, ge=0, description="weight of the contrastive loss")
    temperature: float = Field(0.1, gt=0, description="T of the contrastive loss")
    projection: int = Field(128, ge=1, description="width of the projector")
    source_samples: int = Field(
        100_000, ge=1, description="source images for the prototypes, at most"
    )


class ContrastMethod(Method):
    """Prototypes of the source classes, and a trained projector.

    The hyper-parameters of a subclass derive from `ContrastHyperparameters`.
    """

    source_access = "labelled"
    projector: nn.Sequential
    prototypes: Tensor

    def projector_parameters(self) -> dict[str, nn.Parameter]:
        """Build the projector; returns its parameters by name, for `adapt_only`."""
        self.projector = projector(self.model.classifier.in_features, self.hp.projection)
        self.projector.to(self.model.mean)
        return {f"projector.{name}": p for name, p in self.projector.named_parameters()}

    @torch.no_grad()
    def prepare(self, source: Any) -> None:
        """Prototypes of the classes of which there are source images."""
        sums = self.model.mean.new_zeros(self.model.num_classes, self.model.classifier.in_features)
        counts = torch.zeros(len(sums), dtype=torch.long, device=self.device)
        batches = source.labelled_batches(PROTOTYPE_BATCH)
        for images, labels in first_images(batches, self.hp.source_samples):
            sums.index_add_(0, labels, self.model.features(images).to(sums.dtype))
            counts += torch.bincount(labels, minlength=len(sums))
        # `source_used` stays unset: the number is an upper limit in the official code.
        if not bool(counts.any()):
            raise DataError(
                f"{self.title} needs labelled source images for its prototypes, but the "
                "source set is empty."
            )
        present = counts > 0
        self.prototypes = sums[present] / counts[present, None]

    def contrast(self, features: Tensor, of_view: Tensor) -> Tensor:
        """Contrastive loss of features [n, d] of images and of their views: a scalar."""
        near = nearest(features.detach(), self.prototypes).to(features.dtype)
        vectors = self.projector(torch.cat([near, features, of_view]))
        return contrastive_loss(vectors, self.hp.temperature)


def projector(inputs: int, outputs: int) -> nn.Sequential:
    """Two linear layers with a ReLU between them; both have `outputs` outputs."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


def nearest(features: Tensor, prototypes: Tensor) -> Tensor:
    """The prototype [n, d] nearest to each of the features [n, d] by cosine."""
    with torch.autocast(features.device.type, enabled=False):
        similarity = normalize(features.to(prototypes.dtype)) @ normalize(prototypes).T
    return prototypes[similarity.argmax(-1)]


def contrastive_loss(vectors: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss of vectors [3 n, d], i with i + n and i + 2 n; a scalar."""
    with torch.autocast(vectors.device.type, enabled=False):
        unit = normalize(vectors if vectors.dtype == torch.float64 else vectors.float())
        similarity = unit @ unit.T / temperature
    own = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    log_p = similarity.masked_fill(own, -torch.inf).log_softmax(-1)
    image = torch.arange(len(unit), device=unit.device) % (len(unit) // VIEWS)
    positive = (image[:, None] == image) & ~own
    return -log_p[positive].mean()


def first_images(
    batches: Iterable[tuple[Tensor, Tensor]], count: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The first `count` images with labels; the last batch may be shortened."""
    for images, labels in batches:
        yield images[:count], labels[:count]
        count -= len(images)
        if count <= 0:
            return
