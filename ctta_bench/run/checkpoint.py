"""Checkpoints of a running cell: when they are written, their content, and how a run resumes."""

import io
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pickle import UnpicklingError
from typing import Any, TypeVar

import numpy as np
import torch

from ctta_bench.errors import ConfigError
from ctta_bench.method import Method
from ctta_bench.record.folder import RunFolder, atomic
from ctta_bench.record.schema import (
    BATCHES_FILE,
    PREVIOUS_STATE_FILE,
    STATE_FILE,
    STATE_FILES,
    BatchLine,
    ProbeRecord,
)
from ctta_bench.run.loggers import Logger
from ctta_bench.scoring.base import Arrays, Scorer
from ctta_bench.scoring.classification import ErrorScorer
from ctta_bench.stream import Stream

Found = TypeVar("Found")
# Ctrl-C, kill, and the two signals that schedulers send before a time-out or a pre-emption.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
DEFAULT_INTERVAL = "20s"

# Errors that reading an incomplete or overwritten checkpoint can raise.
_DAMAGE = (OSError, RuntimeError, EOFError, ValueError, KeyError, TypeError, UnpicklingError)


@dataclass
class Progress:
    """Results so far: per-image arrays, batch lines, pictures, forgetting probes, seconds spent."""

    scorer: Scorer = field(default_factory=ErrorScorer)
    arrays: list[Arrays] = field(default_factory=list)
    lines: list[BatchLine] = field(default_factory=list)
    frames: list[Arrays] = field(default_factory=list)
    seconds: float = 0.0
    probes: list[ProbeRecord] = field(default_factory=list)

    def concatenated(self) -> Arrays:
        """The per-image arrays of all batches, concatenated in stream order.

        An array that some batches lack is left out: it is a measure of a plug-in that was loaded
        only before or only after a checkpoint.
        """
        first, *others = self.arrays
        names = [name for name in first if all(name in arrays for arrays in others)]
        return {name: np.concatenate([a[name] for a in self.arrays]) for name in names}


class DeferredInterrupt:
    """Defers Ctrl-C and signals of schedulers to the end of the batch, for a complete checkpoint.

    `signal_name`: the first signal that came, "" before. A second Ctrl-C ends the run at once,
    without a checkpoint; other repeated signals do not, because schedulers send several. Signal
    handlers are changed in the main thread only.
    """

    def __enter__(self) -> "DeferredInterrupt":
        self.signal_name = ""
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: Any) -> None:
        if self.signal_name and number == signal.SIGINT:
            raise KeyboardInterrupt("SIGINT")
        self.signal_name = self.signal_name or signal.Signals(number).name

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def parse_interval(text: str) -> tuple[float, int | None]:
    """Parse an interval: `30s` gives (30.0, None), `50` batches (0.0, 50). Raises ConfigError."""
    found = re.fullmatch(r"([1-9]\d{0,8})(s?)", text.strip())
    if found is None:
        raise ConfigError(
            f"--checkpoint {text!r}: write a number of batches (50) or of seconds (30s), 1 or more."
        )
    count = int(found[1])
    return (float(count), None) if found[2] else (0.0, count)


@dataclass
class Pace:
    """Decides when the next checkpoint is due."""

    seconds: float
    batches: int | None
    last: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, interval: str) -> "Pace":
        """The pace of an interval as text; see `parse_interval`."""
        return cls(*parse_interval(interval))

    def due(self, batches: int) -> bool:
        """Whether to write a checkpoint now, after `batches` batches of the stream."""
        if self.batches is not None:
            return batches % self.batches == 0
        if time.monotonic() - self.last < self.seconds:
            return False
        self.last = time.monotonic()
        return True


def save_checkpoint(folder: RunFolder, method: Method, progress: Progress) -> None:
    """Write state.pt; the checkpoint before it becomes state.previous.pt."""
    if not progress.lines:
        return
    content = {
        "method": method.state_dict(),
        "arrays": _tensors(progress.concatenated()),
        "lines": progress.lines,
        "frames": list(map(_tensors, progress.frames)),
        "seconds": progress.seconds,
        "probes": progress.probes,
    }
    write_state(folder, content)


def _tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def _arrays(tensors: dict[str, torch.Tensor]) -> Arrays:
    return {name: values.numpy() for name, values in tensors.items()}


def write_state(folder: RunFolder, content: dict[str, Any]) -> None:
    """Write state.pt, atomically; the checkpoint before it becomes state.previous.pt."""
    newest = folder.file(STATE_FILE)
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with atomic(newest) as temporary:
        temporary.write_bytes(buffer.getbuffer())
        if newest.exists():
            newest.replace(folder.file(PREVIOUS_STATE_FILE))


def resume(
    folder: RunFolder,
    method: Method,
    stream: Stream,
    loggers: Iterable[Logger] = (),
    scorer: Scorer | None = None,
) -> Progress:
    """Load the newest intact checkpoint into `method` and report it; returns the results so far.

    Without an intact checkpoint the stream starts from the beginning.
    """

    progress = Progress(scorer or ErrorScorer())

    def read(content: dict[str, Any]) -> tuple[Progress, dict[str, Any]]:
        arrays, frames = _arrays(content["arrays"]), list(map(_arrays, content.get("frames", [])))
        lines, seconds = content["lines"], content["seconds"]
        probes = content.get("probes", [])
        found = Progress(progress.scorer, [arrays], lines, frames, seconds, probes)
        return found, content["method"]

    found = newest_intact(folder, read, loggers)
    if found is None:
        lines = folder.file(BATCHES_FILE)
        if lines.exists() and lines.stat().st_size:
            say(folder, loggers, "no intact checkpoint: the stream starts from the beginning")
        return progress
    progress, saved = found
    method.load_state_dict(saved)
    say(folder, loggers, f"resumed after {len(progress.lines)} of {len(stream)} batches")
    return progress


def newest_intact(
    folder: RunFolder, read: Callable[[dict[str, Any]], Found], loggers: Iterable[Logger] = ()
) -> Found | None:
    """`read` applied to the newest intact checkpoint; None if there is none.

    Damaged checkpoints are reported and skipped.
    """
    for name in STATE_FILES:
        file = folder.file(name)
        if not file.exists():
            continue
        try:
            return read(torch.load(file, map_location="cpu", weights_only=True))
        except _DAMAGE as error:
            say(folder, loggers, f"{file}: damaged checkpoint skipped ({type(error).__name__})")
    return None


def delete_checkpoints(folder: RunFolder) -> None:
    """Delete the checkpoints of a finished cell or warm-up."""
    for name in STATE_FILES:
        folder.file(name).unlink(missing_ok=True)


def say(folder: RunFolder, loggers: Iterable[Logger], message: str) -> None:
    """Write a message to the folder's log, and to the loggers for the user."""
    folder.append_log(message)
    for logger in loggers:
        logger.say(f"{folder.path.name}: {message}")
