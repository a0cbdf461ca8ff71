"""Run folders as tidy frames: one row per cell, and one per cell, round, domain and metric.

Numbers are recounted from predictions.npz; a folder with contradictory files is in `left_out`.
"""

import contextlib
import functools
import gc
import itertools
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.cells import VERSION_COLUMNS, FoundCell, read_folder
from ctta_bench.record.bulk import gc_paused
from ctta_bench.record.find import find_cells
from ctta_bench.record.schema import BATCHES_FILE, BatchLine
from ctta_bench.registry import MEASURES, METRICS, load_plugin, loaded_plugins

# fmt: off
RESULT_COLUMNS = [
    "experiment", "cell", "method", "preset", "benchmark", "setting", "model", "preprocessing",
    "precision", "seed", "round", "domain", "metric", "value",
]
COST_COLUMNS = [
    "trainable_parameters", "extra_state_bytes", "forward_per_image", "backward_per_image",
    "seconds", "images_per_second", "peak_memory_mb",
]
CELL_COLUMNS = [
    "cell", "path", "experiment", "method", "preset", "hyperparameters", "window", "benchmark",
    "setting", "model", "model_sha256", "preprocessing", "normalisation", "precision", "seed",
    "batch_size", "examples", "rounds", "severity", "domains", "details", "group", "state",
    "reason", "starts_from", "warmup", "source_access", "metric", "classes", "skipped_updates",
    "resets", "source_accuracy", "held_out_accuracy", "source_probes", "order_sha256",
    "same_images", "corruptions", "notes", "tuned", "micro_mean", "benchmark_version",
    *COST_COLUMNS, *VERSION_COLUMNS,
]
DOMAIN_COLUMNS = ["cell", "round", "domain", "n", "errors", "classes", "collapsed"]
# fmt: on
_MISSING = dict.fromkeys(CELL_COLUMNS)
_OF_VALUE = ["round", "domain", "metric"]  # of RESULT_COLUMNS; the others are of the cell
_FEWEST = 500  # folders for a process: its start takes as long as reading that many
_AT_ONCE = 500  # most folders per message to a process: with fewer it waits for this one


@dataclass(frozen=True, eq=False)  # == of frames gives no bool
class Runs:
    """The runs below a directory.

    cells: one row per cell, finished or not; `group` is a hash of everything that must be equal for
    two rows to share a table (benchmark with all its settings, weights, pre-processing, precision).
    results: finished cells only, with the columns of results.csv; error, ece, mIoU and the
    `iou/CLASS` of each class are in %; NaN where there was nothing to score. micro_mean: the
    headline metric of the cell over all its images, whatever their domain. domains: images,
    errors (wrong pixels for mIoU) and whether predictions collapsed, per cell, round and domain.
    left_out: folders that could not be used, with the reason.
    """

    cells: pd.DataFrame
    results: pd.DataFrame
    domains: pd.DataFrame
    left_out: list[tuple[Path, str]]

    def groups(self) -> list["Runs"]:
        """The runs split into groups that share a table, sorted by benchmark and setting.

        Example: `[group.cells["benchmark"].iloc[0] for group in load(directory).groups()]`
        """
        keys = ["benchmark", "setting", "severity", "model", "preprocessing", "group"]
        order = self.cells[keys].astype(str).drop_duplicates().sort_values(keys)
        return [self._where(self.cells["group"] == group) for group in order["group"]]

    def finished(self) -> "Runs":
        """Only the finished cells, with their results."""
        return self._where(self.cells["state"] == "done")

    def _where(self, mask: "pd.Series[bool]") -> "Runs":
        cells = self.cells[mask].reset_index(drop=True)
        return replace(
            self,
            cells=cells,
            results=self.results[self.results["cell"].isin(cells["cell"])],
            domains=self.domains[self.domains["cell"].isin(cells["cell"])],
        )


def load(directory: str | Path, workers: int = 1) -> Runs:
    """Read every run folder at most three levels below `directory`.

    Example: `load("runs/quickstart").results.query("metric == 'error'")`

    `workers` is the number of processes that read, used with at least 500 folders for each.
    Unfinished cells are only in `cells`, with their state. Folders that cannot be used are in
    `left_out`. Raises RunError if the directory does not exist.
    """
    folders, left_out = find_cells(Path(directory))
    found: dict[str, FoundCell] = {}
    with gc_paused():
        with _reader(len(folders), workers) as read:
            for folder, cell in zip(folders, read(folders), strict=True):
                if isinstance(cell, str):
                    left_out.append((folder, cell))
                elif cell is not None:
                    _add(found, folder, cell, left_out)
        rows = [cell.row for cell in found.values()]
        complete = map(operator.itemgetter(*CELL_COLUMNS), (_MISSING | row for row in rows))
        columns = zip(*complete, strict=True) if rows else [()] * len(CELL_COLUMNS)
        return Runs(
            cells=pd.DataFrame(dict(zip(CELL_COLUMNS, columns, strict=True))),
            results=_results(found),
            domains=_domains(found),
            left_out=left_out,
        )


@contextlib.contextmanager
def _reader(
    count: int, workers: int
) -> Iterator[Callable[[list[Path]], Iterable[FoundCell | str | None]]]:
    """A function that reads folders in their order, in one or several processes."""
    workers = min(workers, count // _FEWEST)
    if workers < 2:
        yield functools.partial(map, read_folder)
        return
    # Not forked, because this process may have threads. The child imports no pandas.
    with ProcessPoolExecutor(
        workers,
        mp_context=get_context("spawn"),
        initializer=_begin_reading,
        initargs=(_scoring_plugins(),),
    ) as pool:
        yield functools.partial(
            pool.map, read_folder, chunksize=max(1, min(_AT_ONCE, count // (8 * workers)))
        )


def _scoring_plugins() -> list[str]:
    """The plug-ins with a metric or a measure: files by their absolute paths."""
    owners = {e.module for entries in (METRICS, MEASURES) for e in entries.entries().values()}
    loaded = loaded_plugins().items()
    return [
        str(module.__file__) if name.endswith(".py") else name
        for name, module in loaded
        if module.__name__ in owners
    ]


def _begin_reading(plugins: Sequence[str]) -> None:
    """In each process: load plug-ins with metrics; no garbage collection while reading."""
    gc.disable()
    for plugin in plugins:
        load_plugin(plugin)


def _add(
    found: dict[str, FoundCell], folder: Path, cell: FoundCell, left_out: list[tuple[Path, str]]
) -> None:
    """Store a cell under its name; of two copies the finished one, else the first."""
    name = cell.row["cell"]
    other = found.get(name)
    if other is not None:
        is_better = cell.row["state"] == "done" != other.row["state"]
        earlier = Path(other.row["path"])
        dropped, used = (earlier, folder) if is_better else (folder, earlier)
        left_out.append((dropped, f"the same cell as {used}, which is used"))
        if not is_better:
            return
    found[name] = cell


def batches(cell_path: Path | str) -> pd.DataFrame:
    """batches.jsonl of a cell, one row per batch; incomplete or damaged lines are dropped.

    Example: `batches("runs/quickstart/CELL")["errors"].sum()`

    Of a batch that ran twice (a resume after a crash), the last run counts.
    """
    rows: dict[int, dict[str, Any]] = {}
    for line in (Path(cell_path) / BATCHES_FILE).read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.keys() >= BatchLine.__required_keys__:
            rows[row["batch"]] = row
    frame: pd.DataFrame = pd.DataFrame([rows[number] for number in sorted(rows)])
    return frame


def _results(found: Mapping[str, FoundCell]) -> pd.DataFrame:
    """One row per value."""
    done = [(cell.row, cell.result) for cell in found.values() if cell.result is not None]
    shared = [name for name in RESULT_COLUMNS if name not in (*_OF_VALUE, "value")]
    of_cell = {name: [row[name] for row, _ in done] for name in shared}
    frame = _repeated(of_cell, _OF_VALUE, [r.metrics for _, r in done])
    frame["value"] = np.concatenate([r.values for _, r in done] or [np.zeros(0)])
    return frame[RESULT_COLUMNS]


def _domains(found: Mapping[str, FoundCell]) -> pd.DataFrame:
    """One row per visit of a domain."""
    done = {name: cell.result for name, cell in found.items() if cell.result is not None}
    frame = _repeated({"cell": [*done]}, DOMAIN_COLUMNS[1:3], [r.visits for r in done.values()])
    counts = np.concatenate([r.counts for r in done.values()] or [np.zeros((0, 4), int)])
    for name, column in zip(DOMAIN_COLUMNS[3:], counts.T, strict=True):
        frame[name] = column
    return frame.astype({"collapsed": bool})


def _repeated(
    of_cell: Mapping[str, list[Any]],
    columns: list[str],
    names: Sequence[tuple[tuple[Any, ...], ...]],
) -> pd.DataFrame:
    """The values of each cell, repeated for each of its names, with the names in `columns`.

    The cells of a grid have the same names, so these become a frame once, and rows of it are taken:
    building a frame of many cells row by row takes longer than reading the cells.
    """
    lengths = [len(part) for part in names]
    kinds = dict.fromkeys(names, 0)
    start = 0
    for part in kinds:
        kinds[part] = start
        start += len(part)
    starts = np.array([kinds[part] for part in names], int)
    number = np.repeat(np.arange(len(names)), lengths)
    within = np.arange(len(number)) - np.repeat(np.cumsum(lengths, dtype=int) - lengths, lengths)
    frame = pd.DataFrame(of_cell).take(number)
    frame.index = pd.RangeIndex(len(frame))
    labels = pd.DataFrame([*itertools.chain.from_iterable(kinds)], columns=columns)
    place = np.repeat(starts, lengths) + within
    for name in columns:
        frame[name] = labels[name].array.take(place)
    return frame
