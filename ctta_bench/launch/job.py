"""Supervising the process of one worker: in a Slurm job, and on this machine (local.py).

The worker process (work.py) may be killed, run out of memory or exit during a cell. Then that cell
has failed, and a new process continues with the next cell. In a Slurm job, a signal of the
scheduler requeues the job as long as it makes progress. The requeueing of submitit counts signals,
treats each signal in a short job as a time-out and ignores SIGTERM; it is used only until the
worker process has started.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctta_bench.errors import RunError
from ctta_bench.launch.plan import INTERRUPTED, Launch
from ctta_bench.launch.scheduler import requeue, state_of
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.schema import BATCHES_FILE

LAST_LINES = 20  # of a worker's output, copied to the log of the cell in which it died
IDLE_ATTEMPTS = 5  # interruptions in a row without a finished batch
FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# Not `-m`: it would put the working folder before installed packages in sys.path.
_ENTRY = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "from pathlib import Path; from ctta_bench.launch.work import exit_process, main; "
    "exit_process(main(Path(sys.argv[1]), int(sys.argv[2])))"
)


@dataclass
class Job:
    """The callable that submitit sends to a job: the launch's folder and the worker's number."""

    folder: str
    worker: int

    def __call__(self) -> None:
        """Run until all steps of this worker have a final state. Raises RunError if that fails."""
        launch = Launch.open(Path(self.folder))
        if launch.is_cancelled:
            return
        while True:
            code, signal_name = self._child(launch)
            if code == INTERRUPTED:
                self._interrupted(launch, signal_name)
            if is_finished(launch, self.worker, code):
                return

    def checkpoint(self) -> Any:
        """What submitit requeues after a signal before the worker process has started: this job."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _child(self, launch: Launch) -> tuple[int, str]:
        """Run the worker process; returns its exit code, and the first signal that came."""
        signals: list[str] = []
        child: subprocess.Popen[bytes] | None = None

        def forward(number: int, frame: Any) -> None:
            signals.append(signal.Signals(number).name)
            if child is not None:
                child.send_signal(number)

        for number in FORWARDED:
            signal.signal(number, forward)
        # A terminal sends Ctrl-C to the child as well; forwarding it would send it twice.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with signals_blocked():
            child = start(launch, self.worker)
        return child.wait(), signals[0] if signals else ""

    def _interrupted(self, launch: Launch, signal_name: str) -> None:
        """Requeue the job, unless it was cancelled or makes no progress."""
        note_interruption(launch, self.worker, signal_name)
        job = os.environ.get("SLURM_JOB_ID")
        if launch.facts["executor"] != "slurm" or job is None or launch.is_cancelled:
            return
        if not launch.facts["requeue"]:
            return  # the next `grid` resumes from the checkpoint
        if state_of(job) != "RUNNING":
            return  # cancelled, or requeued by Slurm itself
        events = launch.journal(self.worker).read()
        counts = [event["progress"] for event in events if "progress" in event]
        if len(counts) >= IDLE_ATTEMPTS and len(set(counts[-IDLE_ATTEMPTS:])) == 1:
            reason = f"interrupted {IDLE_ATTEMPTS} times ({signal_name}) without a finished batch"
            fail_open_step(launch, self.worker, reason, interrupted=True)
            raise RunError(f"{reason}; not requeued.")
        requeue(job)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals while a process is started; the new process unblocks them itself.

    So no signal reaches it before it has handlers. Signals to this process wait until the block
    ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *FORWARDED})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(launch: Launch, worker: int) -> "subprocess.Popen[bytes]":
    """Start the worker process, inside `signals_blocked`. Raises RunError if that fails."""
    call = [sys.executable, "-u", "-c", _ENTRY, str(launch.folder), str(worker)]
    try:
        with launch.log(worker).open("ab") as log:
            return subprocess.Popen(
                call, env=environment_of(launch, worker), stdout=log, stderr=log
            )
    except OSError as error:
        raise RunError(f"{launch.log(worker)}: no worker could be started ({error}).") from error


def is_finished(launch: Launch, worker: int, code: int) -> bool:
    """Whether a worker has finished, by the exit code of its process.

    If not, its current step is recorded as failed, and the caller must start a new process. Raises
    RunError if the process died before its first step.
    """
    finished = code == 0 and launch.journal(worker).open_step() is None
    if finished or code == INTERRUPTED or launch.is_cancelled:
        return True
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    reason = f"its process ended with {how}: it ran out of memory or was killed"
    if not fail_open_step(launch, worker, reason):
        raise RunError(f"the worker ended with {how} before its first step; see its log.")
    return False


def note_interruption(launch: Launch, worker: int, signal_name: str) -> None:
    """Write to a worker's journal that it was interrupted, and its progress."""
    progress = progress_of(launch, worker)
    launch.journal(worker).write(state="interrupted", reason=signal_name, progress=progress)


def environment_of(launch: Launch, worker: int) -> dict[str, str]:
    """The environment of a worker: that of this process, the profile, its threads and its GPU."""
    facts = launch.facts
    environment = os.environ | facts["environment"]
    if facts["threads"]:
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(facts["threads"]))
    if facts["devices"] is not None:
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        device = facts["devices"][worker]
        environment |= {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
    return environment


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
