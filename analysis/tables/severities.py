"""Runs that differ only in their severity, and the mean over the severities that were run."""

import itertools
import re

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import metric_of, row_names, rows
from ctta_bench.analysis.table.table import Table, in_order, ranked
from ctta_bench.registry import TABLES

FEWEST = 2  # severities that make a table
_FAMILY = [  # what the protocols of one table have in common
    "benchmark", "setting", "model", "model_sha256", "preprocessing", "precision", "examples",
    "rounds", "batch_size", "domains", "details",
]  # fmt: skip


@TABLES.register_module("severities", place=40, of="all", heading="By severity")
def severity_tables(runs: Runs) -> list[Table]:
    """A table for each protocol that was run at several single severities.

    One column per severity, a mean over domains, rounds and seeds. The last column is the mean over
    the severities in its head. A mean is missing where one of its values is.
    """
    single = [group for group in runs.groups() if _is_single(group.cells["severity"].iloc[0])]
    families: dict[tuple[str, ...], list[Runs]] = {}
    for group in single:
        key = tuple(str(group.cells[name].iloc[0]) for name in _FAMILY)
        families.setdefault(key, []).append(group)
    return [_table(members) for members in families.values() if len(members) >= FEWEST]


def _is_single(severity: object) -> bool:
    return isinstance(severity, int | float | np.number) and not np.isnan(float(severity))


def _table(members: list[Runs]) -> Table:
    members = sorted(members, key=lambda group: float(group.cells["severity"].iloc[0]))
    metric = metric_of(members[0])
    together = pd.concat([group.cells for group in members])
    names, labels = row_names(_as_one_protocol(together))
    name_of = dict(zip(together["cell"], names, strict=True))
    severities = [f"{group.cells['severity'].iloc[0]:g}" for group in members]
    frame = pd.DataFrame(
        {
            severity: {name_of[row.cells["cell"].iloc[0]]: row.mean for row in rows(group)}
            for severity, group in zip(severities, members, strict=True)
        }
    )
    over_all = f"severities {_range(severities)}"
    frame[over_all] = frame[severities].mean(axis=1, skipna=False)
    frame = in_order(frame, over_all, metric.higher_is_better)
    columns = [ranked(frame[name], metric.higher_is_better) for name in frame.columns]
    title = re.sub(r", severity [^ ]+", "", notes.title(members[0]))
    return Table(
        name=f"{notes.table_name(members[0])}-severities",
        caption=(
            f"By severity: {title}. Mean {metric.text} "
            f"{notes.averaged(members[0], 'domains', 'rounds', 'seeds')} at each severity. Last "
            f"column: mean over {over_all}. {notes.MARKS}"
        ),
        frame=frame,
        header=("method", *(f"severity {severity}" for severity in severities), over_all),
        lines=tuple(
            (labels[str(name)], tuple(entries[line] for entries in columns))
            for line, name in enumerate(frame.index)
        ),
        unit=metric.head,
    )


def _as_one_protocol(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells with another seed at each severity: a name is unique within a group and seed."""
    numbered = cells.reset_index(drop=True)
    return numbered.assign(seed=numbered["seed"].map(str) + "/" + numbered["severity"].map(str))


def _range(severities: list[str]) -> str:
    """`1–5` for consecutive severities, else `1, 3, 5`."""
    numbers = [float(text) for text in severities]
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    return f"{severities[0]}–{severities[-1]}" if steps == {1.0} else ", ".join(severities)
