"""Experiment 2 of PAID: its settings by domain and on average, as gains over source.

The paper draws a radar of the errors by domain. Its axis begins at 0, so that domains with small
errors fall together in the middle; here each domain has a line of its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.dots import (
    Dot,
    draw_dot,
    draw_dots,
    draw_groups,
    name_rows,
    write_column,
)
from ctta_bench.analysis.figure.lines import row_looks
from ctta_bench.analysis.paper.components import COMPONENTS, PAIRWISE_INVARIANT, component_of
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.compared import Compared, compared_with, drawn_half
from ctta_bench.analysis.table.notes import holds_for, title
from ctta_bench.analysis.table.rows import SOURCE, Row, domain_labels, metric_of, rows
from ctta_bench.registry import FIGURES
from ctta_bench.scoring.metric import Metric, printed

MIN_DOMAINS = 2  # of a panel by domain
_HOLLOW = "hollow: angles between neurons may change"


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
        "PAID's settings by domain and on average: gain over source; lines: 95 % interval of the "
        "mean gain, over the images and seeds that were run"
    ),
)
def settings_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """Gain of each of PAID's settings over source, by domain and on average.

    Settings that keep the angles between neurons are filled. Without a run of source, the metric
    itself is drawn. Writes stem.png, stem.pdf, stem.csv and its caption stem.txt, and returns the
    first three; nothing for a group without two of the settings.
    """
    found = settings_rows(runs)
    if not found:
        return []
    metric, domains = metric_of(runs), domain_labels(runs)
    source = found[0][1] if found[0][0] == SOURCE else None
    settings = found[1:] if source is not None else found
    compared: list[Compared | None] = [None] * len(settings)
    if source is not None:
        compared = [*compared_with(source, [row for _, row in settings], metric)]
    looks = row_looks([row for _, row in found])
    dots = [
        _dot(Dot(name, looks[row.name], row.mean, np.nan, np.nan, _keeps(row)), row, one, metric)
        for (name, row), one in zip(settings, compared, strict=True)
    ]
    of = f"gain in {metric.symbol} over {source.label}, points" if source else metric.text
    has_domains = len(domains) >= MIN_DOMAINS
    with canvas.drawing():
        grid = canvas.panels(1 + has_domains)
        height = 0.9 + 0.19 * len(domains), 1.0 + 0.2 * len(dots)
        figure = canvas.figure(
            (10.5 if has_domains else 6, max(3.4, height[0] * 1.15)),
            sum(height) if grid[0] == 2 else max(height),
        )
        ratios = {"height_ratios": height} if grid[0] == 2 else {}
        panels = figure.subplots(*grid, squeeze=False, gridspec_kw=ratios).ravel()
        if has_domains:
            draw_groups(panels[0], dots, _by_domain(settings, source, metric))
            name_rows(panels[0], [*domains.values()], canvas)
            panels[0].set_title("by domain", loc="left", fontsize="medium")
        cut = draw_dots(panels[-1], dots, canvas) if source else ""
        if source is None:
            for place, dot in enumerate(dots):
                draw_dot(panels[-1], dot, place)
            name_rows(panels[-1], [dot.label for dot in dots], canvas)
        panels[-1].set_title("mean", loc="left", fontsize="medium")
        write_column(panels[-1], metric.head, [printed(row.mean) for _, row in settings])
        seeds = max(len(row.values) for _, row in settings)
        lines = f"lines: 95 % intervals, {holds_for(seeds)}"
        parts = [of, lines, _HOLLOW, "axis cut at the arrows" if cut else ""]
        canvas.below(figure, "; ".join(filter(None, parts)))
        canvas.title(figure, title(runs))
        drawn = pd.DataFrame(
            [
                [name, *row.over(axis=1), row.mean, drawn_half(row, metric), row.std]
                for name, row in found
            ],
            columns=["setting", *domains, "mean", "half_interval", "std"],
        )
        texts = [f"PAID's settings: {title(runs)}", f"G{of[1:]}" if source else of, lines, _HOLLOW]
        caption = ". ".join(text[:1].upper() + text[1:] for text in texts) + f". {cut}"
        return save_figure(figure, drawn, stem, caption.strip())


def _keeps(row: Row) -> bool:
    """Whether a setting cannot change the angles between neurons."""
    component = component_of(row.method, str(row.cells["hyperparameters"].iloc[0]))
    return component in PAIRWISE_INVARIANT


def _dot(mean: Dot, row: Row, compared: Compared | None, metric: Metric) -> Dot:
    """The dot of a row's mean, as a gain with its interval where there is a comparison."""
    if compared is None or compared.estimate is None:
        half = drawn_half(row, metric)
        return replace(mean, low=mean.value - half, high=mean.value + half)
    gain = compared.estimate.scaled(-metric.ascending)
    return replace(mean, value=gain.mean, low=gain.low, high=gain.high)


def _by_domain(
    settings: Sequence[tuple[str, Row]], source: Row | None, metric: Metric
) -> list[list[float]]:
    """For each setting its gain in each domain; the metric itself without source."""
    values = [row.over(axis=1) for _, row in settings]
    if source is not None:
        values = [-metric.ascending * (value - source.over(axis=1)) for value in values]
    return [value.tolist() for value in values]
