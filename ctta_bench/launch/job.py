"""What a job of submitit does: it keeps one process at work, and outlives it.

The process that works (work.py) may be killed, run out of memory or end itself in one cell; then
that cell has failed, and another process goes on with the next. After a signal of the scheduler
the job is queued again, as often as it makes progress. submitit's own requeueing counts signals,
takes every one in a short job for a time-out and passes over SIGTERM, so that it is only what
remains for the moments before the process is there.
"""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctta_bench.errors import RunError
from ctta_bench.launch.plan import INTERRUPTED, Launch
from ctta_bench.launch.scheduler import requeue, state_of
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.schema import BATCHES_FILE

LAST_LINES = 20  # of what a process printed, kept in the log of the cell that it died in
IDLE_ATTEMPTS = 5  # interruptions in a row without a batch between them
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# Not `-m`: it would put the working folder before all that is installed.
_ENTRY = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "from pathlib import Path; from ctta_bench.launch.work import leave, main; "
    "leave(main(Path(sys.argv[1]), int(sys.argv[2])))"
)


@dataclass
class Job:
    """The callable that submitit carries to where it runs: nothing but where the plan is."""

    folder: str
    worker: int

    def __call__(self) -> None:
        """Work until all steps of this worker have come to their end. Raises RunError if not."""
        launch = Launch.open(Path(self.folder))
        if launch.is_cancelled:
            return
        while True:
            code, heard = self._child(launch)
            if code == INTERRUPTED:
                self._interrupted(launch, heard)
            ended = code == 0 and launch.journal(self.worker).open_step() is None
            if ended or code == INTERRUPTED or launch.is_cancelled:
                return
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            reason = f"its process ended with {how}, for want of memory or from outside"
            if not fail_open_step(launch, self.worker, reason):
                raise RunError(f"the worker ended with {how} before any step; its log says why.")

    def checkpoint(self) -> Any:
        """What submitit queues after a signal that came too early for us: the same again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _child(self, launch: Launch) -> tuple[int, str]:
        """Run the process that works: its exit code, and the first signal that came."""
        heard: list[str] = []
        child: subprocess.Popen[bytes] | None = None

        def forward(number: int, frame: Any) -> None:
            heard.append(signal.Signals(number).name)
            if child is not None:
                child.send_signal(number)

        for number in STOP_SIGNALS:
            signal.signal(number, forward)
        # A terminal sends Ctrl-C to the child as well; handed on, it would be a second one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        call = [sys.executable, "-u", "-c", _ENTRY, self.folder, str(self.worker)]
        # Blocked until the child is there to heed them: it inherits the mask, and lifts it itself.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            with launch.log(self.worker).open("ab") as log:
                child = subprocess.Popen(
                    call, env=environment_of(launch, self.worker), stdout=log, stderr=log
                )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return child.wait(), heard[0] if heard else ""

    def _interrupted(self, launch: Launch, heard: str) -> None:
        """Have the job queued again if it was not ended for good, and makes progress."""
        journal = launch.journal(self.worker)
        journal.write(state="interrupted", reason=heard, progress=progress_of(launch, self.worker))
        job = os.environ.get("SLURM_JOB_ID")
        if launch.facts["executor"] != "slurm" or job is None or launch.is_cancelled:
            return
        if not launch.facts["requeue"]:
            return  # `grid` goes on from the checkpoint
        if state_of(job) != "RUNNING":
            return  # cancelled, or queued again by Slurm itself
        counts = [e["progress"] for e in journal.read() if "progress" in e]
        if len(counts) >= IDLE_ATTEMPTS and len(set(counts[-IDLE_ATTEMPTS:])) == 1:
            reason = f"interrupted {IDLE_ATTEMPTS} times ({heard}) without a finished batch"
            fail_open_step(launch, self.worker, reason, interrupted=True)
            raise RunError(f"{reason}; not queued again.")
        requeue(job)


def environment_of(launch: Launch, worker: int) -> dict[str, str]:
    """The environment of a worker: ours, the profile's, its threads and its accelerator."""
    facts = launch.facts
    environment = os.environ | facts["environment"]
    if facts["threads"]:
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(facts["threads"]))
    if facts["devices"] is not None:
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # submitit has set one
        device = facts["devices"][worker]
        environment |= {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
    return environment


def progress_of(launch: Launch, worker: int) -> int:
    """Steps settled and batches done by a worker: a number that grows while it gets anywhere."""
    events = launch.journal(worker).read()
    ended = sum(event.get("state") in ("done", "kept", "failed") for event in events)
    begun = [event["step"] for event in events if event.get("state") == "running"]
    lines = launch.directory / begun[-1] / BATCHES_FILE if begun else None
    return ended + (lines.read_bytes().count(b"\n") if lines and lines.exists() else 0)


def fail_open_step(launch: Launch, worker: int, reason: str, *, interrupted: bool = False) -> bool:
    """Settle the step that a worker left behind as failed; False if it left none."""
    journal = launch.journal(worker)
    step = journal.last_step("interrupted") if interrupted else journal.open_step()
    if step is None:
        return False
    folder = RunFolder(launch.directory / step)
    journal.write(step=step, state="failed", reason=reason)
    if not folder.is_done:
        folder.append_log(f"failed: {reason}{_last_words(launch.log(worker))}")
        folder.write_failure(RunError(reason))
    return True


def _last_words(log: Path) -> str:
    """What the process of a worker printed last; "" if nothing."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "".join(f"\n    {line}" for line in lines[-LAST_LINES:])
