"""Run folders below a directory."""

import os
from collections.abc import Iterator
from pathlib import Path

from ctta_bench.errors import RunError
from ctta_bench.record.read import has_file
from ctta_bench.record.schema import CELL_FILE, PAGE_FILE, RESULTS_TABLE_FILE, SIGNS_OF_A_RUN

SEARCH_DEPTH = 3
_OTHER_FOLDERS = {"report", "looking", "logs", "slurm"}


def find_cells(directory: Path) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Folders with a cell.yaml at most three levels down, and stray folders with the reason.

    Raises RunError if the directory does not exist. Hidden folders, `report`, `logs` and `slurm`
    are passed over.
    """
    if not directory.is_dir():
        raise RunError(
            f"{directory}: no such folder; give the folder of an experiment, e.g. runs/quickstart."
        )
    if (directory / CELL_FILE).is_file():
        return [directory], []
    cells: list[Path] = []
    strays: list[tuple[Path, str]] = []
    _search(directory, SEARCH_DEPTH, cells, strays)
    return cells, strays


def _search(directory: Path, depth: int, cells: list[Path], strays: list[tuple[Path, str]]) -> None:
    beside_cells = False
    empty = []
    for folder in _subfolders(directory):
        if has_file(folder, CELL_FILE):
            cells.append(folder)
            beside_cells = True
            continue
        if is_report(folder):
            continue
        before = len(cells)
        if any((folder / name).exists() for name in SIGNS_OF_A_RUN):
            strays.append((folder, f"half-written: {CELL_FILE} is missing"))
        elif depth > 1:
            _search(folder, depth - 1, cells, strays)
            empty += [folder] if len(cells) == before else []
    if beside_cells:  # a folder without cells among experiments is none of our business
        strays += [(folder, f"not a run folder: it holds no {CELL_FILE}") for folder in empty]


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
    return (folder / PAGE_FILE).is_file() and (folder / RESULTS_TABLE_FILE).is_file()
