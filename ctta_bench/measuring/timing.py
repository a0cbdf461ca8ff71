"""Reliable ratios of times: works run in turns, and the median of their ratios is used.

With one thread, the processor time of the thread is measured: other processes can still slow it
down through caches and memory, but their own time is not included.
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
    """Median of some values, with the smallest and the largest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


def clock(device: torch.device) -> Callable[[], float]:
    """A clock in seconds: processor time of one CPU thread, or wall time of several or of a GPU.

    On a GPU it waits for queued kernels.
    """
    if device.type != "cpu":

        def waited() -> float:
            torch.cuda.synchronize(device)
            return time.perf_counter()

        return waited
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def take_turns(
    works: Mapping[str, Work], repeats: int, now: Callable[[], float], warm: int = 1
) -> dict[str, list[float]]:
    """Seconds of each work in each repeat. Works run in turns; the first `warm` turns do not count.

    Garbage collection runs between repeats only, so that no work pays for another.
    """
    reuse_freed_memory()  # as in real runs
    times: dict[str, list[float]] = {name: [] for name in works}
    with gc_paused():
        for repeat in range(-warm, repeats):
            for name, work in works.items():
                started = now()
                work()
                spent = now() - started
                if repeat >= 0:
                    times[name].append(spent)
            gc.collect()
    return times


def ratios(subject: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Subject divided by reference, repeat by repeat."""
    return [a / b for a, b in zip(subject, reference, strict=True)]
