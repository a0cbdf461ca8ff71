"""Which cells of a folder are done, running, failed or incomplete, from the folders alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ctta_bench.analysis.folders import YAML_LOADER, UnusableCellError, find_cells, progress


@dataclass(frozen=True)
class StatusRow:
    """One cell. `done` and `total` count batches; None where not known."""

    experiment: str
    cell: str
    method: str
    benchmark: str
    seed: int | None
    state: str  # done, running, failed or incomplete
    done: int | None
    total: int | None
    reason: str

    @property
    def progress(self) -> str:
        """`12/40`, `12` where the length is not known, or nothing."""
        return "/".join(str(count) for count in (self.done, self.total) if count is not None)


def status(directory: Path) -> list[StatusRow]:
    """One row per cell below the directory, in the order of the folders' names.

    Stray folders without a cell.yaml and unreadable cells are rows of state `incomplete` too, so
    that none is overlooked. Raises RunError if the directory does not exist.
    """
    cells, strays = find_cells(directory)
    rows = [_row(folder) for folder in cells]
    rows += [_unknown(folder, reason) for folder, reason in strays]
    return sorted(rows, key=lambda row: (row.experiment, row.cell))


def _row(folder: Path) -> StatusRow:
    try:
        cell = _texts(folder)
        total = _number(cell.get("num_batches"))
        state = progress(folder, total)
        return StatusRow(
            experiment=str(cell.get("experiment", folder.parent.name)),
            cell=folder.name,
            method=str(cell["method"]["name"]),
            benchmark=str(cell["benchmark"]["name"]),
            seed=_number(cell.get("seed")),
            state=state.state,
            done=state.done,
            total=state.total,
            reason=state.reason,
        )
    except UnusableCellError as error:
        return _unknown(folder, str(error))
    except (KeyError, TypeError, AttributeError):
        return _unknown(folder, "half-written: cell.yaml is empty or cut")


def _unknown(folder: Path, reason: str) -> StatusRow:
    return StatusRow(
        folder.parent.name, folder.name, "", "", None, "incomplete", None, None, reason
    )


def _number(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isdigit() else None


def _texts(folder: Path) -> dict[str, Any]:
    """cell.yaml with every scalar as text.

    Built from the parser's events: three times as fast as `yaml.safe_load`, which a status of a
    thousand cells would spend nearly all its time in. An alias is None; no key used here has one.
    """
    try:
        events = yaml.parse((folder / "cell.yaml").read_text("utf-8"), Loader=YAML_LOADER)
        next(events, None)  # the start of the stream
        next(events, None)  # the start of the document
        cell = _value(events, next(events, None))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise UnusableCellError(f"cell.yaml cannot be read ({type(error).__name__})") from error
    if not isinstance(cell, dict):
        raise UnusableCellError("half-written: cell.yaml is empty or cut")
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
