"""Status of grids, their logs, cancelling them, and merging folders of runs."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live

from ctta_bench.cli.command import Format, check_format, command, print_error, print_json, printer
from ctta_bench.errors import RunError
from ctta_bench.record.schema import CELL_FILE, LOG_FILE

if TYPE_CHECKING:
    from ctta_bench.launch.status import CellStatus, FolderStatus

FEW = 50  # up to this many cells, all are listed, also those that are done
WATCH_SECONDS = 5.0
LONGEST_WAIT = 60.0


@command
def status(
    directory: Annotated[Path, typer.Argument(help="Folder of runs.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Update the status until nothing is running or queued.")
    ] = False,
    all_cells: Annotated[
        bool, typer.Option("--all", help=f"List all cells, also more than {FEW}.")
    ] = False,
    format: Format = "text",
) -> None:
    """Show the status of all cells: done, running, queued, failed and why.

    The exit code is 0 if all cells are done, else 1.

    Example: `ctta-bench status runs/quickstart`
    """
    as_json = check_format(format)
    from ctta_bench.launch.status import folder_status

    found = _watched(directory, all_cells) if watch and not as_json else folder_status(directory)
    if as_json:
        print_json([asdict(line) for line in found.cells])
    elif not watch:
        printer().print(_page(found, all_cells))
    for problem in found.problems:
        print_error(problem, "note")
    if not found.is_done:
        raise typer.Exit(1)


def _watched(directory: Path, all_cells: bool) -> "FolderStatus":
    """Show the status until nothing is running or queued; less often while nothing changes."""
    from ctta_bench.launch.status import folder_status

    pause, before = WATCH_SECONDS, None
    with Live(console=printer(), auto_refresh=False) as live:
        while True:
            found = folder_status(directory)
            live.update(_page(found, all_cells), refresh=True)
            if not found.is_under_way:
                return found
            now = [(line.state, line.done) for line in found.cells]
            pause = WATCH_SECONDS if now != before else min(1.5 * pause, LONGEST_WAIT)
            before = now
            time.sleep(pause)


def _page(found: "FolderStatus", all_cells: bool) -> Group:
    from ctta_bench.cli.console import plain_table
    from ctta_bench.launch.status import STATES, counts

    by_experiment = counts(found.cells)
    present = [s for s in STATES if any(s in of for of in by_experiment.values())]
    summary = plain_table(
        ["experiment", *present],
        [[name, *(str(of.get(s, 0)) for s in present)] for name, of in by_experiment.items()],
    )
    few = all_cells or len(found.cells) <= FEW
    shown = [line for line in found.cells if few or line.state != "done"]
    shown = shown if few else sorted(shown, key=lambda line: STATES.index(line.state))[:FEW]
    cells = plain_table(
        ["cell", "state", "batches", "attempt", "reason"], [_cells(line) for line in shown]
    )
    left = len(found.cells) - len(shown)
    rest = f"{left} more cells: --all lists them" if left else ""
    total = {s: sum(of.get(s, 0) for of in by_experiment.values()) for s in present}
    totals = ", ".join(f"{count} {state}" for state, count in total.items())
    return Group(*([cells] if shown else []), summary, *([rest] if rest else []), totals)


def _cells(line: "CellStatus") -> list[str]:
    attempt = str(line.attempt) + (f" ({line.signal})" if line.signal else "")
    eta = "" if line.eta_seconds is None else f", {_duration(line.eta_seconds)} left"
    job = f" [job {line.job}]" if line.job and line.state != "done" else ""
    done = "?" if line.done is None else str(line.done)
    return [line.cell, line.state, f"{done}/{line.total or '?'}", attempt, line.reason + eta + job]


def _duration(seconds: float) -> str:
    minutes, hours = int(seconds / 60) % 60, int(seconds / 3600)
    return (
        f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds:.0f} s"
    )


@command
def logs(
    cell: Annotated[Path, typer.Argument(help="Folder of a cell.")],
    lines: Annotated[
        int, typer.Option("--lines", "-n", help="Number of last lines of each log.")
    ] = 20,
) -> None:
    """Show the log of a cell, why it failed, and the output of its job.

    Example: `ctta-bench logs runs/quickstart/tent-fashion_c-fashion_vit-seed0-1a2b3c4d`
    """
    from ctta_bench.launch.status import folder_status

    if not (cell / CELL_FILE).is_file():
        raise RunError(
            f"{cell}: is not the folder of a cell; `ctta-bench status DIR` lists the cells."
        )
    (line,) = folder_status(cell).cells
    typer.echo(f"{line.cell}: {line.state}{f': {line.reason}' if line.reason else ''}")
    for file in (cell / LOG_FILE, Path(line.log) if line.log else None):
        if file is not None and file.is_file():
            typer.echo(f"-- {file}")
            text = file.read_text("utf-8", errors="replace").splitlines()
            typer.echo("\n".join(text[-lines:]))


@command
def cancel(
    directory: Annotated[Path, typer.Argument(help="Folder of runs.")],
) -> None:
    """Stop queued and running cells of a folder. `grid` resumes from their checkpoints.

    Example: `ctta-bench cancel runs/quickstart`
    """
    from ctta_bench.launch.cancel import cancel_launches

    ended = cancel_launches(directory)
    typer.echo(f"{ended.jobs} Slurm jobs and {ended.processes} processes on this machine stopped")
    for problem in ended.problems:
        print_error(problem, "note")
    if ended.problems:
        raise typer.Exit(1)


@command
def merge(
    target: Annotated[Path, typer.Argument(help="Folder of runs that gets the cells.")],
    other: Annotated[Path, typer.Argument(help="Folder of runs to copy from.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done; copy nothing.")
    ] = False,
    format: Format = "text",
) -> None:
    """Copy the cells of one folder of runs into another. Contradicting cells are refused.

    Example: `ctta-bench merge runs/table runs-of-cluster-b/table`
    """
    as_json = check_format(format)
    from ctta_bench.record.merging import compare, merge_into

    merged = compare(target, other) if dry_run else merge_into(target, other)
    values: dict[str, Any] = {key: list(map(str, value)) for key, value in asdict(merged).items()}
    if as_json:
        print_json(values)
        return
    for conflict in merged.conflicts:
        print_error(conflict, "conflict")
    counts = (
        f"{len(merged.new)} new, {len(merged.finished)} finished in {other}, "
        f"{len(merged.same)} the same"
    )
    typer.echo(f"{'would merge' if dry_run else 'merged'}: {counts}")
    if merged.conflicts:
        raise typer.Exit(1)
