"""Workers on this machine: their shares of it, and their processes, one for each worker.

All workers take steps from one queue. `grid` starts their processes, and replaces a process that
dies during a cell.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ctta_bench.errors import ConfigError, RunError
from ctta_bench.launch.job import is_finished, note_interruption, signals_blocked, start
from ctta_bench.launch.plan import INTERRUPTED, Launch
from ctta_bench.record.owner import is_dead
from ctta_bench.run.environment import usable_cores

POLL_SECONDS = 0.2
OnEvent = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Share:
    """Number of workers (`jobs`) and the resources of each. devices: one per worker, or None."""

    jobs: int
    threads: int | None
    devices: list[str | None] | None


def visible_accelerators() -> list[str]:
    """The GPUs in CUDA_VISIBLE_DEVICES, or all if it is not set."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def divide_resources(jobs: int | None, cells_per_gpu: int, device: str | None, steps: int) -> Share:
    """Divide the machine among workers. Raises ConfigError.

    jobs: number of workers; None: `cells_per_gpu` workers per GPU, or, without GPU, one worker with
    all cores. All workers share a device with a number (`cuda:1`).
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: must be 1 or more.")
    if cells_per_gpu < 1:
        raise ConfigError(f"--cells-per-gpu {cells_per_gpu}: must be 1 or more.")
    found = visible_accelerators() if device in (None, "cuda") else []
    places = [name for name in found for _ in range(cells_per_gpu)]
    count = max(1, min(jobs or len(places) or 1, steps))
    if places and count > len(places):
        raise ConfigError(
            f"--jobs {count}: {len(found)} GPUs have places for {len(places)} jobs; set "
            f"--cells-per-gpu {-(-count // len(found))} or fewer jobs."
        )
    threads = None if count == 1 else max(1, usable_cores() // count)
    # In turn: two workers use two GPUs, not both the first.
    devices: list[str | None] = [found[n % len(found)] for n in range(count)] if found else []
    return Share(count, threads, devices or None)


class Pool:
    """The running processes of workers of a launch."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._reported: dict[int, int] = {}

    def start(self, worker: int) -> None:
        """Start the process of a worker. Raises RunError if that fails."""
        with signals_blocked():
            self.processes[worker] = start(self.launch, worker)

    def replace_ended(self) -> None:
        """Remove processes that ended, and start a new one for each that died during a cell."""
        for worker, process in list(self.processes.items()):
            code = process.poll()
            if code is None:
                continue
            del self.processes[worker]
            try:
                if code == INTERRUPTED:
                    note_interruption(self.launch, worker, "")
                if not is_finished(self.launch, worker, code):
                    self.start(worker)
            except (RunError, OSError) as error:  # its remaining steps get no final state
                with contextlib.suppress(OSError), self.launch.log(worker).open("a") as log:
                    log.write(f"{error}\n")

    def report(self, workers: range, on_event: OnEvent) -> None:
        """Call `on_event` with each new event of a step in the workers' journals."""
        for worker in workers:
            events = self.launch.journal(worker).read()
            for event in events[self._reported.get(worker, 0) :]:
                if "step" in event:
                    on_event(event)
            self._reported[worker] = len(events)

    def end(self) -> None:
        """End all processes after a checkpoint; on a second Ctrl-C at once."""
        self.launch.cancel()
        try:
            self._signal(signal.SIGTERM)
            while self.processes:
                self.replace_ended()  # starts none, because the launch is cancelled
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            self._signal(signal.SIGKILL)
            raise

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes.values():
            process.send_signal(number)


def run_pool(launch: Launch, workers: range, on_event: OnEvent) -> None:
    """Run workers of a launch to their end; `on_event` is called with the events of their steps.

    A KeyboardInterrupt ends all workers after a checkpoint, a second one at once. Raises RunError
    if no process can be started.
    """
    pool = Pool(launch)
    try:
        for worker in workers:
            pool.start(worker)
        while pool.processes:
            pool.report(workers, on_event)
            time.sleep(POLL_SECONDS)
            pool.replace_ended()
    except (KeyboardInterrupt, RunError):
        pool.end()
        raise
    finally:
        pool.report(workers, on_event)


def signal_workers(launch: Launch, number: signal.Signals) -> int:
    """Send a signal to the worker processes of a launch on this host; returns their number."""
    latest = {n: event for n, event in launch.events() if event.get("state") == "started"}
    alive = [event["pid"] for event in latest.values() if is_dead(event) is False]
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(alive)
