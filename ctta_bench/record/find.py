"""Finding run folders below a directory."""

import os
from collections.abc import Iterator
from pathlib import Path

from ctta_bench.errors import RunError
from ctta_bench.record.bundle import runs_folder
from ctta_bench.record.read import has_file
from ctta_bench.record.schema import CELL_FILE, PAGE_FILE, RESULTS_TABLE_FILE, SIGNS_OF_A_RUN

SEARCH_DEPTH = 3
_OTHER_FOLDERS = {"report", "as-paper", "looking", "logs", "slurm"}


def find_cells(directory: Path) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Folders with a cell.yaml at most three levels down; other folders, each with a reason.

    Hidden folders and those called `report`, `as-paper`, `looking`, `logs` or `slurm` are skipped.
    A bundle is read as the folder of its runs, and so are the bundles of a folder without cells.
    Raises RunError if the directory does not exist.
    """
    directory = runs_folder(directory)
    if not directory.is_dir():
        raise RunError(
            f"{directory}: no such folder; name the folder of an experiment, e.g. runs/quickstart."
        )
    if (directory / CELL_FILE).is_file():
        return [directory], []
    cells: list[Path] = []
    strays: list[tuple[Path, str]] = []
    _search(directory, SEARCH_DEPTH, cells, strays)
    for bundle in () if cells else bundles_in(directory):
        _search(runs_folder(bundle), SEARCH_DEPTH, cells, strays)
    return cells, strays


def bundles_in(directory: Path) -> list[Path]:
    """The zip archives directly in a folder, which should be bundles."""
    return sorted(directory.glob("*.zip"))


def _search(directory: Path, depth: int, cells: list[Path], strays: list[tuple[Path, str]]) -> None:
    has_cells = False
    empty = []
    for folder in _subfolders(directory):
        if has_file(folder, CELL_FILE):
            cells.append(folder)
            has_cells = True
            continue
        if is_report(folder):
            continue
        before = len(cells)
        if any((folder / name).exists() for name in SIGNS_OF_A_RUN):
            strays.append((folder, f"half-written: {CELL_FILE} is missing"))
        elif depth > 1:
            _search(folder, depth - 1, cells, strays)
            empty += [folder] if len(cells) == before else []
    if has_cells:  # without cells around them, other folders are ignored
        strays += [(folder, f"not a run folder: it holds no {CELL_FILE}") for folder in empty]


def _subfolders(directory: Path) -> Iterator[Path]:
    """Folders that may be or contain cells, by name. Unlike `Path.iterdir` no stat per entry."""
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


def report_folder(runs: Path) -> Path:
    """Where the report of a folder of runs, or of a bundle, is by default."""
    return runs / "report" if runs.is_dir() else runs.with_name(f"{runs.stem}-report")


def is_report(folder: Path) -> bool:
    """Whether `ctta-bench report` wrote the folder."""
    return (folder / PAGE_FILE).is_file() and (folder / RESULTS_TABLE_FILE).is_file()
