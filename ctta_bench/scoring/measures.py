"""Measures of classification besides the error, each an entry of MEASURES: calibration.

Every run scores all registered measures. A new measure is a new file, here or in a plug-in.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ctta_bench.registry import MEASURES

if TYPE_CHECKING:
    from torch import Tensor

Array = npt.NDArray[Any]


class Outputs(NamedTuple):
    """A batch of logits [n, classes] on the CPU, float32 or float64, with their probabilities.

    labels: int64 [n]. log_p, p: log-probabilities and probabilities [n, classes].
    """

    logits: "Tensor"
    labels: "Tensor"
    log_p: "Tensor"
    p: "Tensor"


class Measure:
    """A mean over images in addition to the metric of the task; lower is better.

    Example: `TopFiveError` in top_five.py. head: column head in tables, with the unit. caption: its
    name in captions. decimals: of printed values. factor: 100 for a share in %. needs: arrays of
    predictions.npz that it is computed from; default: an array of its own name, made by `score`.
    worst: value of an image with non-finite logits. table: table of the report with the measure.
    recounted: whether the analysis recomputes it from predictions.npz. fewest_classes: the least
    number of classes with which the measure is scored.
    """

    head: ClassVar[str]
    caption: ClassVar[str]
    decimals: ClassVar[int] = 1
    factor: ClassVar[float] = 1
    needs: ClassVar[tuple[str, ...]] = ()
    worst: ClassVar[float]
    table: ClassVar[str] = "measures"
    recounted: ClassVar[bool] = True
    fewest_classes: ClassVar[int] = 2

    def __init__(self, name: str) -> None:
        self.name = name
        self.arrays = self.needs or (name,)

    def score(self, outputs: Outputs) -> "Tensor":
        """The value [n] of each image; called if `needs` is empty."""
        raise NotImplementedError

    def value(self, arrays: Mapping[str, Array], rows: Array) -> float | None:
        """The value over the images `rows` of a domain in a round; None if not finite."""
        mean = self.factor * float(arrays[self.name][rows].astype(np.float64).mean())
        return mean if np.isfinite(mean) else None  # JSON has no infinity


def all_measures() -> list[Measure]:
    """The registered measures, ordered by their `place`."""
    return [MEASURES.get(name)(name) for name in MEASURES.names_with()]


@MEASURES.register_module("ece", place=10)
class CalibrationError(Measure):
    """Expected calibration error of the largest softmax value."""

    head, factor = "ECE %", 100
    caption = "Expected calibration error over 15 equal bins of the largest softmax value"
    needs = ("prediction", "label", "confidence")
    table = "calibration"
    recounted = False

    def value(self, arrays: Mapping[str, Array], rows: Array) -> float | None:
        """Expected calibration error in %."""
        correct = arrays["prediction"][rows] == arrays["label"][rows]
        return self.factor * expected_calibration_error(arrays["confidence"][rows], correct)


@MEASURES.register_module("nll", place=20)
class NegativeLogLikelihood(Measure):
    """Negative log-likelihood of the label, in nats."""

    head, decimals, caption = "NLL", 3, "negative log-likelihood"
    worst = float("inf")
    table = "calibration"
    recounted = False

    def score(self, outputs: Outputs) -> "Tensor":
        """Minus the log-probability of the label."""
        return -outputs.log_p.gather(1, outputs.labels.view(-1, 1)).squeeze(1)


@MEASURES.register_module("brier", place=30)
class BrierScore(Measure):
    """Squared distance of the probabilities to the one-hot label, in [0, 2]."""

    head, decimals, caption = "Brier", 3, "Brier score of the scored predictions"
    worst = 2.0
    table = "calibration"
    recounted = False

    def score(self, outputs: Outputs) -> "Tensor":
        """Sum of squares, expanded around the label."""
        p = outputs.p
        of_label = p.gather(1, outputs.labels.view(-1, 1)).squeeze(1)
        return p.square().sum(-1) - 2 * of_label + 1


def expected_calibration_error(confidence: Array, correct: Array, bins: int = 15) -> float:
    """Top-label calibration error in [0, 1] over equal bins of confidence (Guo et al., 2017).

    torchmetrics computes the same (a test compares them), but takes seconds to import.
    """
    bin_of = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gap = np.bincount(bin_of, weights=correct - confidence.astype(np.float64), minlength=bins)
    return float(np.abs(gap).sum() / len(confidence))
