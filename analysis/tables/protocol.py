"""The protocols of a report, and the results of each seed."""

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
from ctta_bench.registry import BENCHMARKS, METHODS, MODELS, TABLES
from ctta_bench.stream.settings import setting_display_name

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
# Always in the table, not in the caption.
_ALWAYS = ("weights", "metric", "seeds", "cells done")
_NOT_PRINTED = ("pre-processing",)  # `normalisation` has the same information
_HASH_DIGITS = 8


@TABLES.register_module("protocols", place=10, of="all", heading="Protocols")
def protocol_table(runs: Runs) -> Table:
    """Every setting under which runs were made: one row for each group that shares a table.

    Settings that all groups share are in the caption. The frame holds all of them, as text, with a
    row for each `group` of `Runs.cells`; severity and examples are empty where the benchmark has no
    severity and where all images are taken.
    """
    groups = runs.groups()
    names = [str(group.cells["group"].iloc[0]) for group in groups]
    stored = [_settings(group) for group in groups]
    printed: pd.DataFrame = pd.DataFrame(
        [values | _display(group) for group, values in zip(groups, stored, strict=True)]
    ).drop(columns=[*_NOT_PRINTED])
    shared = [head for head in printed if head not in _ALWAYS and printed[head].nunique() == 1]
    common = "; ".join(f"{k}: {printed[k].iloc[0]}" for k in shared if printed[k].iloc[0])
    printed = printed.drop(columns=shared)
    return Table(
        name="protocols",
        caption="The protocols of these runs. Results of different protocols are never in one "
        "table. Weights: first digits of the SHA-256."
        + (f" The same in all protocols: {common}." if common else ""),
        frame=pd.DataFrame(stored, index=names),
        header=("protocol", *printed.columns),
        lines=tuple(
            (str(number), tuple(map(Entry, line)))
            for number, line in enumerate(printed.to_numpy().tolist(), 1)
        ),
    )


@TABLES.register_module("seeds", place=80, heading="Seed by seed")
def seed_table(runs: Runs) -> Table | None:
    """The mean of each method of one group for each seed; None with a single seed."""
    found = in_axis_order(rows(runs))
    seeds = sorted({int(seed) for row in found for seed in row.finished["seed"]})
    if len(seeds) < 2:
        return None
    frame = pd.DataFrame(
        [_by_seed(row, seeds) for row in found],
        index=[row.name for row in found],
        columns=[f"seed {seed}" for seed in seeds],
    )
    metric = metric_of(runs)
    columns = [ranked(frame[name], metric.higher_is_better) for name in frame.columns]
    return Table(
        name=f"{notes.table_name(runs)}-seeds",
        caption=(
            f"Seed by seed: {notes.title(runs)}. Mean {metric.text} "
            f"{notes.averaged(runs, 'domains', 'rounds')}. The seed determines the order of the "
            f"images and the random numbers of the method. {notes.MARKS}"
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
    """The methods that ran only under another protocol, with the settings that differ.

    They have the experiments, benchmark and model of the group, but no row in its table.
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
        parts.append(
            f"{METHODS.display_name(str(method))} ({', '.join(differing) or 'several settings'})"
        )
    if not parts:
        return ()
    return (f"Not in this table, because run under another protocol: {listed(parts)}.",)


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


def _display(group: Runs) -> dict[str, str]:
    """The settings that are printed in other words than they are stored."""
    cell = group.cells.iloc[0]
    return {
        "benchmark": BENCHMARKS.display_name(cell["benchmark"]),
        "setting": setting_display_name(cell["setting"]),
        "model": MODELS.display_name(cell["model"]),
        "normalisation": notes.normalisation_label(cell),
    }


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return MISSING if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)
