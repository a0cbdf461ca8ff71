"""A grid of cells in one process: what is done is kept, what was interrupted goes on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctta_bench.config import Cell
from ctta_bench.engine import run_cell
from ctta_bench.errors import CttaBenchError, RunError
from ctta_bench.export import check_kept
from ctta_bench.loggers import Logger
from ctta_bench.preparation import run_warmup
from ctta_bench.record import RunFolder, check_writable


@dataclass
class Outcome:
    """What became of the steps of a grid, by their ids."""

    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    warmups: list[str] = field(default_factory=list)  # those that were run


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


def schedule(cells: Sequence[Cell]) -> list[Step]:
    """The cells in their order, and before them each warm-up once."""
    warmups = {cell.warmup["id"]: Step(cell, True) for cell in cells if cell.warmup is not None}
    return [*warmups.values(), *map(Step, cells)]


def run_grid(
    cells: Sequence[Cell],
    directory: Path,
    *,
    device: str,
    force: bool = False,
    make_loggers: Callable[[Step], Sequence[Logger]],
    on_step: Callable[[int, Step, str], None] = lambda number, step, state: None,
) -> Outcome:
    """Run the steps of `schedule` one after another, each in its folder under `directory`.

    A step that fails keeps its reason and the others go on; KeyboardInterrupt ends the grid after
    a checkpoint. `on_step(number, step, state)` is told "running", "kept", "done" or "failed".
    """
    check_writable(directory)
    outcome = Outcome()
    steps = schedule(cells)
    for step in steps:
        RunFolder(directory / step.id).plan(step.record)
    for number, step in enumerate(steps):
        folder = RunFolder(directory / step.id)
        try:
            if folder.is_done and not force:
                _check_done(step, folder)
                outcome.kept += [] if step.warms_up else [step.id]
                on_step(number, step, "kept")
                continue
            on_step(number, step, "running")
            _check_warmup(step, folder, outcome)
            run = run_warmup if step.warms_up else run_cell
            run(step.cell, folder, device=device, force=force, loggers=make_loggers(step))
        except CttaBenchError as error:
            outcome.failed[step.id] = str(error)
            on_step(number, step, "failed")
            continue
        (outcome.warmups if step.warms_up else outcome.done).append(step.id)
        on_step(number, step, "done")
    return outcome


def _check_done(step: Step, folder: RunFolder) -> None:
    folder.check_configuration(step.record)
    if not step.warms_up:
        check_kept(folder, step.cell.request.keep_models)
    folder.result()


def _check_warmup(step: Step, folder: RunFolder, outcome: Outcome) -> None:
    """Leave a cell alone whose warm-up has failed: it would only fail again."""
    warmup = step.cell.warmup
    if warmup is not None and not step.warms_up and warmup["id"] in outcome.failed:
        error = RunError(f"its warm-up {warmup['id']} failed: {outcome.failed[warmup['id']]}")
        folder.write_failure(error)
        raise error
