"""Status of all cells of a folder, from their run folders, their launches and the scheduler.

states.py has the states, and decides which one a cell is in.
"""

import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ctta_bench.errors import RunError
from ctta_bench.launch.plan import Launch, launches
from ctta_bench.launch.scheduler import Answer, JobState, job_states
from ctta_bench.launch.slurm import job_log, last_words
from ctta_bench.launch.states import STATES, UNDER_WAY, Evidence, Submission, judge
from ctta_bench.record.bulk import gc_paused
from ctta_bench.record.owner import FileClock, is_dead
from ctta_bench.record.status import StatusRow, status

# On a network file system a new file may be visible this much later on another machine.
GRACE_SECONDS = 60.0


@dataclass(frozen=True)
class CellStatus:
    """Status of one cell.

    attempt: from 1. signal: the last that interrupted the cell. cancelled: whether somebody has
    cancelled it in its last launch, also if its process has not stopped yet.
    """

    experiment: str
    cell: str
    method: str
    benchmark: str
    seed: int | None
    state: str
    done: int | None
    total: int | None
    reason: str
    attempt: int
    signal: str
    eta_seconds: float | None
    job: str | None = None
    log: str | None = None
    cancelled: bool = False


@dataclass(frozen=True)
class Remaining:
    """Expected seconds until all cells under way are done, and what that is based on.

    seconds: None if it is not known; `basis` then says why, or is "" if nothing is under way.
    """

    seconds: float | None = None
    basis: str = ""


@dataclass(frozen=True)
class FolderStatus:
    """Status of all cells, and errors of the scheduler."""

    cells: list[CellStatus]
    problems: list[str]
    remaining: Remaining = Remaining()

    @property
    def is_done(self) -> bool:
        """Whether every cell has its result."""
        return bool(self.cells) and all(cell.state == "done" for cell in self.cells)

    @property
    def is_under_way(self) -> bool:
        """Whether any cell will still change its state by itself."""
        return any(cell.state in UNDER_WAY for cell in self.cells)


class _LaunchFacts:
    """A launch, and what the scheduler says of its jobs."""

    def __init__(self, launch: Launch, clock: FileClock) -> None:
        self.launch, self.clock = launch, clock
        self.answer = Answer()
        self.job_of = {number: job for job, number in launch.jobs().items()}

    @property
    def is_unsure(self) -> bool:
        """Whether the scheduler may have taken an array without an answer to its launcher."""
        return any(array["state"] == "intended" for array in self.submissions.values())

    def learn(self, answer: Answer) -> None:
        """Add what the scheduler says, also of jobs that are only known by their mark."""
        self.answer = answer
        if self.is_unsure:
            found = self.launch.jobs(answer.marks)
            self.job_of = {number: job for job, number in found.items()}

    @cached_property
    def lives(self) -> bool:
        """Whether its launcher may still start or submit steps."""
        if self.launch.has_ended:
            return False
        dead = is_dead(self.launch.facts["launcher"])
        if dead is None:  # on another host
            file = self.launch.submissions.file
            return file.exists() and abs(self.clock.age_of(file)) < GRACE_SECONDS
        return not dead

    @cached_property
    def cancelled(self) -> set[str]:
        """The steps that were cancelled one by one."""
        return self.launch.cancelled_steps()

    @cached_property
    def submissions(self) -> dict[int, dict[str, Any]]:
        """Number of a job -> what is known of its array."""
        arrays = self.launch.arrays().values()
        return {job: array for array in arrays for job in range(array["first"], array["stop"])}

    def submission(self, job: int) -> Submission:
        """What became of the submission of a job."""
        if (number := self.job_of.get(job)) is not None:
            return Submission("submitted", job=number)
        array = self.submissions.get(job, {})
        refusals = [a["reason"] for a in self.submissions.values() if a["state"] == "refused"]
        if array.get("state") == "intended":
            return Submission("intended")
        return Submission("refused", refusals[0]) if refusals else Submission("unsent")


@dataclass
class _WorkerShare:
    """The share of one worker of a launch: its pack of steps, and its job."""

    of: _LaunchFacts
    worker: int

    @property
    def launch(self) -> Launch:
        return self.of.launch

    @property
    def number(self) -> int:
        """The number of its job in the launch."""
        return self.worker // self.launch.workers_per_job

    @cached_property
    def submission(self) -> Submission:
        """What became of the submission of its job; its own process knows that it was submitted."""
        if self.launch.facts["executor"] != "slurm":
            return Submission()
        found = self.of.submission(self.number)
        if found.state == "intended" and (jobs := [e["job"] for e in self.events if e.get("job")]):
            return Submission("submitted", job=jobs[-1])
        return found

    @property
    def state(self) -> JobState:
        return self.of.answer.states.get(self.submission.job or "", JobState(""))

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return self.launch.journal(self.worker).read()

    @cached_property
    def ends(self) -> dict[str, dict[str, Any]]:
        """The last event of each step."""
        return {event["step"]: event for event in self.events if "step" in event}

    @cached_property
    def log(self) -> Path:
        """What its process printed, or, if none has begun, its job."""
        logs, job = self.of.submissions.get(self.number, {}).get("logs"), self.submission.job
        if self.events or logs is None or job is None:
            return self.launch.log(self.worker)
        return job_log(logs, job)


def folder_status(directory: Path) -> FolderStatus:
    """Status of all cells below a directory, sorted by experiment and cell.

    Calls the scheduler at most twice, for any number of cells. Raises RunError if the directory
    does not exist.
    """
    with gc_paused():  # saves a fifth of the time
        return _folder_status(directory)


def _folder_status(directory: Path) -> FolderStatus:
    rows = status(directory)
    open_cells = {row.cell for row in rows if row.state != "done"}
    clock = FileClock(directory)
    shares = _shares(_launches(directory, {row.cell for row in rows}), open_cells, clock)
    problems = _ask_scheduler(shares)
    cells = [_line(row, shares.get(row.cell), clock) for row in rows]
    return FolderStatus(cells, problems, _remaining(cells, shares))


def _launches(directory: Path, cells: set[str]) -> list[Launch]:
    """Launches of a folder, of its subfolders, and of its parent (if the folder is a cell).

    Oldest first. cells: names of subfolders that are skipped.
    """
    with os.scandir(directory) as entries:
        below = [Path(e.path) for e in entries if e.name not in cells and e.is_dir()]
    folders = {directory.resolve(), directory.resolve().parent, *(p.resolve() for p in below)}
    found = [launch for folder in folders for launch in launches(folder)]
    return sorted(found, key=lambda launch: launch.folder.name)


def _shares(made: Iterable[Launch], cells: set[str], clock: FileClock) -> dict[str, _WorkerShare]:
    """The worker share that contains each of some cells, or contained it last."""
    found: dict[str, _WorkerShare] = {}
    for launch in made if cells else ():
        ids, facts = launch.ids(), _LaunchFacts(launch, clock)
        for worker, (start, stop) in enumerate(launch.facts["packs"]):
            share = _WorkerShare(facts, worker)
            for cell in ids[start:stop]:
                # Of workers with a common queue, the one that took the cell.
                shared = launch.facts["shared"] and cell in found and found[cell].of is facts
                if cell in cells and (not shared or cell in share.ends):
                    found[cell] = share
    return found


def _ask_scheduler(shares: dict[str, _WorkerShare]) -> list[str]:
    """Ask for the states of all jobs at once; returns errors of the scheduler."""
    of_slurm = [s for s in shares.values() if s.launch.facts["executor"] == "slurm"]
    jobs = {share.of.job_of.get(share.number) for share in of_slurm} - {None}
    asked = {id(share.of): share.of for share in of_slurm}.values()
    if not jobs and not any(of.is_unsure for of in asked):
        return []
    answer = job_states(job for job in jobs if job is not None)
    for of in asked:
        of.learn(answer)
    return answer.problems


def _line(row: StatusRow, share: _WorkerShare | None, clock: FileClock) -> CellStatus:
    known = _evidence(row, share, clock)
    state, reason = judge(known)
    return CellStatus(
        row.experiment,
        row.cell,
        row.method,
        row.benchmark,
        row.seed,
        state,
        row.done,
        row.total,
        reason,
        row.attempt,
        row.signal,
        row.eta_seconds if state == "running" else None,
        None if share is None else share.submission.job,
        None if share is None else str(share.log),
        known.cancelled,
    )


def _evidence(row: StatusRow, share: _WorkerShare | None, clock: FileClock) -> Evidence:
    seen = Evidence(row.state, row.reason, row.done, row.total)
    if share is None:
        return replace(seen, recent=lambda: abs(clock.now - row.changed) < GRACE_SECONDS)
    journal, end = share.launch.journal(share.worker), share.ends.get(row.cell, {})

    def recent() -> bool:
        """Whether the cell or its worker wrote a file a moment ago."""
        changed = [row.changed, *(f.stat().st_mtime for f in (journal.file,) if f.exists())]
        # Absolute values, because clocks may jump.
        return min(abs(clock.now - time) for time in changed) < GRACE_SECONDS

    return replace(
        seen,
        executor=share.launch.facts["executor"],
        lives=share.of.lives,
        cancelled=share.launch.is_cancelled or row.cell in share.of.cancelled,
        submission=share.submission,
        answers=share.of.answer.answers,
        job=share.state.state,
        job_reason=share.state.reason,
        end=end.get("state", ""),
        end_reason=end.get("reason", ""),
        started=bool(share.events),
        broken=journal.broken() if share.events else "",
        recent=recent,
        output=lambda: last_words(share.log),
    )


MOST_JOURNALS = 200  # read for the expected time; a large grid has more than enough


def _remaining(cells: list[CellStatus], shares: dict[str, _WorkerShare]) -> Remaining:
    """Expected time of the cells under way, from the cells that the same launches have finished."""
    running = [cell for cell in cells if cell.state == "running"]
    waiting = [cell for cell in cells if cell.state in UNDER_WAY and cell.state != "running"]
    if not running and not waiting:
        return Remaining()
    if not running:
        return Remaining(None, "no cell is running")
    if not waiting and None not in (etas := [cell.eta_seconds for cell in running]):
        return Remaining(max(eta for eta in etas if eta is not None), "by their batches")
    launches_of = {id(share.of): share.launch for share in shares.values()}.values()
    journals = [
        launch.journal(n) for launch in launches_of for n in range(len(launch.facts["packs"]))
    ]
    took: dict[str, list[float]] = {}  # by method
    for journal in journals[:MOST_JOURNALS]:
        for step, seconds in journal.durations().items():
            took.setdefault(step.partition("-")[0], []).append(seconds)
    every = [seconds for each in took.values() for seconds in each]
    if not every:
        return Remaining(None, "no cell has finished yet")

    def expected(cell: CellStatus) -> float:
        if cell.eta_seconds is not None:
            return cell.eta_seconds
        whole = statistics.median(took.get(cell.method, every))
        return whole * (1 - (cell.done or 0) / cell.total) if cell.total else whole

    seconds = sum(map(expected, [*running, *waiting])) / len(running)
    return Remaining(seconds, f"by {len(every)} finished cells, {len(running)} at a time")


def attempt_of(cell: Path, number: int) -> tuple[str, Path]:
    """How an attempt at a cell ended (`: failed: ...`, or ""), and the log of its process or job.

    number: from 1; a job that ended before it began the cell counts. Raises RunError if there was
    no such attempt.
    """
    found: list[tuple[str, Path]] = []
    for launch in launches(cell.parent):
        ids, before = launch.ids(), len(found)
        packs = enumerate(launch.facts["packs"])
        for worker in [n for n, (start, stop) in packs if cell.name in ids[start:stop]]:
            for event in launch.journal(worker).read():
                if event.get("step") == cell.name and event["state"] == "running":
                    found.append(("", launch.log(worker)))
                elif event.get("step") == cell.name and found:
                    reason = f": {event['reason']}" if event.get("reason") else ""
                    found[-1] = f": {event['state']}{reason}", launch.log(worker)
            share = _WorkerShare(_LaunchFacts(launch, FileClock(cell)), worker)
            if len(found) == before and not share.events and share.submission.job is not None:
                found.append((": its job ended before it began this cell", share.log))
    if not 0 < number <= len(found):
        raise RunError(f"{cell}: has {len(found)} attempts in launches, no attempt {number}.")
    return found[number - 1]


def counts(cells: list[CellStatus]) -> dict[str, dict[str, int]]:
    """Number of cells in each state that occurs, by experiment."""
    found: dict[str, dict[str, int]] = {}
    for cell in cells:
        of = found.setdefault(cell.experiment, {})
        of[cell.state] = of.get(cell.state, 0) + 1
    return {name: {s: of[s] for s in STATES if s in of} for name, of in found.items()}
