"""The process of one worker; job.py starts it, and a new one if it dies.

It runs its steps, writes their states to its journal, and ends with an exit code:

0   every step has a final state, successful or not
75  interrupted after a checkpoint, to be started again

Any other code is a crash in the step that has no final state in the journal.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctta_bench.errors import CttaBenchError
from ctta_bench.launch.plan import INTERRUPTED, Journal, Launch, read_step
from ctta_bench.launch.running import run_step
from ctta_bench.launch.snapshot import FOLDER, MODULES
from ctta_bench.launch.steps import Step
from ctta_bench.record.owner import STALE_SECONDS, WATCH_SECONDS, is_owned, this_process
from ctta_bench.record.schema import BatchLine, CellRecord
from ctta_bench.registry import load_plugin
from ctta_bench.run.checkpoint import STOP_SIGNALS
from ctta_bench.run.environment import default_device
from ctta_bench.run.loggers import Logger, make_loggers
from ctta_bench.run.options import RunOptions
from ctta_bench.source_models.shared import Models

# At the end, steps that other processes ran are tried again: by then a dead owner is recognised,
# and a living one keeps its cell. A warm-up that another process runs is awaited to its end.
PATIENCE_SECONDS = STALE_SECONDS + WATCH_SECONDS
LOOK_AGAIN_SECONDS = 2.0


def main(folder: Path, worker: int) -> int:
    """Run the steps of a worker; returns the exit code."""
    for number in STOP_SIGNALS:
        signal.signal(number, _stop)
    # The parent process has blocked these signals until the handlers are set.
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        launch = Launch.open(folder)
        launch.journal(worker).write(state="started", **this_process())
        if "snapshot" in launch.facts:
            sys.path.insert(0, str(launch.folder / FOLDER / MODULES))
        for plugin in launch.facts["plugins"]:
            load_plugin(plugin)
        work(launch, worker)
    except CttaBenchError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the log of the worker
        return 1
    except KeyboardInterrupt as error:
        _note_interruption(Journal(folder / "workers" / f"{worker}.jsonl"), str(error))
        return INTERRUPTED
    return 0


def _stop(number: int, frame: Any) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _note_interruption(journal: Journal, signal_name: str) -> None:
    step = journal.open_step()
    if step is not None:
        journal.write(step=step, state="interrupted", reason=signal_name)


def work(launch: Launch, worker: int) -> None:
    """Run every step of a worker in order, then again those that other processes ran."""
    journal, models = launch.journal(worker), Models(several=True)
    ended = {e["step"] for e in journal.read() if e.get("state") in ("done", "kept", "failed")}
    waiting = []
    for line in _claimed(launch, worker):
        if launch.is_cancelled:
            raise KeyboardInterrupt("a cancel")
        skipped = line["id"] in ended or line["id"] in launch.cancelled_steps()
        step = None if skipped else _resolved(line, journal, models)
        if step is not None and not _run_to_end(launch, journal, step, models):
            waiting.append(step)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while waiting and not launch.is_cancelled:
        time.sleep(LOOK_AGAIN_SECONDS)
        warming = [s for s in waiting if s.needs and is_owned(launch.directory / s.needs)]
        if not warming and time.monotonic() > deadline:
            break
        waiting = [
            s
            for s in waiting
            if s in warming
            or is_owned(launch.directory / s.id)
            or not _run_to_end(launch, journal, s, models)
        ]
    for step in waiting:
        journal.write(step=step.id, state="elsewhere", reason="another process runs it")


def _run_to_end(launch: Launch, journal: Journal, step: Step, models: Models) -> bool:
    """Run a step until a final state; False if another process runs it."""
    facts = launch.facts
    # A step that was started and interrupted must be resumed, not deleted by `force`.
    begun = any(e.get("step") == step.id and e["state"] == "running" for e in journal.read())
    options = RunOptions(
        device=facts["device"] or default_device(),
        force=facts["force"] and not begun,
        checkpoint=facts["checkpoint"],
    )
    state, reason = run_step(
        step,
        launch.directory,
        options,
        make_loggers=lambda step: [
            *make_loggers(tuple(facts["log"])),
            PrintingLogger(step.id),
            CancelListener(launch, step.id),
        ],
        begins=lambda: journal.write(step=step.id, state="running"),
        warmup_failure="" if step.needs is None else launch.failures().get(step.needs, ""),
        models=models,
    )
    shown = "waiting" if state == "elsewhere" else state
    journal.write(step=step.id, state=shown, reason=reason)
    print(f"{shown}: {step.id} {reason}", flush=True)  # noqa: T201 - the log of the job
    return state != "elsewhere"


def _resolved(line: dict[str, Any], journal: Journal, models: Models) -> Step | None:
    try:
        return read_step(line, models)
    except CttaBenchError as error:
        journal.write(step=line["id"], state="failed", reason=str(error))
        return None


def _claimed(launch: Launch, worker: int) -> Iterator[dict[str, Any]]:
    """The steps of a worker: all of its pack, or, of a shared pack, those that it claims first."""
    start, stop = launch.facts["packs"][worker]
    for number, line in enumerate(launch.lines(start, stop), start):
        if not launch.facts["shared"] or _claim(launch, number, worker):
            yield line


def _claim(launch: Launch, number: int, worker: int) -> bool:
    """Claim a step of the shared queue; False if another worker of this launch has claimed it."""
    claims = launch.folder / "claims"
    claims.mkdir(exist_ok=True)
    try:
        with (claims / str(number)).open("x", encoding="utf-8") as file:
            file.write(str(worker))
    except FileExistsError:
        return (claims / str(number)).read_text("utf-8") == str(worker)
    return True


class PrintingLogger(Logger):
    """Prints messages for the user to the log of the job."""

    def __init__(self, name: str) -> None:
        self.name = name

    def start(self, folder: Path, cell: CellRecord, done: int, total: int) -> None:
        """Print the batch at which the stream starts."""
        self.say(f"{self.name}: batch {done} of {total}")

    def say(self, message: str) -> None:
        """Print a message."""
        print(message, flush=True)  # noqa: T201 - the log of the job


class CancelListener(Logger):
    """Interrupts this process once its cell is cancelled, wherever `cancel` was called."""

    def __init__(self, launch: Launch, step: str) -> None:
        self.launch, self.step = launch, step
        self.looked = time.monotonic()

    def batch(self, record: BatchLine) -> None:
        """Look at most every `LOOK_AGAIN_SECONDS`."""
        if time.monotonic() - self.looked > LOOK_AGAIN_SECONDS:
            self.looked = time.monotonic()
            if self.launch.is_cancelled or self.step in self.launch.cancelled_steps():
                os.kill(os.getpid(), signal.SIGTERM)


def exit_process(code: int) -> None:
    """End this process; after an interruption at once, because the scheduler's time limit is near.

    A normal exit with torch can take longer than the remaining seconds. A signal that comes during
    it is ignored: the cells are done.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if code == INTERRUPTED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
