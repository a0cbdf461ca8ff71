"""Contrast of an image, a view of it and the nearest class of the source: what RMT and SANTA share.

The classes are prototypes, mean features of labelled source images. A projector learns with the
method. Anchors are all 3 n vectors, the positives of each the other two of its image.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from ctta_bench.errors import DataError
from ctta_bench.method import Method, OptimizerHyperparameters

PROTOTYPE_BATCH = 64  # source images that go through the network together
VIEWS = 3


class ContrastHyperparameters(OptimizerHyperparameters):
    """What methods with a contrast have in common."""

    nesterov: bool = Field(True, description="Nesterov's momentum (SGD)")
    contrast_weight: float = Field(1.0, ge=0, description="weight of the contrast")
    temperature: float = Field(0.1, gt=0, description="T of the contrast")
    projection: int = Field(128, ge=1, description="width of the projector")
    source_samples: int = Field(
        100_000, ge=1, description="source images for the prototypes, at most"
    )


class ContrastMethod(Method):
    """A method with prototypes of the source's classes and a projector that learns.

    Its hyper-parameters are `ContrastHyperparameters`.
    """

    source_access = "labelled"
    projector: nn.Sequential
    prototypes: Tensor

    def projector_parameters(self) -> dict[str, nn.Parameter]:
        """Make the projector; its parameters by name, to be adapted with others."""
        self.projector = projector(self.model.classifier.in_features, self.hp.projection)
        self.projector.to(self.model.mean)
        return {f"projector.{name}": p for name, p in self.projector.named_parameters()}

    @torch.no_grad()
    def prepare(self, source: Any) -> None:
        """Prototypes of the classes that there are images of."""
        sums = self.model.mean.new_zeros(self.model.num_classes, self.model.classifier.in_features)
        counts = torch.zeros(len(sums), dtype=torch.long, device=self.device)
        batches = source.labelled_batches(PROTOTYPE_BATCH)
        for images, labels in first_images(batches, self.hp.source_samples):
            sums.index_add_(0, labels, self.model.features(images).to(sums.dtype))
            counts += torch.bincount(labels, minlength=len(sums))
        # No note of fewer images than asked for: the number is an upper limit in the official code.
        if not bool(counts.any()):
            raise DataError(
                f"{type(self).__name__} needs labelled source images for its prototypes; there are "
                "none."
            )
        present = counts > 0
        self.prototypes = sums[present] / counts[present, None]

    def contrast(self, features: Tensor, of_view: Tensor) -> Tensor:
        """Contrastive loss of features [n, d] of images and of views of them, a scalar."""
        near = nearest(features.detach(), self.prototypes).to(features.dtype)
        vectors = self.projector(torch.cat([near, features, of_view]))
        return contrastive_loss(vectors, self.hp.temperature)


def projector(inputs: int, outputs: int) -> nn.Sequential:
    """Two linear layers with a ReLU between them, both to `outputs` values."""
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
    """The first images with labels, the last batch cut short."""
    for images, labels in batches:
        yield images[:count], labels[:count]
        count -= len(images)
        if count <= 0:
            return
