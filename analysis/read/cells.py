"""One run folder as a row and its results, for the frames of `collect`. Needs no pandas."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctta_bench.analysis.read.measure import metric_of_task
from ctta_bench.analysis.read.recount import Result, read_result
from ctta_bench.record.progress import progress
from ctta_bench.record.read import (
    UnusableCellError,
    parse_json,
    read_bytes,
    read_cell,
    wrong_content,
)
from ctta_bench.record.schema import (
    CELL_FILE,
    DATA,
    EARLIER,
    ENVIRONMENT_FILE,
    PLUGIN_FILES,
    WARM_UP,
    CellRecord,
)

# fmt: off
VERSION_COLUMNS = [
    "ctta_bench", "commit", "python", "torch", "torchvision", "timm", "numpy", "device",
    "threads", "attention", DATA, PLUGIN_FILES,
]
_NAMED_SETTINGS = {  # these have columns of their own
    "name", "setting", "severity", "domains", "rounds", "batch_size", "examples", "regime",
    "mean", "std", "transform", "severities", "task", "scale", "inference",
}
# fmt: on
_MAX_CACHED = 1024


@dataclass(frozen=True)
class FoundCell:
    """The columns of a cell by name, and its result if it is finished."""

    row: dict[str, Any]
    result: Result | None


def read_folder(folder: Path) -> FoundCell | str | None:
    """The cell of a run folder; a text: why it is unusable; None: a warm-up, without a result."""
    try:
        content = read_cell(folder)
        if content.get("kind") == WARM_UP:
            return None  # the cell that starts from it has the result
        row = _cell_row(folder, content)
        if row["state"] != "done":
            return FoundCell(row, None)
        result = read_result(folder, row)
    except UnusableCellError as error:
        return str(error)
    return FoundCell(row | result.facts, result)


def normalisation_text(preprocessing: Mapping[str, Any]) -> str:
    """The normalisation of the inputs: `mean 0.5, std 0.5`, or `none (inputs in [0, 1])`.

    Of a user's own pre-processing its name.
    """
    if preprocessing.get("transform"):
        return str(preprocessing["transform"])
    mean, std = preprocessing.get("mean"), preprocessing.get("std")
    if not mean or not std or (set(mean) == {0} and set(std) == {1}):
        return "none (inputs in [0, 1])"
    return ", ".join(f"{name} {_short(values)}" for name, values in (("mean", mean), ("std", std)))


def _details(settings: Mapping[str, Any]) -> str:
    """The other settings of benchmark and pre-processing: `order shuffled, size 32 x 32`."""
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
                f"{name} {_joined(name, value) if isinstance(value, list) else value}"
                for name, value in others.items()
                if value is not None
            ),
        ]
    )


def _joined(name: str, values: list[Any]) -> str:
    return (" x " if name == "size" else " ").join(map(str, values))


def _short(values: list[float]) -> str:
    shown = values[:1] if len(set(values)) == 1 else values
    return " ".join(f"{value:g}" for value in shown)


def _cell_row(folder: Path, cell: CellRecord) -> dict[str, Any]:
    try:
        return _configuration(folder, cell) | _environment(folder)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise wrong_content(CELL_FILE, error) from error


def _configuration(folder: Path, cell: CellRecord) -> dict[str, Any]:
    state = progress(folder, cell.get("num_batches"))
    blocks = (cell["method"], cell["benchmark"], cell["model"], cell["preprocessing"])
    return {
        "cell": cell["id"],
        "path": str(folder),
        "experiment": cell["experiment"],
        "seed": cell["seed"],
        "notes": tuple(map(str, cell.get("notes") or ())),
        "tuned": _tuning(cell.get("tuned")),
        "state": state.state,
        "reason": state.reason,
        "starts_from": _start(cell),
        "warmup": cell.get("warmup") or "",
        "classes": (),
        "source_probes": (),
        **_cached(*blocks, cell["precision"]),
    }


def _tuning(found: dict[str, Any] | None) -> str:
    """How a cell's hyper-parameters were tuned, in words; "" if they were not, or in old cells."""
    if not found:
        return ""
    if "trials" not in found:
        return f"`{found['command']}`"
    return (
        f"`ctta-bench tune`, {found['trials']} trials on {', '.join(found['domains'])}; images: "
        f"{found.get('images', 'the scored ones')}"
    )


_columns: dict[tuple[int, ...], tuple[tuple[Any, ...], dict[str, Any]]] = {}


def _cached(*blocks: Any) -> dict[str, Any]:
    """`_protocol` of blocks of cell.yaml, cached: the cells of a grid share them as objects."""
    key = tuple(map(id, blocks))
    if key not in _columns:
        if len(_columns) >= _MAX_CACHED:
            _columns.clear()
        _columns[key] = (blocks, _protocol(*blocks))  # stored, so that no other object gets its id
    return _columns[key][1]


def _protocol(
    method: dict[str, Any],
    benchmark: dict[str, Any],
    model: dict[str, Any],
    preprocessing: dict[str, Any],
    precision: str,
) -> dict[str, Any]:
    """The columns of a method with its hyper-parameters under a protocol."""
    agreed = [benchmark, model["name"], model["sha256"], preprocessing, precision]
    return {
        "method": method["name"],
        "preset": method.get("preset") or "default",
        "hyperparameters": json.dumps(method.get("hyperparameters") or {}, sort_keys=True),
        "window": method.get("window") or 0,
        "benchmark": benchmark["name"],
        "benchmark_version": benchmark.get("version") or 1,
        "setting": benchmark["setting"],
        "model": model["name"],
        "model_sha256": model["sha256"],
        "preprocessing": str(preprocessing["regime"]),
        "normalisation": normalisation_text(preprocessing),
        "precision": precision,
        "batch_size": benchmark["batch_size"],
        "examples": benchmark.get("examples"),
        "rounds": benchmark.get("rounds") or 1,
        "severity": benchmark.get("severities") or benchmark.get("severity"),
        "domains": tuple(benchmark["domains"]),
        "details": _details(benchmark | preprocessing),
        "group": hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()[:8],
        "metric": metric_of_task(benchmark),
    }


def _start(cell: CellRecord) -> str:
    """The model that a cell without adaptation scores: "warm-up" or "source"; else ""."""
    if cell.get("adapt", True):
        return ""
    return "warm-up" if cell.get("warmup") else "source"


def _environment(folder: Path) -> dict[str, Any]:
    try:
        return _versions(read_bytes(folder, ENVIRONMENT_FILE))
    except FileNotFoundError:
        return _versions(b"{}")
    except OSError as error:
        raise UnusableCellError(f"corrupted: {ENVIRONMENT_FILE} is not valid JSON") from error


@functools.lru_cache(maxsize=256)
def _versions(content: bytes) -> dict[str, Any]:
    """The columns of env.json, cached: the cells of a launch have the same. Do not change it."""
    env = parse_json(ENVIRONMENT_FILE, content)
    try:
        return {name: _version(env, name) for name in (*VERSION_COLUMNS, "corruptions")}
    except (TypeError, AttributeError) as error:
        raise wrong_content(ENVIRONMENT_FILE, error) from error


def _version(env: Mapping[str, Any], name: str) -> Any:
    """A column of env.json; `A then B` of a cell that was resumed with another version."""
    value = env.get(name)
    if name == DATA:
        streamed = {k: v for k, v in (value or {}).items() if k != "source"}
        text = json.dumps(streamed, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8] if streamed else None
    if name == PLUGIN_FILES:
        return tuple(f"{file} {sha256[:8]}" for file, sha256 in (value or {}).items())
    before = [str(part[name]) for part in env.get(EARLIER) or () if name in part]
    return " then ".join([*before, str(value)]) if before else value
