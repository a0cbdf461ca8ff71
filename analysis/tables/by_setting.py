"""One benchmark and model under several settings of the stream: a column for each of them."""

from collections.abc import Callable, Mapping
from typing import Any

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
_PARTS: Mapping[str, Callable[[Any], str]] = {
    "batch_size": "batch {}".format,
    "severity": notes.severity_text,
    "examples": "{} images".format,
}


@TABLES.register_module("settings", place=20, of="all", heading="By setting")
def setting_tables(runs: Runs) -> list[Table]:
    """A table for each benchmark and model that was run under at least two settings.

    A column is a setting, with batch size, severity and number of images where these differ as
    well. Groups that differ only in something else (the order of the domains, say) make no table.
    """
    tables = []
    for columns in settings_of(runs):
        name_of, labels = names_of(columns)
        means = pd.DataFrame({head: _means(g, name_of) for head, g in columns.items()})
        if not means.dropna(axis=1, how="all").empty:
            tables.append(_table(columns, means, labels))
    return tables


def settings_of(runs: Runs) -> list[dict[str, Runs]]:
    """The groups of each benchmark and model that was run under several settings, by their heads.

    A head is the setting, with batch size, severity and number of images where these differ from
    most of the groups. Within a setting they rise.
    """
    found = []
    for _, cells in runs.cells.groupby(_FAMILY, sort=False):
        order = list(dict.fromkeys(cells["setting"]))
        groups = sorted(
            (g for g in runs.groups() if g.cells["group"].iloc[0] in set(cells["group"])),
            key=lambda group: _place(group.cells.iloc[0], order),
        )
        columns = dict(zip(_heads(groups), groups, strict=False))
        if len(columns) == len(groups) and cells["setting"].nunique() >= FEWEST:
            found.append(columns)
    return found


def names_of(columns: Mapping[str, Runs]) -> tuple[dict[str, str], dict[str, str]]:
    """The row name of each cell, and the label of each row, over all settings."""
    cells = pd.concat([group.cells for group in columns.values()], ignore_index=True)
    names, labels = row_names(cells)
    return dict(zip(cells["cell"], names, strict=True)), labels


def shared(columns: Mapping[str, Runs]) -> str:
    """`Where a head says nothing else: batch 50. `; "" if all agree, or no value is usual."""
    groups = list(columns.values())
    usual = [_PARTS[key](value) for key, value in _usual(groups).items() if value is not None]
    return f"Where a head says nothing else: {', '.join(usual)}. " if usual else ""


def _place(cell: "pd.Series[Any]", order: list[str]) -> tuple[Any, ...]:
    """What the columns are sorted by: the setting, then what follows it in a head."""
    numbers = pd.to_numeric(cell[list(_PARTS)], errors="coerce").fillna(np.inf)
    return order.index(cell["setting"]), *numbers


def _heads(groups: list[Runs]) -> list[str]:
    """A head for each group: its setting, and what of _PARTS is unlike that of most of them."""
    usual = _usual(groups)
    return [
        ", ".join(
            [
                setting_display_name(cell["setting"]),
                *(_PARTS[key](cell[key]) for key in usual if cell[key] != usual[key]),
            ]
        )
        for cell in (group.cells.iloc[0] for group in groups)
    ]


def _usual(groups: list[Runs]) -> dict[str, Any]:
    """What of _PARTS differs among groups, with the value of more than half of them, or None."""
    cells = pd.DataFrame([group.cells.iloc[0] for group in groups])
    counts = {key: cells[key].value_counts(dropna=False) for key in _PARTS}
    return {
        key: count.index[0] if 2 * count.iloc[0] > len(cells) else None
        for key, count in counts.items()
        if len(count) > 1
    }


def _means(group: Runs, name_of: Mapping[str, str]) -> "pd.Series[float]":
    """Means of one group by the row names of the whole family, which are given by cell."""
    means = {name_of[row.cells["cell"].iloc[0]]: row.mean for row in rows(group)}
    return pd.Series(means, dtype=float)


def _table(columns: Mapping[str, Runs], means: pd.DataFrame, labels: Mapping[str, str]) -> Table:
    group = next(iter(columns.values()))
    cell, metric = group.cells.iloc[0], metric_of(group)
    # A row with a missing mean is placed by the others.
    place = means.round(EQUAL_DECIMALS).rank(ascending=not metric.higher_is_better).mean(axis=1)
    frame = means.dropna(how="all").loc[place.dropna().sort_values(kind="stable").index]
    entries_of = [ranked(frame[name], metric.higher_is_better) for name in frame.columns]
    return Table(
        name=safe_name(f"{cell['benchmark']}-{cell['model']}") + "-settings",
        caption=(
            f"By setting: {BENCHMARKS.display_name(cell['benchmark'])} – "
            f"{MODELS.display_name(cell['model'])}. Normalisation: "
            f"{notes.normalisation_label(cell)}. Mean {metric.text} over domains, rounds and "
            f"seeds. {shared(columns)}Rows are sorted by their mean rank over the settings. "
            f"{notes.MARKS}"
        ),
        frame=frame,
        header=("method", *frame.columns),
        lines=tuple(
            (labels[str(name)], tuple(entries[line] for entries in entries_of))
            for line, name in enumerate(frame.index)
        ),
        footnotes=tuple(dict.fromkeys(_missing(means, labels))),
        unit=metric.head,
    )


def _missing(means: pd.DataFrame, labels: Mapping[str, str]) -> list[str]:
    absent = [labels[str(name)] for name in means.index[means.isna().all(axis=1)]]
    return [f"No complete result: {', '.join(absent)}."] * bool(absent) + [
        f"{labels[str(name)]}: no complete result under {', '.join(heads)}."
        for name, values in means.dropna(how="all").iterrows()
        if (heads := [str(head) for head, value in values.items() if np.isnan(value)])
    ]
