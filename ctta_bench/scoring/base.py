"""The face of a scorer: what the engine asks of a task's metric, without knowing the task."""

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
    """How good a model is on source images: its accuracy in %, and whether it's near chance.

    finding: what was found of how many source images, as the middle of a sentence.
    """

    accuracy: float
    near_chance: bool
    chance: float  # in %
    finding: str


class Scorer(ABC):
    """What scores a metric's batches on their device, and keeps what they are summed up from."""

    num_check_images: ClassVar[int] = 256  # source images that a model is tried on
    check_batch_size: ClassVar[int] = 64  # of these in one pass

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    @abstractmethod
    def score(self, logits: Tensor, labels: Tensor) -> Arrays:
        """What is kept of each image of a batch: arrays [n, ...]."""

    def line_values(self, scores: Arrays) -> dict[str, int | float]:
        """What a batch's line in batches.jsonl says of these scores: the sum over its images."""
        return {"errors": self.metric.image_values(scores).sum().item()}

    def named(self, arrays: Arrays) -> Any:
        """The arrays of a stream as a record of named ones, for users of `ctta_bench.api`."""
        return SimpleNamespace(**arrays)

    def frames(self, batch: Batch, logits: Tensor, kept: Sequence[Arrays]) -> list[Arrays]:
        """Pictures of a batch to keep beside those that are kept already."""
        return []

    def gallery(self, frames: Sequence[Arrays]) -> Arrays:
        """The arrays of pictures.npz; {}: there is none."""
        return {}

    def summarise(
        self, arrays: Arrays, domains: list[str], severity: np.ndarray | None = None
    ) -> list[dict[str, Any]]:
        """The `rounds` of result.json; severity int8 [n]."""
        return self.metric.rounds_of(arrays, domains)

    def facts(self, rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What result.json tells besides."""
        return {}

    def mean_text(self, mean: float | None) -> str:
        """The mean as a user reads it: `mean error 12.34 %`."""
        return f"mean {self.metric.symbol} {self.metric.shown(mean, decimals=2)}"

    def check(
        self, outputs: Iterable[tuple[Tensor, Tensor]], num_classes: int
    ) -> SourceCheck | None:
        """Judge logits and labels of source images; None: the metric has no such check."""
        return None


def mean_of(rounds: Sequence[dict[str, Any]]) -> float | None:
    """Mean over rounds; None if none has one."""
    means = [entry["mean"] for entry in rounds if entry["mean"] is not None]
    return float(np.mean(means)) if means else None
