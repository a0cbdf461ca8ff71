"""What a grid would run: its steps by what distinguishes them, passes, memory, disk."""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ctta_bench.measuring.estimate import Speeds, images_and_passes, kind_of_record
from ctta_bench.record.schema import WARM_UP

# Bytes in the folders of finished runs: of predictions.npz per image, of batches.jsonl per line.
IMAGE_BYTES, LINE_BYTES, CONFUSION_BYTES = 16, 150, 1600
FLOAT_BYTES = 4
FIRST = ("benchmark", "model", "preset")
# In a record, but its consequence or the same for all cells.
UNTOLD = {"schema_version", "id", "experiment", "kind", "warmup", "sha256", "version", "adapt"}


class Recorded(Protocol):
    """A step of a grid, or whatever else has a record."""

    @property
    def record(self) -> Mapping[str, Any]:
        """The content of its cell.yaml."""


S = TypeVar("S", bound=Recorded)


def labels(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each record of a step: its method, and what distinguishes it from the others.

    `paid imagenet_c rank=2`: benchmark, model and preset if there are several, then the values that
    differ between the steps that have these in common.
    """
    flat = [_flat(record) for record in records]
    benchmarks = len({each["benchmark"] for each in flat}) > 1
    names = []
    for each in flat:
        words, alike = [each["step"]], [other for other in flat if other["step"] == each["step"]]
        for key in FIRST:
            if len({other[key] for other in alike}) > 1 or (key == "benchmark" and benchmarks):
                words.append(each[key])
            alike = [other for other in alike if other[key] == each[key]]
        for key, value in each.items():
            if key not in FIRST and len({other.get(key) for other in alike}) > 1:
                words.append(f"{key}={value}")
        names.append(" ".join(words))
    return names


def _flat(record: Mapping[str, Any]) -> dict[str, str]:
    """The values of a record as text, by their last key."""
    method, benchmark = record["method"], record["benchmark"]
    step = method["name"]
    if record.get("kind") == WARM_UP:
        step = f"warm-up of {step}"
    elif not record.get("adapt", True):
        step += ", warm-up only"
    found = {"step": step, "benchmark": benchmark["name"], "model": record["model"]["name"]}
    found["preset"] = method.get("preset", "")
    found["preprocessing"] = record["preprocessing"].get("regime", "")
    parts = {
        **method["hyperparameters"],
        **{k: v for k, v in benchmark.items() if k != "name"},
        **{k: v for k, v in record.items() if not isinstance(v, dict)},
    }
    if method.get("window"):
        parts["window"] = method["window"]
    return found | {key: _text(value) for key, value in parts.items() if key not in UNTOLD}


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def passes(record: Mapping[str, Any]) -> float | None:
    """Images times passes of a step; None if they are not known."""
    found = images_and_passes(record)
    return None if found is None or found[1] is None else found[0] * found[1]


def longest_first(steps: Sequence[S]) -> list[S]:
    """Steps by their passes, the most first; before them those whose passes are not known."""

    def key(step: S) -> float:
        found = passes(step.record)
        return -math.inf if found is None else -found

    return sorted(steps, key=key)


def totals(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Passes of cells and of warm-ups in millions."""
    for kind, noun in ((False, "passes of cells"), (True, "of warm-ups")):
        chosen = [passes(r) for r in records if (r.get("kind") == WARM_UP) == kind]
        known = [each for each in chosen if each is not None]
        if chosen:
            least = "" if len(known) == len(chosen) else ">= "
            yield f"{noun}: {least}{sum(known) / 1e6:,.3g} M"


def memory_text(
    records: Sequence[Mapping[str, Any]],
    speeds: Speeds,
    parameters: Mapping[str, int],
) -> str:
    """Peak memory as measured, else the bytes of the largest model's weights, which is a minimum.

    parameters: number of parameters of each model.
    """
    sizes = (speeds.memory.get(kind_of_record(record)) for record in records)
    seen = [size for size in sizes if size is not None]
    if seen:
        rest = len(records) - len(seen)
        lacking = f", {rest} steps not measured" if rest else ""
        return f"memory: up to {size_text(max(seen))}, as measured{lacking}"
    most = max((parameters.get(r["model"]["name"], 0) for r in records), default=0)
    least = f"; the weights alone take {size_text(most * FLOAT_BYTES)}" if most else ""
    return f"memory: not measured{least}"


def memory_shortages(
    records: Sequence[Mapping[str, Any]],
    speeds: Speeds,
    parameters: Mapping[str, int],
    available: int,
) -> list[str]:
    """Methods that need more than `available` bytes of GPU memory, each once.

    What they need is measured in earlier runs, or at least the weights of the model.
    """
    found: dict[str, None] = {}
    for record in records:
        seen = speeds.memory.get(kind_of_record(record))
        weights = FLOAT_BYTES * parameters.get(record["model"]["name"], 0)
        need, how = (weights, "for its weights alone") if seen is None else (seen, "as measured")
        if need > available:
            found[
                f"{record['method']['name']} on {record['model']['name']}: needs "
                f"{size_text(int(need))} of GPU memory ({how}), and a cell has "
                f"{size_text(available)}; use larger GPUs or fewer cells per GPU."
            ] = None
    return list(found)


def disk_shortage(
    directory: Path,
    records: Sequence[Mapping[str, Any]],
    kept: Sequence[str],
    parameters: Mapping[str, int],
) -> list[str]:
    """A sentence if the disk of `directory` has less room than the results of the records take."""
    there = next(place for place in (directory, *directory.absolute().parents) if place.is_dir())
    size, free = disk_bytes(records, kept, parameters), shutil.disk_usage(there).free
    if size <= free:
        return []
    return [
        f"{directory}: the results take about {size_text(size)}, and {size_text(free)} are free; "
        "make room or choose another --out."
    ]


def size_text(size: int) -> str:
    """`35 MB`, `1.2 GB`; at least 1 MB."""
    return f"{size / 1e9:.2g} GB" if size >= 1e9 else f"{max(1, round(size / 1e6))} MB"


def disk_bytes(
    records: Sequence[Mapping[str, Any]], kept: Sequence[str], parameters: Mapping[str, int]
) -> int:
    """About how many bytes the folders of cells take when they are done.

    kept: for each record, its option `keep_models`. Warm-ups, of which only the trained tensors
    are stored, and checkpoints, which are deleted at the end, are not included.
    """
    total = 0.0
    for record, keep in zip(records, kept, strict=True):
        found = images_and_passes(record)
        if found is None or record.get("kind") == WARM_UP:
            continue
        images, benchmark = found[0], record["benchmark"]
        of_image = CONFUSION_BYTES if benchmark.get("task") == "segmentation" else IMAGE_BYTES
        total += images * (of_image + LINE_BYTES / benchmark.get("batch_size", 1))
        stored = {"none": 0, "last": 1}.get(keep, len(benchmark["domains"]))
        total += stored * FLOAT_BYTES * parameters.get(record["model"]["name"], 0)
    return int(total)
