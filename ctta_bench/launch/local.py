"""Workers on this machine: their shares of it, and their processes, one for each worker.

All workers of a job take steps from one list. A process that dies during a cell is replaced. `grid`
runs one job on this machine; a job of a scheduler (job.py) is one on its node.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctta_bench.errors import ConfigError, RunError
from ctta_bench.launch.plan import INTERRUPTED, Launch
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.owner import is_dead
from ctta_bench.record.schema import BATCHES_FILE

POLL_SECONDS = 0.2
LAST_LINES = 20  # of a worker's output, copied to the log of the cell in which it died
BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
OnEvent = Callable[[dict[str, Any]], None]
# Not `-m`: it would put the working folder before installed packages in sys.path.
_ENTRY = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "from pathlib import Path; from ctta_bench.launch.work import exit_process, main; "
    "exit_process(main(Path(sys.argv[1]), int(sys.argv[2])))"
)


@dataclass(frozen=True)
class Share:
    """Number of workers (`jobs`) and the resources of each. devices: one per worker, or None.

    warning: why the workers will be slow, or "".
    """

    jobs: int
    threads: int | None
    devices: list[str | None] | None
    warning: str = ""


def gpu_memory(device: str | None) -> int:
    """Bytes of memory of the GPU that cells would use here; 0 without one."""
    import torch

    if device not in (None, "cuda") or not torch.cuda.is_available():
        return 0
    return int(torch.cuda.get_device_properties(0).total_memory)


def check_shared_device(device: str | None, workers: int) -> None:
    """Raise ConfigError if several workers would share a device that is named by its number."""
    name, _, number = (device or "").partition(":")
    if number and workers > 1:
        raise ConfigError(
            f"--device {device}: {workers} workers would share this one device; to allow that, set "
            f"CUDA_VISIBLE_DEVICES={number} and use --device {name} with {workers} cells per GPU; "
            f"to use all devices, --device {name}."
        )


def devices_of(workers: int, device: str | None) -> list[str | None] | None:
    """The accelerators of the workers of a job, dealt out in turn; None: a worker has all."""
    if workers == 1 or device not in (None, "cuda"):
        return None
    found = visible_accelerators()
    return [found[n % len(found)] for n in range(workers)] if found else None


def _usable_cores() -> int:
    from ctta_bench.run.environment import usable_cores  # loads torch

    return usable_cores()


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
    all cores. Names of MIG devices are kept.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: must be 1 or more.")
    if cells_per_gpu < 1:
        raise ConfigError(f"--cells-per-gpu {cells_per_gpu}: must be 1 or more.")
    check_shared_device(device, min(jobs or cells_per_gpu, steps))
    found = visible_accelerators() if device in (None, "cuda") else []
    places = [name for name in found for _ in range(cells_per_gpu)]
    count = max(1, min(jobs or len(places) or 1, steps))
    if places and count > len(places):
        raise ConfigError(
            f"--jobs {count}: {len(found)} GPUs have places for {len(places)} jobs; set "
            f"--cells-per-gpu {-(-count // len(found))} or fewer jobs."
        )
    cores = _usable_cores()
    threads = None if count == 1 else max(1, cores // count)
    # In turn: two workers use two GPUs, not both the first.
    devices: list[str | None] = [found[n % len(found)] for n in range(count)] if found else []
    warning = "" if threads is None else _crowded(count * threads, cores)
    return Share(count, threads, devices or None, warning)


def _crowded(threads: int, cores: int) -> str:
    """A warning if more threads would run than there are cores, also those of other programs."""
    if threads > cores:
        return (
            f"{threads} workers share {cores} cores and slow each other; --jobs {cores} is faster."
        )
    others = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if others + threads > 1.5 * cores:
        return (
            f"this machine is busy (load {others:.1f} on {cores} cores): with {threads} more "
            "threads everything takes longer than usual."
        )
    return ""


class Pool:
    """The running processes of some workers of a launch.

    devices: the accelerator of each worker; None: all that this process sees. interrupted: whether
    a signal stopped one before its end. broken: why workers could not begin. signal_name: asked
    for the signal that came to this process.
    """

    def __init__(
        self, launch: Launch, workers: Sequence[int], devices: Sequence[str | None] | None = None
    ) -> None:
        self.launch, self.workers = launch, workers
        self.devices = dict(zip(workers, devices or [None] * len(workers), strict=True))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.interrupted = False
        self.broken: list[str] = []
        self.signal_name: Callable[[], str] = lambda: ""
        self._reported: dict[int, int] = {}
        self._events_before: dict[int, int] = {}  # in the journal, when the process was started

    def run(self, on_event: OnEvent = lambda event: None) -> None:
        """Run the workers to their end; `on_event` is called with the events of their steps.

        A KeyboardInterrupt ends all workers after a checkpoint, a second one at once. Raises
        RunError if no process can be started.
        """
        try:
            for worker in self.workers:
                self._start(worker)
            if name := self.signal_name():  # it came while the workers were started
                self.signal(signal.Signals[name])
            while self.processes:
                self._report(on_event)
                time.sleep(POLL_SECONDS)
                self._replace_ended()
        except (KeyboardInterrupt, RunError):
            self._end()
            raise
        finally:
            self._report(on_event)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes."""
        for process in list(self.processes.values()):
            process.send_signal(number)

    def _start(self, worker: int) -> None:
        self._events_before[worker] = len(self.launch.journal(worker).read())
        with signals_blocked():
            self.processes[worker] = start(self.launch, worker, self.devices[worker])

    def _replace_ended(self) -> None:
        """Remove processes that ended, and start a new one for each that died during a cell."""
        for worker, process in list(self.processes.items()):
            code = process.poll()
            if code is None:
                continue
            del self.processes[worker]
            try:
                if not self._has_finished(worker, code):
                    self._start(worker)
            except (RunError, OSError) as error:  # its remaining steps get no final state
                self.broken.append(str(error))
                with contextlib.suppress(OSError):
                    self.launch.journal(worker).write(state="broken", reason=str(error))

    def _has_finished(self, worker: int, code: int) -> bool:
        """Whether a worker has finished, by the exit code of its process.

        If not, its current step, if it had one, is recorded as failed, or was cancelled, and a new
        process has to continue. Raises RunError if the process died before its first step.
        """
        journal = self.launch.journal(worker)
        if code == INTERRUPTED:
            stopped = journal.last_step("interrupted")
            progress = progress_of(self.launch, worker)
            journal.write(state="interrupted", reason=self.signal_name(), progress=progress)
            if stopped in self.launch.cancelled_steps() and not self.launch.is_cancelled:
                return False
            self.interrupted = True
            return True
        if (code == 0 and journal.open_step() is None) or self.launch.is_cancelled:
            return True
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        reason = f"its process ended with {how}: it ran out of memory or was killed"
        if not fail_open_step(self.launch, worker, reason) and not self._took_steps(worker):
            said = last_line(self.launch.log(worker))
            raise RunError(f"its worker ended with {how} before its first cell: {said}")
        return False

    def _took_steps(self, worker: int) -> bool:
        """Whether the last process of a worker has begun a step; it may have died after it."""
        events = self.launch.journal(worker).read()[self._events_before[worker] :]
        return any("step" in event for event in events)

    def _report(self, on_event: OnEvent) -> None:
        """Call `on_event` with each new event of a step in the workers' journals."""
        for worker in self.workers:
            events = self.launch.journal(worker).read()
            for event in events[self._reported.get(worker, 0) :]:
                if "step" in event:
                    on_event(event)
            self._reported[worker] = len(events)

    def _end(self) -> None:
        """End all processes after a checkpoint; on a second Ctrl-C at once."""
        self.launch.cancel()
        try:
            self.signal(signal.SIGTERM)
            while self.processes:
                self._replace_ended()  # starts none, because the launch is cancelled
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            self.signal(signal.SIGKILL)
            raise


def start(launch: Launch, worker: int, device: str | None) -> "subprocess.Popen[bytes]":
    """Start the worker process, inside `signals_blocked`. Raises RunError if that fails."""
    call = [sys.executable, "-u", "-c", _ENTRY, str(launch.folder), str(worker)]
    try:
        with launch.log(worker).open("ab") as log:
            return subprocess.Popen(
                call, env=environment_of(launch, device), stdout=log, stderr=log
            )
    except OSError as error:
        raise RunError(f"{launch.log(worker)}: no worker could be started ({error}).") from error


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals while a process is started; the new process unblocks them itself.

    So no signal reaches it before it has handlers. Signals to this process wait until the block
    ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def environment_of(launch: Launch, device: str | None) -> dict[str, str]:
    """The environment of a worker: that of this process, the profile, its threads and its GPU."""
    facts = launch.facts
    environment = os.environ | facts["environment"]
    if facts["threads"]:
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(facts["threads"]))
    return environment if device is None else environment | {"CUDA_VISIBLE_DEVICES": device}


def progress_of(launch: Launch, worker: int) -> int:
    """Progress of a worker: the number of its finished steps plus the batches of its last one."""
    events = launch.journal(worker).read()
    ended = sum(event.get("state") in ("done", "kept", "failed") for event in events)
    begun = [event["step"] for event in events if event.get("state") == "running"]
    lines = launch.directory / begun[-1] / BATCHES_FILE if begun else None
    return ended + (lines.read_bytes().count(b"\n") if lines and lines.exists() else 0)


def fail_open_step(launch: Launch, worker: int, reason: str, *, interrupted: bool = False) -> bool:
    """Record the unfinished step of a worker as failed; False if it has none."""
    journal = launch.journal(worker)
    step = journal.last_step("interrupted") if interrupted else journal.open_step()
    if step is None:
        return False
    folder = RunFolder(launch.directory / step)
    journal.write(step=step, state="failed", reason=reason)
    if not folder.is_done:
        folder.append_log(f"failed: {reason}{_last_log_lines(launch.log(worker))}")
        folder.write_failure(RunError(reason))
    return True


def _last_log_lines(log: Path) -> str:
    """The last lines that the process of a worker printed; "" if none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "".join(f"\n    {line}" for line in lines[-LAST_LINES:])


def last_line(log: Path) -> str:
    """The last line that the process of a worker printed."""
    return _last_log_lines(log).rpartition("\n")[2].strip() or "it printed nothing"


def signal_workers(launch: Launch, number: signal.Signals) -> int:
    """Send a signal to the worker processes of a launch on this host; returns their number."""
    latest = {n: event for n, event in launch.events() if event.get("state") == "started"}
    alive = [event["pid"] for event in latest.values() if is_dead(event) is False]
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(alive)
