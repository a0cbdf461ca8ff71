"""Workers on this machine: how they share it, jobs of submitit for them, and one queue for all.

submitit starts every job that it is given at once, so it is given no more than may run; each takes
the next step that no other has taken.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ctta_bench.errors import ConfigError
from ctta_bench.launch.job import Job
from ctta_bench.launch.plan import Launch
from ctta_bench.record.owner import is_dead
from ctta_bench.run.environment import usable_cores

POLL_SECONDS = 0.2
FOREVER_MINUTES = 60 * 24 * 365  # submitit gives local jobs two minutes


@dataclass(frozen=True)
class Share:
    """What each worker of a pool gets. `devices`: one a worker, None where there are none."""

    jobs: int
    threads: int | None
    devices: list[str | None] | None


def visible_accelerators() -> list[str]:
    """The accelerators that we may use, as CUDA_VISIBLE_DEVICES names them, or all there are."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def share_out(jobs: int | None, cells_per_gpu: int, device: str | None, steps: int) -> Share:
    """Divide the machine among workers.

    jobs: as asked for; by default a worker for each place on an accelerator, and without one a
    single worker with all cores. A device with a number (`cuda:1`) is for all. Raises ConfigError.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: give 1 or more.")
    if cells_per_gpu < 1:
        raise ConfigError(f"--cells-per-gpu {cells_per_gpu}: give 1 or more.")
    found = visible_accelerators() if device in (None, "cuda") else []
    places = [name for name in found for _ in range(cells_per_gpu)]
    count = max(1, min(jobs or len(places) or 1, steps))
    if places and count > len(places):
        raise ConfigError(
            f"--jobs {count}: there is room for {len(places)} on {len(found)} accelerators; take "
            f"--cells-per-gpu {-(-count // len(found))} or fewer jobs."
        )
    threads = None if count == 1 else max(1, usable_cores() // count)
    # In turn: two workers on two accelerators, not both on the first.
    devices: list[str | None] = [found[n % len(found)] for n in range(count)] if found else []
    return Share(count, threads, devices or None)


def run_pool(launch: Launch, workers: range, on_event: Callable[[dict[str, Any]], None]) -> None:
    """Run workers of a launch to their end; `on_event` hears what they tell.

    KeyboardInterrupt ends all workers, each after a checkpoint; a second one at once.
    """
    import submitit

    jobs: list[Any] = []
    told: dict[int, int] = {}
    try:
        executor = submitit.LocalExecutor(folder=launch.folder / "submitit")
        executor.update_parameters(timeout_min=FOREVER_MINUTES, stderr_to_stdout=True)
        with _deaf_to_interrupts():
            for worker in workers:
                jobs.append(executor.submit(Job(str(launch.folder), worker)))
        while not all(job.done() for job in jobs):
            _tell(launch, workers, told, on_event)
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        _end(launch, jobs)
        raise
    finally:
        _tell(launch, workers, told, on_event)


def _tell(
    launch: Launch,
    workers: range,
    told: dict[int, int],
    on_event: Callable[[dict[str, Any]], None],
) -> None:
    for worker in workers:
        events = launch.journal(worker).read()
        for event in events[told.get(worker, 0) :]:
            if "step" in event:
                on_event(event)
        told[worker] = len(events)


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes begun here pass over Ctrl-C, which a terminal sends to all of them: we end them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(launch: Launch, jobs: list[Any]) -> None:
    """End all workers after a checkpoint; on another Ctrl-C at once."""
    launch.cancel()
    try:
        signal_workers(launch, signal.SIGTERM)
        while not all(job.done() for job in jobs):
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        signal_workers(launch, signal.SIGKILL)
        raise


def signal_workers(launch: Launch, number: signal.Signals) -> int:
    """Send a signal to the processes of a launch that work on this host; returns how many."""
    latest = {n: event for n, event in launch.events() if event.get("state") == "started"}
    alive = [event["pid"] for event in latest.values() if is_dead(event) is False]
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(alive)
