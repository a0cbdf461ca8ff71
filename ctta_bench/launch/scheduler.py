"""What Slurm knows: few calls, whatever the number of jobs, and no failure that stops us."""

import getpass
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ctta_bench.errors import RunError

SECONDS = 30
ATTEMPTS = 3
DEFAULT_ARRAY_LIMIT = 1001  # Slurm's own


@dataclass(frozen=True)
class JobState:
    """A job as Slurm sees it: PENDING, RUNNING, COMPLETED, TIMEOUT, ...; why it waits."""

    state: str
    reason: str = ""


def _call(*words: str) -> str:
    """The output of a command of Slurm. Raises RunError if it is not there or fails."""
    if shutil.which(words[0]) is None:
        raise RunError(f"{words[0]}: not found; is this a machine with Slurm?")
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=SECONDS, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{words[0]}: no answer within {SECONDS} s.") from None
    if done.returncode != 0:
        reason = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
        raise RunError(f"{words[0]}: {reason}")
    return done.stdout


def job_states(jobs: Iterable[str]) -> tuple[dict[str, JobState], list[str]]:
    """States of jobs (`12`, `12_3`) that Slurm still knows, and what could not be asked.

    One call of squeue, and one of sacct for those that have left the queue, where there is sacct.
    """
    wanted, problems = set(jobs), []
    states: dict[str, JobState] = {}
    try:
        states = _parse(_call("squeue", "-h", "-r", "-u", getpass.getuser(), "-o", "%i|%T|%r"))
    except RunError as error:
        problems.append(str(error))
    gone = wanted - states.keys()
    if gone and shutil.which("sacct"):
        roots = sorted({job.partition("_")[0] for job in gone})
        columns = ("-n", "-P", "-X", "-o", "JobID,State")
        try:
            states = _parse(_call("sacct", *columns, "-j", ",".join(roots))) | states
        except RunError as error:
            problems.append(str(error))
    return {job: states[job] for job in wanted & states.keys()}, problems


def _parse(text: str) -> dict[str, JobState]:
    states = {}
    for line in text.splitlines():
        job, state, *reason = line.split("|")
        words = state.split()  # "CANCELLED by 0"
        if words:
            # An array that has not begun is one line: 12_[3-5,8%2].
            for one in _expanded(job):
                states[one] = JobState(words[0].rstrip("+"), reason[0] if reason else "")
    return states


def _expanded(job: str) -> list[str]:
    found = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", job)
    if found is None:
        return [job]
    ranges = [part.partition("-") for part in found[2].split(",")]
    return [
        f"{found[1]}_{n}"
        for first, _, last in ranges
        for n in range(int(first), int(last or first) + 1)
    ]


def state_of(job: str) -> str:
    """The state of one job, by its own number; "" if Slurm knows it no more, or does not answer."""
    for attempt in range(ATTEMPTS):
        try:
            words = _call("squeue", "-h", "-j", job, "-o", "%T").split()
        except RunError as error:
            if "Invalid job id" in str(error) or attempt == ATTEMPTS - 1:
                return ""
            time.sleep(2)  # a controller that is busy, or starts again
        else:
            return words[0] if words else ""
    return ""


def requeue(job: str) -> None:
    """Queue a running job again. Raises RunError."""
    _call("scontrol", "requeue", job)


def cancel(jobs: Iterable[str]) -> None:
    """Cancel jobs, in one call. Raises RunError."""
    roots = sorted({job.partition("_")[0] for job in jobs})
    if roots:
        _call("scancel", *roots)


def array_limit() -> int:
    """How many jobs one array may have on this cluster."""
    try:
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _call("scontrol", "show", "config"), re.M)
    except RunError:
        found = None
    return int(found[1]) if found else DEFAULT_ARRAY_LIMIT
