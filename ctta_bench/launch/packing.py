"""From steps to jobs: their order, packs of them, arrays of packs within the cluster's limit."""

from collections.abc import Sequence
from dataclasses import dataclass

from ctta_bench.launch.steps import Step


@dataclass(frozen=True)
class Array:
    """Packs that are submitted together: `packs` are their numbers, `after` arrays to wait for."""

    packs: range
    after: tuple[int, ...]


def wave_of(step: Step) -> int:
    """0: warm-ups; 1: what needs none; 2: what starts from one."""
    return 0 if step.warms_up else 1 if step.needs is None else 2


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Steps by wave, and in a wave those with one model and benchmark beside each other.

    So a packed job finds the files of its cells read, and their model fingerprinted.
    """

    def alike(step: Step) -> tuple[int, str, str]:
        request = step.cell.request
        return wave_of(step), request.benchmark, str(request.model)

    return sorted(steps, key=alike)


def pack(steps: Sequence[Step], size: int) -> list[tuple[int, int]]:
    """Packs of at most `size` steps in their order, none over two waves: first step and end."""
    packs: list[tuple[int, int]] = []
    start = 0
    for wave in range(3):
        stop = start + sum(wave_of(step) == wave for step in steps)
        packs += [(n, min(n + size, stop)) for n in range(start, stop, size)]
        start = stop
    return packs


def arrays(waves: Sequence[int], limit: int, parallel: int | None) -> list[Array]:
    """Arrays of at most `limit` packs. waves: that of each pack, ascending.

    What starts from a warm-up waits for all arrays of warm-ups. Where `parallel` has to hold over
    several arrays, each waits for the one before: Slurm bounds the jobs of one array alone.
    """
    parts = [
        range(n, min(n + limit, first + waves.count(wave)))
        for wave in sorted(set(waves))
        for first in [waves.index(wave)]
        for n in range(first, first + waves.count(wave), limit)
    ]
    in_line = parallel is not None and len(waves) > parallel
    found: list[Array] = []
    for number, part in enumerate(parts):
        warmups = tuple(n for n, other in enumerate(parts) if waves[other.start] == 0)
        needs = warmups if waves[part.start] == 2 else ()
        before = (number - 1,) if in_line and number else ()
        found.append(Array(part, tuple(sorted({*needs, *before}))))
    return found
