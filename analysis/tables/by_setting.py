"""One benchmark and model under several settings of the stream: a column for each of them."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import metric_of, row_names, rows
from ctta_bench.analysis.table.table import Table, ranked, safe_name
from ctta_bench.registry import BENCHMARKS, MODELS, TABLES
from ctta_bench.scoring.metric import EQUAL_DECIMALS
from ctta_bench.stream.settings import setting_display_name

FEWEST = 2  # settings of a table
_FAMILY = ["benchmark", "benchmark_version", "model", "model_sha256", "preprocessing", "precision"]
# What follows the name of the setting in a head, where it differs between columns.
_PARTS = {"batch_size": "batch {}", "severity": "severity {}", "examples": "{} images"}


@TABLES.register_module("settings", place=20, of="all", heading="By setting")
def setting_tables(runs: Runs) -> list[Table]:
    """A table for each benchmark and model that was run under at least two settings.

    A column is a setting, with batch size, severity and number of images where these differ as
    well. Groups that differ only in something else (the order of the domains, say) make no table.
    """
    tables = []
    for _, cells in runs.cells.groupby(_FAMILY, sort=False):
        groups = [g for g in runs.groups() if g.cells["group"].iloc[0] in set(cells["group"])]
        columns = dict(zip(_names(groups), groups, strict=False))
        if len(columns) == len(groups) and cells["setting"].nunique() >= FEWEST:
            names, labels = row_names(cells.reset_index(drop=True))
            name_of = dict(zip(cells["cell"], names, strict=True))
            means = pd.DataFrame({head: _means(g, name_of) for head, g in columns.items()})
            if not means.dropna(axis=1, how="all").empty:
                tables.append(_table(groups[0], means, labels))
    return tables


def _names(groups: list[Runs]) -> list[str]:
    """A head for each group: its setting, and what of _PARTS differs among them."""
    cells = [group.cells.iloc[0] for group in groups]
    differing = [key for key in _PARTS if len({str(cell[key]) for cell in cells}) > 1]
    return [
        ", ".join(
            [
                setting_display_name(cell["setting"]),
                *(_PARTS[key].format(cell[key]) for key in differing),
            ]
        )
        for cell in cells
    ]


def _means(group: Runs, name_of: Mapping[str, str]) -> "pd.Series[float]":
    """Means of one group by the row names of the whole family, which are given by cell."""
    means = {name_of[row.cells["cell"].iloc[0]]: row.mean for row in rows(group)}
    return pd.Series(means, dtype=float)


def _table(group: Runs, means: pd.DataFrame, labels: Mapping[str, str]) -> Table:
    cell, metric = group.cells.iloc[0], metric_of(group)
    # A row with a missing mean is placed by the others.
    place = means.round(EQUAL_DECIMALS).rank(ascending=not metric.higher_is_better).mean(axis=1)
    frame = means.loc[place.sort_values(kind="stable").index]
    columns = [ranked(frame[name], metric.higher_is_better) for name in frame.columns]
    return Table(
        name=safe_name(f"{cell['benchmark']}-{cell['model']}") + "-settings",
        caption=(
            f"By setting: {BENCHMARKS.display_name(cell['benchmark'])} – "
            f"{MODELS.display_name(cell['model'])}. Normalisation: "
            f"{notes.normalisation_label(cell)}. Mean {metric.text} over domains, rounds and "
            f"seeds. Rows are sorted by their mean rank over the settings. {notes.MARKS}"
        ),
        frame=frame,
        header=("method", *frame.columns),
        lines=tuple(
            (labels[str(name)], tuple(entries[line] for entries in columns))
            for line, name in enumerate(frame.index)
        ),
        footnotes=tuple(dict.fromkeys(_missing(means, labels))),
        unit=metric.head,
    )


def _missing(means: pd.DataFrame, labels: Mapping[str, str]) -> list[str]:
    return [
        f"{labels[str(name)]}: no complete result under {', '.join(heads)}."
        for name, values in means.iterrows()
        if (heads := [str(head) for head, value in values.items() if np.isnan(value)])
    ]
