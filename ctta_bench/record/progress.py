"""The state and progress of a cell, from the files of its folder."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ctta_bench.record.owner import FileClock, seems_owned
from ctta_bench.record.read import UnusableCellError, has_file, read_json
from ctta_bench.record.schema import (
    ATTEMPTS_FILE,
    BATCHES_FILE,
    FAILURE_FILE,
    OWNER_FILE,
    RESULT_FILE,
)

STATES = ("done", "running", "failed", "incomplete")
_TAIL_BYTES = 8192  # many times the longest line of batches.jsonl


class Progress(NamedTuple):
    """State of a cell, with its number of finished batches (`done`) and of all batches (`total`).

    total: None if not known. first: whether no earlier attempt failed or was interrupted. changed:
    when batches were last written, seconds since 1970.
    """

    state: str
    done: int | None
    total: int | None
    reason: str = ""
    first: bool = True
    changed: float = 0.0


def progress(folder: Path, total: int | None, clock: FileClock | None = None) -> Progress:
    """Progress of a cell from its files; `total` is its number of batches, None if not known.

    clock: that of the folder's file system; pass the same one for many cells.
    """
    if has_file(folder, RESULT_FILE):
        return Progress("done", total, total, "", not has_file(folder, ATTEMPTS_FILE))
    with os.scandir(folder) as entries:  # one call instead of one per file
        files = {entry.name for entry in entries}
    first = ATTEMPTS_FILE not in files
    lines = folder / BATCHES_FILE
    done = batches_done(lines)
    changed = lines.stat().st_mtime if BATCHES_FILE in files else 0.0
    place = f"batch {done} of {total}" if total else f"batch {done}"
    if OWNER_FILE in files and seems_owned(folder, clock or FileClock(folder)):
        return Progress("running", done, total, f"at {place}", first, changed)
    if FAILURE_FILE in files:
        return Progress("failed", done, total, _failure(folder), first, changed)
    reason = f"stopped after {place}" if done else "not started"
    return Progress("incomplete", done, total, reason, first, changed)


def batches_done(path: Path) -> int:
    """Number of batches in a batches.jsonl, from its last complete line.

    Lines are numbered, so the end of the file is enough for a stream of any length.
    """
    for line in _last_lines(path):
        try:
            return int(line["batch"]) + 1
        except (KeyError, TypeError, ValueError):
            continue
    return 0


def _last_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The last complete lines of a file of JSON lines, latest first."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # incomplete
            value = json.loads(line)
            if isinstance(value, dict):
                yield value


def remaining_seconds(folder: Path, state: Progress) -> float | None:
    """Seconds that a cell still needs at the speed of its last batches; None if not known."""
    spent = [line["ms"] for line in _last_lines(folder / BATCHES_FILE) if "ms" in line]
    if not spent or state.total is None or state.done is None:
        return None
    return (state.total - state.done) * sum(spent) / len(spent) / 1000


def attempts(folder: Path) -> tuple[int, str]:
    """Number of the current attempt, from 1, and the last signal that interrupted one."""
    try:
        before = json.loads((folder / ATTEMPTS_FILE).read_text("utf-8"))
        signals = [str(attempt.get("signal") or "") for attempt in before]
    except (OSError, ValueError, AttributeError, TypeError):
        return 1, ""
    return len(before) + 1, next((name for name in reversed(signals) if name), "")


def _failure(folder: Path) -> str:
    try:
        return str(read_json(folder, FAILURE_FILE).get("reason") or "no reason given")
    except UnusableCellError:
        return f"{FAILURE_FILE} cannot be read"
