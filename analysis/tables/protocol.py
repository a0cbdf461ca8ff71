"""The protocols of a report side by side, and each seed by itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.missing import listed
from ctta_bench.analysis.table.rows import Row, domain_names, metric_of, rows
from ctta_bench.analysis.table.swept import in_axis_order
from ctta_bench.analysis.table.table import MISSING, Entry, Table, ranked
from ctta_bench.registry import TABLES

_SETTINGS = {  # head and the column of Runs.cells, in the order of print
    "benchmark": "benchmark",
    "setting": "setting",
    "severity": "severity",
    "model": "model",
    "weights": "model_sha256",
    "pre-processing": "preprocessing",
    "normalisation": "normalisation",
    "precision": "precision",
    "batch size": "batch_size",
    "images per domain": "examples",
    "domains": "domains",
    "rounds": "rounds",
    "other settings": "details",
}
_OF_RUNS = ("metric", "seeds", "cells done")  # always in the table
_HASH_DIGITS = 8


@TABLES.register_module("protocols", place=10, of="all")
def protocol_table(runs: Runs) -> Table:
    """Every setting under which runs were made: one row for each group that shares a table.

    Settings that all groups share stand in the caption. The frame holds every one, as text;
    severity and examples are empty where the benchmark has no severity and where all images are
    taken.
    """
    groups = runs.groups()
    names = [str(group.cells["group"].iloc[0]) for group in groups]
    frame: pd.DataFrame = pd.DataFrame([_settings(group) for group in groups], index=names)
    shared = [head for head in frame.columns if head not in _OF_RUNS and _is_shared(frame[head])]
    shown = [head for head in frame.columns if head not in shared]
    common = "; ".join(f"{head} {frame[head].iloc[0]}" for head in shared if frame[head].iloc[0])
    return Table(
        name="protocols",
        caption="The protocols of these runs; results of two protocols never share a table."
        + (f" Of all: {common}." if common else ""),
        frame=frame,
        header=("protocol", *shown),
        lines=tuple(
            (name, tuple(Entry(text) for text in line))
            for name, line in zip(names, frame[shown].to_numpy().tolist(), strict=True)
        ),
    )


def _is_shared(texts: "pd.Series[str]") -> bool:
    return texts.nunique() == 1


@TABLES.register_module("seeds", place=80)
def seed_table(runs: Runs) -> Table | None:
    """The mean of each method of one group seed by seed; None where there is a single seed."""
    found = in_axis_order(rows(runs))
    seeds = sorted({int(seed) for row in found for seed in row.finished["seed"]})
    if len(seeds) < 2:
        return None
    frame = pd.DataFrame(
        [_by_seed(row, seeds) for row in found],
        index=[row.label for row in found],
        columns=[f"seed {seed}" for seed in seeds],
    )
    metric = metric_of(runs)
    columns = [ranked(frame[name], metric.higher_is_better) for name in frame.columns]
    return Table(
        name=f"{notes.table_name(runs)}-seeds",
        caption=(
            f"Seed by seed: {notes.title(runs)}. Mean {metric.text}; the seed orders the images "
            "and seeds the method."
        ),
        frame=frame,
        header=("method", *frame.columns),
        lines=tuple(
            (row.label, tuple(entries[line] for entries in columns))
            for line, row in enumerate(found)
        ),
        unit=metric.head,
    )


def methods_left_out(runs: Runs, group: Runs) -> tuple[str, ...]:
    """Why methods have no row in a group's table: they ran under another protocol.

    Methods of the same experiments, benchmark and model that are in other groups alone.
    """
    here = group.cells.iloc[0]
    others = runs.cells[
        runs.cells["experiment"].isin(group.cells["experiment"])
        & (runs.cells["benchmark"] == here["benchmark"])
        & (runs.cells["model"] == here["model"])
        & ~runs.cells["method"].isin(group.cells["method"])
    ]
    parts = []
    for method, cells in others.groupby("method"):
        differing = [
            head
            for head, column in _SETTINGS.items()
            if all(_text(value) != _text(here[column]) for value in cells[column])
        ]
        parts.append(f"{method} ({', '.join(differing) or 'several settings'})")
    if not parts:
        return ()
    return (f"Not in this table, for they ran under another protocol: {listed(parts)}.",)


def _by_seed(row: Row, seeds: Sequence[int]) -> list[float]:
    of_seed = dict(zip(row.finished["seed"], row.seed_means, strict=True))
    return [float(of_seed.get(seed, np.nan)) for seed in seeds]


def _settings(group: Runs) -> dict[str, str]:
    cell = group.cells.iloc[0]
    shown = {head: _text(cell[column]) for head, column in _SETTINGS.items()}
    shown["weights"] = shown["weights"][:_HASH_DIGITS]
    shown["domains"] = str(len(domain_names(group)))
    shown["images per domain"] = "all" if pd.isna(cell["examples"]) else f"{cell['examples']:g}"
    done = int((group.cells["state"] == "done").sum())
    return {
        **shown,
        "metric": metric_of(group).symbol,
        "seeds": ", ".join(map(str, sorted(group.cells["seed"].unique()))),
        "cells done": f"{done}/{len(group.cells)}",
    }


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return MISSING if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)
