"""Run folders on disk: where they are, what a cell says of itself, how far it has come."""

import contextlib
import functools
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ctta_bench.errors import RunError

SCHEMA_VERSION = 1
SEARCH_DEPTH = 3
HEARTBEAT_SECONDS = 60.0  # a lock without a heartbeat for longer belongs to a dead process
STATES = ("done", "running", "failed", "incomplete")

_CELL_FILES = {"batches.jsonl", "predictions.npz", "result.json", "env.json", "state.pt"}
_OTHER_FOLDERS = {"report", "looking", "logs", "slurm"}
_TAIL_BYTES = 8192  # many times the longest line of batches.jsonl
# The safe loader, in C where PyYAML was built with it.
YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_BLOCK = re.compile(r"^(?=[A-Za-z_])", re.MULTILINE)  # where a top-level key begins
_NAME = re.compile(r"(id|warmup): ([A-Za-z]\w*-[\w.-]*\w)\n", re.ASCII)
_NUMBER = re.compile(r"(seed|num_batches|schema_version): (0|[1-9][0-9]*)\n")
_LINKS = ("&", "*", "!", "%", "\n---", "\n...")  # in a text whose blocks are not apart


class UnusableCellError(RunError):
    """A folder that cannot be read as a cell; the text is the reason, without the folder's name."""


class Progress(NamedTuple):
    """How far a cell has come. `total` is None where the cell does not know its length.

    `first` if no attempt before this one ended badly; `changed`: when its batches were last
    written, seconds since 1970.
    """

    state: str
    done: int | None
    total: int | None
    reason: str = ""
    first: bool = True
    changed: float = 0.0


def find_cells(directory: Path) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Folders with a cell.yaml at most three levels down, and stray folders with the reason.

    Raises RunError if the directory does not exist. Hidden folders, `report`, `logs` and `slurm`
    are passed over.
    """
    if not directory.is_dir():
        raise RunError(
            f"{directory}: no such folder; give the folder of an experiment, e.g. runs/quickstart."
        )
    if (directory / "cell.yaml").is_file():
        return [directory], []
    cells: list[Path] = []
    strays: list[tuple[Path, str]] = []
    _search(directory, SEARCH_DEPTH, cells, strays)
    return cells, strays


def _search(directory: Path, depth: int, cells: list[Path], strays: list[tuple[Path, str]]) -> None:
    beside_cells = False
    empty = []
    for folder in _subfolders(directory):
        if is_there(folder, "cell.yaml"):
            cells.append(folder)
            beside_cells = True
            continue
        if is_report(folder):
            continue
        before = len(cells)
        if any((folder / name).exists() for name in _CELL_FILES):
            strays.append((folder, "half-written: cell.yaml is missing"))
        elif depth > 1:
            _search(folder, depth - 1, cells, strays)
            empty += [folder] if len(cells) == before else []
    if beside_cells:  # a folder without cells among experiments is none of our business
        strays += [(folder, "not a run folder: it holds no cell.yaml") for folder in empty]


def is_there(folder: Path, name: str) -> bool:
    """Whether a folder has a file. `Path.exists` takes as long again as the system does."""
    return os.access(f"{folder}/{name}", os.F_OK)


def _subfolders(directory: Path) -> Iterator[Path]:
    """Folders that may be cells or hold some, by name. Not by `Path.iterdir`: it asks for each."""
    with os.scandir(directory) as entries:
        names = sorted(
            entry.name
            for entry in entries
            if not entry.name.startswith((".", "_"))
            and entry.name not in _OTHER_FOLDERS
            and entry.is_dir()
        )
    for name in names:
        yield directory / name


def is_report(folder: Path) -> bool:
    """Whether the folder is one that `ctta-bench report` wrote."""
    return (folder / "index.html").is_file() and (folder / "results.csv").is_file()


def read_cell(folder: Path) -> dict[str, Any]:
    """The resolved configuration in cell.yaml, or UnusableCellError with the reason."""
    try:
        cell = _load_yaml(read_bytes(folder, "cell.yaml").decode())
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise UnusableCellError(f"cell.yaml cannot be read ({type(error).__name__})") from error
    if not isinstance(cell, dict):
        raise UnusableCellError("half-written: cell.yaml is empty or cut")
    check_schema("cell.yaml", cell)
    if cell.get("id") != folder.name and cell.get("id") != folder.resolve().name:
        raise UnusableCellError(
            f"contradictory: cell.yaml is of cell {cell.get('id')}, not of this folder"
        )
    return cell


def _load_yaml(text: str) -> Any:
    """A YAML text, its top-level blocks parsed one by one; they are shared and not to be changed.

    The cells of a grid have most blocks in common, and each is parsed once. A text with anchors,
    tags or documents, where a block is not all by itself, is parsed whole.
    """
    if text.endswith("\n") and _BLOCK.match(text) and not any(link in text for link in _LINKS):
        with contextlib.suppress(yaml.YAMLError, TypeError):  # not blocks after all
            return {k: v for block in _BLOCK.split(text)[1:] for k, v in _read_block(block)}
    return yaml.load(text, Loader=YAML_LOADER)


def _read_block(text: str) -> tuple[tuple[Any, Any], ...]:
    """Key and value of a block.

    `id: WORD-WORD` and `seed: 1`, which each cell has of its own, can be nothing else in YAML and
    need no parser.
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
    """A small file of a folder. Neither paths nor text streams are made: cells are many."""
    with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - see above
        content: bytes = file.readall()
    return content


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of a folder, or UnusableCellError with the reason."""
    try:
        return parse_json(name, read_bytes(folder, name))
    except OSError as error:
        raise UnusableCellError(f"corrupted: {name} is not valid JSON") from error


def parse_json(name: str, content: bytes) -> dict[str, Any]:
    """The object in the content of a JSON file, or UnusableCellError with the reason."""
    try:
        value = json.loads(content.decode())
    except ValueError as error:  # UnicodeDecodeError is one
        raise UnusableCellError(f"corrupted: {name} is not valid JSON") from error
    if not isinstance(value, dict):
        raise UnusableCellError(f"corrupted: {name} does not hold a JSON object")
    return value


def wrong_content(name: str, error: Exception) -> UnusableCellError:
    """The reason for a file that was read but lacks a key or holds a value of the wrong type."""
    lacks = f"lacks {error}" if isinstance(error, KeyError) else "has a value of the wrong type"
    return UnusableCellError(f"half-written: {name} {lacks}")


def check_schema(name: str, content: dict[str, Any]) -> None:
    """Refuse a file of a newer schema with UnusableCellError."""
    version = content.get("schema_version")
    if not isinstance(version, int):
        raise UnusableCellError(f"half-written: {name} has no schema_version")
    if version > SCHEMA_VERSION:
        raise UnusableCellError(
            f"newer schema: {name} has schema_version {version}, this ctta-bench reads up to "
            f"{SCHEMA_VERSION}; update it"
        )


def progress(folder: Path, total: int | None, now: float | None = None) -> Progress:
    """State of a cell from its files alone; `total` is its number of batches where known."""
    if is_there(folder, "result.json"):
        return Progress("done", total, total, "", not is_there(folder, "attempts.json"))
    with os.scandir(folder) as entries:  # one look instead of many
        files = {entry.name for entry in entries}
    first = "attempts.json" not in files
    lines = folder / "batches.jsonl"
    done = batches_done(lines)
    changed = lines.stat().st_mtime if "batches.jsonl" in files else 0.0
    place = f"batch {done} of {total}" if total else f"batch {done}"
    now = time.time() if now is None else now
    if "cell.lock.json" in files and _is_locked(folder / "cell.lock.json", now):
        return Progress("running", done, total, f"at {place}", first, changed)
    if "failed.json" in files:
        return Progress("failed", done, total, _failure(folder), first, changed)
    reason = f"stopped after {place}" if done else "not started"
    return Progress("incomplete", done, total, reason, first, changed)


def batches_done(path: Path) -> int:
    """Number of batches in a batches.jsonl, from its last whole line: a torn line does not count.

    The lines are numbered, so that the file's end is enough however long the stream is.
    """
    for line in _last_lines(path):
        try:
            return int(line["batch"]) + 1
        except (KeyError, TypeError, ValueError):
            continue
    return 0


def _last_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The last whole lines of a file of JSON lines, from the end."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # torn, or cut at the start
            value = json.loads(line)
            if isinstance(value, dict):
                yield value


def remaining_seconds(folder: Path, state: Progress) -> float | None:
    """How long a cell still takes at the pace of its last batches; None where not known."""
    spent = [line["ms"] for line in _last_lines(folder / "batches.jsonl") if "ms" in line]
    if not spent or state.total is None or state.done is None:
        return None
    return (state.total - state.done) * sum(spent) / len(spent) / 1000


def attempts(folder: Path) -> tuple[int, str]:
    """Which attempt the present one is, from 1, and the last signal that interrupted one."""
    try:
        before = json.loads((folder / "attempts.json").read_text("utf-8"))
        signals = [str(attempt.get("signal") or "") for attempt in before]
    except (OSError, ValueError, AttributeError, TypeError):
        return 1, ""
    return len(before) + 1, next((name for name in reversed(signals) if name), "")


def _is_locked(path: Path, now: float) -> bool:
    """Whether a lock's owner lives: by its heartbeat, and where it ran here by its process."""
    try:
        owner = json.loads(path.read_text("utf-8"))
        heartbeat = float(owner["heartbeat"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    gone = _is_gone(owner)
    return now - heartbeat < HEARTBEAT_SECONDS if gone is None else not gone


def _is_gone(owner: dict[str, Any]) -> bool | None:
    """Whether an owner was a process of this host that is no more; None for one of another."""
    if owner.get("host") != socket.gethostname() or "processes" not in owner:
        return None
    here = Path("/proc/self/ns/pid")
    if not here.exists() or owner["processes"] != str(here.readlink()):
        return None  # its pids count elsewhere
    try:
        fields = (
            Path(f"/proc/{owner.get('pid')}/stat").read_text("utf-8").rpartition(")")[2].split()
        )
    except OSError:
        return True
    # Dead and not yet buried, or another process of that number, which began at another time.
    return fields[0] in "ZX" or fields[19] != owner.get("born", fields[19])


def _failure(folder: Path) -> str:
    try:
        return str(read_json(folder, "failed.json").get("reason") or "no reason given")
    except UnusableCellError:
        return "failed.json cannot be read"
