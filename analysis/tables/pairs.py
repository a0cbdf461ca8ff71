"""Each pair of methods: the paired difference, corrected for the number of pairs."""

from itertools import combinations

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.read.error_model import LEVEL, Estimate
from ctta_bench.analysis.read.statistics import holm
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.compared import difference
from ctta_bench.analysis.table.rows import metric_of, rows
from ctta_bench.analysis.table.swept import in_axis_order
from ctta_bench.analysis.table.table import MISSING, Entry, Table, signed
from ctta_bench.registry import TABLES

MAX_METHODS = 12  # of a readable table; of more methods, the best


@TABLES.register_module("pairs", place=70, heading="Pairs of methods")
def pair_table(runs: Runs) -> Table | None:
    """The difference of each pair of methods of one group; None for fewer than three methods.

    An entry is the mean of the row minus that of the column, in points. The p-values are corrected
    by Holm over all pairs of the table. Rows of a warm-up without adaptation are left out.
    """
    complete = [row for row in rows(runs) if not np.isnan(row.mean) and not row.starts_from]
    found = in_axis_order(complete[:MAX_METHODS])
    if len(found) < 3:
        return None
    metric = metric_of(runs)
    compared = {(a.name, b.name): difference(a, b, metric) for a, b in combinations(found, 2)}
    tested = {pair: result for pair, result in compared.items() if isinstance(result, Estimate)}
    if not tested:
        return None
    corrected = dict(zip(tested, holm([r.p for r in tested.values()]), strict=True))
    held = notes.holds_for(max(result.seeds for result in tested.values()))
    names = [row.name for row in found]
    frame = pd.DataFrame(np.nan, index=names, columns=names)
    for (a, b), result in tested.items():
        frame.loc[a, b], frame.loc[b, a] = result.mean, -result.mean
    left = f" of the best {MAX_METHODS}" if len(complete) > len(found) else ""
    return Table(
        name=f"{notes.table_name(runs)}-pairs",
        caption=(
            f"Each pair{left} of methods: {notes.title(runs)}. Entry: mean {metric.symbol} of the "
            f"row minus that of the column, in points ({metric.sign_of_better}: the row is "
            f"better). Bold: p below {LEVEL}, corrected by Holm for "
            f"{notes.counted(len(tested), 'pair')}; it holds {held}."
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


def _entry(value: float, pair: tuple[str, str], corrected: dict[tuple[str, str], float]) -> Entry:
    if np.isnan(value):
        return Entry("" if pair[0] == pair[1] else MISSING)
    p = corrected.get(pair, corrected.get((pair[1], pair[0]), 1.0))
    return Entry(signed(value), best=p < LEVEL)
