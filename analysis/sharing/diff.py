"""What differs between two bundles or folders of runs, by how much, and most likely why."""

import contextlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.analysis.read.statistics import paired_difference
from ctta_bench.errors import RunError
from ctta_bench.record.arrays import read_all_arrays
from ctta_bench.record.find import find_cells
from ctta_bench.record.read import UnusableCellError, has_file, read_cell, read_json
from ctta_bench.record.schema import (
    DATA,
    ENVIRONMENT_FILE,
    PLUGIN_FILES,
    PREDICTIONS_FILE,
    RESULT_FILE,
    WARM_UP,
    deciding_values,
)

# Facts of env.json, the most likely reason first.
# fmt: off
_FACTS = (
    DATA, PLUGIN_FILES, "ctta_bench", "commit", "device", "cpu", "torch", "threads", "attention",
    "tf32", "deterministic", "timm", "torchvision", "numpy", "libjpeg",
)
# fmt: on
_LISTED = 4  # reasons that are named
_LONG = 40  # characters of a value


@dataclass(frozen=True)
class Difference:
    """Two cells of one name, or the cells of a method, stream and seed that have other values.

    a, b: the metric in its unit, NaN for a cell that is not there. difference: b minus a in points,
    half_interval: half of its 95 % interval for other images; NaN where the images are not the
    same. equal: the share of images with the same prediction. reasons: the fields that differ, the
    most likely reason first.
    """

    cell: str
    other: str
    a: float
    b: float
    difference: float
    half_interval: float
    equal: float
    reasons: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """What it comes to, in a few words."""
        if not self.other or not self.cell:
            return "only in B" if not self.cell else "only in A"
        if self.equal == 1:
            return "the same predictions"
        if not math.isfinite(self.half_interval):
            return "differs"
        sure = abs(self.difference) > self.half_interval
        return "differs beyond the interval" if sure else "differs within the interval"


@dataclass(frozen=True)
class _Cell:
    folder: Path
    record: Mapping[str, Any]
    result: Mapping[str, Any]
    environment: Mapping[str, Any]

    @property
    def mean(self) -> float:
        value = self.result["mean"]
        return math.nan if value is None else float(value)

    @property
    def key(self) -> tuple[Any, ...]:
        """What two cells share of which one has other values: method, stream, model, seed."""
        benchmark = self.record["benchmark"]
        return (
            self.record["method"]["name"],
            benchmark["name"],
            benchmark.get("setting"),
            self.record["model"]["name"],
            self.record["seed"],
            self.record.get("adapt", True),
        )


def diff(a: Path, b: Path) -> list[Difference]:
    """The cells of two bundles or folders of runs, one by one; what is in one only comes last.

    Example: `[d for d in diff(Path("mine.zip"), Path("theirs.zip")) if d.equal < 1]`

    Raises RunError if one has no finished cell.
    """
    ours, theirs = _cells(a), _cells(b)
    pairs = [(cell, theirs[name]) for name, cell in ours.items() if name in theirs]
    left = [cell for name, cell in ours.items() if name not in theirs]
    right = [cell for name, cell in theirs.items() if name not in ours]
    by_key: dict[tuple[Any, ...], tuple[list[_Cell], list[_Cell]]] = defaultdict(lambda: ([], []))
    for side, cells in enumerate((left, right)):
        for cell in cells:
            by_key[cell.key][side].append(cell)
    alone = []
    for firsts, seconds in by_key.values():
        if len(firsts) == len(seconds) == 1:
            pairs.append((firsts[0], seconds[0]))
        else:
            alone += [_alone(cell, True) for cell in firsts]
            alone += [_alone(cell, False) for cell in seconds]
    found = sorted((_compared(*pair) for pair in pairs), key=lambda d: d.cell)
    return [*found, *alone]


def _cells(directory: Path) -> dict[str, _Cell]:
    folders, _ = find_cells(directory)
    found = {}
    for folder in folders:
        if not has_file(folder, RESULT_FILE):
            continue
        try:
            record, result = read_cell(folder), read_json(folder, RESULT_FILE)
            environment = read_json(folder, ENVIRONMENT_FILE)
        except UnusableCellError as error:
            raise RunError(f"{folder}: {error}.") from error
        if record.get("kind") != WARM_UP:
            found[record["id"]] = _Cell(folder, record, result, environment)
    if not found:
        raise RunError(f"{directory}: no finished cell to compare.")
    return found


def _alone(cell: _Cell, in_first: bool) -> Difference:
    name, nan = cell.record["id"], math.nan
    if in_first:
        return Difference(name, "", cell.mean, nan, nan, nan, nan, ())
    return Difference("", name, nan, cell.mean, nan, nan, nan, ())


def _compared(ours: _Cell, theirs: _Cell) -> Difference:
    metric = metric_named(ours.result["metric"])
    same = bool(ours.result.get("same_images", True))
    half = math.nan
    with contextlib.suppress(RunError):  # of other images the means are compared, no interval
        pair = [theirs.folder], [ours.folder]
        half = paired_difference(*pair, metric=metric.name, same_images=same).half_width
    return Difference(
        ours.record["id"],
        theirs.record["id"],
        ours.mean,
        theirs.mean,
        theirs.mean - ours.mean,
        half,
        _equal(ours.folder, theirs.folder, [*metric.arrays]),
        tuple(_reasons(ours, theirs)),
    )


def _equal(a: Path, b: Path, names: list[str]) -> float:
    """The share of images with the same prediction, in stream order; NaN for other streams."""
    ours, theirs = (read_all_arrays(folder, PREDICTIONS_FILE) for folder in (a, b))
    visits = [name for name in ("index", "domain", "round") if name not in names]
    if any(not np.array_equal(ours[name], theirs[name]) for name in visits):
        return math.nan
    equal = np.ones(len(ours["index"]), bool)
    for name in names:
        equal &= (ours[name] == theirs[name]).reshape(len(equal), -1).all(1)
    return float(equal.mean())


def _reasons(ours: _Cell, theirs: _Cell) -> Iterator[str]:
    a, b = (dict(_flat(deciding_values(cell.record))) for cell in (ours, theirs))
    texts = [
        f"{key}: {_short(a.get(key))} in A, {_short(b.get(key))} in B"
        for key in dict.fromkeys([*a, *b])
        if a.get(key) != b.get(key)
    ]
    for key in _FACTS:
        one, other = ours.environment.get(key), theirs.environment.get(key)
        if one != other and one is not None and other is not None:
            texts.append(f"{key}: {_changed(one, other)}")
    yield from texts[:_LISTED]
    if len(texts) > _LISTED:
        yield f"{len(texts) - _LISTED} more fields"


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{place}.{key}" if place else str(key))
    else:
        yield place, value


def _changed(one: Any, other: Any) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        a, b = dict(_flat(one)), dict(_flat(other))
        keys = [key for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]
        return f"other {', '.join(keys[:_LISTED])}"
    return f"{_short(one)} in A, {_short(other)} in B"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."
