"""The code and data behind a cell: recorded in env.json, and compared before a cell is used again.

They are not in the identity of a cell. A finished cell, or a checkpoint, of other code or data is
refused in a sentence. Records of earlier releases lack these facts, and nothing is compared then.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ctta_bench.config.cell import Cell
from ctta_bench.errors import DataError, RunError
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.schema import (
    DATA,
    EARLIER,
    ENVIRONMENT_FILE,
    PLUGIN_FILES,
    STATE_FILES,
)
from ctta_bench.registry import BENCHMARKS, MEASURES, METRICS, MODELS, plugin_files
from ctta_bench.stream import Benchmark, Domain, batch_domains
from ctta_bench.stream.fingerprint import digest_of, fingerprint

# Facts of env.json of which a resumed cell may have two.
_OF_A_PART = ("ctta_bench", "commit", "torch", "device", "threads")
_NAMED = 3  # changes that a message names
_KINDS = {
    "labels": "other labels",
    "names": "other file names",
    "sizes": "files of other sizes",
    "contents": "other images",
}
Known = dict[str, Any]  # fingerprints by what they are of, for the cells of one command


def data_facts(
    benchmark: Benchmark, domains: Sequence[Domain] | None, *, source: bool
) -> dict[str, Any]:
    """Fingerprints of the data of a cell, or of a warm-up, which has no domains.

    source: whether the method reads source images. Raises DataError if data are missing.
    """
    found: dict[str, Any] = {
        "classes": benchmark.num_classes,
        "class_names": digest_of(list(benchmark.class_names)),
    }
    if domains is not None:
        found["domains"] = {
            domain.name
            if len(domain.at_severity) < 2
            else f"{domain.name} severity {severity}": fingerprint(images)
            for domain in domains
            for severity, images in (domain.at_severity or {0: domain.images}).items()
        }
    images = benchmark.source() if source else None
    return found if images is None else found | {"source": fingerprint(images)}


def earlier_parts(folder: RunFolder, now: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint was made with, where it differs from `now`, as a key of env.json.

    {} without a checkpoint.
    """
    if not _has_state(folder):
        return {}
    stored = _stored(folder)
    changed = {k: stored[k] for k in _OF_A_PART if k in stored and stored[k] != now.get(k)}
    parts = [*stored.get(EARLIER, []), *([changed] if changed else [])]
    return {EARLIER: parts} if parts else {}


def check_unchanged(
    folder: RunFolder, cell: Cell, *, warms_up: bool = False, known: Known | None = None
) -> None:
    """Raise RunError if a finished cell or a checkpoint is of other plug-ins or data than now.

    warms_up: the folder has the warm-up of the cell. known: fingerprints found before by the same
    command. Data that are missing now are not compared.
    """
    if not folder.is_done and not _has_state(folder):
        return
    stored = _stored(folder)
    changes = [*_changed_plugins(stored.get(PLUGIN_FILES), cell)]
    if isinstance(stored.get(DATA), dict):
        changes += _changed_data(
            stored[DATA], _data_now(cell, warms_up, {} if known is None else known)
        )
    if not changes:
        return
    more = f" (and {len(changes) - _NAMED} more)" if len(changes) > _NAMED else ""
    what = "is done, but" if folder.is_done else "has a checkpoint, but"
    again = "run it again" if folder.is_done else "start it from the beginning"
    # `run --force` keeps a warm-up, from which other cells may have started.
    how = "Remove this folder" if warms_up else "Use --force"
    raise RunError(
        f"{folder.path}: {what} with other code or data: {'; '.join(changes[:_NAMED])}{more}. "
        f"{how} to {again}, or use another --out."
    )


def _has_state(folder: RunFolder) -> bool:
    return any(folder.file(name).is_file() for name in STATE_FILES)


def _stored(folder: RunFolder) -> dict[str, Any]:
    """The content of env.json; {} if it is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        stored = json.loads(folder.file(ENVIRONMENT_FILE).read_text("utf-8"))
        if isinstance(stored, dict):
            return stored
    return {}


def _changed_plugins(stored: Any, cell: Cell) -> Iterator[str]:
    """The files of plug-ins that the cell uses and that have changed."""
    if not isinstance(stored, dict):
        return
    for name, file in plugin_files(_modules(cell)).items():
        if name in stored and stored[name] != file.sha256:
            before, now = str(stored[name])[:8], file.sha256[:8]
            yield f"{file.path} has changed (SHA-256 {before} before, {now} now)"
    for name, file in plugin_files(_modules(cell, measures=False)).items():
        if name not in stored and file.sha256 not in stored.values():
            yield f"{file.path} was not loaded before"


def _modules(cell: Cell, *, measures: bool = True) -> set[str]:
    """The modules of what a cell uses, with those of base classes."""
    benchmark = cell.given.benchmark or BENCHMARKS.get(cell.request.benchmark)
    metric = METRICS.get(benchmark.task)
    kind = benchmark if isinstance(benchmark, type) else type(benchmark)
    classes = [cell.method_class, kind, metric]
    modules = {base.__module__ for used in classes for base in getattr(used, "__mro__", (used,))}
    models = MODELS.entries()
    modules |= {models[name].module for name in (cell.request.model,) if name in models}
    if measures:
        modules |= {entry.module for entry in MEASURES.entries().values()}
    return modules


def _data_now(cell: Cell, warms_up: bool, known: Known) -> dict[str, Any]:
    """`data_facts` of a cell, {} if data are missing."""
    source = cell.method_class.source_access != "none"
    record = {k: v for k, v in cell.record["benchmark"].items() if k != "batch_size"}
    key = json.dumps([record, str(cell.request.data_root), source, warms_up], default=str)
    if key not in known:
        known[key] = {}
        benchmark = cell.benchmark()
        with contextlib.suppress(DataError):
            if not benchmark.problems():
                domains = None if warms_up else batch_domains(benchmark)
                known[key] = data_facts(benchmark, domains, source=source)
    found: dict[str, Any] = known[key]
    return found


def _changed_data(stored: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if "classes" in now and stored.get("classes", now["classes"]) != now["classes"]:
        yield f"{stored['classes']} classes before, {now['classes']} now"
    elif (
        "class_names" in now and stored.get("class_names", now["class_names"]) != now["class_names"]
    ):
        yield "the classes have other names"
    pairs = [("source", stored.get("source"), now.get("source"))]
    found = now.get("domains", {})
    pairs += [
        (f"domain {name}", before, found.get(name))
        for name, before in stored.get("domains", {}).items()
    ]
    for what, before, after in pairs:
        if before and after and (change := _change(before, after)):
            yield f"{what}: {change}"


def _change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs first between two fingerprints of a set; "" if nothing does."""
    if before.get("images", now["images"]) != now["images"]:
        return f"{before['images']:,} images before, {now['images']:,} now"
    differing = [key for key in before if key in now and before[key] != now[key]]
    if not differing:
        return ""
    kind = differing[0].removeprefix("map_")
    found = _KINDS.get(kind, f"other {kind}")
    return f"{found} than before (label maps)" if kind != differing[0] else f"{found} than before"
