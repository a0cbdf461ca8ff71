"""Times whose ratios can be trusted: works take turns, and the median of their ratios counts.

On one thread it is the thread's own processor time that is read: other work on the machine can slow
it through caches and memory, but not take it away.
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ctta_bench.record.bulk import gc_paused
from ctta_bench.run.allocator import reuse_freed_memory

Work = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """Median of some values, with the least and the largest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


def clock(device: torch.device) -> Callable[[], float]:
    """Seconds: of this thread on one CPU thread, of the wall on several, behind a GPU's queue."""
    if device.type != "cpu":

        def waited() -> float:
            torch.cuda.synchronize(device)
            return time.perf_counter()

        return waited
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def take_turns(
    works: Mapping[str, Work], repeats: int, now: Callable[[], float], warm: int = 1
) -> dict[str, list[float]]:
    """Seconds of each work, once a repeat, one after another; the first `warm` turns not counted.

    Garbage is collected between turns, not within: what one leaves would be another's time.
    """
    reuse_freed_memory()  # as in runs
    times: dict[str, list[float]] = {name: [] for name in works}
    with gc_paused():
        for repeat in range(-warm, repeats):
            for name, work in works.items():
                began = now()
                work()
                spent = now() - began
                if repeat >= 0:
                    times[name].append(spent)
            gc.collect()
    return times


def ratios(subject: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Subject over reference, turn by turn."""
    return [a / b for a, b in zip(subject, reference, strict=True)]
