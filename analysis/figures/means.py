"""Means as bars, one per method."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.style import COLOURS, SOURCE_COLOUR
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.notes import title
from ctta_bench.analysis.table.rows import SOURCE, Row, metric_of, rows, source_row
from ctta_bench.registry import FIGURES


@FIGURES.register_module("means", place=10, text="Mean of each method; dashed line: source")
def bar_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """The mean of each method of one group, with whiskers of ± one deviation over the seeds.

    Writes stem.png, stem.pdf and stem.csv, and returns their paths; nothing for a group without a
    complete mean.
    """
    found = [row for row in rows(runs) if not np.isnan(row.mean)]
    if not found:
        return []
    with canvas.drawing():
        figure = canvas.figure((6.4, 0.9 + 0.32 * len(found)), 0.6 + 0.24 * len(found))
        axes = figure.subplots()
        _draw_bars(axes, found, canvas)
        canvas.below(figure, _with_spread(metric_of(runs).text, found))
        canvas.title(figure, title(runs))
        drawn = pd.DataFrame(
            [(row.name, row.mean, row.std, len(row.values)) for row in found],
            columns=["method", "mean", "std", "seeds"],
        )
        return save_figure(figure, drawn, stem)


def _draw_bars(axes: Axes, found: Sequence[Row], canvas: Canvas) -> None:
    positions = np.arange(len(found))
    means = np.array([row.mean for row in found])
    spread = np.array([0.0 if np.isnan(row.std) else row.std for row in found])
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
            f"{mean:.1f}",
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # hides the dashed line
        )
    axes.set_xlim(0, 1.1 * reach if reach else 1)
    axes.set_yticks(positions, canvas.names(row.label for row in found))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(found) - 0.4, -0.6)


def _with_spread(text: str, found: Sequence[Row]) -> str:
    counts = [len(row.values) for row in found]
    if max(counts) == 1:
        return f"mean {text}; one seed"
    seeds = f"{max(counts)}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    return f"mean {text}; whiskers: ± standard deviation over {seeds} seeds"
