"""How a cell or a warm-up is run; nothing here decides a number."""

from collections.abc import Sequence
from dataclasses import dataclass

from ctta_bench.run.checkpoint import DEFAULT_INTERVAL
from ctta_bench.run.loggers import Logger


@dataclass(frozen=True)
class RunOptions:
    """Where it runs and what is written on the way.

    force: rerun from the start, whatever is there. checkpoint: the interval between two, as
    `checkpoint.parse_interval` reads it: `20s`, or a number of batches (of a warm-up: updates).
    """

    device: str = "cpu"
    force: bool = False
    loggers: Sequence[Logger] = ()
    checkpoint: str = DEFAULT_INTERVAL
