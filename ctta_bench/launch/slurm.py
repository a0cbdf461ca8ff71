"""Submitting a launch to Slurm: arrays of jobs, one per pack of steps, through submitit.

submitit writes and submits the scripts. They start our own command (job.py), so that a job needs no
file that is written after its submission. Before each array an intent is written; a launcher that
dies while it submits leaves an array that is found by the mark in its comment.
"""

import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ctta_bench.errors import RunError
from ctta_bench.launch.job import ENTRY, run_job
from ctta_bench.launch.plan import Launch
from ctta_bench.launch.profiles import Profile, parameters_of
from ctta_bench.launch.scheduler import (
    array_limit,
    is_away,
    job_states,
    neutral_environment,
    test_submission,
)
from ctta_bench.launch.steps import Array, arrays

# Ignore signals until Python has its handlers; before, they would end it. What submitit adds to the
# command is not read.
_COMMAND = """trap "" TERM USR1 USR2; exec {} $(({} + ${{SLURM_ARRAY_TASK_ID:-0}}))"""
PAUSES = (5.0, 15.0, 30.0)  # before each further attempt to submit an array


def submit(
    launch: Launch,
    profile: Profile,
    waves: Sequence[int],
    on_submit: Callable[[str, int], None] = lambda job, jobs: None,
    on_wait: Callable[[str], None] = lambda reason: None,
) -> None:
    """Submit the packs of a launch.

    waves: that of each pack. `on_submit(array, jobs)` is called for each array, `on_wait(reason)`
    before each further attempt to reach a controller that is away. Raises RunError if Slurm rejects
    an array; arrays submitted before it stay submitted and are recorded.
    """
    limit = profile.max_array or array_limit()
    chunks = arrays(waves, limit, profile.parallel)
    numbers: list[str] = []
    for number, array in enumerate(chunks):
        try:
            after = [numbers[n] for n in array.after]
            numbers.append(_submit_array(launch, profile, number, array, after, on_wait))
        except RunError as error:
            raise RunError(f"{error}{_left(chunks, numbers)}") from error
        on_submit(numbers[-1], len(array.packs))


def _left(chunks: Sequence[Array], numbers: Sequence[str]) -> str:
    """What was submitted before an array was refused."""
    jobs = sum(len(array.packs) for array in chunks)
    submitted = sum(len(array.packs) for array in chunks[: len(numbers)])
    names = f" ({', '.join(numbers)})" if numbers else ""
    return f" {submitted} of {jobs} jobs are submitted{names}; `grid` submits the others later."


def _submit_array(
    launch: Launch,
    profile: Profile,
    number: int,
    array: Array,
    after: Sequence[str],
    on_wait: Callable[[str], None],
) -> str:
    """Submit one array; returns its number in Slurm, also if Slurm took it and did not answer."""
    folder, packs = folder_of_submitit(launch), array.packs
    facts = {"first": packs.start, "stop": packs.stop, "logs": str(folder)}
    launch.submissions.write(array=number, state="intended", **facts)
    asked = _parameters(launch, profile, number, array, after)
    root = None
    for pause in (*PAUSES, None):
        try:
            root = root or _sbatch(launch, folder, asked, packs)
            launch.submissions.write(array=number, state="submitted", job=root)
            return root
        except RunError as error:
            if not is_away(error):
                launch.submissions.write(array=number, state="refused", reason=str(error))
                raise
            if pause is None:
                raise RunError(f"{error} Slurm does not answer.") from error
            on_wait(f"{error} Trying again in {pause:.0f} s.")
            time.sleep(pause)
            root = _taken(launch, number)
    raise AssertionError("unreachable")


def _taken(launch: Launch, number: int) -> str | None:
    """The number in Slurm of an array that it took without an answer; None if it did not.

    Raises RunError if the queue cannot be read: then nothing may be submitted again.
    """
    answer = job_states(())
    if not answer.answers:
        raise RunError(f"{answer.problems[0]}; it is not known whether Slurm took the jobs.")
    return answer.marks.get(launch.mark(number))


def _parameters(
    launch: Launch, profile: Profile, number: int, array: Array, after: Sequence[str]
) -> dict[str, Any]:
    asked = parameters_of(profile)
    comment = asked["additional_parameters"].pop("comment", "")
    asked |= {
        "job_name": re.sub(r"[^A-Za-z0-9_.-]+", "_", f"ctta-{launch.directory.name}")[:64],
        "array_parallelism": profile.parallel or len(array.packs),
        "comment": f"{comment} {launch.mark(number)}".lstrip(),
    }
    if after:
        # "afterany", not "afterok": cells whose warm-up failed record that themselves.
        asked["dependency"] = "afterany:" + ":".join(after)
    return asked


def _sbatch(launch: Launch, folder: Path, asked: dict[str, Any], packs: range) -> str:
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    if shutil.which("srun") is None:
        raise RunError(
            "--executor slurm: this machine has no `srun`; log in to a machine of the cluster, or "
            "use --executor local."
        )
    command = shlex.join([sys.executable, "-u", "-c", ENTRY, str(launch.folder)])
    shell = shlex.join(["sh", "-c", _COMMAND.format(command, packs.start), "sh"])
    try:
        with neutral_environment():
            executor = submitit.SlurmExecutor(folder=folder, python=shell)
            executor.update_parameters(**asked)
            with executor.batch():
                jobs = [executor.submit(run_job, launch.folder, pack) for pack in packs]
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise RunError(f"Slurm rejected the jobs: {lines[-1] if lines else error}.") from error
    return str(jobs[0].job_id).partition("_")[0]


def test_only(profile: Profile) -> str:
    """What Slurm says of a job with the resources of a profile, which it does not run."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        return "not asked, it is not on this machine"
    import submitit

    with tempfile.TemporaryDirectory() as folder, neutral_environment():
        executor = submitit.SlurmExecutor(folder=folder)
        executor.update_parameters(**parameters_of(profile))
        script = Path(folder) / "test.sh"
        script.write_text(executor._make_submission_file_text("true", "test"), encoding="utf-8")
        try:
            return test_submission(script)
        except RunError as error:
            return f"would refuse such a job ({error})"


def folder_of_submitit(launch: Launch) -> Path:
    """The folder for submitit's files: in the launch's folder, or in ~/.ctta-bench.

    The latter if the path contains a percent sign, a backslash or a control character: Slurm and
    submitit would interpret these.
    """
    folder = launch.folder / "submitit"
    if not re.search(r"[%\\\x00-\x1f]", str(folder)):
        return folder
    (Path.home() / ".ctta-bench").mkdir(exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{launch.folder.name}-", dir=Path.home() / ".ctta-bench"))


def job_log(logs: str, job: str) -> Path:
    """The file with what a job printed; submitit names it."""
    return Path(logs) / f"{job}_0_log.out"


def last_words(log: Path) -> str:
    """The last line of a job's output, of Slurm only if there is no other; "" without one."""
    try:
        lines = log.read_bytes()[-8192:].decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line.strip() for line in lines if line.strip()]
    own = [line for line in lines if not re.match(r"srun: |slurmstepd: ", line)]
    return (own or lines or [""])[-1]
