"""Means as bars, one per method."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.style import COLOURS, SOURCE_COLOUR
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.compared import drawn_half
from ctta_bench.analysis.table.rows import SOURCE, Row, metric_of, rows, source_row
from ctta_bench.registry import FIGURES
from ctta_bench.scoring.metric import printed


@FIGURES.register_module("means", place=10, text="Mean of each method; dashed line: source")
def bar_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """The mean of each method of one group, with its 95 % interval as whiskers.

    Writes stem.png, stem.pdf and stem.csv, and returns their paths; nothing for a group without a
    complete mean.
    """
    found = [row for row in rows(runs) if not np.isnan(row.mean)]
    if not found:
        return []
    with canvas.drawing():
        figure = canvas.figure((6.4, 0.9 + 0.32 * len(found)), 0.6 + 0.24 * len(found))
        axes = figure.subplots()
        metric = metric_of(runs)
        halves = np.array([drawn_half(row, metric) for row in found])
        _draw_bars(axes, found, halves, canvas)
        canvas.below(figure, f"mean {metric.text}{notes.interval(found).replace('±', 'whiskers')}")
        canvas.title(figure, notes.title(runs))
        drawn = pd.DataFrame(
            [
                (row.name, row.mean, half, row.std, len(row.values))
                for row, half in zip(found, halves, strict=True)
            ],
            columns=["method", "mean", "half_interval", "std", "seeds"],
        )
        return save_figure(figure, drawn, stem)


def _draw_bars(
    axes: Axes, found: Sequence[Row], spread: npt.NDArray[np.float64], canvas: Canvas
) -> None:
    positions = np.arange(len(found))
    means = np.array([row.mean for row in found])
    is_source = np.array([row.method == SOURCE for row in found])
    for mask, colour, hatch in ((~is_source, COLOURS[0], ""), (is_source, "#BBBBBB", "///")):
        axes.barh(
            positions[mask], means[mask], 0.68, color=colour, hatch=hatch, edgecolor="white", lw=0
        )
    has_spread = spread > 0
    axes.errorbar(
        means[has_spread],
        positions[has_spread],
        xerr=spread[has_spread],
        fmt="none",
        ecolor="black",
        elinewidth=1,
        capsize=3,
    )
    source = source_row(found)
    if source is not None:
        axes.axvline(source.mean, color=SOURCE_COLOUR, ls="--", lw=1, zorder=0.5)
    reach = (means + spread).max()
    for position, (mean, deviation) in enumerate(zip(means, spread, strict=True)):
        axes.text(
            mean + deviation + 0.015 * reach,
            position,
            printed(mean),
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # hides the dashed line
        )
    axes.set_xlim(0, 1.1 * reach if reach else 1)
    axes.set_yticks(positions, canvas.names(row.label for row in found))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(found) - 0.4, -0.6)
