"""The interface of scorers, through which the engine uses the metric of any task."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ctta_bench.scoring.metric import Arrays, Metric
from ctta_bench.stream import Batch


@dataclass(frozen=True)
class SourceCheck:
    """Result of the check of a model on source images: accuracy in %, and whether near chance.

    finding: the result as the predicate of a sentence: "is right on 90.1 % of 256 source images".
    """

    accuracy: float
    near_chance: bool
    chance: float  # in %
    finding: str


class Scorer(ABC):
    """Scores batches on their device, into the arrays from which a metric is computed."""

    num_check_images: ClassVar[int] = 256  # source images of `check`
    check_batch_size: ClassVar[int] = 64  # source images per forward pass of `check`

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    @abstractmethod
    def score(self, logits: Tensor, labels: Tensor) -> Arrays:
        """Arrays [n, ...] with the scores of each image of a batch; stored in predictions.npz."""

    def line_values(self, scores: Arrays) -> dict[str, int | float]:
        """Values of these scores for the batch's line in batches.jsonl: sums over its images."""
        return {"errors": self.metric.image_values(scores).sum().item()}

    def named(self, arrays: Arrays) -> Any:
        """The arrays of a stream as attributes of one object, for users of `ctta_bench.api`."""
        return SimpleNamespace(**arrays)

    def frames(self, batch: Batch, logits: Tensor, kept: Sequence[Arrays]) -> list[Arrays]:
        """Pictures of a batch to store in addition to those already `kept`."""
        return []

    def gallery(self, frames: Sequence[Arrays]) -> Arrays:
        """The arrays of pictures.npz; {} for no such file."""
        return {}

    def summarise(
        self, arrays: Arrays, domains: list[str], severity: np.ndarray | None = None
    ) -> list[dict[str, Any]]:
        """The `rounds` of result.json; severity int8 [n]."""
        return self.metric.rounds_of(arrays, domains, severity)

    def facts(self, rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Further keys of result.json."""
        return {}

    def mean_text(self, mean: float | None) -> str:
        """The mean as text: `mean error 12.34 %`."""
        return f"mean {self.metric.symbol} {self.metric.shown(mean, decimals=2)}"

    def check(
        self, outputs: Iterable[tuple[Tensor, Tensor]], num_classes: int
    ) -> SourceCheck | None:
        """Check a model by logits and labels of source images; None if the metric has no check."""
        return None


def mean_of(rounds: Sequence[dict[str, Any]]) -> float | None:
    """Mean over rounds; None if none has one."""
    means = [entry["mean"] for entry in rounds if entry["mean"] is not None]
    return float(np.mean(means)) if means else None
