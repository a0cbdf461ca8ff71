"""The steps of a grid, their order, and what becomes of them; loaded in no time, without torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctta_bench.config.cell import Cell
from ctta_bench.record.folder import RunFolder


@dataclass
class Outcome:
    """What became of the steps of a grid, by their ids."""

    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    warmups: list[str] = field(default_factory=list)  # those that were run
    elsewhere: list[str] = field(default_factory=list)  # another process has them

    def note(self, step: "Step", state: str, reason: str = "") -> None:
        """Enter a step's end: kept, done, failed or elsewhere."""
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
    def record(self) -> dict[str, Any]:
        """What stands in the folder's cell.yaml."""
        return self.cell.warmup if self.warms_up and self.cell.warmup else self.cell.record

    @property
    def id(self) -> str:
        """The name of the folder."""
        return str(self.record["id"])

    @property
    def needs(self) -> str | None:
        """The id of the warm-up that has to be there first."""
        warmup = self.cell.warmup
        return None if self.warms_up or warmup is None else str(warmup["id"])


def schedule(cells: Sequence[Cell]) -> list[Step]:
    """The cells in their order, and before them each warm-up once."""
    warmups = {cell.warmup["id"]: Step(cell, True) for cell in cells if cell.warmup is not None}
    return [*warmups.values(), *map(Step, cells)]


def lay_down(steps: Sequence[Step], directory: Path) -> None:
    """Write the configuration of every step, so that `status` knows what is to come."""
    for step in steps:
        RunFolder(directory / step.id).plan(step.record)
