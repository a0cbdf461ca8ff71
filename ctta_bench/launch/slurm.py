"""Submitting a launch to Slurm: arrays of jobs, one per pack of steps, through submitit."""

import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ctta_bench.errors import RunError
from ctta_bench.launch.job import Job
from ctta_bench.launch.plan import Launch
from ctta_bench.launch.profiles import Profile, parameters_of
from ctta_bench.launch.scheduler import array_limit
from ctta_bench.launch.steps import Array, arrays

# Ignore signals until Python has its handlers; before, they would end it.
_PATIENT = """sh -c 'trap "" TERM USR1 USR2; exec "$@"' sh """
_COUNTED_BY_US = 1_000_000  # disables submitit's limit of time-outs; job.py checks progress


def submit(
    launch: Launch,
    profile: Profile,
    waves: Sequence[int],
    on_submit: Callable[[str, int], None] = lambda job, jobs: None,
) -> list[str]:
    """Submit the packs of a launch; returns the numbers of the arrays.

    waves: that of each pack. `on_submit(array, jobs)` is called for each array. Raises RunError if
    Slurm rejects an array; arrays submitted before it stay submitted and are recorded.
    """
    limit = profile.max_array or array_limit()
    numbers: list[str] = []
    for array in arrays(waves, limit, profile.parallel):
        jobs = _submit_array(launch, profile, array, [numbers[n] for n in array.after])
        launch.add_jobs(dict(zip(jobs, array.packs, strict=True)))
        numbers.append(jobs[0].partition("_")[0])
        on_submit(numbers[-1], len(jobs))
    return numbers


def _submit_array(
    launch: Launch, profile: Profile, array: Array, after: Sequence[str]
) -> list[str]:
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        executor = submitit.SlurmExecutor(
            folder=folder_of_submitit(launch),
            max_num_timeout=_COUNTED_BY_US,
            python=_PATIENT + shlex.quote(sys.executable),
        )
    except RuntimeError as error:
        raise RunError(
            "--executor slurm: this machine has no `srun`; log in to a machine of the cluster, or "
            "use --executor local."
        ) from error
    asked: dict[str, Any] = parameters_of(profile) | {
        "job_name": re.sub(r"[^A-Za-z0-9_.-]+", "_", f"ctta-{launch.directory.name}")[:64],
        "array_parallelism": profile.parallel or len(array.packs),
    }
    if after:
        # "afterany", not "afterok": cells whose warm-up failed record that themselves.
        asked["dependency"] = "afterany:" + ":".join(after)
    executor.update_parameters(**asked)
    try:
        with executor.batch():
            jobs = [executor.submit(Job(str(launch.folder), pack)) for pack in array.packs]
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise RunError(f"Slurm rejected the jobs: {lines[-1] if lines else error}") from error
    return [str(job.job_id) for job in jobs]


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
