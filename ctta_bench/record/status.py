"""Status of all cells below a directory (done, running, failed, incomplete), from their files."""

import re
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ctta_bench.record.find import find_cells
from ctta_bench.record.owner import FileClock
from ctta_bench.record.progress import attempts, progress, remaining_seconds
from ctta_bench.record.read import YAML_LOADER, UnusableCellError
from ctta_bench.record.schema import CELL_FILE


class StatusRow(NamedTuple):
    """Status of one cell.

    done, total: numbers of batches; None if not known. attempt: from 1. signal: the last that
    interrupted it. changed: when its batches were last written, seconds since 1970. eta_seconds:
    expected time until a running cell ends.
    """

    experiment: str
    cell: str
    method: str
    benchmark: str
    seed: int | None
    state: str  # done, running, failed or incomplete
    done: int | None
    total: int | None
    reason: str
    attempt: int = 1
    signal: str = ""
    changed: float = 0.0
    eta_seconds: float | None = None

    @property
    def progress(self) -> str:
        """`12/40`, `12` if the length is not known, or ""."""
        return "/".join(str(count) for count in (self.done, self.total) if count is not None)


def status(directory: Path) -> list[StatusRow]:
    """One row per cell below the directory, sorted by experiment and cell.

    Folders without a cell.yaml and unreadable cells are rows of state `incomplete`, so that none is
    overlooked. Raises RunError if the directory does not exist.
    """
    cells, strays = find_cells(directory)
    clock = FileClock(directory)
    rows = [_row(folder, clock) for folder in cells]
    rows += [_unreadable(folder, reason) for folder, reason in strays]
    return sorted(rows, key=lambda row: (row.experiment, row.cell))


def _row(folder: Path, clock: FileClock) -> StatusRow:
    try:
        cell = _cell_facts(folder)
        state = progress(folder, cell.total, clock)
        attempt, signal = (1, "") if state.first else attempts(folder)
        return StatusRow(
            experiment=cell.experiment or folder.parent.name,
            cell=folder.name,
            method=cell.method,
            benchmark=cell.benchmark,
            seed=cell.seed,
            state=state.state,
            done=state.done,
            total=state.total,
            reason=state.reason,
            attempt=attempt,
            signal=signal,
            changed=state.changed,
            eta_seconds=remaining_seconds(folder, state) if state.state == "running" else None,
        )
    except UnusableCellError as error:
        return _unreadable(folder, str(error))


class _CellFacts(NamedTuple):
    """The values of cell.yaml that a row contains."""

    experiment: str
    method: str
    benchmark: str
    seed: int | None
    total: int | None


def _cell_facts(folder: Path) -> _CellFacts:
    """Read the values from the lines of cell.yaml: parsing 100,000 files would take minutes.

    A file in another layout than that of our own writer is parsed.
    """
    try:
        with FileIO(f"{folder}/{CELL_FILE}") as file:  # fast, for thousands of files
            text = file.readall().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableCellError(f"{CELL_FILE} cannot be read ({type(error).__name__})") from error
    experiment, method, benchmark, seed, total = _plain_values(text)
    if experiment and method and benchmark and seed.isdigit() and text.endswith("\n"):
        return _CellFacts(experiment, method, benchmark, int(seed), _number(total))
    return _from_values(_parsed_texts(text))


_KEYS = (
    "\nexperiment: ",
    "\nmethod:\n  name: ",
    "\nbenchmark:\n  name: ",
    "\nseed: ",
    "\nnum_batches: ",
)
_PLAIN = re.compile(r"[\w./-]+")


def _plain_values(text: str) -> list[str]:
    """The plain scalars after `_KEYS` in a file; "" for a key without one."""
    found = []
    for key in _KEYS:
        start = text.find(key)
        first = start + len(key)
        value = text[first : text.find("\n", first)] if start >= 0 else ""
        found.append(value if _PLAIN.fullmatch(value) else "")
    return found


def _from_values(cell: dict[str, Any]) -> _CellFacts:
    try:
        return _CellFacts(
            str(cell.get("experiment", "")),
            str(cell["method"]["name"]),
            str(cell["benchmark"]["name"]),
            _number(cell.get("seed")),
            _number(cell.get("num_batches")),
        )
    except (KeyError, TypeError, AttributeError):
        raise UnusableCellError(f"half-written: {CELL_FILE} is empty or cut") from None


def _unreadable(folder: Path, reason: str) -> StatusRow:
    return StatusRow(
        folder.parent.name, folder.name, "", "", None, "incomplete", None, None, reason
    )


def _number(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isdigit() else None


def _parsed_texts(text: str) -> dict[str, Any]:
    """The content of a cell.yaml with every scalar as text.

    Built from the parser's events, three times as fast as `yaml.safe_load`. An alias becomes None;
    no key used here has one.
    """
    try:
        events = yaml.parse(text, Loader=YAML_LOADER)
        next(events, None)  # the start of the stream
        next(events, None)  # the start of the document
        cell = _value(events, next(events, None))
    except yaml.YAMLError as error:
        raise UnusableCellError(f"{CELL_FILE} cannot be read ({type(error).__name__})") from error
    if not isinstance(cell, dict):
        raise UnusableCellError(f"half-written: {CELL_FILE} is empty or cut")
    return cell


def _value(events: Iterator[Any], event: Any) -> Any:
    if isinstance(event, yaml.ScalarEvent):
        return event.value
    items = []
    if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
        while not isinstance(event := next(events), yaml.MappingEndEvent | yaml.SequenceEndEvent):
            items.append(_value(events, event))
        is_mapping = isinstance(event, yaml.MappingEndEvent)
        return dict(zip(items[::2], items[1::2], strict=True)) if is_mapping else items
    return None
