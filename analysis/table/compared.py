"""The error model on rows: how sure a row's mean is, and whether two rows differ."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ctta_bench.analysis.read.error_model import LEVEL, Estimate
from ctta_bench.analysis.read.statistics import (
    holm,
    mean_estimate,
    paired_by_domain,
    paired_difference,
)
from ctta_bench.analysis.table.rows import Row
from ctta_bench.errors import RunError
from ctta_bench.record.schema import PREDICTIONS_FILE
from ctta_bench.registry import BENCHMARKS
from ctta_bench.scoring.metric import Metric

_CACHED = 4096  # estimates: tables, sentences and figures ask for the same ones
Paths = tuple[str, ...]
Times = tuple[int, ...]


class Compared(NamedTuple):
    """A row minus another one. estimate: None with the reason why there is none.

    p_holm: corrected for all comparisons that were made together; NaN without an estimate.
    """

    row: Row
    estimate: Estimate | None
    p_holm: float
    reason: str = ""

    @property
    def differs(self) -> bool:
        """Whether the two rows differ, after Holm's correction."""
        return self.p_holm < LEVEL


def compared_with(reference: Row, others: Sequence[Row], metric: Metric) -> list[Compared]:
    """Each of the other rows minus the reference, with Holm's correction over all of them."""
    found = [difference(row, reference, metric) for row in others]
    tested = iter(holm([one.p for one in found if isinstance(one, Estimate)]))
    return [
        Compared(row, one, next(tested))
        if isinstance(one, Estimate)
        else Compared(row, None, float("nan"), one)
        for row, one in zip(others, found, strict=True)
    ]


def uncertainty(row: Row, metric: Metric) -> Estimate | None:
    """The mean of a row over its finished seeds with its error; None for an incomplete row."""
    if np.isnan(row.mean):  # a domain is missing
        return None
    paths = tuple(row.finished["path"])
    return _mean_of(paths, metric.name, _same_images(row), _changed(paths))


def drawn_half(row: Row, metric: Metric) -> float:
    """Half the interval of a complete row's mean; 0 where a single image gives none."""
    found = uncertainty(row, metric)
    return found.half_width if found is not None and np.isfinite(found.half_width) else 0.0


def difference(a: Row, b: Row, metric: Metric) -> Estimate | str:
    """The mean of a minus that of b over the seeds that both have, or why there is none."""
    ours, theirs = _paths_of_common_seeds(a, b)
    if not ours:
        return f"no finished seed in common with {b.label}."
    try:
        return _difference_of(
            ours, theirs, metric.name, _same_images(a), _changed((*ours, *theirs))
        )
    except RunError as error:
        return str(error)


def differences_by_domain(a: Row, b: Row, metric: Metric) -> list[Estimate]:
    """The same for each domain by itself, in the order of the stream; [] if there is none."""
    ours, theirs = _paths_of_common_seeds(a, b)
    if not ours:
        return []
    try:
        same_images = _same_images(a)
        return paired_by_domain(ours, theirs, metric=metric.name, same_images=same_images)
    except RunError:
        return []


def _paths_of_common_seeds(a: Row, b: Row) -> tuple[Paths, Paths]:
    common = common_seeds(a, b)
    ours, theirs = (tuple(row.path_of_seed[seed] for seed in common) for row in (a, b))
    return ours, theirs


def common_seeds(a: Row, b: Row) -> list[int]:
    """The seeds that both rows have finished."""
    return sorted(a.path_of_seed.keys() & b.path_of_seed.keys())


@functools.lru_cache(maxsize=_CACHED)
def _mean_of(paths: Paths, metric: str, same_images: bool, _changed: Times) -> Estimate:
    return mean_estimate(paths, metric=metric, same_images=same_images)


@functools.lru_cache(maxsize=_CACHED)
def _difference_of(
    ours: Paths, theirs: Paths, metric: str, same_images: bool, _changed: Times
) -> Estimate:
    return paired_difference(ours, theirs, metric=metric, same_images=same_images)


def _changed(paths: Paths) -> Times:
    """When the predictions of cells were written; 0 where there are none."""
    files = (Path(path) / PREDICTIONS_FILE for path in paths)
    return tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)


def _same_images(row: Row) -> bool:
    """As recorded with the cells; for cells of 0.1.0, as their benchmark declares it."""
    cell = row.finished.iloc[0]
    recorded = cell["same_images"]
    if isinstance(recorded, bool | np.bool_):  # numpy's where every cell has it
        return bool(recorded)
    return bool(BENCHMARKS.declared(str(cell["benchmark"]), "same_images", True))
