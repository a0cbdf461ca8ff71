"""Experiment 2 of PAID: its settings by domain as a radar chart, and their means as bars."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.style import COLOURS, MARKERS, SOURCE_COLOUR
from ctta_bench.analysis.paper.components import COMPONENTS, PAIRWISE_INVARIANT, component_of
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.compared import drawn_half
from ctta_bench.analysis.table.notes import title
from ctta_bench.analysis.table.rows import SOURCE, Row, domain_labels, metric_of, rows
from ctta_bench.registry import FIGURES
from ctta_bench.scoring.metric import Metric, printed

MIN_DOMAINS = 3  # of a polygon


def settings_rows(runs: Runs) -> list[tuple[str, Row]]:
    """Source and the rows of PAID's settings with a complete mean, in the order of the paper.

    Empty with fewer than two of the settings. Of several rows of one setting, which differ in
    other hyper-parameters, the one with the best mean is taken.
    """
    found: dict[str, Row] = {}
    for row in rows(runs):
        cell = row.cells.iloc[0]
        component = component_of(row.method, str(cell["hyperparameters"]))
        key = SOURCE if row.method == SOURCE else component
        if key is not None and not np.isnan(row.mean):
            found.setdefault(key, row)
    settings = [(text, found[name]) for name, text in COMPONENTS.items() if name in found]
    if len(settings) < 2:
        return []
    return [*([(SOURCE, found[SOURCE])] if SOURCE in found else []), *settings]


@FIGURES.register_module(
    "settings",
    place=40,
    text=(
        "PAID's settings by domain and on average; whiskers: half the 95 % interval of the mean, "
        "over the images and seeds that were run"
    ),
)
def settings_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """Radar chart of the metric by domain and bars of the mean, for each of PAID's settings.

    Settings that keep the angles between neurons are filled bars and solid lines, the others
    hatched and dashed. Writes stem.png, stem.pdf and stem.csv and returns their paths; nothing
    for a group without two of the settings.
    """
    found = settings_rows(runs)
    domains = domain_labels(runs)
    if not found:
        return []
    has_radar = len(domains) >= MIN_DOMAINS
    with canvas.drawing():
        grid = canvas.panels(1 + has_radar)
        figure = canvas.figure((11 if has_radar else 6, 5), 2.6 * grid[0])
        bars = figure.add_subplot(*grid, 1 + has_radar)
        if has_radar:
            radar = figure.add_subplot(*grid, 1, projection="polar")
            _draw_radar(radar, found, [*domains.values()], metric_of(runs))
        halves = [drawn_half(row, metric_of(runs)) for _, row in found]
        _draw_means(bars, found, halves, canvas)
        bars.set_xlabel(canvas.narrow(f"mean {metric_of(runs).text}"))
        if has_radar:
            below = canvas.pick({"loc": "outside lower center", "ncols": 3}, {})
            canvas.legend(figure, fontsize="small", handlelength=4, **below)
        canvas.title(figure, title(runs))
        figure.draw_without_rendering()  # only a second drawing places the labels around a circle
        drawn = pd.DataFrame(
            [
                [name, *row.over(axis=1), row.mean, half, row.std]
                for (name, row), half in zip(found, halves, strict=True)
            ],
            columns=["setting", *domains, "mean", "half_interval", "std"],
        )
        return save_figure(figure, drawn, stem)


def _label(name: str, row: Row) -> str:
    return row.label if name == SOURCE else name


def _style(name: str, row: Row, number: int) -> tuple[str, bool]:
    """Colour of a row, and whether it cannot change the angles between neurons (as source)."""
    if name == SOURCE:
        return SOURCE_COLOUR, True
    component = component_of(row.method, str(row.cells["hyperparameters"].iloc[0]))
    return COLOURS[number % len(COLOURS)], component in PAIRWISE_INVARIANT


def _draw_radar(
    axes: Axes, found: Sequence[tuple[str, Row]], names: Sequence[str], metric: Metric
) -> None:
    angles = np.linspace(0, 2 * np.pi, len(names), endpoint=False)
    closed = np.append(angles, angles[0])
    for number, (name, row) in enumerate(found):
        colour, keeps = _style(name, row, number - 1)
        values = row.over(axis=1)
        axes.plot(
            closed,
            np.append(values, values[0]),
            color=colour,
            ls=":" if name == SOURCE else "-" if keeps else (0, (5, 2)),
            marker="" if name == SOURCE else MARKERS[number % len(MARKERS)],
            ms=4,
            lw=1.4,
            label=_label(name, row),
        )
    axes.set_theta_offset(np.pi / 2)  # type: ignore[attr-defined]
    axes.set_theta_direction(-1)  # type: ignore[attr-defined]
    axes.set_xticks(angles, names, fontsize="small")
    axes.tick_params(axis="x", pad=6)
    axes.set_ylim(0, None)
    axes.set_title(f"{metric.symbol} in {metric.unit} by domain", fontsize="medium", pad=14)
    axes.grid(color="#DDDDDD")


def _draw_means(
    axes: Axes, found: Sequence[tuple[str, Row]], halves: Sequence[float], canvas: Canvas
) -> None:
    reach = max(row.mean + half for (_, row), half in zip(found, halves, strict=True))
    for number, (name, row) in enumerate(found):
        colour, keeps = _style(name, row, number - 1)
        spread = halves[number]
        axes.barh(
            number,
            row.mean,
            0.68,
            color=colour,
            hatch="" if keeps else "////",
            edgecolor="white",
            lw=0,
        )
        if spread:
            axes.errorbar(
                row.mean, number, xerr=spread, fmt="none", ecolor="black", elinewidth=1, capsize=3
            )
        axes.text(row.mean + spread + 0.015 * reach, number, printed(row.mean), va="center")
    axes.set_xlim(0, 1.12 * reach if reach else 1)
    axes.set_yticks(range(len(found)), canvas.names(_label(name, row) for name, row in found))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_title(canvas.narrow("hatched: angles between neurons may change"), fontsize="medium")
