"""Training objectives by task: targets, loss, and the measure on the model card."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate, one_hot

from ctta_bench.errors import ConfigError, DataError
from ctta_bench.model import SourceModel
from ctta_bench.scoring.segmentation import IGNORED, MiouScorer, domain_metrics
from ctta_bench.stream import ImageSet, MapSet, as_input, labels_of
from ctta_bench.training.recipes import Recipe


class Objective(ABC):
    """Targets, loss and measure (in %) of a task."""

    measure: ClassVar[str]  # name in records; the measure of the written weights is clean_NAME

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes

    @abstractmethod
    def targets(self, labels: Tensor, mirrored: Tensor) -> Tensor:
        """Targets of the loss; mirrored: bool [n], which images were flipped."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """The mean cross-entropy; smoothing: share of the uniform distribution in the target."""

    @abstractmethod
    def score(self, model: SourceModel, images: ImageSet, batch_size: int) -> float:
        """The measure in % over all images; the model must be in evaluation mode."""


def objective_of(images: ImageSet, num_classes: int, recipe: Recipe) -> Objective:
    """The objective for training images. Raises ConfigError for recipes it does not support."""
    if not isinstance(images, MapSet):
        return ClassObjective(num_classes)
    only = {
        "teacher": recipe.teacher,
        "augmentation=crop_flip": recipe.augmentation == "crop_flip",
        "mixup": recipe.mixup,
    }
    if key := next((key for key, given in only.items() if given), None):
        raise ConfigError(
            f"recipe: {key} supports classification only, but these labels are maps; change it."
        )
    return MapObjective(num_classes)


class ClassObjective(Objective):
    """A class for each image."""

    measure = "accuracy"

    def targets(self, labels: Tensor, mirrored: Tensor) -> Tensor:
        """One-hot targets float [n, classes]. Raises DataError for a label out of range."""
        if int(labels.min()) < 0 or int(labels.max()) >= self.num_classes:
            raise DataError(f"training images: a label is out of 0..{self.num_classes - 1}.")
        return one_hot(labels, self.num_classes).float()

    def loss(self, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Mean over images; logits and targets [n, classes]."""
        return cross_entropy(logits, targets, label_smoothing=smoothing)

    def score(self, model: SourceModel, images: ImageSet, batch_size: int) -> float:
        """Accuracy in %."""
        hits, numbers = 0, torch.arange(len(images.labels))
        for chunk in numbers.split(batch_size):
            shown = as_input(images.load(chunk.numpy())).to(model.mean.device)
            hits += int((model(shown).argmax(-1).cpu() == labels_of(images, chunk.numpy())).sum())
        return 100 * hits / len(numbers)


class MapObjective(Objective):
    """A class for each pixel."""

    measure = "miou"

    def targets(self, labels: Tensor, mirrored: Tensor) -> Tensor:
        """Maps int64 [n, H, W], flipped like their images. Raises DataError for unknown values."""
        known = (labels < self.num_classes) | (labels == IGNORED)
        if not bool(known.all()):
            raise DataError(
                f"training images: the value {int(labels[~known][0])} in a label map is none of "
                f"0..{self.num_classes - 1}, and not {IGNORED}."
            )
        return torch.where(mirrored[:, None, None], labels.flip(-1), labels).long()

    def loss(self, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Mean over labelled pixels; logits [n, classes, h, w] are resized to maps [n, H, W]."""
        size = (targets.shape[-2], targets.shape[-1])
        # With the classes of a pixel next to each other in memory, the loss is cheaper.
        near = logits.float().contiguous(memory_format=torch.channels_last)
        large = interpolate(near, size=size, mode="bilinear", align_corners=False)
        total = cross_entropy(
            large.movedim(1, -1).flatten(0, -2),
            targets.flatten(),
            ignore_index=IGNORED,
            label_smoothing=smoothing,
            reduction="sum",
        )
        return total / (targets != IGNORED).sum().clamp(min=1)

    def score(self, model: SourceModel, images: ImageSet, batch_size: int) -> float:
        """Mean IoU in % over the classes that occur."""
        scorer, numbers = MiouScorer(self.num_classes), np.arange(len(images.labels))
        total = np.zeros((self.num_classes, self.num_classes + 1), np.int64)
        for chunk in torch.from_numpy(numbers).split(batch_size):
            shown = as_input(images.load(chunk.numpy())).to(model.mean.device)
            found = scorer.score(model(shown), labels_of(images, chunk.numpy()))
            total += found["confusion"].sum(0, dtype=np.int64)
        return float(domain_metrics(total)["miou"] or 0.0)
