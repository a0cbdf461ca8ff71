"""Each pair of methods: the paired difference, corrected for how many pairs there are."""

from itertools import combinations

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.read.statistics import PairedDifference, holm, paired_bootstrap
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import Row, metric_of, rows
from ctta_bench.analysis.table.swept import in_axis_order
from ctta_bench.analysis.table.table import MISSING, Entry, Table, signed
from ctta_bench.errors import RunError
from ctta_bench.registry import TABLES
from ctta_bench.scoring.metric import Metric

MAX_METHODS = 12  # more make a table that nobody reads: then the best so many
LEVEL = 0.05


@TABLES.register_module("pairs", place=70)
def pair_table(runs: Runs) -> Table | None:
    """The difference of each pair of methods of one group; None for fewer than three methods.

    An entry is the row's mean minus the column's, in points; p-values of the paired bootstrap are
    corrected by Holm over all pairs of the table.
    """
    complete = [row for row in rows(runs) if not np.isnan(row.mean)]
    found = in_axis_order(complete[:MAX_METHODS])
    if len(found) < 3:
        return None
    metric = metric_of(runs)
    compared = {(a.label, b.label): _difference(a, b, metric) for a, b in combinations(found, 2)}
    tested = {pair: result for pair, result in compared.items() if result is not None}
    if not tested:
        return None
    corrected = dict(zip(tested, holm([r.p for r in tested.values()]), strict=True))
    labels = [row.label for row in found]
    frame = pd.DataFrame(np.nan, index=labels, columns=labels)
    for (a, b), result in tested.items():
        frame.loc[a, b], frame.loc[b, a] = result.difference, -result.difference
    left = f" of the {MAX_METHODS} best" if len(complete) > len(found) else ""
    return Table(
        name=f"{notes.table_name(runs)}-pairs",
        caption=(
            f"Each pair{left}: {notes.title(runs)}. Mean {metric.symbol} of the row minus that of "
            f"the column, in points ({metric.sign_of_better}: the row is better); bold where p is "
            f"below {LEVEL} after Holm's correction over {len(tested)} pairs (paired bootstrap "
            "over the test images)."
        ),
        frame=frame,
        header=("method", *labels),
        lines=tuple(
            (a, tuple(_entry(frame.loc[a, b], (a, b), corrected) for b in labels)) for a in labels
        ),
    )


def _difference(a: Row, b: Row, metric: Metric) -> PairedDifference | None:
    """Over the seeds both have; None where they have none or did not see the same images."""
    paths = [dict(zip(r.finished["seed"], r.finished["path"], strict=True)) for r in (a, b)]
    common = sorted(paths[0].keys() & paths[1].keys())
    if not common:
        return None
    ours, theirs = ([part[seed] for seed in common] for part in paths)
    try:
        return paired_bootstrap(ours, theirs, metric=metric.name, resamples=metric.resamples)
    except RunError:
        return None


def _entry(
    difference: float, pair: tuple[str, str], corrected: dict[tuple[str, str], float]
) -> Entry:
    if np.isnan(difference):
        return Entry("" if pair[0] == pair[1] else MISSING)
    p = corrected.get(pair, corrected.get((pair[1], pair[0]), 1.0))
    return Entry(signed(difference), best=p < LEVEL)
