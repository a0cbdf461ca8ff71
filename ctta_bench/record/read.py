"""Reading the files of a run folder, with a reason for each that cannot be used."""

import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from ctta_bench.errors import RunError
from ctta_bench.record.schema import CELL_FILE, SCHEMA_VERSION, CellRecord

if TYPE_CHECKING:
    import numpy as np

# As safe as yaml.safe_load, which is the same loader in pure Python, and ten times as fast.
YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_BLOCK = re.compile(r"^(?=[A-Za-z_])", re.MULTILINE)  # start of a top-level key
_NAME = re.compile(r"(id|warmup): ([A-Za-z]\w*-[\w.-]*\w)\n", re.ASCII)
_NUMBER = re.compile(r"(seed|num_batches|schema_version): (0|[1-9][0-9]*)\n")
_LINKS = ("&", "*", "!", "%", "\n---", "\n...")  # with these, blocks may depend on each other


class UnusableCellError(RunError):
    """A folder that cannot be read as a cell; the message is the reason without the folder."""


def read_record(cell: Path) -> Any:
    """The content of a run folder's cell.yaml, as plain values.

    Raises OSError, UnicodeDecodeError or yaml.YAMLError if it cannot be read.
    """
    return yaml.load((cell / CELL_FILE).read_text("utf-8"), Loader=YAML_LOADER)


def has_file(folder: Path, name: str) -> bool:
    """Whether a folder has a file. `Path.exists` takes twice as long."""
    return os.access(f"{folder}/{name}", os.F_OK)


def read_cell(folder: Path) -> CellRecord:
    """The resolved configuration in cell.yaml. Raises UnusableCellError with the reason."""
    try:
        cell: Any = _load_yaml(read_bytes(folder, CELL_FILE).decode())
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise UnusableCellError(f"{CELL_FILE} cannot be read ({type(error).__name__})") from error
    if not isinstance(cell, dict):
        raise UnusableCellError(f"half-written: {CELL_FILE} is empty or cut")
    check_schema(CELL_FILE, cell)
    if cell.get("id") != folder.name and cell.get("id") != folder.resolve().name:
        raise UnusableCellError(
            f"contradictory: {CELL_FILE} belongs to cell {cell.get('id')}, not to this folder"
        )
    return cast(CellRecord, cell)


def _load_yaml(text: str) -> Any:
    """Parse a YAML text block by block; do not change the returned values, they are shared.

    The cells of a grid have most top-level blocks in common, and each is parsed once. A text with
    anchors, tags or several documents, where blocks depend on each other, is parsed as a whole.
    """
    if text.endswith("\n") and _BLOCK.match(text) and not any(link in text for link in _LINKS):
        with contextlib.suppress(yaml.YAMLError, TypeError):  # not independent blocks
            return {k: v for block in _BLOCK.split(text)[1:] for k, v in _read_block(block)}
    return yaml.load(text, Loader=YAML_LOADER)


def _read_block(text: str) -> tuple[tuple[Any, Any], ...]:
    """Key and value of a block.

    Lines such as `id: WORD-WORD` and `seed: 1`, which differ between cells, have one meaning in
    YAML and need no parser.
    """
    if own := _NAME.fullmatch(text):
        return ((own[1], own[2]),)
    if own := _NUMBER.fullmatch(text):
        return ((own[1], int(own[2])),)
    return _load_block(text)


@functools.lru_cache(maxsize=1024)
def _load_block(text: str) -> tuple[tuple[Any, Any], ...]:
    content = yaml.load(text, Loader=YAML_LOADER)
    if not isinstance(content, dict):
        raise TypeError
    return tuple(content.items())


def read_bytes(folder: Path, name: str) -> bytes:
    """Content of a small file of a folder; without `Path` and text streams, for speed."""
    with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - see above
        content: bytes = file.readall()
    return content


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of a folder. Raises UnusableCellError with the reason."""
    try:
        return parse_json(name, read_bytes(folder, name))
    except OSError as error:
        raise UnusableCellError(f"corrupted: {name} is not valid JSON") from error


def parse_json(name: str, content: bytes) -> dict[str, Any]:
    """The object in the content of a JSON file. Raises UnusableCellError with the reason."""
    try:
        value = json.loads(content.decode())
    except ValueError as error:  # UnicodeDecodeError is one
        raise UnusableCellError(f"corrupted: {name} is not valid JSON") from error
    if not isinstance(value, dict):
        raise UnusableCellError(f"corrupted: {name} is not a JSON object")
    return value


def wrong_content(name: str, error: Exception) -> UnusableCellError:
    """The error for a file that lacks a key or has a value of the wrong type."""
    lacks = f"lacks {error}" if isinstance(error, KeyError) else "has a value of the wrong type"
    return UnusableCellError(f"half-written: {name} {lacks}")


def check_schema(name: str, content: Mapping[str, Any]) -> None:
    """Raise UnusableCellError for a file of a newer schema."""
    version = content.get("schema_version")
    if not isinstance(version, int):
        raise UnusableCellError(f"half-written: {name} has no schema_version")
    if version > SCHEMA_VERSION:
        raise UnusableCellError(
            f"newer schema: {name} has schema_version {version}, but this ctta-bench reads up to "
            f"{SCHEMA_VERSION}; update ctta-bench"
        )


def arrays_sha256(arrays: "Mapping[str, np.ndarray]") -> str:
    """SHA-256 of the names, types, shapes and bytes of arrays, however their file is compressed."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        values = arrays[name]
        digest.update(f"{name} {values.dtype.str} {values.shape} ".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
