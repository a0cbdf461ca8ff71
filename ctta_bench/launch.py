"""A grid of cells in one process: what is done is kept, what was interrupted goes on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ctta_bench.config import Cell
from ctta_bench.engine import run_cell
from ctta_bench.errors import CttaBenchError
from ctta_bench.loggers import Logger
from ctta_bench.record import RunFolder, check_writable


@dataclass
class Outcome:
    """What became of the cells of a grid, by their ids."""

    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def run_grid(
    cells: Sequence[Cell],
    directory: Path,
    *,
    device: str,
    force: bool = False,
    make_loggers: Callable[[Cell], Sequence[Logger]],
    on_cell: Callable[[int, Cell, str], None] | None = None,
) -> Outcome:
    """Run the cells one after another, each in its folder under `directory`.

    A cell that fails keeps its reason and the others go on; KeyboardInterrupt ends the grid after
    a checkpoint. `on_cell(number, cell, state)` is told "running", "kept", "done" or "failed".
    """
    check_writable(directory)
    outcome = Outcome()

    def tell(number: int, cell: Cell, state: str) -> None:
        if on_cell is not None:
            on_cell(number, cell, state)

    for cell in cells:
        RunFolder(directory / cell.id).plan(cell.record)
    for number, cell in enumerate(cells):
        folder = RunFolder(directory / cell.id)
        try:
            if folder.is_done and not force:
                folder.check_configuration(cell.record)
                folder.result()
                outcome.kept.append(cell.id)
                tell(number, cell, "kept")
                continue
            tell(number, cell, "running")
            run_cell(cell, folder, device=device, force=force, loggers=make_loggers(cell))
        except CttaBenchError as error:
            outcome.failed[cell.id] = str(error)
            tell(number, cell, "failed")
            continue
        outcome.done.append(cell.id)
        tell(number, cell, "done")
    return outcome
