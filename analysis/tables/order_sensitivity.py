"""How much a result owes to the order of the domains: runs that differ in it alone."""

import re

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import metric_of, row_labels, rows
from ctta_bench.analysis.table.table import MISSING, Entry, Table, ranked
from ctta_bench.registry import TABLES

FEWEST = 2  # orders that tell something
RANDOM = "random"  # an order of its own for each seed
_ORDER = re.compile(r"(?:, )?domain_order (\w+)")
# What must agree for cells of several orders to stand in one row.
_FAMILY = [
    "benchmark", "setting", "model", "model_sha256", "preprocessing", "precision", "examples",
    "rounds", "severity", "batch_size",
]  # fmt: skip


@TABLES.register_module("orders", place=30, of="all")
def order_tables(runs: Runs) -> list[Table]:
    """A table for each benchmark and model that was run in at least two orders of its domains.

    Each order counts once, with the mean over its seeds; an order drawn by the seed is one order a
    seed, and its deviation then holds what else the seed changes.
    """
    if runs.cells.empty:
        return []
    family = _families(runs.cells)
    tables = []
    for name in dict.fromkeys(family):
        members = [group for group in runs.groups() if (_families(group.cells) == name).all()]
        means = _means(members)
        if not means.empty and means.groupby("label")["order"].nunique().max() >= FEWEST:
            tables.append(_table(members[0], means))
    return tables


def order_of(details: str, domains: tuple[str, ...], seed: int) -> str:
    """The order of a cell's domains, by its name, by its seed where drawn, else as they stand."""
    named = _ORDER.search(details)
    if named is None:
        return ", ".join(domains)
    return f"{RANDOM} {seed}" if named[1] == RANDOM else named[1]


def _families(cells: pd.DataFrame) -> "pd.Series[str]":
    others = cells["details"].map(lambda text: _ORDER.sub("", text))
    domains = cells["domains"].map(lambda names: ",".join(sorted(names)))
    keys = pd.concat([cells[_FAMILY], others, domains], axis=1).map(str)
    family: pd.Series[str] = keys.agg("|".join, axis=1)
    return family


def _means(members: list[Runs]) -> pd.DataFrame:
    """Columns label, order and mean: one line per method and order."""
    together = pd.concat([group.cells for group in members])
    labels = row_labels(together.reset_index(drop=True))
    label_of = dict(zip(together["cell"], labels, strict=True))
    lines = [
        {
            "label": label_of[cell["cell"]],
            "order": order_of(cell["details"], cell["domains"], cell["seed"]),
            "mean": mean,
        }
        for group in members
        for row in rows(group)
        for (_, cell), mean in zip(row.finished.iterrows(), row.seed_means, strict=True)
        if not np.isnan(mean)
    ]
    seeds: pd.DataFrame = pd.DataFrame(lines, columns=["label", "order", "mean"])
    return seeds.groupby(["label", "order"]).agg({"mean": "mean"}).reset_index()


def _table(group: Runs, means: pd.DataFrame) -> Table:
    metric = metric_of(group)
    of_label = means.groupby("label")["mean"]
    frame = pd.DataFrame(
        {
            "orders": of_label.count(),
            "mean": of_label.mean(),
            "std": of_label.std(ddof=1),
            "best": of_label.max() if metric.higher_is_better else of_label.min(),
            "worst": of_label.min() if metric.higher_is_better else of_label.max(),
        }
    )
    frame = frame.sort_values("mean", ascending=not metric.higher_is_better)
    entries = ranked(frame["mean"], metric.higher_is_better)
    return Table(
        name=f"{notes.table_name(group)}-orders",
        caption=(
            f"Over orders of the domains: {notes.title(group)}. Mean {metric.text} over "
            f"{int(frame['orders'].max())} orders, its standard deviation over them, and the best "
            "and the worst of them."
        ),
        frame=frame,
        header=("method", "orders", "mean", "std over orders", "best order", "worst order"),
        lines=tuple(
            (str(label), _line(entry, frame.loc[label]))
            for label, entry in zip(frame.index, entries, strict=True)
        ),
    )


def _line(mean: Entry, values: "pd.Series[float]") -> tuple[Entry, ...]:
    spread = MISSING if np.isnan(values["std"]) else f"{values['std']:.2f}"
    rest = (spread, f"{values['best']:.1f}", f"{values['worst']:.1f}")
    return (Entry(f"{values['orders']:.0f}"), mean, *map(Entry, rest))
