"""Over rounds: backward transfer, forgetting, and the spread of the means of the rounds."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import Row, domain_names, metric_of, rows
from ctta_bench.analysis.table.swept import in_axis_order
from ctta_bench.analysis.table.table import MISSING, Entry, Table, signed
from ctta_bench.registry import TABLES
from ctta_bench.scoring.metric import Metric, printed

CLEAN = "clean"  # the domain of the uncorrupted test images, where a stream has one


@TABLES.register_module("stability", place=30, heading="Over rounds")
def stability_table(runs: Runs) -> Table | None:
    """First and last round, transfer, forgetting and spread of each method; None for one round.

    Backward transfer: how much better a domain is at its last visit than at its first, averaged
    over domains (Lopez-Paz & Ranzato, 2017, with visits in the place of tasks). Forgetting: how
    much worse a domain is at its last visit than at its best earlier one, averaged over domains
    (Chaudhry et al., 2018). Both are in points for every metric. If the clean test images are a
    domain of the stream, their results in the first and in the last round are shown as well.
    """
    if int(runs.cells["rounds"].iloc[0]) < 2:
        return None
    found = [row for row in in_axis_order(rows(runs)) if not np.isnan(row.mean)]
    if not found:
        return None
    metric, domains = metric_of(runs), domain_names(runs)
    measured = [_measures(row, metric, domains) for row in found]
    frame: pd.DataFrame = pd.DataFrame(measured, index=[row.name for row in found])
    heads = {
        "first": "first round",
        "last": "last round",
        "transfer": "backward transfer",
        "forgetting": "forgetting",
        "std": "std over rounds",
        "worst": "worst round",
        "clean_first": "clean, first round",
        "clean_last": "clean, last round",
    }
    shown = [name for name in heads if name in frame]
    return Table(
        name=f"{notes.table_name(runs)}-stability",
        caption=(
            f"Over rounds: {notes.title(runs)}. First, last and worst round: mean {metric.text} "
            f"{notes.averaged(runs, 'domains', 'seeds')}; the number of the worst round is in "
            "brackets. Backward transfer: how much better a domain is at its last visit than at "
            "its first. Forgetting: how much worse a domain is at its last visit than at its best "
            "earlier one. Both in points, averaged over domains."
        ),
        frame=frame,
        header=("method", *(heads[name] for name in shown)),
        lines=tuple(
            (row.label, _entries(values, shown))
            for row, values in zip(found, measured, strict=True)
        ),
    )


def _measures(row: Row, metric: Metric, domains: Sequence[str]) -> dict[str, float]:
    each, by_round = row.by_round(), row.over(axis=2)
    cost = metric.ascending * each  # the smaller, the better
    worst = int(np.nanargmax(metric.ascending * by_round))
    measures = {
        "first": by_round[0],
        "last": by_round[-1],
        "transfer": _mean(cost[0] - cost[-1]),
        "forgetting": _mean(cost[-1] - cost[:-1].min(axis=0)),
        "std": by_round.std(ddof=1),
        "worst": by_round[worst],
        "worst_round": worst + 1,
    }
    if CLEAN in domains:
        clean = each[:, list(domains).index(CLEAN)]
        measures |= {"clean_first": clean[0], "clean_last": clean[-1]}
    return {name: float(value) for name, value in measures.items()}


def _mean(points: npt.NDArray[np.float64]) -> float:
    """The mean over the domains that have a value at every visit."""
    there = points[np.isfinite(points)]
    return float(there.mean()) if len(there) else float("nan")


def _entries(values: dict[str, float], shown: Sequence[str]) -> tuple[Entry, ...]:
    texts = {name: MISSING if np.isnan(values[name]) else printed(values[name]) for name in shown}
    texts |= {name: signed(values[name]) for name in ("transfer", "forgetting")}
    texts["worst"] += f" ({values['worst_round']:.0f})"
    return tuple(Entry(texts[name]) for name in shown)
