"""Cancelling the queued jobs and running processes of a folder of runs, or some of its cells."""

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from ctta_bench.errors import RunError
from ctta_bench.launch.local import signal_workers
from ctta_bench.launch.plan import FOLDER, Launch, launches
from ctta_bench.launch.scheduler import cancel, job_states
from ctta_bench.launch.states import ACTIVE, UNDER_WAY
from ctta_bench.launch.status import folder_status
from ctta_bench.record.owner import is_dead
from ctta_bench.record.schema import CELL_FILE


@dataclass
class Cancelled:
    """Numbers of cancelled cells, jobs and processes, and errors of the scheduler."""

    cells: int = 0
    jobs: int = 0
    processes: int = 0
    problems: list[str] = field(default_factory=list)


def cancel_launches(directory: Path, which: Sequence[str] = ()) -> Cancelled:
    """Cancel every launch of a folder, and of the experiments in it, or some cells of them.

    directory: also the folder of one cell. which: names of cells or methods, or patterns of names
    (`tent-*`). Workers end a cell after a checkpoint; a job that has other cells goes on with them.
    Raises RunError if the folder does not exist, or if no cell has one of the names.
    """
    if not directory.is_dir():
        raise RunError(f"{directory}: no such folder of runs.")
    if (directory / CELL_FILE).is_file():
        directory, which = directory.parent, [directory.name]
    places = [directory, *(file.parent for file in sorted(directory.glob(f"*/{FOLDER}")))]
    found = [launch for place in places for launch in launches(place)]
    return _cancel_cells(directory, found, which) if which else _cancel_all(found)


def _cancel_all(found: list[Launch]) -> Cancelled:
    cancelled = Cancelled()
    for launch in found:
        launch.cancel()  # before any signal: workers check for this mark when they get one
        if launch.facts["executor"] == "debug":
            cancelled.processes += _signal_launcher(launch)
        elif launch.facts["executor"] != "slurm":
            cancelled.processes += signal_workers(launch, signal.SIGTERM)
    _cancel_jobs([launch for launch in found if launch.facts["executor"] == "slurm"], cancelled)
    return cancelled


def _signal_launcher(launch: Launch) -> int:
    """Stop the launcher that runs its cells itself; returns whether it was running."""
    if launch.has_ended or is_dead(launch.facts["launcher"]) is not False:
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(launch.facts["launcher"]["pid"], signal.SIGTERM)
    return 1


def _cancel_cells(directory: Path, found: list[Launch], which: Sequence[str]) -> Cancelled:
    chosen: dict[str, bool] = {}  # cell -> whether it is under way
    status = folder_status(directory).cells
    for name in which:
        cells = {
            line.cell: line.state in UNDER_WAY
            for line in status
            if name in (line.cell, line.method) or fnmatchcase(line.cell, name)
        }
        if not cells:
            raise RunError(
                f"{name!r}: no cell and no method of {directory} has this name; "
                f"`ctta-bench status {directory}` lists the cells."
            )
        chosen |= cells
    wanted = {cell for cell, under_way in chosen.items() if under_way}
    for launch in found:
        if wanted & set(launch.ids()) and launch.facts["executor"] == "debug":
            raise RunError(
                f"{directory}: `grid` runs these cells in its own process; press Ctrl-C there, or "
                "cancel the whole folder."
            )
        if there := wanted & set(launch.ids()):
            launch.cancel(there)
    cancelled = Cancelled(cells=len(wanted))
    _cancel_jobs(
        [launch for launch in found if launch.facts["executor"] == "slurm"], cancelled, wanted
    )
    return cancelled


def _cancel_jobs(found: list[Launch], cancelled: Cancelled, cells: set[str] | None = None) -> None:
    """Cancel the jobs of launches, also those that only their mark in the queue shows.

    cells: cancel the waiting jobs that have nothing else to do; running ones end by themselves.
    """
    if not found:
        return
    answer = job_states({job for launch in found for job in launch.jobs()})
    cancelled.problems = answer.problems
    active = [
        job
        for launch in found
        for job, number in launch.jobs(answer.marks).items()
        if job in answer.states
        and answer.states[job].state in ACTIVE
        and (
            cells is None
            or (answer.states[job].state == "PENDING" and not launch.unfinished(number))
        )
    ]
    # Whole arrays, which keeps the call short; or the jobs one by one.
    chosen = {job.partition("_")[0] for job in active} if cells is None else set(active)
    try:
        cancel(chosen)
        cancelled.jobs = len(active)
    except RunError as error:
        cancelled.problems.append(str(error))
