"""A cell from its record: what it claims, its stream, and the beginning of it run again.

The record may be another's. It is compared with what this ctta-bench knows: presets, warm-ups, the
images, labels and order of the benchmark. A finding is a kind and a sentence.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ctta_bench.config.cell import Cell, hyperparameters_of_start, resolve, warmup_record
from ctta_bench.config.presets import preset_with_search, presets_of, search_behind, without_search
from ctta_bench.config.request import CellRequest
from ctta_bench.config.validation import validate
from ctta_bench.errors import ConfigError, RunError
from ctta_bench.record.arrays import Arrays
from ctta_bench.record.schema import CellRecord, identity
from ctta_bench.registry import BENCHMARKS, METHODS
from ctta_bench.run.checkpoint import Progress
from ctta_bench.run.engine import run_stream
from ctta_bench.run.environment import environment
from ctta_bench.run.open import open_cell
from ctta_bench.run.warmups import warmed
from ctta_bench.source_models.shared import Models
from ctta_bench.stream import Benchmark, MapSet, Stream, batch_domains
from ctta_bench.stream.fingerprint import digest

NAMED_PRESETS = ("paper", "code", "published")  # what a reader takes for the values of the authors
# Facts of env.json: where they are the same, two runs of the CPU have the same bits.
SAME_BITS = ("device", "machine", "cpu", "torch", "threads", "attention", "tf32", "deterministic")
_NAMING = ("id", "experiment")
_MAPS = 16  # label maps that are compared, evenly spaced


class Finding(NamedTuple):
    """What does not hold. kind: "labels", "order", "subset", "preset", "tuned", "warm-up", ..."""

    kind: str
    text: str


# -- what a record claims about its values


def claims(record: CellRecord, result: Mapping[str, Any]) -> Iterator[Finding]:
    """What a record states about hyper-parameters, warm-up and source data, and what is not so.

    Example: `[*claims(read_cell(folder), RunFolder(folder).result())]` is [] for an honest cell.

    Raises ConfigError for a method, benchmark or value that this ctta-bench does not know.
    """
    method = METHODS.get(record["method"]["name"])
    values = record["method"]["hyperparameters"]
    hyperparameters = validate(method.Hyperparameters, values, "method")
    stated, known = result.get("source_access"), getattr(method, "source_access", None)
    if stated is not None and stated != known:
        yield Finding(
            "source data", f"states source data {stated!r}, but the method reads {known!r}."
        )
    if record.get("adapt", True):
        yield from _preset(record, hyperparameters.model_dump(mode="json"))
    if not hyperparameters.warms_up:
        if record.get("warmup"):
            yield Finding("warm-up", "starts from a warm-up that its hyper-parameters do not have.")
        return
    benchmark = _benchmark(record, None)
    of_start = hyperparameters_of_start(method, hyperparameters)
    expected = warmup_record(record, of_start, benchmark.source_settings())["id"]
    if not record.get("warmup"):
        yield Finding("warm-up", f"has a warm-up ({expected}) and does not state it.")
    elif record["warmup"] != expected:
        yield Finding(
            "warm-up", f"states the warm-up {record['warmup']}, but its values give {expected}."
        )


def _preset(record: CellRecord, values: Mapping[str, Any]) -> Iterator[Finding]:
    """Values that are not those of the preset they are called, and searches that are not stated."""
    name, preset = record["method"]["name"], record["method"].get("preset", "default")
    where = (record["benchmark"]["name"], record["model"]["name"])
    sections = presets_of(METHODS.find(name).name)
    if preset in sections:
        try:
            stored = preset_with_search(name, preset, *where)
        except ConfigError as error:
            yield Finding("preset", f"is called preset {preset!r}: {error}")
            return
        plain = without_search(stored)
        other = [k for k, v in plain.items() if json.dumps(values.get(k)) != json.dumps(v)]
        if other and preset in NAMED_PRESETS:
            shown = ", ".join(f"{k} {values.get(k)} in place of {plain[k]}" for k in other[:3])
            yield Finding("preset", f"is called preset {preset!r}, but has other values: {shown}.")
        if search_behind(stored, values) and not record.get("tuned"):
            yield Finding(
                "tuned", f"has the values of a search ({preset!r}) and does not state it."
            )
    elif preset in NAMED_PRESETS:
        yield Finding("preset", f"is called preset {preset!r}, which the method does not have.")
    if preset in NAMED_PRESETS and record.get("tuned"):
        yield Finding("tuned", f"is called preset {preset!r}, and its values were searched.")


# -- its stream


def _benchmark(record: CellRecord, data_root: Path | None) -> Benchmark:
    kind = BENCHMARKS.get(record["benchmark"]["name"])
    stored: Mapping[str, Any] = record["benchmark"]
    if stored.get("version", 1) != kind.version:
        raise ConfigError(
            f"the benchmark {stored['name']} has version {stored.get('version', 1)} there and "
            f"{kind.version} here."
        )
    values = {key: stored[key] for key in kind.Settings.model_fields if key in stored}
    built: Benchmark = kind(validate(kind.Settings, values, "benchmark"), data_root)
    return built


def stream_of(record: CellRecord, data_root: Path | None = None) -> Stream | None:
    """The stream of a record from the benchmark that is here; None if its data are not at hand.

    Raises ConfigError if this ctta-bench has no such benchmark, or another version of it.
    """
    benchmark = _benchmark(record, data_root)
    if benchmark.problems():
        return None
    return Stream(batch_domains(benchmark), benchmark.settings, record["seed"])


def stream_findings(stream: Stream, arrays: Arrays) -> Iterator[Finding]:
    """Whether the scored images are all those of the stream, in its order, with its labels.

    arrays: those of predictions.npz.
    """
    order, count = stream.order, len(arrays["index"])
    if count != len(order.index):
        yield Finding(
            "subset",
            f"has {count:,} of the {len(order.index):,} images that its settings give.",
        )
        return
    for name in ("round", "domain", "index"):
        differ = np.flatnonzero(arrays[name] != getattr(order, name))
        if len(differ):
            yield Finding(
                "order",
                f"image {differ[0]} of the stream is another one than its seed gives ({name} "
                f"{arrays[name][differ[0]]} in place of {getattr(order, name)[differ[0]]}).",
            )
            return
    for number, domain in enumerate(stream.domains):
        rows = np.flatnonzero(arrays["domain"] == number)
        if isinstance(domain.images, MapSet):
            wrong = _other_maps(domain.images, arrays, rows)
        elif "label" in arrays:
            labels = np.asarray(domain.images.labels, np.int64)
            wrong = rows[arrays["label"][rows] != labels[arrays["index"][rows]]]
        else:
            continue
        if len(wrong):
            yield Finding(
                "labels",
                f"{len(wrong):,} labels of {domain.name} are not the benchmark's, first that of "
                f"image {arrays['index'][wrong[0]]}.",
            )


def _other_maps(
    images: MapSet, arrays: Arrays, rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Of a few images, those whose labelled pixels by class are not those of the label map."""
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _MAPS)).astype(int))]
    wrong = []
    for row in chosen:
        confusion = arrays["confusion"][row]
        pixels = images.maps(arrays["index"][[row]]).numpy().ravel()
        counts = np.bincount(pixels, minlength=256)[: len(confusion)]
        if not np.array_equal(confusion.sum(1), counts):
            wrong.append(row)
    return np.array(wrong, np.int64)


def stated_findings(
    record: CellRecord, environment: Mapping[str, Any], arrays: Arrays
) -> Iterator[Finding]:
    """The same as far as env.json goes: number of images and hash of the labels of each domain.

    For a benchmark whose data are not at hand.
    """
    known = (environment.get("data") or {}).get("domains") or {}
    rounds = record["benchmark"].get("rounds", 1)
    for number, name in enumerate(record["benchmark"]["domains"]):
        facts, rows = known.get(name), np.flatnonzero(arrays["domain"] == number)
        if facts is None:
            continue
        if len(rows) < facts["images"] * rounds:
            yield Finding(
                "subset",
                f"has {len(rows):,} images of {name}, which had {facts['images']:,} when it ran.",
            )
        elif "label" in arrays:
            first = rows[np.unique(arrays["index"][rows], return_index=True)[1]]
            if digest(arrays["label"][first].astype("<i8").tobytes()) != facts["labels"]:
                yield Finding("labels", f"the labels of {name} are not those its record states.")


# -- running it again


def cell_of(
    record: CellRecord, data_root: Path | None = None, models: Models | None = None
) -> Cell:
    """The cell that has a record's values here.

    Raises RunError if they give another cell here, and the errors of `config.cell.resolve`.
    """
    method = METHODS.get(record["method"]["name"])
    stored = record["method"]["hyperparameters"]
    fields = method.Hyperparameters.model_fields
    given = {f"method.{key}": stored.get(key, field.default) for key, field in fields.items()}
    kind = BENCHMARKS.get(record["benchmark"]["name"])
    settings: Mapping[str, Any] = record["benchmark"]
    given |= {f"benchmark.{k}": settings[k] for k in kind.Settings.model_fields if k in settings}
    values: dict[str, Any] = {
        "method": record["method"]["name"],
        "benchmark": record["benchmark"]["name"],
        "model": record["model"]["name"],
        "preprocessing": record["preprocessing"]["regime"],
        "precision": record["precision"],
        "seed": record["seed"],
        "window": record["method"].get("window", 0),
        "adapt": record.get("adapt", True),
        "experiment": record["experiment"],
        "data_root": data_root,
        "workers": 0,
        "near_chance": "accept",
        "set": given,
    }
    cell = resolve(validate(CellRequest, values, "cell"), models)
    size = record["preprocessing"].get("size")
    if cell.record["preprocessing"] != record["preprocessing"] and isinstance(size, list):
        values["input_size"] = tuple(size)
        cell = resolve(validate(CellRequest, values, "cell"), models)
    ours, theirs = (dict(each) for each in (cell.record, record))
    theirs.pop("repeat", None)  # a number that has no effect
    if identity(ours) != identity(theirs):
        keys = [key for key in ours if ours[key] != theirs.get(key) and key not in _NAMING]
        raise RunError(f"its values give another cell here ({', '.join(keys) or 'unknown keys'}).")
    return cell


def replay(
    cell: Cell, batches: int | None = None, device: str = "cpu", models: Models | None = None
) -> Arrays:
    """The scores of the first batches of a cell's stream, run here; None: of all.

    Example: `replay(cell_of(record), batches=10)["prediction"]`

    A warm-up is run, too. Nothing is stored but statistics of source images, in the cache.
    """
    with tempfile.TemporaryDirectory(prefix="ctta-bench-") as folder:
        opened = open_cell(cell, device, models)
        stream = opened.stream()
        method = opened.method()
        source = opened.source(method)
        method.start(source, warmed(opened, Path(folder)))
        opened.models.release()
        progress = Progress(opened.scorer())

        def after_batch() -> None:
            if batches is not None and len(progress.lines) >= batches:
                raise _Enough

        with contextlib.suppress(_Enough):
            run_stream(method, stream, progress, after_batch=after_batch)
        return progress.concatenated()


class _Enough(Exception):
    """The wanted batches are done."""


def device_facts(device: str) -> dict[str, Any]:
    """What decides whether two runs have the same bits, as env.json has it."""
    found = environment(torch.device(device))
    return {key: found[key] for key in SAME_BITS}
