"""Curves over a swept value: a hyper-parameter of one group, or the batch size across groups."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.lines import (
    Line,
    caption_of,
    draw_rest,
    label_ends,
    rest_text,
    scale_by_values,
    sorted_out,
)
from ctta_bench.analysis.figure.palette import SOURCE_LOOK
from ctta_bench.analysis.figure.palette import looks as looks_of
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.compared import drawn_half
from ctta_bench.analysis.table.notes import half_interval, title
from ctta_bench.analysis.table.rows import SOURCE, Row, metric_of, rows, source_row
from ctta_bench.analysis.table.swept import FEWEST, numbers_of, other_differences, swept_key
from ctta_bench.registry import FIGURES, METHODS
from ctta_bench.scoring.metric import Metric

BATCH_SIZE = "batch_size"
# What the cells of one figure over batch sizes have in common.
_FAMILY = [
    "benchmark", "setting", "model", "model_sha256", "preprocessing", "precision", "examples",
    "rounds", "severity", "domains", "details",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Sweep:
    """Means over a swept value.

    key: the swept hyper-parameter. points: columns line (registry name of the method, and other
    differences), value, mean, half_interval, std (%), seeds; sorted by line and value; the half
    interval is that of the mean over images and seeds. labels: what is printed for
    each line. source: mean of the source model in %, NaN if it does not exist or has its own line.
    """

    key: str
    points: pd.DataFrame
    labels: dict[str, str]
    source: float
    title: str
    metric: Metric


def sweeps(runs: Runs) -> list[Sweep]:
    """The numeric hyper-parameters of one group that take at least three values within a method."""
    found = rows(runs)
    source = source_row(found)
    points: dict[str, list[dict[str, Any]]] = {}
    labels = {SOURCE: METHODS.display_name(SOURCE)}
    for method in dict.fromkeys(row.method for row in found):
        of_method = [row for row in found if row.method == method and not np.isnan(row.mean)]
        key = swept_key([numbers_of(row) for row in of_method])
        if key is None:
            continue
        swept = [row for row in of_method if key in numbers_of(row)]  # a warm-up only has none
        for row, others in zip(swept, other_differences(swept, key), strict=True):
            line, value = " ".join([method, *others]), numbers_of(row)[key]
            labels[line] = METHODS.display_name(method) + f" ({', '.join(others)})" * bool(others)
            points.setdefault(key, []).append(_point(row, line, value, metric_of(runs)))
    return [
        Sweep(
            key,
            _sorted(of_key),
            labels,
            float("nan") if source is None else source.mean,
            title(runs),
            metric_of(runs),
        )
        for key, of_key in points.items()
    ]


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
        of_groups = [
            (row, int(group.cells[BATCH_SIZE].iloc[0]), metric_of(group))
            for group in member_groups
            for row in rows(group)
            if not np.isnan(row.mean)
        ]
        points = [_point(row, row.name, size, metric) for row, size, metric in of_groups]
        labels = {row.name: row.label for row, _, _ in of_groups}
        if len({point["value"] for point in points}) >= FEWEST:
            first = member_groups[0]
            found.append(
                Sweep(
                    BATCH_SIZE,
                    _sorted(points),
                    labels,
                    float("nan"),
                    title(first),
                    metric_of(first),
                )
            )
    return found


@FIGURES.register_module("sweep", place=70)
def swept_figures(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[tuple[str, list[Path]]]:
    """Each swept hyper-parameter of one group: what its figure shows, and its files."""
    return [_drawn(sweep, stem, canvas) for sweep in sweeps(runs)]


@FIGURES.register_module("sizes", place=20, of="all", kind="sweep")
def batch_size_figures(
    runs: Runs, stem: Path, canvas: Canvas = SCREEN
) -> list[tuple[str, list[Path]]]:
    """Each sweep over batch sizes: what its figure shows, and its files."""
    return [
        _drawn(sweep, stem.with_name(f"sizes-{number + 1}"), canvas)
        for number, sweep in enumerate(batch_size_sweeps(runs))
    ]


def _drawn(sweep: Sweep, stem: Path, canvas: Canvas) -> tuple[str, list[Path]]:
    return _text(sweep), sweep_figure(sweep, stem.with_name(f"{stem.name}-{sweep.key}"), canvas)


def _text(sweep: Sweep) -> str:
    return (
        f"Mean over {sweep.key.replace('_', ' ')}; bars: ± "
        f"{half_interval(int(sweep.points['seeds'].max()))}. Values are run on the same images, so "
        "two may differ although their bars overlap; the tables of pairs and of significance test "
        "it"
    )


def sweep_figure(sweep: Sweep, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """One line per method, with bars of ± half its 95 % interval; the whole line is source.

    Writes stem.png, stem.pdf, stem.csv and its caption stem.txt, and returns the first three.
    """
    points = dict(iter(sweep.points.groupby("line", sort=False)))
    looks = looks_of({str(line): str(line).partition(" ")[0] for line in points})
    lines = [
        Line(
            str(line),
            sweep.labels[str(line)],
            looks[str(line)],
            *of[["value", "mean"]].to_numpy().T,
        )
        for line, of in points.items()
    ]
    if not np.isnan(sweep.source):
        span = np.array([sweep.points["value"].min(), sweep.points["value"].max()])
        level = np.full(2, sweep.source)
        lines.insert(0, Line(SOURCE, sweep.labels[SOURCE], SOURCE_LOOK, span, level))
    best = min if sweep.metric.ascending > 0 else max
    groups, rest = sorted_out(sorted(lines, key=lambda line: sweep.metric.ascending * best(line.y)))
    with canvas.drawing():
        figure = canvas.figure((7.2, 3.4), 2.1)
        axes = figure.subplots()
        draw_rest(axes, rest)
        for line, *_ in groups:
            half = points[line.name]["half_interval"] if line.name in points else None
            bars: dict[str, Any] = {"capsize": 2.5, "elinewidth": 0.9, "ms": 4.5}
            axes.errorbar(line.x, line.y, yerr=half, **line.look.line, **bars)
        scale_by_values(axes, sweep.points["value"])
        canvas.below(figure, f"{sweep.key.replace('_', ' ')}{rest_text(rest)}")
        axes.set_ylabel(canvas.narrow(sweep.metric.text))
        canvas.title(figure, sweep.title)
        label_ends(figure, axes, groups, canvas)
        caption = f"{_text(sweep)}. {sweep.title}. {caption_of(groups, rest)}".strip()
        return save_figure(figure, sweep.points, stem, caption)


def _point(row: Row, line: str, value: float, metric: Metric) -> dict[str, Any]:
    return {
        "line": line,
        "value": value,
        "mean": row.mean,
        "half_interval": drawn_half(row, metric),
        "std": row.std,
        "seeds": len(row.values),
    }


def _sorted(points: list[dict[str, Any]]) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame(points)
    return frame.sort_values(["line", "value"], kind="stable").reset_index(drop=True)
