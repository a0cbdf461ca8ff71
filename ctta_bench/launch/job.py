"""A job: the supervisor of its workers, on the node where a scheduler or a shell started it.

A worker process (work.py) may be killed, run out of memory or exit during a cell. Then that cell
has failed, and a new process continues with the next cell (local.py). In a Slurm job, a signal of
the scheduler requeues the job as long as it makes progress.
"""

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctta_bench.errors import CttaBenchError, RunError
from ctta_bench.launch.local import Pool, devices_of, fail_open_step
from ctta_bench.launch.plan import INTERRUPTED, Launch
from ctta_bench.launch.scheduler import requeue, state_of

IDLE_ATTEMPTS = 5  # interruptions in a row without a finished batch
FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# Not `-m`: it would put the working folder before installed packages in sys.path.
ENTRY = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "from pathlib import Path; from ctta_bench.launch.job import main; "
    "main(Path(sys.argv[1]), int(sys.argv[2]))"
)


def main(folder: Path, job: int) -> None:
    """The process of a job; ends it with the exit code of `run_job`, 1 after an error."""
    try:
        code = run_job(folder, job)
    except CttaBenchError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the output of the job
        code = 1
    # A signal that comes now must not turn a job whose cells are done into a failed one.
    for number in FORWARDED:
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_job(folder: Path, job: int) -> int:
    """Run a job's steps until all have a final state; returns 0, or INTERRUPTED after a signal.

    Raises RunError if that fails.
    """
    launch = Launch.open(folder)
    if launch.is_cancelled:
        return 0
    workers, names = launch.workers_of(job), []
    pool = Pool(launch, workers, devices_of(len(workers), launch.facts["device"]))

    def forward(number: int, frame: Any) -> None:
        names.append(signal.Signals(number).name)
        pool.signal(signal.Signals(number))

    for number in FORWARDED:
        signal.signal(number, forward)
    # A terminal sends Ctrl-C to the workers as well; forwarding it would send it twice.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pool.signal_name = lambda: names[0] if names else ""
    pool.run()
    if pool.broken and not pool.interrupted:
        raise RunError(pool.broken[0])
    if not pool.interrupted or launch.is_cancelled or not launch.unfinished(job):
        return 0
    _interrupted(launch, job, names[0] if names else "a signal")
    return 0 if launch.facts["executor"] == "slurm" else INTERRUPTED


@dataclass
class Job:
    """What jobs that release 0.2 submitted unpickle; to be removed in 0.4."""

    folder: str
    worker: int

    def __call__(self) -> None:
        """Run the job."""
        run_job(Path(self.folder), self.worker)

    def checkpoint(self) -> Any:
        """What submitit requeues after a signal before the job has begun: this job."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _interrupted(launch: Launch, job: int, signal_name: str) -> None:
    """Requeue the job, unless it makes no progress; else the next `grid` resumes its cells."""
    number = os.environ.get("SLURM_JOB_ID")
    if launch.facts["executor"] != "slurm" or number is None or not launch.facts["requeue"]:
        return
    if state_of(number) != "RUNNING":
        return  # cancelled, or requeued by Slurm itself
    idle = [w for w in launch.workers_of(job) if launch.journal(w).idle_attempts() >= IDLE_ATTEMPTS]
    if len(idle) == len(launch.workers_of(job)):
        reason = f"interrupted {IDLE_ATTEMPTS} times ({signal_name}) without a finished batch"
        for worker in idle:
            fail_open_step(launch, worker, reason, interrupted=True)
        raise RunError(f"{reason}; not requeued.")
    requeue(number)
