"""Merging folders of runs, such as those of several clusters; conflicts are reported together."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ctta_bench.errors import RunError
from ctta_bench.record.owner import is_owned
from ctta_bench.record.read import read_record
from ctta_bench.record.schema import (
    CELL_FILE,
    OWNER_FILES,
    PREDICTIONS_FILE,
    RESULT_FILE,
    TIMES,
    identity,
)

_DEPTH = 3


@dataclass
class Merge:
    """What a merge does with the cells of the second folder; paths are relative to it."""

    new: list[Path] = field(default_factory=list)  # not in the first folder: copied
    finished: list[Path] = field(default_factory=list)  # done only in the second folder: replaced
    same: list[Path] = field(default_factory=list)  # left as they are
    conflicts: list[str] = field(default_factory=list)  # sentences


def compare(target: Path, other: Path) -> Merge:
    """What `merge_into` would do. Raises RunError for a missing folder."""
    for folder in (target, other):
        if not folder.is_dir():
            raise RunError(f"{folder}: no such folder of runs.")
    if target.resolve() == other.resolve():
        raise RunError(f"{other}: is the same folder as {target}.")
    merge = Merge()
    for cell in _cells(other, _DEPTH):
        _compare_cell(target, other, cell.relative_to(other), merge)
    return merge


def merge_into(target: Path, other: Path) -> Merge:
    """Copy cells of `other` into `target` that are missing or unfinished there.

    Raises RunError with a list of all conflicts; nothing is copied then.
    """
    merge = compare(target, other)
    if merge.conflicts:
        raise RunError(
            f"{other} cannot be merged into {target}; nothing was copied:\n  "
            + "\n  ".join(merge.conflicts)
        )
    for cell in [*merge.new, *merge.finished]:
        _copy(other / cell, target / cell)
    return merge


def _cells(folder: Path, depth: int) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or not entry.is_dir() or entry.is_symlink():
            continue
        if (entry / CELL_FILE).is_file():
            yield entry
        elif depth > 1:
            yield from _cells(entry, depth - 1)


def _compare_cell(target: Path, other: Path, cell: Path, merge: Merge) -> None:
    ours, theirs = target / cell, other / cell
    try:
        if is_owned(theirs) or is_owned(ours):
            merge.conflicts.append(f"{cell}: is running; wait until it ends.")
        elif not ours.exists():
            _read(theirs)
            merge.new.append(cell)
        elif identity(_read(ours)) != identity(_read(theirs)):
            merge.conflicts.append(f"{cell}: has another configuration under the same name.")
        elif not (theirs / RESULT_FILE).is_file():
            merge.same.append(cell)  # the second folder has no result to add
        elif not (ours / RESULT_FILE).is_file():
            merge.finished.append(cell)
        elif _differ(_numbers(ours), _numbers(theirs)):
            merge.conflicts.append(f"{cell}: is done in both folders, with different results.")
        else:
            merge.same.append(cell)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        merge.conflicts.append(f"{cell}: cannot be read ({type(error).__name__}: {error}).")


def _read(cell: Path) -> dict[str, Any]:
    record = read_record(cell)
    identity(record)
    return dict(record)


def _differ(a: tuple[Any, bytes], b: tuple[Any, bytes]) -> bool:
    """Whether two results differ in a key that both releases wrote, or in their predictions."""
    return a[1] != b[1] or any(a[0][key] != b[0][key] for key in a[0].keys() & b[0].keys())


def _numbers(cell: Path) -> tuple[Any, bytes]:
    """The result and predictions of a finished cell, without times."""
    result = json.loads((cell / RESULT_FILE).read_text("utf-8"))
    for place in (result, result.get("cost", {})):
        for key in TIMES:
            place.pop(key, None)
    predictions = cell / PREDICTIONS_FILE
    return result, predictions.read_bytes() if predictions.is_file() else b""


def _copy(source: Path, target: Path) -> None:
    """Copy the plain files of a cell to a temporary folder, then rename it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=".merge-", dir=target.parent))
    try:
        staged.chmod(0o755)
        for file in sorted(source.rglob("*")):
            if file.is_symlink() or file.name in OWNER_FILES or not file.is_file():
                continue
            place = staged / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place)
        if target.exists():
            target.rename(staged.with_name(f"{staged.name}.old"))
        staged.rename(target)
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror or error}).") from error
    finally:
        for rest in (staged, staged.with_name(f"{staged.name}.old")):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(rest)
