"""The steps of a grid: their order, their packs and arrays for jobs, and their outcome.

Fast to import: without torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ctta_bench.config.cell import Cell
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.schema import CellRecord


@dataclass
class Outcome:
    """The outcome of the steps of a grid, by their ids."""

    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    warmups: list[str] = field(default_factory=list)  # those that were run
    elsewhere: list[str] = field(default_factory=list)  # those that another process runs

    def record(self, step: "Step", state: str, reason: str = "") -> None:
        """Record a step's final state: kept, done, failed or elsewhere."""
        if state == "failed":
            self.failed[step.id] = reason
        elif state == "elsewhere":
            self.elsewhere.append(step.id)
        elif step.warms_up:
            self.warmups += [step.id] if state == "done" else []
        else:
            (self.done if state == "done" else self.kept).append(step.id)


@dataclass(frozen=True)
class Step:
    """One entry of a grid: a cell, or (`warms_up`) the warm-up that it and others start from."""

    cell: Cell
    warms_up: bool = False

    @property
    def record(self) -> CellRecord:
        """The content of the folder's cell.yaml."""
        return self.cell.warmup if self.warms_up and self.cell.warmup else self.cell.record

    @property
    def id(self) -> str:
        """The name of the folder."""
        return str(self.record["id"])

    @property
    def needs(self) -> str | None:
        """The id of the warm-up that must be done first; None without one."""
        warmup = self.cell.warmup
        return None if self.warms_up or warmup is None else str(warmup["id"])


def schedule(cells: Sequence[Cell]) -> list[Step]:
    """Each warm-up once, then the cells in their order."""
    warmups = {cell.warmup["id"]: Step(cell, True) for cell in cells if cell.warmup is not None}
    return [*warmups.values(), *map(Step, cells)]


def write_planned(steps: Sequence[Step], directory: Path) -> None:
    """Write cell.yaml of every planned step, so that `status` lists it."""
    for step in steps:
        RunFolder(directory / step.id).plan(step.record)


@dataclass(frozen=True)
class Array:
    """Packs that are submitted as one array. packs: their numbers. after: arrays to wait for."""

    packs: range
    after: tuple[int, ...]


def wave_of(step: Step) -> int:
    """0: warm-ups; 1: cells without warm-up; 2: cells that start from one."""
    return 0 if step.warms_up else 1 if step.needs is None else 2


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Steps sorted by wave, then by benchmark and model, so that a process reads a model once."""

    def order(step: Step) -> tuple[int, str, str]:
        request = step.cell.request
        return wave_of(step), request.benchmark, str(request.model)

    return sorted(steps, key=order)


def pack(steps: Sequence[Step], size: int) -> list[tuple[int, int]]:
    """Packs of at most `size` successive steps of one wave, each as (first step, end)."""
    packs: list[tuple[int, int]] = []
    start = 0
    for wave in range(3):
        stop = start + sum(wave_of(step) == wave for step in steps)
        packs += [(n, min(n + size, stop)) for n in range(start, stop, size)]
        start = stop
    return packs


def arrays(waves: Sequence[int], limit: int, parallel: int | None) -> list[Array]:
    """Arrays of at most `limit` packs. waves: that of each pack, ascending.

    Cells that start from a warm-up wait for all arrays of warm-ups. If `parallel` limits several
    arrays, each waits for the one before it: Slurm limits the parallel jobs of one array only.
    """
    chunks = [
        range(n, min(n + limit, first + waves.count(wave)))
        for wave in sorted(set(waves))
        for first in [waves.index(wave)]
        for n in range(first, first + waves.count(wave), limit)
    ]
    in_line = parallel is not None and len(waves) > parallel
    found: list[Array] = []
    for number, chunk in enumerate(chunks):
        warmups = tuple(n for n, other in enumerate(chunks) if waves[other.start] == 0)
        needs = warmups if waves[chunk.start] == 2 else ()
        before = (number - 1,) if in_line and number else ()
        found.append(Array(chunk, tuple(sorted({*needs, *before}))))
    return found
