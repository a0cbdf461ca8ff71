"""The cost of very large grids: expanding, planning, status and collecting, on synthetic cells.

A small cell is run once, and its folder is copied for each seed: files that differ are written,
the others are linked. Every step is timed in its own process. Times are seconds of the processor,
because other processes would lengthen those of a clock; collecting uses several cores, and its time
is divided by their number. Exit code 1 if status takes more than 5 s, collecting more than 30 s, or
any step more than 4 GB, each in proportion for fewer cells than 100,000.
"""

import argparse
import contextlib
import io
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctta_bench.record.schema import CELL_FILE, LOCK_FILE, PREDICTIONS_FILE, RESULT_FILE

WHOLE = 100_000
# Limits of each step for so many cells: seconds of the processor, GB of memory.
LIMITS = {"expand": (None, 4.0), "plan": (None, 4.0), "status": (5.0, 4.0), "collect": (30.0, 4.0)}
START_GB = 1.5  # libraries, whatever the number of cells


def write_cells(cells: int, runs: Path) -> None:
    """Write synthetic run folders; nine in ten are done."""
    from ctta_bench.config.cell import CellRequest, resolve
    from ctta_bench.record.folder import RunFolder
    from ctta_bench.run.engine import run_cell

    settings = {"benchmark.examples": 20, "benchmark.batch_size": 20}
    cell = resolve(CellRequest(method="tent", benchmark="fashion_c", set=settings))
    first = runs.parent / "one" / cell.id
    run_cell(cell, RunFolder(first))
    record, result = ((first / name).read_text() for name in (CELL_FILE, RESULT_FILE))
    linked = [f for f in first.iterdir() if f.name not in (CELL_FILE, RESULT_FILE, LOCK_FILE)]
    for seed in range(cells):
        name = f"tent-fashion_c-fashion_vit-seed{seed}-{seed:08x}"
        folder = runs / name
        folder.mkdir(parents=True)
        text = record.replace(cell.id, name).replace("\nseed: 0\n", f"\nseed: {seed}\n")
        (folder / CELL_FILE).write_text(text)
        done = bool(seed % 10)
        for file in linked if done else [f for f in linked if f.name != PREDICTIONS_FILE]:
            _link(file, folder / file.name, seed)
        if done:
            (folder / RESULT_FILE).write_text(result.replace(cell.id, name))


def _link(file: Path, place: Path, seed: int) -> None:
    """Make a hard link; every 10,000 share a copy, because file systems limit their number."""
    source = file.with_name(f"{file.name}.{seed // 10_000}")
    if not source.exists():
        source.write_bytes(file.read_bytes())
    os.link(source, place)


def expand(cells: int, runs: Path) -> None:
    """Expand a grid, and compute the identity of each cell."""
    from ctta_bench.record.schema import identity

    found = _expanded(cells)
    assert len({identity(cell.record) for cell in found}) == cells


def _expanded(cells: int) -> list[Any]:
    from ctta_bench.config.experiment import Experiment, expand

    asked = {"methods": [{"name": "tent"}], "benchmarks": ["fashion_c"], "seeds": range(cells)}
    return expand(Experiment.model_validate({"name": "many", **asked}))


def plan(cells: int, runs: Path) -> None:
    """Expand a grid, write its cells and its launch, and divide it into arrays."""
    from ctta_bench.launch.plan import Launch
    from ctta_bench.launch.steps import (
        arrays,
        in_order,
        pack,
        schedule,
        wave_of,
        write_planned,
    )

    steps = in_order(schedule(_expanded(cells)))
    directory = runs.parent / "planned"
    write_planned(steps, directory)
    packs = pack(steps, 4)
    Launch.create(directory, steps, packs, executor="slurm", shared=False)
    found = arrays([wave_of(steps[start]) for start, _ in packs], 1001, 50)
    assert sum(len(array.packs) for array in found) == len(packs)


def status(cells: int, runs: Path) -> None:
    """`ctta-bench status`."""
    from ctta_bench.cli import app

    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
        app(["status", str(runs)])
    assert f"{cells - cells // 10} of {cells} done" in output.getvalue()


def collect(cells: int, runs: Path) -> None:
    """Read the runs as `ctta-bench report` does, in as many processes."""
    from ctta_bench.analysis.read.collect import load

    found = load(runs, workers=os.cpu_count() or 1)
    assert (len(found.cells), found.left_out) == (cells, [])


def measured(work: Callable[[int, Path], None], cells: int, runs: Path) -> tuple[float, ...]:
    """Seconds of the processor and of the clock, and GB of memory, of a step in its own process."""
    results: Any = multiprocessing.get_context("spawn").SimpleQueue()
    process = multiprocessing.get_context("spawn").Process(
        target=_measure, args=(work.__name__, cells, runs, results)
    )
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{work.__name__}: ended with exit code {process.exitcode}")
    found: tuple[float, ...] = results.get()
    return found


def _measure(name: str, cells: int, runs: Path, results: Any) -> None:
    began = time.monotonic()
    globals()[name](cells, runs)
    wall = time.monotonic() - began
    own, others = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    spent = own.ru_utime + own.ru_stime
    children = others.ru_utime + others.ru_stime
    cores = len(os.sched_getaffinity(0)) if children > spent / 4 else 1
    results.put(((spent + children) / cores, wall, (own.ru_maxrss + others.ru_maxrss) / 2**20))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--cells", type=int, default=WHOLE)
    parser.add_argument("--steps", nargs="+", default=list(LIMITS), choices=LIMITS)


def run(chosen: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    cells, late = chosen.cells, False
    with tempfile.TemporaryDirectory() as place:
        runs = Path(place) / "many"
        measured(write_cells, cells, runs)
        print(f"{cells:,} cells, nine in ten done   processor s   clock s   memory GB")
        for work in (globals()[name] for name in chosen.steps):
            seconds, wall, memory = measured(work, cells, runs)
            most, room = LIMITS[work.__name__]
            share = cells / WHOLE
            over = most is not None and seconds > 3.0 + most * share  # 3 s for imports
            over |= memory > START_GB + (room or 0) * share
            late |= over
            row = f"{work.__name__:30} {seconds:13.1f} {wall:9.1f} {memory:11.2f}"
            print(row + ("  over" if over else ""))
    return int(late)
