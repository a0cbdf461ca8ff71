"""Curves over a swept value: a hyper-parameter in one table, or the batch size across tables."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.plots import (
    COLOURS,
    DASHES,
    MARKERS,
    SOURCE_COLOUR,
)
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.notes import title
from ctta_bench.analysis.table.rows import SOURCE, Row, metric_of, rows, source_row

FEWEST = 3  # values that make a curve
WIDE = 20  # ratio of the largest to the smallest value from which the axis is logarithmic
BATCH_SIZE = "batch_size"
# What must agree for cells of several batch sizes to stand in one figure.
_FAMILY = [
    "benchmark", "setting", "model", "model_sha256", "preprocessing", "precision", "examples",
    "rounds", "severity", "domains", "details",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Sweep:
    """Means over a swept value.

    key: what was swept. points: columns line (method and what else differs), value, mean, std (%),
    seeds; sorted by line and value. source: mean of the source model in %, NaN if it is not there
    or has a line of its own.
    """

    key: str
    points: pd.DataFrame
    source: float
    title: str
    metric: str


def sweeps(runs: Runs) -> list[Sweep]:
    """The numeric hyper-parameters of one group that take at least three values within a method."""
    found = rows(runs)
    source = source_row(found)
    points: dict[str, list[dict[str, Any]]] = {}
    for method in dict.fromkeys(row.method for row in found):
        of_method = [row for row in found if row.method == method and not np.isnan(row.mean)]
        key = _swept([_numbers(row) for row in of_method])
        if key is None:
            continue
        swept = [row for row in of_method if key in _numbers(row)]  # a warm-up alone has none
        for row, line in zip(swept, _others(swept, key), strict=True):
            value = _numbers(row)[key]
            points.setdefault(key, []).append(_point(row, f"{method}{line}", value))
    return [
        Sweep(
            key,
            _sorted(of_key),
            float("nan") if source is None else source.mean,
            title(runs),
            metric_of(runs).text,
        )
        for key, of_key in points.items()
    ]


def in_axis_order(found: Sequence[Row]) -> list[Row]:
    """Rows of a swept method by the swept value, at the place of its best; the others as they are.

    Rows that differ in more numbers than the swept one stand line by line, as in the figure.
    """
    ordered: list[Row] = []
    for row in found:
        of_method = [other for other in found if other.method == row.method]
        settings = [_numbers(other) for other in of_method]
        key = _swept(settings)
        if key is None:
            ordered.append(row)
        elif row is of_method[0]:
            places = [
                (line, values.get(key, np.inf))
                for values, line in zip(settings, _others(of_method, key), strict=True)
            ]
            order = sorted(range(len(of_method)), key=places.__getitem__)
            ordered += [of_method[place] for place in order]
    return ordered


def batch_size_sweeps(runs: Runs) -> list[Sweep]:
    """Means over batch sizes, where cells that agree in all else have at least three of them."""
    if runs.cells.empty:
        return []
    family = runs.cells[_FAMILY].map(str).agg("|".join, axis=1)
    found = []
    for name in dict.fromkeys(family):
        member_groups = [
            group
            for group in runs.groups()
            if (group.cells[_FAMILY].map(str).agg("|".join, axis=1) == name).all()
        ]
        points = [
            _point(row, row.label, int(group.cells[BATCH_SIZE].iloc[0]))
            for group in member_groups
            for row in rows(group)
            if not np.isnan(row.mean)
        ]
        if len({point["value"] for point in points}) >= FEWEST:
            first = member_groups[0]
            found.append(
                Sweep(
                    BATCH_SIZE, _sorted(points), float("nan"), title(first), metric_of(first).text
                )
            )
    return found


def sweep_figure(sweep: Sweep, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """A line for each method, with bars of ± one deviation over seeds; the dashes are source.

    Writes stem.png, stem.pdf and stem.csv and returns their paths.
    """
    with canvas.drawing():
        figure = canvas.figure((7.2, 3.4), 2.1)
        axes = figure.subplots()
        for number, (line, points) in enumerate(sweep.points.groupby("line", sort=False)):
            _draw(axes, str(line), points, number)
        if not np.isnan(sweep.source):
            axes.axhline(sweep.source, color=SOURCE_COLOUR, ls=(0, (4, 3)), lw=1.2, label=SOURCE)
        _scale(axes, sweep.points["value"])
        axes.set_xlabel(sweep.key.replace("_", " "))
        axes.set_ylabel(canvas.narrow(sweep.metric))
        canvas.title(figure, sweep.title)
        canvas.legend(figure, handlelength=3)
        return save_figure(figure, sweep.points, stem)


def _values(row: Row) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(str(row.cells["hyperparameters"].iloc[0]))
    return values


def _numbers(row: Row) -> dict[str, float]:
    return {
        key: value
        for key, value in _values(row).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _swept(settings: Sequence[dict[str, float]]) -> str | None:
    """The key with the most values, if they are enough for a curve."""
    names = {key for values in settings for key in values}
    counts = {
        key: len({values[key] for values in settings if key in values}) for key in sorted(names)
    }
    key = max(counts, key=lambda name: counts[name], default=None)
    return key if key is not None and counts[key] >= FEWEST else None


def _others(found: Sequence[Row], key: str) -> list[str]:
    """For each row what else differs: ` std_weight=0.1`; numbers, words and switches alike."""
    settings = [
        {name: _shown(value) for name, value in _values(row).items() if name != key}
        for row in found
    ]
    names = sorted({name for values in settings for name in values})
    differing = [k for k in names if len({values.get(k) for values in settings}) > 1]
    return ["".join(f" {name}={values.get(name)}" for name in differing) for values in settings]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _point(row: Row, line: str, value: float) -> dict[str, Any]:
    return {
        "line": line,
        "value": value,
        "mean": row.mean,
        "std": row.std,
        "seeds": len(row.values),
    }


def _sorted(points: list[dict[str, Any]]) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame(points)
    return frame.sort_values(["line", "value"], kind="stable").reset_index(drop=True)


def _draw(axes: Axes, line: str, points: pd.DataFrame, number: int) -> None:
    is_source = line == SOURCE
    axes.errorbar(
        points["value"],
        points["mean"],
        yerr=points["std"].fillna(0.0),
        label=line,
        color=SOURCE_COLOUR if is_source else COLOURS[number % len(COLOURS)],
        ls=DASHES[number % len(DASHES)],
        marker=MARKERS[number % len(MARKERS)],
        ms=4.5,
        capsize=2.5,
        elinewidth=0.9,
    )


def _scale(axes: Axes, values: "pd.Series[float]") -> None:
    """A logarithmic axis for values over orders of magnitude, linear near a zero among them."""
    shown = sorted(set(values))
    positive = [value for value in shown if value > 0]
    if len(positive) > 1 and positive[-1] / positive[0] >= WIDE:
        if shown[0] <= 0:
            axes.set_xscale("symlog", linthresh=positive[0])
            axes.set_xlim(shown[0] - 0.2 * positive[0], 1.25 * shown[-1])
        else:
            axes.set_xscale("log")
    axes.set_xticks(shown, [f"{value:g}" for value in shown])
    axes.minorticks_off()
