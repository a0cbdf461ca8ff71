"""Each pair of methods: the paired difference, corrected for the number of pairs."""

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

MAX_METHODS = 12  # of a readable table; of more methods, the best
LEVEL = 0.05


@TABLES.register_module("pairs", place=70)
def pair_table(runs: Runs) -> Table | None:
    """The difference of each pair of methods of one group; None for fewer than three methods.

    An entry is the mean of the row minus that of the column, in points. The p-values of the paired
    bootstrap are corrected by Holm over all pairs of the table.
    """
    complete = [row for row in rows(runs) if not np.isnan(row.mean)]
    found = in_axis_order(complete[:MAX_METHODS])
    if len(found) < 3:
        return None
    metric = metric_of(runs)
    compared = {(a.name, b.name): _difference(a, b, metric) for a, b in combinations(found, 2)}
    tested = {pair: result for pair, result in compared.items() if result is not None}
    if not tested:
        return None
    corrected = dict(zip(tested, holm([r.p for r in tested.values()]), strict=True))
    names = [row.name for row in found]
    frame = pd.DataFrame(np.nan, index=names, columns=names)
    for (a, b), result in tested.items():
        frame.loc[a, b], frame.loc[b, a] = result.difference, -result.difference
    left = f" of the best {MAX_METHODS}" if len(complete) > len(found) else ""
    return Table(
        name=f"{notes.table_name(runs)}-pairs",
        caption=(
            f"Each pair{left} of methods: {notes.title(runs)}. Entry: mean {metric.symbol} of the "
            f"row minus that of the column, in points ({metric.sign_of_better}: the row is "
            f"better). Bold: p below {LEVEL} (paired bootstrap over the test images, corrected by "
            f"Holm for {notes.counted(len(tested), 'pair')})."
        ),
        frame=frame,
        header=("method", *(row.label for row in found)),
        lines=tuple(
            (
                row.label,
                tuple(_entry(frame.loc[row.name, b], (row.name, b), corrected) for b in names),
            )
            for row in found
        ),
    )


def _difference(a: Row, b: Row, metric: Metric) -> PairedDifference | None:
    """Over the seeds that both have; None without any, or if they saw different images."""
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
