"""Checking result.json against predictions.npz: a result is used only if both agree."""

import functools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.analysis.read.predictions import contradictions_make_unusable, read_predictions
from ctta_bench.record.read import (
    UnusableCellError,
    check_schema,
    read_json,
    wrong_content,
)
from ctta_bench.record.schema import CELL_FILE, PREDICTIONS_FILE, RESULT_FILE, CostRecord
from ctta_bench.scoring.measures import Measure, all_measures
from ctta_bench.scoring.metric import Count, Key, Metric, visits

COSTS = sorted(CostRecord.__required_keys__)
_ROUNDING = 0.06  # points: result.json may be rounded to one decimal
_NOT_VALUES = {"domain", "n", "errors", "pixels"}
_NUMBERS = {float, int, type(None)}
_T = TypeVar("_T")


@dataclass(frozen=True)
class Result:
    """A finished cell.

    facts: metric, counters, cost, source accuracy and order hash, by their names in result.json,
    and `micro_mean`: the metric over all images.
    visits: round and domain of each visit, and counts [visits, 4] its images, errors, classes and
    whether predictions collapsed. metrics: round, domain and metric of each of the values; errors,
    ece and IoU in %, NaN where there is nothing to score. Names are separate from numbers, because
    the many cells of a grid share them.
    """

    facts: dict[str, Any]
    visits: tuple[Key, ...]
    counts: npt.NDArray[np.int64]
    metrics: tuple[tuple[int, str, str], ...]
    values: npt.NDArray[np.float64]


def read_result(folder: Path, cell: Mapping[str, Any]) -> Result:
    """The result of a finished cell, recounted.

    cell: from cell.yaml: `cell` (the name), `model_sha256`, `domains` and `metric`. Raises
    UnusableCellError with the reason if a file is incomplete, damaged, of a newer schema, of
    another cell or model, or contradicts the others.
    """
    result = read_json(folder, RESULT_FILE)
    check_schema(RESULT_FILE, result)
    try:
        _check_identity(result, cell)
        metric = metric_named(result["metric"])
        reported = {
            (int(part["round"]), sys.intern(str(entry["domain"]))): entry
            for part in result["rounds"]
            for entry in part["domains"]
        }
        counts, micro_mean = _counts(folder, cell, result, metric, reported)
        _check_counts(reported, counts)
        _check_values(reported, counts, metric.name, metric.unit)
        for measure in _recounted(reported):
            _check_values(reported, counts, measure.name)
        _check_mean(result)
        values = _values(reported, counts)
        return Result(
            facts=_facts(result) | {"micro_mean": micro_mean},
            visits=_shared(tuple(counts)),
            counts=np.array(
                [(c.n, c.errors, c.classes, c.collapsed) for c in counts.values()], np.int64
            ).reshape(-1, 4),
            metrics=_shared(tuple(values)),
            values=np.array([*values.values()], float),
        )
    except (KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError) as error:
        raise wrong_content(RESULT_FILE, error) from error


def _facts(result: dict[str, Any]) -> dict[str, Any]:
    names = (
        "metric",
        "source_accuracy",
        "held_out_accuracy",
        "source_access",
        "order_sha256",
        "same_images",
    )
    counted, cost = result.get("counters"), result.get("cost") or {}
    counters = {} if counted is None else {"skipped_updates": 0, "resets": 0} | counted
    classes = tuple(map(str, result.get("classes") or ()))
    named = {name: result.get(name) for name in names}
    probes = tuple(result.get("source_probes") or ())
    costs = {name: cost.get(name) for name in COSTS}
    return {**named, "classes": classes, "source_probes": probes, **counters, **costs}


def _check_identity(result: Mapping[str, Any], cell: Mapping[str, Any]) -> None:
    if result["cell"] != cell["cell"]:
        raise UnusableCellError(
            f"contradictory: {RESULT_FILE} is of cell {result['cell']}, not of this folder"
        )
    if result.get("model_sha256", cell["model_sha256"]) != cell["model_sha256"]:
        raise UnusableCellError(
            f"contradictory: {RESULT_FILE} and {CELL_FILE} have different weights (model_sha256)"
        )
    if metric_named(result["metric"]).name != cell["metric"]:
        raise UnusableCellError(
            f"contradictory: the metric of {RESULT_FILE} is {result['metric']}, that of the "
            f"benchmark in {CELL_FILE} is {cell['metric']}"
        )


def _counts(
    folder: Path,
    cell: Mapping[str, Any],
    result: Mapping[str, Any],
    metric: Metric,
    reported: Mapping[Key, dict[str, Any]],
) -> tuple[dict[Key, Count], float | None]:
    """The metric and the measures by visit, and the micro mean, from predictions.npz."""
    measures = _recounted(reported)
    of_measures = {name: 1 for measure in measures for name in measure.arrays}
    arrays = read_predictions(folder, {**of_measures, **metric.arrays})
    with contradictions_make_unusable():
        counts = metric.count(arrays, cell["domains"], result)
        if measures:
            for step, position, name in visits(arrays["round"], arrays["domain"], cell["domains"]):
                here = (arrays["round"] == step) & (arrays["domain"] == position)
                rows = np.flatnonzero(here)
                counts[step, name].values.update({m.name: m.value(arrays, rows) for m in measures})
        return counts, metric.micro_mean(arrays, counts)


def _recounted(reported: Mapping[Key, dict[str, Any]]) -> list[Measure]:
    """The measures that all visits of a result have, and that are computed again."""
    return [
        measure
        for measure in all_measures()
        if measure.recounted and all(measure.name in entry for entry in reported.values())
    ]


def _check_counts(reported: Mapping[Key, dict[str, Any]], counts: Mapping[Key, Count]) -> None:
    name = next((count.recorded[0] for count in counts.values()), "errors")
    stored = {key: (entry[name], entry["n"]) for key, entry in reported.items()}
    counted = {key: (count.recorded[1], count.n) for key, count in counts.items()}
    if stored == counted:
        return
    nothing = (0, 0)
    for key in sorted(stored.keys() | counted.keys()):
        one, other = stored.get(key, nothing), counted.get(key, nothing)
        if one != other:
            raise UnusableCellError(
                f"contradictory: round {key[0]}, {key[1]}: {one[0]} {name} in {one[1]} images in "
                f"{RESULT_FILE}, but {other[0]} in {other[1]} in {PREDICTIONS_FILE}"
            )


def _check_values(
    reported: Mapping[Key, dict[str, Any]], counts: Mapping[Key, Count], name: str, unit: str = ""
) -> None:
    after = f" {unit}" if unit else ""
    for key, entry in reported.items():
        stored, counted = entry[name], counts[key].values[name]
        if stored is None and counted is None:
            continue
        if stored is None or counted is None or not abs(stored - counted) <= _ROUNDING:
            raise UnusableCellError(
                f"contradictory: round {key[0]}, {key[1]}: {name} is {stored}{after} in "
                f"{RESULT_FILE}, but {_two(counted)}{after} from the counts"
            )


def _two(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _check_mean(result: dict[str, Any]) -> None:
    """The mean must be over the domains with a value, then over the rounds with a value."""
    metric = result["metric"]
    mean = _mean([_mean([entry[metric] for entry in part["domains"]]) for part in result["rounds"]])
    stored = result["mean"]
    if mean is None and stored is None:
        return
    if mean is None or stored is None or not abs(mean - stored) <= _ROUNDING:
        raise UnusableCellError(
            f"contradictory: the mean is {stored} in {RESULT_FILE}, but {_two(mean)} from its "
            "domains"
        )


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None


def _values(
    reported: Mapping[Key, dict[str, Any]], counts: Mapping[Key, Count]
) -> dict[tuple[int, str, str], float | None]:
    """Metrics of every domain; recounted ones at full precision, others as in result.json."""
    values = {}
    for (step, domain), entry in reported.items():
        counted = counts[step, domain].values
        for metric, value in entry.items():
            if metric not in counted and metric not in _NOT_VALUES and type(value) in _NUMBERS:
                values[step, domain, metric] = value
        for metric, value in counted.items():
            values[step, domain, metric] = value
    return values


@functools.lru_cache(maxsize=1024)
def _shared(names: tuple[_T, ...]) -> tuple[_T, ...]:
    """One tuple object for all equal ones."""
    return names
