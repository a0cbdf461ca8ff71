"""A bundle: one file with the records and predictions of runs, small and the same bytes each time.

    bundle.json            what it is, and the SHA-256 of each other member
    runs/.../CELL/cell.json   cell.yaml, result.json and env.json of a run folder, and its columns
    columns/HASH.npy       an array of predictions.npz, or of batches.jsonl; cells share equal ones
    code/...               files of plug-ins

Labels, indices and domains are columns that all cells of a seed share, and predictions are stored
as their difference from the labels, mostly zeros. docs/bundles.md describes the format.
"""

import hashlib
import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from ctta_bench.errors import RunError
from ctta_bench.record.archive import MAX_BYTES, read_archive, write_archive
from ctta_bench.record.arrays import DAMAGE, Arrays, array_in
from ctta_bench.record.folder import RunFolder, write_yaml
from ctta_bench.record.schema import (
    BATCHES_FILE,
    CELL_FILE,
    ENVIRONMENT_FILE,
    EXPERIMENT_FILE,
    PREDICTIONS_FILE,
    RESULT_FILE,
)

BUNDLE_SCHEMA_VERSION = 1
KIND = "bundle of ctta-bench"
MANIFEST, RUNS, COLUMNS, CODE = "bundle.json", "runs", "columns", "code"
STORED_CELL = "cell.json"
OTHER_FILES = (EXPERIMENT_FILE, "cost-*.json")  # of a folder of runs, stored as they are
_RELATIVE = {"prediction": "label"}  # stored as the difference from the other array
_INTEGERS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")
_NAME_DIGITS = 20  # of a column's SHA-256 in its name
_TEXT_BYTES = 2**26  # the most of a JSON file


@dataclass
class Contents:
    """The members of a bundle by name, without its manifest.

    Example: `Contents().add_cell("tent-toy-...", record, result, environment, arrays, {})`
    """

    members: dict[str, bytes] = field(default_factory=dict)

    def add_cell(
        self,
        place: str,
        record: Mapping[str, Any],
        result: Mapping[str, Any] | None,
        environment: Mapping[str, Any],
        arrays: Arrays | None = None,
        lines: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Add a run folder; place: its path below the folder of runs.

        arrays: those of predictions.npz to store; None for a warm-up. lines: of batches.jsonl.
        """
        stored = {
            "record": record,
            "result": result,
            "environment": environment,
            "arrays": None if arrays is None else self._columns(arrays),
            "batches": self._lines(lines),
        }
        self.add_json(f"{RUNS}/{place}/{STORED_CELL}", stored)

    def add_json(self, name: str, value: Any) -> None:
        """Add a member with a value as JSON."""
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        self.members[name] = f"{text}\n".encode()

    def _columns(self, arrays: Arrays) -> dict[str, dict[str, str]]:
        found = {}
        for name, values in arrays.items():
            entry = {"type": values.dtype.str}
            of = arrays.get(_RELATIVE.get(name, ""))
            if of is not None and values.dtype.kind == of.dtype.kind == "i":
                values = values.astype(np.int64) - of
                entry["plus"] = _RELATIVE[name]
            found[name] = {"column": self._column(values), **entry}
        return found

    def _lines(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """Batches as columns: domains as positions in `domains`, None as NaN."""
        if not lines:
            return None
        domains = list(dict.fromkeys(str(line["domain"]) for line in lines))
        columns = {}
        for name in lines[0]:
            if name == "domain":
                values = np.array([domains.index(line[name]) for line in lines])
            elif name != "batch":  # lines are numbered from 0
                own = [line.get(name) for line in lines]
                values = np.array([np.nan if value is None else value for value in own])
            else:
                continue
            columns[name] = self._column(values)
        return {"count": len(lines), "domains": domains, "columns": columns}

    def _column(self, values: npt.NDArray[Any]) -> str:
        """Store an array once, however many cells have it; the name of its member."""
        file = io.BytesIO()
        np.lib.format.write_array(file, np.ascontiguousarray(_small(values)), allow_pickle=False)
        content = file.getvalue()
        name = hashlib.sha256(content).hexdigest()[:_NAME_DIGITS]
        self.members[f"{COLUMNS}/{name}.npy"] = content
        return name


def _small(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Integers in the smallest type that holds them, little-endian."""
    if values.dtype.kind in "iu" and values.size:
        low, high = int(values.min()), int(values.max())
        kinds = (k for k in _INTEGERS if np.iinfo(k).min <= low and high <= np.iinfo(k).max)
        values = values.astype(next(kinds))
    return values.astype(values.dtype.newbyteorder("<"))


def write_bundle(path: Path, contents: Contents, about: Mapping[str, Any]) -> dict[str, Any]:
    """Write a bundle, and return its manifest: `about` and the facts of its members.

    Raises RunError if it cannot be written.
    """
    manifest = manifest_of(contents, about)
    named = Contents()
    named.add_json(MANIFEST, manifest)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_archive(path, named.members | dict(sorted(contents.members.items())))
    return manifest


def manifest_of(contents: Contents, about: Mapping[str, Any]) -> dict[str, Any]:
    """The content of bundle.json."""
    hashes = {name: _sha256(content) for name, content in sorted(contents.members.items())}
    return {
        "kind": KIND,
        "schema_version": BUNDLE_SCHEMA_VERSION,
        "content_sha256": content_sha256(hashes),
        **about,
        "members": hashes,
    }


def content_sha256(hashes: Mapping[str, str]) -> str:
    """The identity of a bundle: of the names and contents of its members, however compressed."""
    text = "".join(f"{digest} {name}\n" for name, digest in sorted(hashes.items()))
    return _sha256(text.encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- reading


@dataclass(frozen=True)
class Bundle:
    """A bundle in memory. findings: what of its members is not as the manifest states."""

    path: Path
    manifest: dict[str, Any]
    members: dict[str, bytes] = field(repr=False)
    findings: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Bundle":
        """Read a bundle; nothing of it is executed, and nothing is written.

        Example: `Bundle.read(Path("runs.zip")).manifest["content_sha256"]`

        Raises RunError for a file that is no bundle, is of a newer schema, or is not safe to read.
        """
        members = read_archive(path)
        manifest = _json(path, MANIFEST, members.pop(MANIFEST, b""))
        if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
            raise RunError(
                f"{path}: is no bundle (`ctta-bench bundle RUNS -o NAME.zip` makes one)."
            )
        version, stated = manifest.get("schema_version"), manifest.get("members")
        if not isinstance(version, int) or version > BUNDLE_SCHEMA_VERSION:
            raise RunError(
                f"{path}: has the schema {version}, this ctta-bench reads up to "
                f"{BUNDLE_SCHEMA_VERSION}; update ctta-bench."
            )
        if not isinstance(stated, dict):
            raise RunError(f"{path}: {MANIFEST} has no list of members; bundle the runs again.")
        return cls(path, manifest, members, [*_differences(manifest, stated, members)])

    def cells(self) -> dict[str, dict[str, Any]]:
        """The stored cells and warm-ups by their place below the folder of runs."""
        end = f"/{STORED_CELL}"
        return {
            name[len(RUNS) + 1 : -len(end)]: _json(self.path, name, content)
            for name, content in self.members.items()
            if name.startswith(f"{RUNS}/") and name.endswith(end)
        }

    def code(self) -> dict[str, bytes]:
        """The files of plug-ins by their names in env.json."""
        start = f"{CODE}/"
        return {n[len(start) :]: c for n, c in self.members.items() if n.startswith(start)}

    def unpack(self, target: Path) -> None:
        """Write the run folders below `target` as a run leaves them, without weights and images.

        Raises RunError for a cell whose parts are missing or damaged.
        """
        left = MAX_BYTES
        for place, stored in self.cells().items():
            try:
                left -= _unpack_cell(target / place, stored, self.members, left)
            except DAMAGE as error:
                raise RunError(
                    f"{self.path}: the cell {place} is damaged ({type(error).__name__}: {error})."
                ) from error
        for name, content in self.members.items():
            parts = PurePosixPath(name)
            if parts.parts[0] == RUNS and any(map(parts.match, OTHER_FILES)):
                _json(self.path, name, content)
                file = target.joinpath(*parts.parts[1:])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)


def _differences(
    manifest: Mapping[str, Any], stated: Mapping[str, str], members: Mapping[str, bytes]
) -> list[str]:
    found = {name: _sha256(content) for name, content in members.items()}
    texts = [
        f"{name}: is not as {MANIFEST} states it (its SHA-256 differs)"
        if name in found and name in stated
        else f"{name}: is missing"
        if name in stated
        else f"{name}: is not in the list of {MANIFEST}"
        for name in sorted(found.keys() | stated.keys())
        if found.get(name) != stated.get(name)
    ]
    if not texts and manifest.get("content_sha256") != content_sha256(found):
        texts = [f"{MANIFEST}: content_sha256 is not that of the members"]
    return texts


def _json(path: Path, name: str, content: bytes) -> Any:
    if len(content) > _TEXT_BYTES:
        raise RunError(f"{path}: {name} has {len(content):,} bytes; the most is {_TEXT_BYTES:,}.")
    try:
        return json.loads(content.decode()) if content else None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: {name} is no JSON ({type(error).__name__}).") from error


def _unpack_cell(
    folder: Path, stored: Mapping[str, Any], members: Mapping[str, bytes], left: int
) -> int:
    """Write a run folder; returns the bytes of its arrays. RunError if they exceed `left`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_yaml(folder / CELL_FILE, stored["record"], fsync=False)
    _write_json(folder / ENVIRONMENT_FILE, stored["environment"])
    used = 0
    if stored["arrays"] is not None:
        arrays: Arrays = {}
        for name, entry in sorted(stored["arrays"].items(), key=lambda item: "plus" in item[1]):
            values = _column(members, entry["column"])
            kind = np.dtype(entry["type"])
            if kind.hasobject:
                raise ValueError("an array of objects")
            used += values.size * max(kind.itemsize, 8)
            if used > left:
                raise RunError(f"{folder.name}: the bundle has more than {MAX_BYTES:,} bytes.")
            if "plus" in entry:
                values = values.astype(np.int64) + arrays[entry["plus"]]
            arrays[name] = values.astype(kind)
        ordered = {name: arrays[name] for name in stored["arrays"]}
        RunFolder(folder).write_arrays(PREDICTIONS_FILE, ordered)
    if stored["batches"] is not None:
        _unpack_lines(folder / BATCHES_FILE, stored["batches"], members)
    if stored["result"] is not None:
        _write_json(folder / RESULT_FILE, stored["result"])
    return used


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", "utf-8")


def _column(members: Mapping[str, bytes], name: str) -> npt.NDArray[Any]:
    return array_in(members[f"{COLUMNS}/{name}.npy"])


def _unpack_lines(file: Path, stored: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
    columns = {name: _column(members, column) for name, column in stored["columns"].items()}
    values = {name: column.tolist() for name, column in columns.items()}
    if {len(own) for own in values.values()} != {stored["count"]}:
        raise ValueError("batches of different numbers")
    domains = [stored["domains"][number] for number in values.pop("domain")]
    lines = []
    for number, domain in enumerate(domains):
        own = {name: column[number] for name, column in values.items()}
        line = {"batch": number, "round": own.pop("round"), "domain": domain, **own}
        lines.append(json.dumps({k: None if v != v else v for k, v in line.items()}))
    file.write_text("\n".join(lines) + "\n", "utf-8")


_unpacked: dict[tuple[str, int, int], tempfile.TemporaryDirectory[str]] = {}


def runs_folder(path: Path) -> Path:
    """A folder of runs: `path` itself or, of a bundle, a temporary folder with its runs.

    The temporary folder is deleted when this process ends. Raises RunError as `Bundle.read` does,
    and for a bundle whose members are not as it states.
    """
    if not path.is_file():
        return path
    facts = path.stat()
    key = (str(path.resolve()), facts.st_mtime_ns, facts.st_size)
    if key not in _unpacked:
        found = Bundle.read(path)
        if found.findings:
            raise RunError(f"{path}: {found.findings[0]}; the bundle was changed or is damaged.")
        _unpacked[key] = tempfile.TemporaryDirectory(prefix="ctta-bench-")
        try:
            found.unpack(Path(_unpacked[key].name) / path.stem)
        except BaseException:
            _unpacked.pop(key).cleanup()
            raise
    return Path(_unpacked[key].name) / path.stem
