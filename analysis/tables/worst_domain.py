"""The domain on which each method does worst: what a mean over domains hides."""

from dataclasses import replace

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import domain_labels, domain_names, metric_of, rows
from ctta_bench.analysis.table.table import Table, ranked
from ctta_bench.registry import TABLES


@TABLES.register_module("worst_domain", place=55)
def worst_domain_table(runs: Runs) -> Table | None:
    """The worst and the best domain of each method, and how far they are apart.

    Means over rounds and seeds; a method that lacks a domain is missing. None for one domain.
    """
    domains, metric = domain_names(runs), metric_of(runs)
    if len(domains) < 2:
        return None
    found = [row for row in rows(runs) if not np.isnan(row.mean)]
    values = pd.DataFrame([row.over(1) for row in found], [row.label for row in found], domains)
    if values.empty or values.isna().any(axis=None):
        return None
    worst, best = (values.min, values.max) if metric.higher_is_better else (values.max, values.min)
    frame = pd.DataFrame({"worst": worst(axis=1), "best": best(axis=1)})
    frame["apart"] = (frame["worst"] - frame["best"]).abs()
    shown = dict(zip(domains, domain_labels(domains), strict=True))
    columns = [
        ranked(frame["worst"], metric.higher_is_better),
        ranked(frame["best"], metric.higher_is_better),
        ranked(frame["apart"], False),
    ]
    for entries, of in zip(columns, (frame["worst"], frame["best"]), strict=False):
        places = values.eq(of, axis=0).idxmax(axis=1)
        entries[:] = [
            replace(entry, text=f"{entry.text} ({shown[place]})")
            for entry, place in zip(entries, places, strict=True)
        ]
    return Table(
        name=f"{notes.table_name(runs)}-worst-domain",
        caption=(
            f"Worst and best domain of each method: {notes.title(runs)}. Mean {metric.text} "
            "over rounds and seeds; apart: their difference."
        ),
        frame=frame,
        header=("method", "worst domain", "best domain", "apart"),
        lines=tuple(
            (str(label), tuple(entries[line] for entries in columns))
            for line, label in enumerate(frame.index)
        ),
        unit=metric.head,
    )
