"""The state of a cell, from all that is known of it: its folder, its journal, its job, its launch.

                      +--------------------------------------------------+
                      v                                                  |
    missing  --->  queued  --->  running  --->  finishing  --->  done    |
       ^            |  ^           |  |            |                     |
       |            |  |           |  +--> preempted (--> running)       |
       |            |  +--> unknown|                                     |
       |            v              v                                     |
       +----- failed, timeout, cancelled, missing -----------------------+

Every edge; the test of this module walks each of them.

missing -> queued: `grid` plans it
failed -> queued: `grid` plans it again
timeout -> queued: `grid` plans it again
cancelled -> queued: `grid` plans it again
queued -> running: a process takes it
queued -> failed: its job ended before Python started, or its worker could not start
queued -> timeout: its job used up its time with other cells
queued -> cancelled: somebody cancelled it
queued -> missing: Slurm refused its job, its launcher died, or its job ended early
queued -> unknown: Slurm does not answer
unknown -> queued: Slurm answers
running -> finishing: its job has ended, and the result is not visible yet
running -> done: its result is there
running -> preempted: a signal or a lost node interrupted it, and its job is queued again
running -> failed: it raised an error, or its process died
running -> timeout: its job used up its time
running -> cancelled: somebody cancelled it
running -> missing: a signal stopped it, and its job is not queued again
finishing -> done: its result is visible
finishing -> failed: no result appeared
preempted -> running: its job runs again
preempted -> cancelled: somebody cancelled it
"""

from collections.abc import Callable
from dataclasses import dataclass

STATES = (
    "running",
    "finishing",
    "queued",
    "preempted",
    "unknown",
    "failed",
    "timeout",
    "cancelled",
    "missing",
    "done",
)
UNDER_WAY = ("running", "finishing", "queued", "preempted", "unknown")
BEFORE_TIMEOUT = "SIGUSR2"  # submitit makes Slurm send it shortly before a job's time limit
# States of Slurm, as squeue and sacct print them.
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED")
LOST = ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL")  # queued again a moment later, if at all
RUNNING = ("RUNNING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED")
ACTIVE = (*WAITING, *RUNNING, "COMPLETING")


@dataclass(frozen=True)
class Submission:
    """What became of the submission of a cell's job.

    state: "" (not to a scheduler), unsent, intended, submitted, refused. reason: why it was not
    submitted.
    """

    state: str = ""
    reason: str = ""
    job: str | None = None


@dataclass(frozen=True)
class Evidence:
    """What is known of one cell. The defaults are those of a cell in no launch.

    folder: done, running, failed or incomplete, according to its files, with `reason`. end: the
    last event of the cell in the journal of its worker, with `end_reason`. started: whether the
    worker has begun, `broken`: why it could not. recent: whether a file of it is so new that others
    may not be visible yet. output: the last words of its job.
    """

    folder: str = "incomplete"
    reason: str = "not started"
    done: int | None = 0
    total: int | None = None
    executor: str = ""
    lives: bool = False  # its launcher
    cancelled: bool = False
    submission: Submission = Submission()
    answers: bool = True  # the scheduler
    job: str = ""  # state of the job in Slurm; "" if it is not listed
    job_reason: str = ""
    end: str = ""
    end_reason: str = ""
    started: bool = False
    broken: str = ""
    recent: Callable[[], bool] = lambda: False
    output: Callable[[], str] = lambda: ""


def judge(known: Evidence) -> tuple[str, str]:
    """The state of a cell, and the reason."""
    if known.folder == "running" and known.cancelled:
        return "running", f"{known.reason}; is being cancelled"
    if known.folder in ("done", "running"):
        return known.folder, known.reason
    if not known.executor:
        return _alone(known)
    if known.end == "failed":
        return "failed", known.end_reason or known.reason
    if known.executor == "slurm":
        return _in_job(known)
    return _in_pool(known)


def _alone(known: Evidence) -> tuple[str, str]:
    if known.folder == "failed":
        return "failed", known.reason
    if known.done is not None and known.done == known.total and known.recent():
        return "finishing", "its result is being written"
    return "missing", known.reason


def _in_job(known: Evidence) -> tuple[str, str]:
    """State and reason of a cell without a result that no process runs, in a launch to Slurm."""
    if known.cancelled:
        return _cancelled(known)
    if known.submission.state != "submitted":
        return _unsubmitted(known)
    if not known.answers and not known.job:
        return "unknown", "Slurm does not answer; its job may be queued"
    if known.job in WAITING or (known.job in LOST and known.recent()):
        return _waits(known)
    if known.job in RUNNING:
        if known.end == "running":
            return "running", "starting"
        return "queued", f"waits in a running job{_before(known)}"
    if known.job == "COMPLETING":
        return "finishing", "its job is ending"
    return _after(known)


def _unsubmitted(known: Evidence) -> tuple[str, str]:
    if known.submission.state == "refused":
        return "missing", f"not submitted: {known.submission.reason}"
    if known.lives:
        return "queued", "is being submitted"
    if not known.answers:
        return "unknown", "Slurm does not answer; its launcher ended while it submitted its job"
    if known.folder == "failed":
        return "failed", known.reason
    return "missing", "not submitted: its launcher ended before"


def _waits(known: Evidence) -> tuple[str, str]:
    why = known.job_reason if known.job_reason not in ("", "None") else known.job.lower()
    if known.end in ("running", "interrupted"):
        return "preempted", f"at batch {known.done}, waits to resume ({why})"
    return "queued", f"waits ({why}){_before(known)}"


def _before(known: Evidence) -> str:
    """What happened to a queued cell in an earlier launch."""
    if known.folder == "failed":
        return f"; failed before: {known.reason}"
    return f"; resumes at batch {known.done}" if known.done else ""


def _after(known: Evidence) -> tuple[str, str]:
    """State and reason of a cell whose job has ended; its result may not be visible yet."""
    job = known.submission.job
    ended = f"job {job} ended ({known.job})" if known.job else f"job {job} has left the queue"
    if known.job == "CANCELLED":
        return _cancelled(known)
    if known.job == "TIMEOUT":
        return _stopped(known, BEFORE_TIMEOUT)
    if known.end in ("done", "kept", "running") and known.recent():
        return "finishing", f"{ended}, the result is not visible yet"
    if known.end in ("done", "kept"):
        return "failed", f"{ended}, but there is no result"
    if known.end == "running":
        return "failed", f"{ended} during this cell"
    if known.end == "interrupted":  # after a checkpoint, and it is not requeued
        return _stopped(known, known.end_reason)
    if known.broken:
        return "failed", known.broken
    if known.job in LOST:
        return "missing", f"{ended} before this cell; `grid` submits it again"
    if not known.started and (said := known.output()):
        return "failed", f"{ended} before Python started: {said}"
    if known.folder == "failed":
        return "failed", known.reason
    if not known.started and known.job:
        return "failed", f"{ended} before Python started, and printed nothing"
    return "missing", f"{ended} before this cell; `grid` submits it again"


def _cancelled(known: Evidence) -> tuple[str, str]:
    place = f"at batch {known.done}" if known.done else "before its first batch"
    return "cancelled", f"cancelled {place}"


def _stopped(known: Evidence, signal: str) -> tuple[str, str]:
    """State and reason of a cell whose job was stopped by a signal and is not requeued."""
    place = f"after {known.done} of {known.total or '?'} batches; `grid` resumes it"
    if signal == BEFORE_TIMEOUT:
        return "timeout", f"timeout {place}"
    return "missing", f"stopped by {signal} {place}"


def _in_pool(known: Evidence) -> tuple[str, str]:
    """State and reason of a cell that no process runs, in a pool or in its launcher's process."""
    if known.cancelled:
        return _cancelled(known)
    if known.lives:
        if known.end == "running":
            return "running", "starting"
        where = "the cells before it" if known.executor == "debug" else "a worker"
        return "queued", f"waits for {where}{_before(known)}"
    if known.end == "interrupted":
        return _stopped(known, known.end_reason)
    if known.broken and not known.end:
        return "failed", known.broken
    return _alone(known)
