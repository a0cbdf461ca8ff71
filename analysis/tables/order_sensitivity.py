"""How much results depend on the order of the domains: runs that differ only in it."""

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import metric_of, row_names, rows
from ctta_bench.analysis.table.table import MISSING, Entry, Table, in_order, ranked
from ctta_bench.registry import TABLES
from ctta_bench.scoring.metric import printed

FEWEST = 2  # orders of a table
RANDOM = "random"  # another order for each seed
_ORDER = re.compile(r"(?:, )?domain_order (\w+)")
# What the cells of a row have in common.
_FAMILY = [
    "benchmark", "setting", "model", "model_sha256", "preprocessing", "precision", "examples",
    "rounds", "severity", "batch_size",
]  # fmt: skip


@TABLES.register_module("orders", place=30, of="all", heading="Orders of the domains")
def order_tables(runs: Runs) -> list[Table]:
    """A table for each benchmark and model that was run in at least two orders of its domains.

    Each order counts once, with the mean over its seeds. With random orders each seed has another
    order, so the deviation over orders also contains the other effects of the seed.
    """
    if runs.cells.empty:
        return []
    groups = [(_families(group.cells).iloc[0], group) for group in runs.groups()]
    tables = []
    for name in dict.fromkeys(family for family, _ in groups):
        members = [group for family, group in groups if family == name]
        if len({order for group in members for order in _orders(group.cells)}) < FEWEST:
            continue
        names, labels = row_names(
            pd.concat([group.cells for group in members]).reset_index(drop=True)
        )
        means = _means(members, names)
        if not means.empty and means.groupby("name")["order"].nunique().max() >= FEWEST:
            tables.append(_table(members[0], means, labels))
    return tables


def order_of(details: str, domains: tuple[str, ...], seed: int) -> str:
    """The order of a cell's domains: its name, `random SEED`, or the domains in their order."""
    named = _ORDER.search(details)
    if named is None:
        return ", ".join(domains)
    return f"{RANDOM} {seed}" if named[1] == RANDOM else named[1]


def _orders(cells: pd.DataFrame) -> list[str]:
    """The order of each cell."""
    return [order_of(*cell) for cell in cells[["details", "domains", "seed"]].values]


def _families(cells: pd.DataFrame) -> "pd.Series[str]":
    others = cells["details"].map(lambda text: _ORDER.sub("", text))
    domains = cells["domains"].map(lambda names: ",".join(sorted(names)))
    keys = pd.concat([cells[_FAMILY], others, domains], axis=1).map(str)
    family: pd.Series[str] = keys.agg("|".join, axis=1)
    return family


def _means(members: list[Runs], names: "pd.Series[str]") -> pd.DataFrame:
    """Columns name, order and mean: one row per method and order."""
    cells = [cell for group in members for cell in group.cells["cell"]]
    name_of = dict(zip(cells, names, strict=True))
    lines = [
        {
            "name": name_of[cell],
            "order": order,
            "mean": mean,
        }
        for group in members
        for row in rows(group)
        for cell, order, mean in zip(
            row.finished["cell"], _orders(row.finished), row.seed_means, strict=True
        )
        if not np.isnan(mean)
    ]
    seeds: pd.DataFrame = pd.DataFrame(lines, columns=["name", "order", "mean"])
    return seeds.groupby(["name", "order"]).agg({"mean": "mean"}).reset_index()


def _table(group: Runs, means: pd.DataFrame, labels: Mapping[str, str]) -> Table:
    metric = metric_of(group)
    by_name = means.groupby("name")["mean"]
    frame = pd.DataFrame(
        {
            "orders": by_name.count(),
            "mean": by_name.mean(),
            "std": by_name.std(ddof=1),
            "best": by_name.max() if metric.higher_is_better else by_name.min(),
            "worst": by_name.min() if metric.higher_is_better else by_name.max(),
        }
    )
    frame = in_order(frame, "mean", metric.higher_is_better)
    entries = ranked(frame["mean"], metric.higher_is_better)
    return Table(
        name=f"{notes.table_name(group)}-orders",
        caption=(
            f"Over orders of the domains: {notes.title(group)}. {notes.upper_first(metric.text)}. "
            f"Up to {int(frame['orders'].max())} orders. The result of an order is the mean over "
            "domains, rounds and seeds. Mean, standard deviation, best and worst: over orders. "
            f"{notes.MARKS}"
        ),
        frame=frame,
        header=("method", "orders", "mean", "std over orders", "best order", "worst order"),
        lines=tuple(
            (labels[str(name)], _line(entry, frame.loc[name]))
            for name, entry in zip(frame.index, entries, strict=True)
        ),
    )


def _line(mean: Entry, values: "pd.Series[float]") -> tuple[Entry, ...]:
    spread = MISSING if np.isnan(values["std"]) else printed(values["std"], 2)
    rest = (spread, printed(values["best"]), printed(values["worst"]))
    return (Entry(f"{values['orders']:.0f}"), mean, *map(Entry, rest))
