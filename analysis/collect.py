"""Run folders as tidy tables: one row per cell, one per cell, round, domain and metric.

Numbers are recounted from predictions.npz; a folder whose files disagree is left out by name.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctta_bench.analysis.folders import (
    UnusableCellError,
    find_cells,
    progress,
    read_cell,
    read_json,
    wrong_content,
)
from ctta_bench.analysis.measure import metric_of_task
from ctta_bench.analysis.recount import read_result

# fmt: off
RESULT_COLUMNS = [
    "experiment", "cell", "method", "preset", "benchmark", "setting", "model", "preprocessing",
    "precision", "seed", "round", "domain", "metric", "value",
]
COST_COLUMNS = [
    "trainable_parameters", "extra_state_bytes", "forward_per_image", "backward_per_image",
    "seconds", "images_per_second", "peak_memory_mb",
]
VERSION_COLUMNS = [
    "ctta_bench", "commit", "python", "torch", "torchvision", "timm", "numpy", "device",
    "attention",
]
CELL_COLUMNS = [
    "cell", "path", "experiment", "method", "preset", "hyperparameters", "window", "benchmark",
    "setting", "model", "model_sha256", "preprocessing", "normalisation", "precision", "seed",
    "batch_size", "examples", "rounds", "severity", "domains", "details", "group", "state",
    "reason", "starts_from", "metric", "classes", "skipped_updates", "resets", "source_accuracy",
    "order_sha256", "corruptions", "notes", *COST_COLUMNS, *VERSION_COLUMNS,
]
DOMAIN_COLUMNS = ["cell", "round", "domain", "n", "errors", "collapsed"]
_NAMED_SETTINGS = {  # these have columns of their own
    "name", "setting", "severity", "domains", "rounds", "batch_size", "examples", "regime",
    "mean", "std", "severities", "task", "scale", "inference",
}
# fmt: on
_OF_CELL = 10  # of RESULT_COLUMNS, those that all results of a cell have in common
WARM_UP = "warm-up"  # the kind of a folder that holds no stream
_BATCH_KEYS = {"batch", "round", "domain", "n", "errors"}


@dataclass(frozen=True)
class Runs:
    """What was found below a directory.

    cells: one row per cell, finished or not; `group` is a hash of all that must agree for two
    rows to share a table (benchmark with all its settings, weights, pre-processing, precision).
    results: the columns of results.csv; error, ece, mIoU and the `iou/CLASS` of each class in %;
    finished cells only; no value where there was nothing to score. domains: images, errors (wrong
    pixels for mIoU) and whether predictions collapsed, per cell, round and domain.
    left_out: folders that could not be used, with the reason.
    """

    cells: pd.DataFrame
    results: pd.DataFrame
    domains: pd.DataFrame
    left_out: list[tuple[Path, str]]

    def groups(self) -> list["Runs"]:
        """The runs split so that every part fits one table, in the order of the benchmarks."""
        keys = ["benchmark", "setting", "severity", "model", "preprocessing", "group"]
        order = self.cells[keys].astype(str).drop_duplicates().sort_values(keys)
        return [self._where(self.cells["group"] == group) for group in order["group"]]

    def finished(self) -> "Runs":
        """The finished cells alone."""
        return self._where(self.cells["state"] == "done")

    def _where(self, mask: "pd.Series[bool]") -> "Runs":
        cells = self.cells[mask].reset_index(drop=True)
        return replace(
            self,
            cells=cells,
            results=self.results[self.results["cell"].isin(cells["cell"])],
            domains=self.domains[self.domains["cell"].isin(cells["cell"])],
        )


def load(directory: Path) -> Runs:
    """Read every run folder at most three levels below `directory`.

    Raises RunError if the directory does not exist. Folders that cannot be used are in
    `left_out`; unfinished cells are in `cells` with their state, and nowhere else.
    """
    folders, left_out = find_cells(directory)
    found: dict[str, dict[str, Any]] = {}
    results: dict[str, list[dict[str, Any]]] = {}
    domains: dict[str, list[dict[str, Any]]] = {}
    for folder in folders:
        try:
            content = read_cell(folder)
            if content.get("kind") == WARM_UP:
                continue  # it is no result: what it leaves has a cell of its own
            cell = _cell_row(folder, content)
            if cell["cell"] in found and not _supersedes(cell, found[cell["cell"]]):
                raise UnusableCellError(f"the same cell as {found[cell['cell']]['path']}")
            if cell["state"] == "done":
                result = read_result(folder, cell)
                cell |= result.facts
                domains[cell["cell"]] = [{"cell": cell["cell"], **row} for row in result.counts]
                results[cell["cell"]] = result.values
        except UnusableCellError as error:
            left_out.append((folder, str(error)))
            continue
        if cell["cell"] in found:
            left_out.append((Path(found[cell["cell"]]["path"]), f"the same cell as {folder}"))
        found[cell["cell"]] = cell
    return Runs(
        cells=pd.DataFrame(list(found.values()), columns=CELL_COLUMNS),
        results=_results(found, results),
        domains=pd.DataFrame(_flat(domains), columns=DOMAIN_COLUMNS),
        left_out=left_out,
    )


def batches(cell_path: Path | str) -> pd.DataFrame:
    """batches.jsonl of a cell, one row per batch; torn or damaged lines are dropped.

    A batch that was run twice (a resume after a crash) counts as it was run last.
    """
    rows: dict[int, dict[str, Any]] = {}
    for line in (Path(cell_path) / "batches.jsonl").read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.keys() >= _BATCH_KEYS:
            rows[row["batch"]] = row
    frame: pd.DataFrame = pd.DataFrame([rows[number] for number in sorted(rows)])
    return frame


def normalisation_text(preprocessing: Mapping[str, Any]) -> str:
    """The normalisation really used: `mean 0.5, std 0.5`, or `none (inputs in [0, 1])`."""
    mean, std = preprocessing.get("mean"), preprocessing.get("std")
    if not mean or not std or (set(mean) == {0} and set(std) == {1}):
        return "none (inputs in [0, 1])"
    return ", ".join(f"{name} {_short(values)}" for name, values in (("mean", mean), ("std", std)))


def _details(settings: Mapping[str, Any]) -> str:
    """Every other setting of benchmark and pre-processing: `order shuffled, size 32 32`."""
    scale, inference = settings.get("scale"), settings.get("inference")
    segmented = []
    if scale:
        segmented.append(f"images of {' x '.join(map(str, scale))} (height x width)")
    if inference:
        segmented.append(f"inference {inference}: bilinear logits, then argmax, at label size")
    others = {name: value for name, value in settings.items() if name not in _NAMED_SETTINGS}
    return ", ".join(
        [
            *segmented,
            *(
                f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
                for name, value in others.items()
                if value is not None
            ),
        ]
    )


def _short(values: list[float]) -> str:
    shown = values[:1] if len(set(values)) == 1 else values
    return " ".join(f"{value:g}" for value in shown)


def _supersedes(cell: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(cell["state"] == "done" and other["state"] != "done")


def _flat(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for part in rows.values() for row in part]


def _cell_row(folder: Path, cell: dict[str, Any]) -> dict[str, Any]:
    try:
        return _configuration(folder, cell) | _environment(folder)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise wrong_content("cell.yaml", error) from error


def _configuration(folder: Path, cell: dict[str, Any]) -> dict[str, Any]:
    method, benchmark, model = cell["method"], cell["benchmark"], cell["model"]
    preprocessing = cell["preprocessing"]
    state = progress(folder, cell.get("num_batches"))
    protocol = [benchmark, model["name"], model["sha256"], preprocessing, cell["precision"]]
    return {
        "cell": cell["id"],
        "path": str(folder),
        "experiment": cell["experiment"],
        "method": method["name"],
        "preset": method.get("preset") or "default",
        "hyperparameters": json.dumps(method.get("hyperparameters") or {}, sort_keys=True),
        "window": method.get("window") or 0,
        "benchmark": benchmark["name"],
        "setting": benchmark["setting"],
        "model": model["name"],
        "model_sha256": model["sha256"],
        "preprocessing": str(preprocessing["regime"]),
        "normalisation": normalisation_text(preprocessing),
        "precision": cell["precision"],
        "seed": cell["seed"],
        "batch_size": benchmark["batch_size"],
        "examples": benchmark.get("examples"),
        "rounds": benchmark.get("rounds") or 1,
        "severity": benchmark.get("severities") or benchmark.get("severity"),
        "domains": tuple(benchmark["domains"]),
        "details": _details(benchmark | preprocessing),
        "group": hashlib.sha256(json.dumps(protocol, sort_keys=True).encode()).hexdigest()[:8],
        "notes": tuple(map(str, cell.get("notes") or ())),
        "state": state.state,
        "reason": state.reason,
        "starts_from": _start(cell),
        "metric": metric_of_task(benchmark),
        "classes": (),
    }


def _start(cell: Mapping[str, Any]) -> str:
    """What a cell without adaptation scores: "warm-up" or "source"; "" for one that adapts."""
    if cell.get("adapt", True):
        return ""
    return "warm-up" if cell.get("warmup") else "source"


def _environment(folder: Path) -> dict[str, Any]:
    path = folder / "env.json"
    env = read_json(path) if path.is_file() else {}
    return {name: env.get(name) for name in (*VERSION_COLUMNS, "corruptions")}


def _results(
    cells: Mapping[str, dict[str, Any]], values: Mapping[str, list[dict[str, Any]]]
) -> pd.DataFrame:
    """One row per value. By column, for a row at a time takes seconds where cells are many."""
    rows = _flat(dict(values))
    counts = [len(of_cell) for of_cell in values.values()]
    columns: dict[str, Any] = {
        name: np.repeat(np.array([cells[cell][name] for cell in values], dtype=object), counts)
        for name in RESULT_COLUMNS[:_OF_CELL]
    }
    columns |= {name: [row[name] for row in rows] for name in RESULT_COLUMNS[_OF_CELL:]}
    return pd.DataFrame(columns, columns=RESULT_COLUMNS).infer_objects()
