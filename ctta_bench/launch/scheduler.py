"""Calls of Slurm: few, for any number of jobs. A failure to get states does not stop the caller."""

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
DEFAULT_ARRAY_LIMIT = 1001  # Slurm's default


@dataclass(frozen=True)
class JobState:
    """State of a job in Slurm (PENDING, RUNNING, COMPLETED, TIMEOUT, ...) and why it waits."""

    state: str
    reason: str = ""


def _call(*words: str) -> str:
    """The output of a Slurm command. Raises RunError if the command is missing or fails."""
    if shutil.which(words[0]) is None:
        raise RunError(f"{words[0]}: not found; run this on a machine of the Slurm cluster.")
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
    """States of jobs (`12`, `12_3`) that Slurm still lists, and errors of its commands.

    One call of squeue, and one of sacct, if installed, for jobs that have left the queue.
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
            # An array that has not started is one line: 12_[3-5,8%2].
            for one in _expanded(job):
                states[one] = JobState(words[0].rstrip("+"), reason[0] if reason else "")
    return states


def _expanded(job: str) -> list[str]:
    found = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", job)
    if found is None:
        return [job]
    ranges = [text.partition("-") for text in found[2].split(",")]
    return [
        f"{found[1]}_{n}"
        for first, _, last in ranges
        for n in range(int(first), int(last or first) + 1)
    ]


def state_of(job: str) -> str:
    """The state of one job by its number; "" if Slurm does not list it or does not answer."""
    for attempt in range(ATTEMPTS):
        try:
            words = _call("squeue", "-h", "-j", job, "-o", "%T").split()
        except RunError as error:
            if "Invalid job id" in str(error) or attempt == ATTEMPTS - 1:
                return ""
            time.sleep(2)  # the controller may be busy or restarting
        else:
            return words[0] if words else ""
    return ""


def requeue(job: str) -> None:
    """Requeue a running job. Raises RunError."""
    _call("scontrol", "requeue", job)


def cancel(jobs: Iterable[str]) -> None:
    """Cancel jobs, in one call. Raises RunError."""
    roots = sorted({job.partition("_")[0] for job in jobs})
    if roots:
        _call("scancel", *roots)


def array_limit() -> int:
    """Maximum number of jobs in one array on this cluster."""
    try:
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _call("scontrol", "show", "config"), re.M)
    except RunError:
        found = None
    return int(found[1]) if found else DEFAULT_ARRAY_LIMIT
