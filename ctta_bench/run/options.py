"""Options of running a cell or a warm-up that do not change its results."""

from collections.abc import Sequence
from dataclasses import dataclass

from ctta_bench.run.checkpoint import DEFAULT_INTERVAL
from ctta_bench.run.loggers import Logger


@dataclass(frozen=True)
class RunOptions:
    """Device, loggers and checkpoints of a run.

    force: delete earlier results and start from the beginning. checkpoint: interval between
    checkpoints: `20s`, or a number of batches (in a warm-up: updates).
    """

    device: str = "cpu"
    force: bool = False
    loggers: Sequence[Logger] = ()
    checkpoint: str = DEFAULT_INTERVAL
