"""Making a bundle: checked cells, without weights, images, paths, hosts and names of users."""

import hashlib
import json
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctta_bench.analysis.read.checks import check_folder
from ctta_bench.analysis.read.collect import batches
from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.errors import RunError
from ctta_bench.record.arrays import Arrays, read_all_arrays
from ctta_bench.record.bundle import (
    CODE,
    OTHER_FILES,
    RUNS,
    STORED_CELL,
    Contents,
    manifest_of,
)
from ctta_bench.record.find import find_cells
from ctta_bench.record.progress import progress
from ctta_bench.record.read import UnusableCellError, arrays_sha256, has_file, read_cell, read_json
from ctta_bench.record.schema import (
    BATCHES_FILE,
    ENVIRONMENT_FILE,
    PLUGIN_FILES,
    PREDICTIONS_FILE,
    RESULT_FILE,
    WARM_UP,
)
from ctta_bench.registry import METHODS, PluginFile, plugin_files
from ctta_bench.scoring.measures import all_measures

VISIT = ("index", "domain", "round", "severity")  # arrays that say which image it is
OF_SCORES = ("loss", "ms")  # columns of batches that are stored with the scores only
ABOUT = ("title", "contact", "licence", "citation")  # what a user says about a bundle
_HOST = "host"  # a key of env.json that is left out
# A path that begins at the root, at a home folder, at a drive or above, up to its last part.
_PATH = re.compile(
    r"(?<![\w./:~\\-])(?:~[\w.-]*/|[A-Za-z]:[/\\]|\.\./|/)"
    r"(?:[^\s'\",;:()/\\]+[/\\])*(?=[\w.~-])"
)
SHOWN_FACTS = ("ctta_bench", "commit", "torch", "python", "device", "machine", "threads")
_SHOWN = 5


@dataclass(frozen=True)
class Draft:
    """A bundle before it is written.

    left_out: folders that are not in it, with the reason. lacking: what it has not, in words.
    """

    contents: Contents
    about: dict[str, Any]
    left_out: list[tuple[Path, str]]
    lacking: list[str]

    @property
    def manifest(self) -> dict[str, Any]:
        """The content of its bundle.json."""
        return manifest_of(self.contents, self.about)

    def lines(self) -> Iterator[str]:
        """What others will see, in a few lines."""
        members = self.contents.members
        cells = [json.loads(text) for name, text in members.items() if name.endswith(STORED_CELL)]
        yield f"cells: {len(self.about['cells'])}, with predictions and hashes"
        yield f"warm-ups: {sum(cell['arrays'] is None for cell in cells)}, without weights"
        facts = {(k, str(v)) for cell in cells for k, v in cell["environment"].items()}
        for key in SHOWN_FACTS:
            values = sorted(value for name, value in facts if name == key)
            if values:
                yield f"{key}: {', '.join(values)}"
        code = sorted(name for name in members if name.startswith(f"{CODE}/"))
        yield f"code of plug-ins: {', '.join(code) or 'none'}"
        for key in ABOUT:
            yield f"{key}: {self.about[key] or 'not given'}"
        yield from (f"without {text}" for text in self.lacking)


def draft_bundle(
    directory: Path,
    *,
    scores: bool = False,
    code: bool = True,
    about: Mapping[str, str] | None = None,
) -> Draft:
    """The bundle of all finished cells below a folder, and their warm-ups.

    Example: `draft_bundle(Path("runs/quickstart")).manifest["content_sha256"]`

    scores: also confidences and other scores of each image, losses and times. code: the files of
    loaded plug-ins that the cells used; else only their hashes. about: the keys of ABOUT.

    Every number of a cell is computed again first. Of two copies of a cell the finished one is
    used, else the first, as in a report. Raises RunError if a number does not hold, without a
    finished cell, and if a value that belongs to the identity of a cell has a path.
    """
    folders, left_out = find_cells(directory)
    contents, used, names = Contents(), dict[str, str](), dict[str, Path]()
    cells: list[dict[str, str]] = []
    for folder in sorted(folders, key=lambda folder: not has_file(folder, RESULT_FILE)):
        found = check_folder(folder)
        if found.findings:
            more = len(found.findings) - _SHOWN
            texts = found.findings[:_SHOWN] + ([f"and {more} more."] if more > 0 else [])
            raise RunError(
                f"{folder}: does not hold, so nothing was bundled: {' '.join(texts)} "
                f"`ctta-bench audit {directory}` lists all."
            )
        record: dict[str, Any] = dict(read_cell(folder))
        if folder.name in names:
            left_out.append((folder, f"the same cell as {names[folder.name]}, which is used"))
            continue
        names[folder.name] = folder
        is_warmup = record.get("kind") == WARM_UP
        if not is_warmup and progress(folder, record.get("num_batches")).state != "done":
            left_out.append((folder, "is not finished"))
            continue
        place = folder.relative_to(directory).as_posix() if folder != directory else folder.name
        environment = _environment(folder)
        used |= environment.get(PLUGIN_FILES) or {}
        record = _without_paths(record, ("notes", "tuned"))
        if is_warmup:
            result = read_json(folder, RESULT_FILE) if has_file(folder, RESULT_FILE) else None
            contents.add_cell(place, record, result, environment)
            continue
        result, arrays = _reduced(folder, scores)
        lines = _lines(folder, scores)
        contents.add_cell(place, record, result, environment, arrays, lines)
        cells.append({"cell": record["id"], "experiment": str(record["experiment"])})
    if not cells:
        raise RunError(f"{directory}: no finished cell to bundle; run one first.")
    for pattern in OTHER_FILES:
        for file in sorted([*directory.glob(pattern), *directory.glob(f"*/{pattern}")]):
            name = f"{RUNS}/{file.relative_to(directory).as_posix()}"
            contents.add_json(name, _plain(json.loads(file.read_text("utf-8"))))
    _check_private(contents)
    without_code = _add_code(contents, used) if code else sorted(used)
    lacking = [f"the code of {name}: only its SHA-256 is stored" for name in without_code]
    if not scores:
        lacking.append("scores of each image: no calibration; losses and times of batches")
    given = {key: (about or {}).get(key, "") for key in ABOUT}
    facts = {**given, "scores": scores, "cells": cells, "lacking": lacking}
    return Draft(contents, facts, left_out, lacking)


def _reduced(folder: Path, scores: bool) -> tuple[dict[str, Any], Arrays]:
    """result.json and the arrays to store; without scores neither has what these would give."""
    result, arrays = read_json(folder, RESULT_FILE), read_all_arrays(folder, PREDICTIONS_FILE)
    result["predictions_sha256"] = arrays_sha256(arrays)
    if scores:
        return result, arrays
    metric, measures = metric_named(result["metric"]), all_measures()
    kept = {*VISIT, *metric.arrays, *(n for m in measures if m.recounted for n in m.arrays)}
    kept_arrays = {name: values for name, values in arrays.items() if name in kept}
    gone = {m.name for m in measures if not all(name in kept_arrays for name in m.arrays)}
    for part in result["rounds"]:
        part["domains"] = [
            {key: value for key, value in entry.items() if key not in gone}
            for entry in part["domains"]
        ]
    if kept_arrays.keys() != arrays.keys():
        result["scored_sha256"] = result["predictions_sha256"]  # of the run's own file
        result["predictions_sha256"] = arrays_sha256(kept_arrays)
    return result, kept_arrays


def _lines(folder: Path, scores: bool) -> list[dict[str, Any]]:
    if not has_file(folder, BATCHES_FILE):
        return []
    dropped = () if scores else OF_SCORES
    lines = batches(folder).to_dict("records")
    return [{str(k): v for k, v in line.items() if k not in dropped} for line in lines]


def _environment(folder: Path) -> dict[str, Any]:
    try:
        found = read_json(folder, ENVIRONMENT_FILE) if has_file(folder, ENVIRONMENT_FILE) else {}
    except UnusableCellError:
        found = {}
    found.pop(_HOST, None)
    plain: dict[str, Any] = _plain(found)
    return plain


# -- what is nobody else's business


def _plain(value: Any) -> Any:
    """Plain values with paths replaced by their last part."""
    if isinstance(value, str):
        return _PATH.sub("", value.replace(str(Path.home()), "~"))
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value


def _without_paths(record: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """A record whose notes have no paths. Raises RunError for a path in any other value."""
    for key, value in record.items():
        if key not in keys and _plain(value) != value:
            raise RunError(
                f"{record['id']}: {key} has a path, {json.dumps(value)[:200]}, and others must not "
                "see it. It belongs to the identity of the cell: run the cell again with a value "
                "without a path."
            )
    return {key: _plain(value) if key in keys else value for key, value in record.items()}


def _check_private(contents: Contents) -> None:
    """Raise RunError if a text still has the home folder or the name of this host."""
    private = {text for text in (str(Path.home()), platform.node()) if len(text) > 3}
    for name, content in contents.members.items():
        for text in private if name.endswith(".json") else ():
            if re.search(rf"(?<![\w-]){re.escape(text)}(?![\w-])".encode(), content):
                raise RunError(
                    f"{name} of the bundle would have {text!r}, which others must not see; remove "
                    "it from the run folder, or rename the folder."
                )


def _add_code(contents: Contents, used: Mapping[str, str]) -> list[str]:
    """Add the files of plug-ins that cells used; the names of those that are not at hand."""
    files, presets = plugin_files(), dict(_presets(plugin_files()))
    missing = []
    for name, sha256 in sorted(used.items()):
        file = files.get(name)
        content = file.path.read_bytes() if file is not None else b""
        if hashlib.sha256(content).hexdigest() == sha256:
            contents.members[f"{CODE}/{name}"] = content
        else:
            missing.append(name)
    for name, path in presets.items():
        contents.members[f"{CODE}/{name}"] = path.read_bytes()
    return missing


def _presets(files: Mapping[str, PluginFile]) -> Iterator[tuple[str, Path]]:
    """The preset files of the methods of plug-ins, next to their code."""
    known = {file.path.parent for file in files.values()}
    for name in METHODS.names():
        folder = None if METHODS.is_of_package(name) else METHODS.folder(name)
        if folder in known and folder is not None:
            file = folder / "presets" / f"{name}.yaml"
            if file.is_file():
                yield f"presets/{name}.yaml", file
