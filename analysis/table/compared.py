"""The error model on rows: how sure a row's mean is, and whether two rows differ."""

import numpy as np

from ctta_bench.analysis.read.error_model import Estimate
from ctta_bench.analysis.read.statistics import mean_estimate, paired_difference
from ctta_bench.analysis.table.rows import Row
from ctta_bench.errors import RunError
from ctta_bench.registry import BENCHMARKS
from ctta_bench.scoring.metric import Metric


def uncertainty(row: Row, metric: Metric) -> Estimate | None:
    """The mean of a row over its finished seeds with its error; None for an incomplete row."""
    if np.isnan(row.mean):  # a domain is missing
        return None
    paths = row.finished["path"].tolist()
    return mean_estimate(paths, metric=metric.name, same_images=_same_images(row))


def drawn_half(row: Row, metric: Metric) -> float:
    """Half the interval of a complete row's mean; 0 where a single image gives none."""
    found = uncertainty(row, metric)
    return found.half_width if found is not None and np.isfinite(found.half_width) else 0.0


def difference(a: Row, b: Row, metric: Metric) -> Estimate | str:
    """The mean of a minus that of b over the seeds that both have, or why there is none."""
    paths = [dict(zip(r.finished["seed"], r.finished["path"], strict=True)) for r in (a, b)]
    common = sorted(paths[0].keys() & paths[1].keys())
    if not common:
        return f"no finished seed in common with {b.label}."
    ours, theirs = ([of_row[seed] for seed in common] for of_row in paths)
    try:
        return paired_difference(ours, theirs, metric=metric.name, same_images=_same_images(a))
    except RunError as error:
        return str(error)


def _same_images(row: Row) -> bool:
    """As recorded with the cells; for cells of 0.1.0, as their benchmark declares it."""
    cell = row.finished.iloc[0]
    recorded = cell["same_images"]
    if isinstance(recorded, bool):
        return recorded
    return bool(BENCHMARKS.declared(str(cell["benchmark"]), "same_images", True))
