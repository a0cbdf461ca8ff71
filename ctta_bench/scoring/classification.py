"""Scores of classification: the arrays stored per image, and the check of a model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctta_bench.registry import METRICS
from ctta_bench.scoring.base import Arrays, Scorer, SourceCheck
from ctta_bench.scoring.measures import Measure, Outputs, all_measures
from ctta_bench.scoring.measures import expected_calibration_error as expected_calibration_error
from ctta_bench.scoring.metric import Metric


@dataclass
class Scores:
    """The stored scores of each image, in stream order (arrays of equal length)."""

    prediction: np.ndarray  # int32
    label: np.ndarray  # int32
    confidence: np.ndarray  # float32, probability of the prediction
    nll: np.ndarray  # float32, nats
    brier: np.ndarray  # float32, squared distance to the one-hot label, in [0, 2]
    index: np.ndarray  # int64, number within its domain
    domain: np.ndarray  # int16
    round: np.ndarray  # int16

    @property
    def correct(self) -> np.ndarray:
        """Whether each prediction is right."""
        return self.prediction == self.label


FIELDS = tuple(Scores.__dataclass_fields__)


def score_batch(
    logits: Tensor, labels: Tensor, measures: Sequence[Measure] | None = None
) -> dict[str, np.ndarray]:
    """Prediction, label, confidence and measures (default: all) of each image of a batch.

    logits: [n, classes] on any device. labels: int64 [n]. An image with non-finite logits counts as
    wrong: its prediction is -1, its confidence 0, and its measures have their worst values.
    """
    logits = logits.detach().to("cpu", torch.promote_types(logits.dtype, torch.float32))
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    confidence, prediction = p.max(-1)
    valid = torch.isfinite(logits).all(-1)
    outputs = Outputs(logits, labels, log_p, p)
    values = {
        "prediction": torch.where(valid, prediction, -1).int(),
        "label": labels.int(),
        "confidence": torch.where(valid, confidence, 0.0).float(),
    }
    for measure in all_measures() if measures is None else measures:
        if not measure.needs and logits.shape[-1] >= measure.fewest_classes:
            values[measure.name] = torch.where(valid, measure.score(outputs), measure.worst).float()
    return {name: value.numpy() for name, value in values.items()}


def summarise(
    scores: Scores, domains: list[str], severity: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """Metrics by round and domain: the `rounds` of result.json, errors and ECE in %.

    severity: int8 [n]; with several severities each round also has the mean at each.
    """
    return ErrorScorer().summarise(vars(scores), domains, severity)


class ErrorScorer(Scorer):
    """Classification: the error in %, lower is better."""

    num_check_images, check_batch_size = 256, 64

    def __init__(
        self, metric: Metric | None = None, measures: Sequence[Measure] | None = None
    ) -> None:
        super().__init__(metric or METRICS.get("classification")())
        self.measures = all_measures() if measures is None else measures

    def score(self, logits: Tensor, labels: Tensor) -> Arrays:
        """The arrays of `Scores` except the last three, and those of further measures."""
        return score_batch(logits, labels, self.measures)

    def named(self, arrays: Arrays) -> Scores:
        """The arrays as `Scores`, without those of further measures."""
        return Scores(**{name: arrays[name] for name in FIELDS})

    def check(self, outputs: Iterable[tuple[Tensor, Tensor]], num_classes: int) -> SourceCheck:
        """Near chance: less than four standard deviations above the accuracy of guessing.

        A bad model passes, random weights do not.
        """
        hits = torch.cat([logits.argmax(-1).cpu() == labels for logits, labels in outputs])
        accuracy, count, chance = 100 * float(hits.double().mean()), len(hits), 100 / num_classes
        limit = chance + 4 * (chance * (100 - chance) / count) ** 0.5
        finding = f"is right on {accuracy:.1f} % of {count} source images"
        return SourceCheck(accuracy, accuracy < limit, chance, finding)
