"""Status of grids, their logs, cancelling them, and merging folders of runs."""

import os
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live

from ctta_bench.cli.command import Format, check_format, command, print_error, print_json, printer
from ctta_bench.errors import ConfigError, RunError, counted
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
    notify: Annotated[
        str | None,
        typer.Option(
            "--notify",
            metavar="COMMAND",
            help="With --watch: a shell command to run at the first failure and at the end; its "
            "environment has CTTA_BENCH_EVENT (failed, ended) and CTTA_BENCH_MESSAGE.",
        ),
    ] = None,
    format: Format = "text",
) -> None:
    """Show the status of all cells: done, running, queued, failed and why.

    The first line sums up, with the expected time until the end. The exit code is 0 if all cells
    are done, else 1.

    Example: `ctta-bench status runs/quickstart`
    """
    as_json = check_format(format)
    if notify is not None and (as_json or not watch):
        raise ConfigError("--notify is for --watch, without --format json.")
    from ctta_bench.launch.status import folder_status

    watched = watch and not as_json
    found = _watched(directory, all_cells, notify) if watched else folder_status(directory)
    if as_json:
        print_json([asdict(line) for line in found.cells])
    elif not watch:
        printer().print(_page(found, all_cells))
    for problem in found.problems:
        print_error(problem, "note")
    if not found.is_done:
        raise typer.Exit(1)


def _watched(directory: Path, all_cells: bool, notify: str | None) -> "FolderStatus":
    """Show the status until nothing is running or queued; less often while nothing changes."""
    from ctta_bench.launch.status import folder_status

    pause, before, failure = WATCH_SECONDS, None, False
    with Live(console=printer(), auto_refresh=False) as live:
        while True:
            found = folder_status(directory)
            live.update(_page(found, all_cells, directory), refresh=True)
            if not failure and (failed := [c for c in found.cells if c.state == "failed"]):
                failure = True
                _notify(notify, "failed", f"{failed[0].cell}: {failed[0].reason}")
            if not found.is_under_way:
                _notify(notify, "ended", f"{directory}: {summed_up(found)}")
                return found
            now = [(line.state, line.done) for line in found.cells]
            pause = WATCH_SECONDS if now != before else min(1.5 * pause, LONGEST_WAIT)
            before = now
            time.sleep(pause)


def _notify(command: str | None, event: str, message: str) -> None:
    if command is not None:
        facts = {"CTTA_BENCH_EVENT": event, "CTTA_BENCH_MESSAGE": message}
        code = subprocess.run(command, shell=True, env=os.environ | facts, check=False).returncode
        if code:
            print_error(f"--notify {command!r} ended with exit code {code}", "note")


def summed_up(found: "FolderStatus") -> str:
    """`12 of 40 done, 3 running, 25 queued; about 2 h left (by 12 finished cells, 3 at a time)`."""
    from ctta_bench.launch.states import STATES

    number = {s: sum(cell.state == s for cell in found.cells) for s in STATES}
    others = [f"{count} {s}" for s, count in number.items() if count and s != "done"]
    text = ", ".join([f"{number['done']} of {len(found.cells)} done", *others])
    left = found.remaining
    if left.seconds is not None:
        return f"{text}; about {_duration(left.seconds)} left ({left.basis})"
    return f"{text}; time left unknown: {left.basis}" if left.basis else text


def _page(found: "FolderStatus", all_cells: bool, watched: Path | None = None) -> Group:
    """The page of `status`; watched: the folder, for short names and the errors so far."""
    from ctta_bench.cli.terminal.console import plain_table
    from ctta_bench.launch.states import STATES
    from ctta_bench.launch.status import counts

    by_experiment = counts(found.cells)
    present = [s for s in STATES if any(s in of for of in by_experiment.values())]
    summary = plain_table(
        ["experiment", *present],
        [[name, *(str(of.get(s, 0)) for s in present)] for name, of in by_experiment.items()],
    )
    few = all_cells or len(found.cells) <= FEW
    shown = [line for line in found.cells if few or line.state != "done"]
    shown = shown if few else sorted(shown, key=lambda line: STATES.index(line.state))[:FEW]
    heads, values = ["cell", "state", "batches", "attempt", "reason"], [_cells(c) for c in shown]
    if watched is not None:
        from ctta_bench.record.so_far import short_names, so_far

        names = short_names([line.cell for line in found.cells])
        heads.insert(3, "error so far")
        for row, line in zip(values, shown, strict=True):
            row[0] = names[line.cell]
            row.insert(3, so_far(watched, line.cell) if line.state == "running" else "")
    cells = plain_table(heads, values)
    left = len(found.cells) - len(shown)
    rest = f"{left} more cells: --all lists them" if left else ""
    summaries = [summary] if len(by_experiment) > 1 else []
    return Group(
        summed_up(found), *([cells] if shown else []), *summaries, *([rest] if rest else [])
    )


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
    attempt: Annotated[
        int | None, typer.Option("--attempt", help="An earlier attempt, from 1; default: the last.")
    ] = None,
) -> None:
    """Show the log of a cell, why it failed, and the output of its job.

    Example: `ctta-bench logs runs/quickstart/tent-fashion_c-fashion_vit-seed0-1a2b3c4d`
    """
    from ctta_bench.launch.status import attempt_of, folder_status

    if not (cell / CELL_FILE).is_file():
        raise RunError(
            f"{cell}: is not the folder of a cell; `ctta-bench status DIR` lists the cells."
        )
    if attempt is None:
        (line,) = folder_status(cell).cells
        typer.echo(f"{line.cell}: {line.state}{f': {line.reason}' if line.reason else ''}")
        files = [cell / LOG_FILE, Path(line.log) if line.log else None]
    else:
        what, log = attempt_of(cell, attempt)
        typer.echo(f"{cell.name}: attempt {attempt}{what}")
        files = [log]
    for file in files:
        if file is not None and file.is_file():
            typer.echo(f"-- {file}")
            text = file.read_text("utf-8", errors="replace").splitlines()
            typer.echo("\n".join(text[-lines:]))


@command
def cancel(
    directory: Annotated[Path, typer.Argument(help="Folder of runs, or of a cell.")],
    which: Annotated[
        list[str] | None,
        typer.Argument(help="Cells, methods, or patterns of cells (`tent-*`); default: all."),
    ] = None,
) -> None:
    """Stop queued and running cells of a folder. `grid` resumes from their checkpoints.

    Example: `ctta-bench cancel runs/quickstart tent`
    """
    from ctta_bench.launch.cancel import cancel_launches

    ended = cancel_launches(directory, which or ())
    jobs = counted(ended.jobs, "Slurm job")
    if which or (directory / CELL_FILE).is_file():
        typer.echo(f"{counted(ended.cells, 'cell')} cancelled; {jobs} ended")
    else:
        typer.echo(f"{jobs} and {counted(ended.processes, 'process')} on this machine stopped")
    for problem in ended.problems:
        print_error(problem, "note")
    if ended.problems:
        raise typer.Exit(1)


@command
def work(
    launch: Annotated[Path, typer.Argument(help="Folder of a launch, RUNS/.launch/ID.")],
    job: Annotated[int, typer.Argument(help="Number of the job, from 0.")],
) -> None:
    """Run one job of a launch: what the lines of `grid --emit shell` call.

    The exit code is 0 when all its cells have ended, 75 after a signal: the same command resumes.

    Example: `ctta-bench work runs/small/.launch/20261128-105106-0000-1a2b3c 0`
    """
    from ctta_bench.launch.job import run_job
    from ctta_bench.launch.plan import Launch

    jobs = Launch.open(launch).number_of_jobs
    if not 0 <= job < jobs:
        raise RunError(f"{launch}: has no job {job}; its jobs are 0 to {jobs - 1}.")
    code = run_job(launch, job)
    if code:
        raise typer.Exit(code)


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
