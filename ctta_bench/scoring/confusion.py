"""Confusion matrices of segmented images as in predictions.npz, and the IoU computed from them.

Rows are labels, columns predictions; the last column counts labelled pixels without a valid
prediction. Pixels without a label are not counted.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tallies:
    """Numbers of pixels by class, [..., K] each: correctly predicted, labelled, predicted."""

    hits: Floats
    labelled: Floats
    predicted: Floats

    def at(self, images: npt.NDArray[Any]) -> "Tallies":
        """The tallies of some images, by a mask or by numbers."""
        return Tallies(*(count[images] for count in self._counts()))

    def summed(self) -> "Tallies":
        """Sums over all images, [K] each."""
        return Tallies(*(count.sum(0) for count in self._counts()))

    def weighted(self, weights: Floats) -> "Tallies":
        """[m, K] weighted sums over the n images; weights [m, n]."""
        return Tallies(*(weights @ count for count in self._counts()))

    def iou(self) -> Floats:
        """[..., K]: intersection over union in %; NaN for a class neither labelled nor predicted.

        A class that is predicted but never labelled has 0.
        """
        union = self.labelled + self.predicted - self.hits
        return np.where(union > 0, 100 * self.hits / np.maximum(union, 1), np.nan)

    def miou(self) -> Floats:
        """[...]: mean IoU in % over the classes with an IoU; NaN without labelled pixels."""
        iou = self.iou()
        has_one = np.isfinite(iou)
        means = np.where(has_one, iou, 0).sum(-1) / np.maximum(has_one.sum(-1), 1)
        return np.where(self.labelled.sum(-1) > 0, means, np.nan)

    @property
    def pixels(self) -> int:
        """Number of labelled pixels."""
        return int(self.labelled.sum())

    @property
    def errors(self) -> int:
        """Number of labelled pixels that were not predicted correctly."""
        return self.pixels - int(self.hits.sum())

    def _counts(self) -> tuple[Floats, Floats, Floats]:
        return self.hits, self.labelled, self.predicted


@dataclass(frozen=True, eq=False)
class SegmentedImages:
    """The scored images of a cell in stream order: tallies [n, K]; index, domain, round [n]."""

    tallies: Tallies
    index: npt.NDArray[Any]
    domain: npt.NDArray[Any]
    round: npt.NDArray[Any]

    def of(self, round_: int, domain: int) -> npt.NDArray[Any]:
        """The mask [n] of the images of a round and a domain."""
        mask: npt.NDArray[Any] = (self.round == round_) & (self.domain == domain)
        return mask


def domain_metrics(confusion: np.ndarray) -> dict[str, Any]:
    """mIoU, IoU of each class and pixel accuracy in % of a confusion matrix int [K, K + 1].

    None for values that are not defined.
    """
    counts = confusion.astype(np.int64)
    right, pixels = np.diagonal(counts), int(counts.sum())
    union = counts.sum(1) + counts[:, :-1].sum(0) - right
    iou = [100 * int(r) / int(u) if u else None for r, u in zip(right, union, strict=True)]
    defined = [value for value in iou if value is not None]
    return {
        "pixels": pixels,
        "miou": float(np.mean(defined)) if defined else None,
        "iou": iou,
        "pixel_accuracy": 100 * int(right.sum()) / pixels if pixels else None,
    }


def tallies(confusion: npt.NDArray[Any]) -> Tallies:
    """The tallies of confusion matrices [..., K, K + 1]."""
    classes = confusion.shape[-2]
    counts = confusion.astype(np.float64)  # exact: below 2^53 pixels
    return Tallies(
        hits=np.diagonal(counts[..., :classes], axis1=-2, axis2=-1),
        labelled=counts.sum(-1),
        predicted=counts[..., :classes].sum(-2),
    )
