"""One benchmark and model under several settings of the stream: a column for each of them."""

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.rows import metric_of, row_labels, rows
from ctta_bench.analysis.table.table import Table, ranked, safe_name
from ctta_bench.registry import TABLES

FEWEST = 2  # settings that there is something to compare of
_FAMILY = ["benchmark", "model", "model_sha256", "preprocessing", "precision"]
# What tells two columns apart, and how it is said; a setting's own name always stands first.
_PARTS = {"batch_size": "batch {}", "severity": "severity {}", "examples": "{} images"}


@TABLES.register_module("settings", place=20, of="all")
def setting_tables(runs: Runs) -> list[Table]:
    """A table for each benchmark and model that was run under at least two settings.

    Settings are protocols by name, and with them batch sizes, severities and numbers of images
    where these differ, too. Where groups differ in nothing but other settings (orders of the
    domains, say), there is no table.
    """
    tables = []
    for _, cells in runs.cells.groupby(_FAMILY, sort=False):
        groups = [g for g in runs.groups() if g.cells["group"].iloc[0] in set(cells["group"])]
        columns = dict(zip(_names(groups), groups, strict=False))
        if len(columns) == len(groups) and cells["setting"].nunique() >= FEWEST:
            means = pd.DataFrame({name: _means(group, cells) for name, group in columns.items()})
            if not means.dropna(axis=1, how="all").empty:
                tables.append(_table(groups[0], means))
    return tables


def _names(groups: list[Runs]) -> list[str]:
    """A head for each group: its setting, and what of _PARTS differs among them."""
    cells = [group.cells.iloc[0] for group in groups]
    differing = [key for key in _PARTS if len({str(cell[key]) for cell in cells}) > 1]
    return [
        ", ".join([str(cell["setting"]), *(_PARTS[key].format(cell[key]) for key in differing)])
        for cell in cells
    ]


def _means(group: Runs, family: pd.DataFrame) -> "pd.Series[float]":
    """Means of one group by labels that hold in the whole family."""
    label_of = dict(zip(family["cell"], row_labels(family.reset_index(drop=True)), strict=True))
    means = {label_of[row.cells["cell"].iloc[0]]: row.mean for row in rows(group)}
    return pd.Series(means, dtype=float)


def _table(group: Runs, means: pd.DataFrame) -> Table:
    cell, metric = group.cells.iloc[0], metric_of(group)
    # Where a mean is missing, the others still say where a row belongs.
    place = means.rank(ascending=not metric.higher_is_better).mean(axis=1)
    frame = means.loc[place.sort_values(kind="stable").index]
    columns = [ranked(frame[name], metric.higher_is_better) for name in frame.columns]
    return Table(
        name=safe_name(f"{cell['benchmark']}-{cell['model']}") + "-settings",
        caption=(
            f"By setting: {cell['benchmark']}, model {cell['model']} "
            f"({cell['model_sha256'][:8]}), pre-processing {cell['preprocessing']}. Mean "
            f"{metric.text} over domains and seeds; rows in the order of their mean rank."
        ),
        frame=frame,
        header=("method", *frame.columns),
        lines=tuple(
            (str(label), tuple(entries[line] for entries in columns))
            for line, label in enumerate(frame.index)
        ),
        footnotes=tuple(dict.fromkeys(_missing(means))),
        unit=metric.head,
    )


def _missing(means: pd.DataFrame) -> list[str]:
    return [
        f"{label}: no complete result under {', '.join(names)}."
        for label, values in means.iterrows()
        if (names := [str(name) for name, value in values.items() if np.isnan(value)])
    ]
