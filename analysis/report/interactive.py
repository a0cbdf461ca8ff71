"""Data that the page's script draws: curves of the stream, pairs by domain, shades of a table."""

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from ctta_bench.analysis.figure.palette import looks
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.read.error_model import Estimate
from ctta_bench.analysis.table.compared import difference, differences_by_domain
from ctta_bench.analysis.table.rows import SOURCE, Row, domain_labels, metric_of, rows
from ctta_bench.analysis.table.table import Table
from ctta_bench.scoring.metric import EQUAL_DECIMALS, printed

MAX_POINTS = 2000  # of a curve
MAX_COMPARED = 40  # rows, the best ones


def row_facts(group: Runs) -> dict[str, dict[str, Any]]:
    """What the page knows of each row, by its label: its method, and how it is drawn."""
    found = rows(group)
    drawn = looks({row.name: row.method for row in found})
    return {
        row.label: {
            "method": row.method,
            "colour": drawn[row.name].colour,
            "dash": list(drawn[row.name].dash),
            "marker": drawn[row.name].marker,
            "source": row.method == SOURCE,
        }
        for row in found
    }


def stream_data(drawn: pd.DataFrame, group: Runs) -> dict[str, Any]:
    """The curves of a group: images seen, one line per method, and domains.

    drawn: the CSV of `stream_figure`. A curve has a value for every `every` batches of a domain, so
    that it has at most about MAX_POINTS. n: images of each value. window: of the moving average, in
    values. A batch without a labelled pixel leaves a gap.
    """
    metric, domains = metric_of(group), domain_labels(group)
    found = {row.name: row for row in rows(group)}
    methods = list(dict.fromkeys(drawn["method"]))
    first = drawn[drawn["method"] == methods[0]].reset_index(drop=True)
    every = max(1, -(-len(first) // MAX_POINTS))
    band = (first[["round", "domain"]] != first[["round", "domain"]].shift()).any(axis=1).cumsum()
    within = first.groupby(band).cumcount() // every
    step = pd.factorize(pd.MultiIndex.from_arrays([band, within]))[0]
    images = first["images"].diff().fillna(first["images"]).to_numpy()
    ends = first.groupby(step)["images"].last().tolist()
    spans = first.groupby(band).agg({"images": "last", "domain": "first", "round": "first"})
    window = None if drawn["window"].isna().any() else int(drawn["window"].iloc[0])
    return {
        "x": [float(end) for end in ends],
        "n": np.bincount(step, images).tolist(),
        "lines": [
            {
                "name": found[str(name)].label,
                "y": _averaged(part["error"].to_numpy(), images, step),
                "resets": sorted(set(step[part["resets"].to_numpy() > 0].tolist())),
            }
            for name, part in drawn.groupby("method", sort=False)
        ],
        "bands": [
            {"end": float(end), "domain": domains.get(domain, domain), "round": int(number) + 1}
            for end, domain, number in spans.itertuples(index=False)
        ],
        "what": metric.errors_text,
        "unit": metric.unit,
        "every": every,
        "window": 0 if window is None else max(1, round(window / every)),
    }


def _averaged(values: Any, images: Any, step: Any) -> list[float | None]:
    """The mean of the batches of each step, weighted by their images; None without a score."""
    scored = np.isfinite(values)
    weights = np.where(scored, images, 0)
    sums = np.bincount(step, np.where(scored, values, 0) * weights)
    counts = np.bincount(step, weights)
    return [
        None if count == 0 else round(float(total / count), 2)
        for total, count in zip(sums, counts, strict=True)
    ]


def comparison_data(group: Runs) -> dict[str, Any] | None:
    """The paired difference of each pair of rows, over all domains and for each; None for one row.

    pairs: for rows i < j in the order of `names`, a list of [gain of i over j, low and high end of
    its 95 % interval, p] for the mean and each domain, null where there is none.
    """
    metric = metric_of(group)
    complete = [row for row in rows(group) if not np.isnan(row.mean)]
    found = sorted(complete, key=lambda row: metric.ascending * round(row.mean, EQUAL_DECIMALS))
    found = found[:MAX_COMPARED]
    if len(found) < 2:
        return None
    return {
        "names": [row.label for row in found],
        "domains": ["mean", *domain_labels(group).values()],
        "left_out": len(complete) - len(found),
        "pairs": [_pair(a, b, group) for a, b in combinations(found, 2)],
    }


def _pair(a: Row, b: Row, group: Runs) -> list[list[float | None] | None]:
    metric = metric_of(group)
    overall = difference(a, b, metric)
    by_domain = differences_by_domain(a, b, metric)
    estimates = [overall if isinstance(overall, Estimate) else None, *by_domain]
    return [None if one is None else _gain(one.scaled(-metric.ascending)) for one in estimates]


def _gain(of: Estimate) -> list[float | None] | None:
    if np.isnan(of.mean):
        return None
    return [_shown(of.mean), _shown(of.low), _shown(of.high), float(f"{of.p:.3g}")]


def _shown(value: float) -> float | None:
    """A number of which the page's script shows the same decimal as the tables; None: unbounded."""
    if not np.isfinite(value):
        return None
    short = round(value, 3)
    is_tie = round(abs(short) * 1000) % 100 == 50  # of which a script may show either decimal
    return float(np.copysign(float(printed(abs(value))), value)) if is_tie else short


def shades(table: Table, ascending: int) -> list[list[float]]:
    """How good each entry of a table of differences is, from -1 to 1, 0 where it is missing."""
    values = -ascending * table.frame.to_numpy(float)
    largest = np.nanmax(np.abs(values)) if np.isfinite(values).any() else 0
    found: list[list[float]] = np.nan_to_num(values / (largest or 1)).round(3).tolist()
    return found
