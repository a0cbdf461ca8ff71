"""Scores of classification: error and calibration by domain and round, from per-image records."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctta_bench.scoring.base import Arrays, Scorer, SourceCheck


@dataclass
class Scores:
    """What is kept of each scored image, in stream order (arrays of one length)."""

    prediction: np.ndarray  # int32
    label: np.ndarray  # int32
    confidence: np.ndarray  # float32, probability of the prediction
    nll: np.ndarray  # float32, nats
    brier: np.ndarray  # float32, squared distance to the one-hot label, in [0, 2]
    index: np.ndarray  # int64, number inside its domain
    domain: np.ndarray  # int16
    round: np.ndarray  # int16

    @property
    def correct(self) -> np.ndarray:
        """Whether each prediction is right."""
        return self.prediction == self.label


FIELDS = tuple(Scores.__dataclass_fields__)


def score_batch(logits: Tensor, labels: Tensor) -> dict[str, np.ndarray]:
    """Prediction, confidence, negative log-likelihood and Brier score of each image.

    logits [n, classes] on any device; labels int64 [n]. An image with non-finite logits counts as
    wrong: its prediction is -1, its confidence 0.
    """
    logits = logits.detach().to("cpu", torch.promote_types(logits.dtype, torch.float32))
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    confidence, prediction = p.max(-1)
    true = labels.view(-1, 1)
    nll = -log_p.gather(1, true).squeeze(1)
    brier = p.square().sum(-1) - 2 * p.gather(1, true).squeeze(1) + 1
    valid = torch.isfinite(logits).all(-1)
    values = {
        "prediction": torch.where(valid, prediction, -1).int(),
        "label": labels.int(),
        "confidence": torch.where(valid, confidence, 0.0).float(),
        "nll": torch.where(valid, nll, torch.inf).float(),
        "brier": torch.where(valid, brier, 2.0).float(),
    }
    return {name: value.numpy() for name, value in values.items()}


def summarise(
    scores: Scores, domains: list[str], severity: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """Metrics by round and domain: the `rounds` of result.json, errors and ECE in %.

    severity int8 [n]: if there are several, each round also has its mean at each of them.
    """
    rounds = []
    for number in np.unique(scores.round):
        by_domain = []
        for d, name in enumerate(domains):
            rows = np.flatnonzero((scores.round == number) & (scores.domain == d))
            if len(rows):
                by_domain.append({"domain": name, **_domain_metrics(scores, rows)})
        mean = float(np.mean([entry["error"] for entry in by_domain]))
        entry = {"round": int(number), "mean": mean, "domains": by_domain}
        if severity is not None and len(np.unique(severity)) > 1:
            entry["severities"] = _by_severity(scores, scores.round == number, severity)
        rounds.append(entry)
    return rounds


def _by_severity(scores: Scores, chosen: np.ndarray, severity: np.ndarray) -> list[dict[str, Any]]:
    """Mean error in % over domains at each severity, all visits to it together."""
    means = []
    for level in np.unique(severity[chosen]).tolist():
        here = chosen & (severity == level)
        by_domain = [
            100 * float((~scores.correct[here & (scores.domain == d)]).mean())
            for d in np.unique(scores.domain[here])
        ]
        means.append({"severity": level, "n": int(here.sum()), "mean": float(np.mean(by_domain))})
    return means


def _domain_metrics(scores: Scores, rows: np.ndarray) -> dict[str, Any]:
    correct = scores.correct[rows]
    errors = int((~correct).sum())
    return {
        "n": len(rows),
        "errors": errors,
        "error": 100 * errors / len(rows),
        "ece": 100 * expected_calibration_error(scores.confidence[rows], correct),
        "nll": _finite(scores.nll[rows].astype(np.float64).mean()),
        "brier": float(scores.brier[rows].astype(np.float64).mean()),
    }


class ErrorScorer(Scorer):
    """Classification: the error in %, lower is better."""

    metric = "error"
    checked_images, at_once = 256, 64

    def score(self, logits: Tensor, labels: Tensor) -> Arrays:
        """The first five arrays of `Scores`, as `score_batch` gives them."""
        return score_batch(logits, labels)

    def figures(self, scores: Arrays) -> dict[str, int]:
        """Wrong images."""
        return {"errors": int((scores["prediction"] != scores["label"]).sum())}

    def joined(self, arrays: Arrays) -> Scores:
        """The arrays as `Scores`."""
        return Scores(**arrays)

    def summarise(
        self, arrays: Arrays, domains: list[str], severity: np.ndarray | None = None
    ) -> list[dict[str, Any]]:
        """`summarise` of all arrays of `Scores`."""
        return summarise(Scores(**arrays), domains, severity)

    def words(self, mean: float | None) -> str:
        """`mean error 12.34 %`."""
        return f"mean error {mean:.2f} %"

    def check(self, outputs: Iterable[tuple[Tensor, Tensor]], num_classes: int) -> SourceCheck:
        """Near chance is what guessing reaches, up to four of its standard deviations.

        A merely bad model passes, an unloaded one does not.
        """
        hits = torch.cat([logits.argmax(-1).cpu() == labels for logits, labels in outputs])
        accuracy, count, chance = 100 * float(hits.double().mean()), len(hits), 100 / num_classes
        limit = chance + 4 * (chance * (100 - chance) / count) ** 0.5
        words = f"is right on {accuracy:.1f} % of {count} source images"
        return SourceCheck(accuracy, accuracy < limit, chance, words)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None  # JSON knows no infinity


def expected_calibration_error(
    confidence: np.ndarray, correct: np.ndarray, bins: int = 15
) -> float:
    """Top-label calibration error in [0, 1] over equal bins of confidence (Guo et al., 2017).

    torchmetrics computes the same (a test compares them), but takes seconds to import.
    """
    bin_of = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gap = np.bincount(bin_of, weights=correct - confidence.astype(np.float64), minlength=bins)
    return float(np.abs(gap).sum() / len(confidence))
