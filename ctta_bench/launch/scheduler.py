"""Calls of Slurm: few, for any number of jobs. A failure to get states does not stop the caller.

The caller's environment decides nothing: variables that Slurm's commands read as options are left
out, as they are in a shell of `salloc` or in a job.
"""

import contextlib
import getpass
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ctta_bench.errors import RunError

SECONDS = 30
PAUSES = (1.0, 4.0)  # before each further attempt to reach a controller that is away
DEFAULT_ARRAY_LIMIT = 1001  # Slurm's default
_OPTIONS = re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|SQUEUE|SACCT|SCANCEL|SCONTROL|SINFO)_")
_WAYS_TO_THE_CONTROLLER = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
_AWAY = re.compile(
    r"unable to contact|unable to establish|timed out|time out|connection refused|zero bytes|"
    r"communication connection|communications? error|in standby|no answer|"
    r"resource temporarily unavailable",
    re.IGNORECASE,
)
_MARK = re.compile(r"ctta-bench:\S+$")


@dataclass(frozen=True)
class JobState:
    """State of a job in Slurm (PENDING, RUNNING, COMPLETED, TIMEOUT, ...) and why it waits."""

    state: str
    reason: str = ""


@dataclass
class Answer:
    """What Slurm says of jobs. marks: mark in the comment -> number of the array.

    problems: errors of its commands. answers: whether the queue could be read.
    """

    states: dict[str, JobState] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    answers: bool = True


def is_away(error: Exception) -> bool:
    """Whether an error of a command means that the controller could not be reached."""
    return _AWAY.search(str(error)) is not None


def _is_option(name: str) -> bool:
    return _OPTIONS.match(name) is not None and name not in _WAYS_TO_THE_CONTROLLER


@contextlib.contextmanager
def neutral_environment() -> Iterator[None]:
    """Take the variables that Slurm reads as options out of the environment, for a submission."""
    taken = {name: os.environ.pop(name) for name in [*os.environ] if _is_option(name)}
    try:
        yield
    finally:
        os.environ.update(taken)


def _call(*words: str) -> str:
    """The output of a Slurm command. Raises RunError if the command is missing or fails.

    A controller that is away is tried again.
    """
    for pause in (*PAUSES, None):
        try:
            return _call_once(*words)
        except RunError as error:
            if pause is None or not is_away(error):
                raise
            time.sleep(pause)
    raise AssertionError("unreachable")


def _call_once(*words: str) -> str:
    if shutil.which(words[0]) is None:
        raise RunError(f"{words[0]}: not found; run this on a machine of the Slurm cluster.")
    environment = {name: value for name, value in os.environ.items() if not _is_option(name)}
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            errors="replace",
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{words[0]}: no answer within {SECONDS} s.") from None
    if done.returncode != 0:
        reason = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
        raise RunError(f"{words[0]}: {reason}")
    return done.stdout


def job_states(jobs: Iterable[str]) -> Answer:
    """States of jobs (`12`, `12_3`) that Slurm lists, of all jobs in the queue, and their marks.

    One call of squeue, and one of sacct, if installed, for jobs that have left the queue.
    """
    wanted, answer = set(jobs), Answer()
    listed: dict[str, JobState] = {}
    try:
        queue = _call("squeue", "-h", "-r", "-u", getpass.getuser(), "-o", "%i|%T|%r|%k")
        listed = _parse(queue)
        answer.marks = _marks(queue)
    except RunError as error:
        answer.answers = False
        answer.problems.append(str(error))
    gone = wanted - listed.keys()
    if gone and shutil.which("sacct"):
        roots = sorted({job.partition("_")[0] for job in gone})
        columns = ("-n", "-P", "-X", "-o", "JobID,State")
        try:
            listed = _parse(_call("sacct", *columns, "-j", ",".join(roots))) | listed
        except RunError as error:
            answer.problems.append(str(error))
    answer.states = listed
    return answer


def _parse(text: str) -> dict[str, JobState]:
    states = {}
    for line in text.splitlines():
        job, state, reason, *_ = [*line.split("|"), ""]
        words = state.split()  # "CANCELLED by 0"
        if words:
            # An array that has not started is one line: 12_[3-5,8%2].
            for one in _expanded(job):
                states[one] = JobState(words[0].rstrip("+"), reason)
    return states


def _marks(queue: str) -> dict[str, str]:
    """Mark -> number of the array that has it in its comment."""
    found = {}
    for line in queue.splitlines():
        if (mark := _MARK.search(line)) is not None:
            found[mark[0]] = line.partition("|")[0].partition("_")[0]
    return found


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
    try:
        words = _call("squeue", "-h", "-j", job, "-o", "%T").split()
    except RunError:
        return ""
    return words[0] if words else ""


def requeue(job: str) -> None:
    """Requeue a running job. Raises RunError."""
    _call("scontrol", "requeue", job)


def cancel(jobs: Iterable[str]) -> None:
    """Cancel jobs (`12_3`) or whole arrays (`12`), in one call. Raises RunError."""
    if wanted := sorted(set(jobs)):
        _call("scancel", *wanted)


def interrupt(jobs: Iterable[str]) -> None:
    """Send SIGTERM to the processes of running jobs, which stay in the queue. Raises RunError."""
    if wanted := sorted(set(jobs)):
        _call("scancel", "--signal=TERM", *wanted)


def test_submission(script: Path) -> str:
    """What Slurm says of a script that it does not run. Raises RunError if it would refuse it."""
    # It answers on stderr.
    try:
        said = _call("sh", "-c", 'exec sbatch --test-only "$1" 2>&1', "sh", str(script))
    except RunError as error:
        raise RunError(str(error).removeprefix("sh: ")) from error
    return said.strip().splitlines()[-1].removeprefix("sbatch: ") if said.strip() else "accepted"


def array_limit() -> int:
    """Maximum number of jobs in one array on this cluster."""
    try:
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _call("scontrol", "show", "config"), re.M)
    except RunError:
        found = None
    return int(found[1]) if found else DEFAULT_ARRAY_LIMIT
