"""The face of a scorer: what the engine asks of a task's metric, without knowing the task."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ctta_bench.stream import Batch

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class SourceCheck:
    """How good a model is on source images: its accuracy in %, and whether it's near chance.

    words: what was found of how many source images, as the middle of a sentence.
    """

    accuracy: float
    near_chance: bool
    chance: float  # in %
    words: str


class Scorer(ABC):
    """A task's metric: it scores batches, joins what it kept of them, and sums them up."""

    metric: ClassVar[str]
    checked_images: ClassVar[int]  # source images that a model is tried on
    at_once: ClassVar[int]  # of these in one pass

    @abstractmethod
    def score(self, logits: Tensor, labels: Tensor) -> Arrays:
        """What is kept of each image of a batch: arrays [n, ...]."""

    @abstractmethod
    def figures(self, scores: Arrays) -> dict[str, int]:
        """What a batch's line in batches.jsonl tells of these scores."""

    @abstractmethod
    def joined(self, arrays: Arrays) -> Any:
        """The arrays of a stream as a record of named ones, for users of `ctta_bench.api`."""

    def frames(self, batch: Batch, logits: Tensor, kept: Sequence[Arrays]) -> list[Arrays]:
        """Pictures of a batch to keep beside those that are kept already."""
        return []

    def gallery(self, frames: Sequence[Arrays]) -> Arrays:
        """The arrays of pictures.npz; {}: there is none."""
        return {}

    @abstractmethod
    def summarise(
        self, arrays: Arrays, domains: list[str], severity: np.ndarray | None = None
    ) -> list[dict[str, Any]]:
        """The `rounds` of result.json; severity int8 [n]."""

    def facts(self, rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What result.json tells besides."""
        return {}

    @abstractmethod
    def words(self, mean: float | None) -> str:
        """The mean as a user reads it."""

    @abstractmethod
    def check(self, outputs: Iterable[tuple[Tensor, Tensor]], num_classes: int) -> SourceCheck:
        """Judge logits and labels of source images."""


def mean_of(rounds: Sequence[dict[str, Any]]) -> float | None:
    """Mean over rounds; None if none has one."""
    means = [entry["mean"] for entry in rounds if entry["mean"] is not None]
    return float(np.mean(means)) if means else None
