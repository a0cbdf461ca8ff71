"""Does what a run folder states follow from its predictions? Each finding is a sentence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ctta_bench.analysis.read.cells import read_folder
from ctta_bench.analysis.read.collect import batches
from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.record.arrays import read_all_arrays
from ctta_bench.record.progress import progress
from ctta_bench.record.read import UnusableCellError, arrays_sha256, read_cell, read_json
from ctta_bench.record.schema import (
    BATCHES_FILE,
    CELL_FILE,
    PREDICTIONS_FILE,
    RESULT_FILE,
    WARM_UP,
    CellRecord,
    cell_id,
    identity,
)
from ctta_bench.stream.orders import Order

Arrays = dict[str, npt.NDArray[Any]]
_CLOSE = 1e-6  # relative: means by another version of numpy differ in the last bits


@dataclass
class CheckedCell:
    """What was found in a run folder.

    findings: sentences on what does not hold. numbers: how many were computed again. order: hash of
    the order of its images as in result.json, "" without one.
    """

    findings: list[str] = field(default_factory=list)
    numbers: int = 0
    order: str = ""


def check_folder(folder: Path) -> CheckedCell:
    """Check the name of a run folder, and compute all numbers of a finished cell again."""
    found = CheckedCell()
    try:
        record = read_cell(folder)
        found.findings += _name(record)
        if record.get("kind") == WARM_UP:
            return found
        if progress(folder, record.get("num_batches")).state == "done":
            _check_result(folder, record, found)
    except UnusableCellError as error:
        found.findings.append(f"{error}.")
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        found.findings.append(
            f"{CELL_FILE} or {RESULT_FILE} cannot be checked ({type(error).__name__}: {error})."
        )
    return found


def _name(record: CellRecord) -> Iterator[str]:
    """The name of a cell or warm-up ends with the hash of its values."""
    if record.get("kind") == WARM_UP:
        expected = f"{record['id'].rpartition('-')[0]}-{identity(record)[:8]}"
    else:
        method = {"preset": "default", **record["method"]}
        expected = cell_id({**record, "method": method})
    if expected != record["id"]:
        yield (
            f"{CELL_FILE} has values of the cell {expected}, not of {record['id']}: a value or the "
            "name was changed."
        )


def _check_result(folder: Path, record: CellRecord, found: CheckedCell) -> None:
    cell = read_folder(folder)
    if isinstance(cell, str):
        raise UnusableCellError(cell)
    result, arrays = read_json(folder, RESULT_FILE), read_all_arrays(folder, PREDICTIONS_FILE)
    stated = result.get("predictions_sha256")
    if stated is not None and stated != arrays_sha256(arrays):
        found.findings.append(
            f"{PREDICTIONS_FILE}: is not the file that {RESULT_FILE} was made from (its SHA-256 "
            "differs)."
        )
    metric = metric_named(result["metric"])
    domains = record["benchmark"]["domains"]
    rounds = metric.rounds_of(arrays, domains, arrays.get("severity"))
    counted = _numbers({"mean": _mean([entry["mean"] for entry in rounds]), "rounds": rounds})
    for place, value in _numbers(result).items():
        found.numbers += 1
        if place not in counted:
            found.findings.append(
                f"{RESULT_FILE}: {place} is {value}, and nothing in {PREDICTIONS_FILE} gives it "
                "(a measure of a plug-in needs --plugin)."
            )
        elif not _equal(value, counted[place]):
            found.findings.append(
                f"{RESULT_FILE}: {place} is {value}, but {counted[place]} from {PREDICTIONS_FILE}."
            )
    found.order = str(result.get("order_sha256") or "")
    found.findings += _batches(folder, arrays, metric.image_values, found.order)


def _numbers(result: Mapping[str, Any]) -> dict[str, Any]:
    """The mean and all numbers of the rounds of a result, each by its place in words."""
    found = {"the mean": result["mean"]}
    for part in result["rounds"]:
        step = f"round {part['round']}"
        found[f"{step}: mean"] = part["mean"]
        entries = [(f"{step}, {entry['domain']}", entry) for entry in part["domains"]]
        entries += [
            (f"{step}, severity {entry['severity']}", entry) for entry in part.get("severities", ())
        ]
        for place, entry in entries:
            for name, value in entry.items():
                if name not in ("domain", "severity"):
                    values = enumerate(value) if isinstance(value, list) else [("", value)]
                    found |= {f"{place}: {name} {number}".rstrip(): v for number, v in values}
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else None


def _equal(stated: Any, counted: Any) -> bool:
    if isinstance(stated, int | float) and isinstance(counted, int | float):
        return bool(abs(stated - counted) <= _CLOSE * max(1.0, abs(counted)))
    return bool(stated == counted)


def _batches(folder: Path, arrays: Arrays, image_values: Any, order: str) -> Iterator[str]:
    """batches.jsonl, where it is whole, and the hash of the order that it and the images give."""
    if not (folder / BATCHES_FILE).is_file():
        return
    lines = batches(folder)
    if "n" not in lines or int(lines["n"].sum()) != len(arrays["round"]):
        count = int(lines["n"].sum()) if "n" in lines else 0
        yield (f"{BATCHES_FILE} has {count} images, {PREDICTIONS_FILE} has {len(arrays['round'])}.")
        return
    cuts = np.concatenate([[0], np.cumsum(lines["n"].to_numpy())]).astype(np.int64)
    if "confusion" not in arrays:
        values = np.asarray(image_values(arrays), np.float64)
        summed = np.add.reduceat(values, cuts[:-1])
        wrong = np.flatnonzero(~np.isclose(lines["errors"].to_numpy(np.float64), summed))
        for number in wrong[:1]:
            yield (
                f"{BATCHES_FILE}: batch {number} has {lines['errors'].iloc[number]} errors, but "
                f"{summed[number]:g} from {PREDICTIONS_FILE}."
            )
    severity = arrays.get("severity", np.zeros(len(arrays["round"]), np.int8))
    seen = Order(arrays["domain"], arrays["index"], arrays["round"], cuts, severity)
    if order and seen.sha256() != order:
        yield (
            f"{RESULT_FILE}: order_sha256 is {order[:8]}..., but {seen.sha256()[:8]}... from "
            f"{PREDICTIONS_FILE} and {BATCHES_FILE}: the images came in another order."
        )
