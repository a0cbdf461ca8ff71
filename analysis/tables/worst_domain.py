"""The domain on which each method is worst, which a mean over domains does not show."""

from dataclasses import replace

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import domain_labels, domain_names, metric_of, rows
from ctta_bench.analysis.table.table import Table, ranked
from ctta_bench.registry import TABLES
from ctta_bench.scoring.metric import EQUAL_DECIMALS


@TABLES.register_module("worst_domain", place=55, heading="Worst and best domain")
def worst_domain_table(runs: Runs) -> Table | None:
    """The worst and the best domain of each method, and their difference.

    Means over rounds and seeds. Methods with a missing mean have no row. None for one domain.
    """
    domains, metric = domain_names(runs), metric_of(runs)
    if len(domains) < 2:
        return None
    found = [row for row in rows(runs) if not np.isnan(row.mean)]
    values = pd.DataFrame([row.over(1) for row in found], [row.name for row in found], domains)
    values = values.round(EQUAL_DECIMALS)
    if values.empty or values.isna().any(axis=None):
        return None
    worst, best = (values.min, values.max) if metric.higher_is_better else (values.max, values.min)
    frame = pd.DataFrame({"worst": worst(axis=1), "best": best(axis=1)})
    frame["apart"] = (frame["worst"] - frame["best"]).abs()
    labels = domain_labels(runs)
    over = notes.averaged(runs, "rounds", "seeds")
    columns = [
        ranked(frame["worst"], metric.higher_is_better),
        ranked(frame["best"], metric.higher_is_better),
        ranked(frame["apart"], False),
    ]
    for entries, of in zip(columns, (frame["worst"], frame["best"]), strict=False):
        places = values.eq(of, axis=0).idxmax(axis=1)
        entries[:] = [
            replace(entry, text=f"{entry.text} ({labels[place]})")
            for entry, place in zip(entries, places, strict=True)
        ]
    return Table(
        name=f"{notes.table_name(runs)}-worst-domain",
        caption=(
            f"Worst and best domain of each method: {notes.title(runs)}. "
            f"{notes.upper_first(metric.text)}{f', mean {over}' * bool(over)}; the domain is in "
            "brackets. "
            f"Difference: between worst and best domain, in points. {notes.MARKS}"
        ),
        frame=frame,
        header=("method", "worst domain", "best domain", "difference"),
        lines=tuple(
            (row.label, tuple(entries[line] for entries in columns))
            for line, row in enumerate(found)
        ),
        unit=metric.head,
    )
