"""The table of measured cost: the records that `ctta-bench cost` wrote."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ctta_bench.analysis.table.table import MISSING, Entry, Table, safe_name
from ctta_bench.analysis.tables.cost import in_bytes
from ctta_bench.record.schema import COST, COST_SCHEMA_VERSION
from ctta_bench.registry import BENCHMARKS, METHODS, MODELS

# Column of the frame, its head, and how a value is printed.
_COLUMNS = {
    "trainable_parameters": "learnable",
    "extra_parameters": "extra",
    "extra_state_bytes": "state",
    "forward_per_image": "FP",
    "backward_per_image": "BP",
    "to_reference": "time / TENT",
    "to_bound": "time / bound",
    "memory_to_source": "memory / Source",
    "images_per_second": "images/s",
    "gflops_per_image": "GFLOPs",
}
_SPREAD = {"to_reference", "to_bound"}
_SOURCE = "source data"


def find_records(directory: Path) -> tuple[list[dict[str, Any]], list[tuple[Path, str]]]:
    """Records of measured costs in a folder or one level down, and unusable files with why."""
    found, left_out = [], []
    for file in sorted([*directory.glob("cost-*.json"), *directory.glob("*/cost-*.json")]):
        try:
            record = json.loads(file.read_text("utf-8"))
            measured_table(record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            left_out.append((file, f"no record of `ctta-bench cost` ({type(error).__name__})"))
            continue
        found.append(record)
    return found, left_out


def measured_table(record: Mapping[str, Any]) -> Table:
    """The table of one record. Raises KeyError, TypeError or ValueError for something else."""
    if record["kind"] != COST or record["schema_version"] != COST_SCHEMA_VERSION:
        raise ValueError("another kind or schema")
    rows = record["methods"]
    frame = pd.DataFrame(
        [{name: median(row[name]) for name in _COLUMNS} for row in rows],
        index=[str(row["method"]) for row in rows],
        columns=list(_COLUMNS),
        dtype=float,
    ).assign(**{_SOURCE: [_source_data(row) for row in rows]})
    words = (record["benchmark"], record["model"]["name"], record["precision"])
    return Table(
        name=f"measured-cost-{safe_name('-'.join(map(str, words)))}",
        caption=_caption(record),
        frame=frame,
        header=("method", *_COLUMNS.values(), _SOURCE),
        lines=tuple((METHODS.display_name(str(row["method"])), _line(row)) for row in rows),
        footnotes=tuple(_footnotes(record)),
    )


def median(value: Any) -> float:
    """A number of a record, or the median of a measured one; NaN for null."""
    if value is None:
        return float("nan")
    return float(value["median"] if isinstance(value, dict) else value)


def _line(row: Mapping[str, Any]) -> tuple[Entry, ...]:
    printed = [_printed(name, row[name]) for name in _COLUMNS]
    return tuple(map(Entry, [*printed, _source_data(row)]))


def _source_data(row: Mapping[str, Any]) -> str:
    """What a method reads before the stream; missing in older records."""
    return str(row.get("source_access", MISSING))


def _printed(name: str, value: Any) -> str:
    if value is None:
        return MISSING
    if name in _SPREAD:
        return f"{value['median']:.2f} ({value['low']:.2f}–{value['high']:.2f})"
    if name == "extra_state_bytes":
        return in_bytes(value)
    if name in ("trainable_parameters", "extra_parameters"):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def _caption(record: Mapping[str, Any]) -> str:
    model, environment = record["model"], record["environment"]
    height, width = record["input"]
    random = " with random weights and images" if record["random"] else ""
    threads = f", {environment['threads']} thread(s)" if environment["device"] == "cpu" else ""
    return (
        f"Measured cost: {BENCHMARKS.display_name(record['benchmark'])} – "
        f"{MODELS.display_name(model['name'])}{random}, inputs of {height} x {width} pixels, "
        f"batch size {record['batch_size']}, {record['precision']}, {environment['device']}"
        f"{threads}. Median of {record['repeats']} repetitions (smallest to largest). In each "
        "repetition all methods, TENT and the plain model run one after the other in one process. "
        "Learnable, extra: numbers of parameters. FP, BP: forward and backward passes per image. "
        "Bound: FP · t_forward + BP · t_backward of the plain model. Memory: weights, state and "
        "the peak of a step, divided by those of Source."
    )


def _footnotes(record: Mapping[str, Any]) -> list[str]:
    environment = record["environment"]
    made = f"Made with ctta_bench {environment['ctta_bench']}, torch {environment['torch']}"
    sha = record["model"]["sha256"]
    made += "." if record["random"] else f", weights {sha[:8]} (first digits of the SHA-256)"
    names = ", ".join(map(METHODS.display_name, record["left_out"]))
    return [made, *([f"Do not support this model: {names}."] if names else [])]
