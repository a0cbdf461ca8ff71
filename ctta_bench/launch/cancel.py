"""Cancelling the queued jobs and running processes of a folder of runs."""

import signal
from dataclasses import dataclass, field
from pathlib import Path

from ctta_bench.errors import RunError
from ctta_bench.launch.begin import ACTIVE
from ctta_bench.launch.local import signal_workers
from ctta_bench.launch.plan import FOLDER, launches
from ctta_bench.launch.scheduler import cancel, job_states


@dataclass
class Cancelled:
    """Numbers of cancelled jobs and processes, and errors of the scheduler."""

    jobs: int = 0
    processes: int = 0
    problems: list[str] = field(default_factory=list)


def cancel_launches(directory: Path) -> Cancelled:
    """Cancel every launch of a folder, and of the experiments in it.

    Workers end after a checkpoint, and no job is requeued. Raises RunError if the folder does not
    exist.
    """
    if not directory.is_dir():
        raise RunError(f"{directory}: no such folder of runs.")
    places = [directory, *(file.parent for file in sorted(directory.glob(f"*/{FOLDER}")))]
    found = [launch for place in places for launch in launches(place)]
    cancelled = Cancelled()
    for launch in found:
        launch.cancel()  # before any signal: workers check for this mark when they get one
        cancelled.processes += signal_workers(launch, signal.SIGTERM) if not launch.jobs() else 0
    jobs = {job for launch in found for job in launch.jobs()}
    if jobs:
        states, cancelled.problems = job_states(jobs)
        active = [job for job, state in states.items() if state.state in ACTIVE]
        try:
            cancel(active)
            cancelled.jobs = len(active)
        except RunError as error:
            cancelled.problems.append(str(error))
    return cancelled
