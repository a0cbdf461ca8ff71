"""The gain of each method over source as dots with intervals."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.dots import Dot, draw_dot, draw_dots, name_rows, write_column
from ctta_bench.analysis.figure.lines import row_looks
from ctta_bench.analysis.figure.palette import Look
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.read.error_model import LEVEL
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.compared import Compared, compared_with, drawn_half
from ctta_bench.analysis.table.rows import Row, metric_of, rows, source_row
from ctta_bench.names import renamed
from ctta_bench.registry import FIGURES
from ctta_bench.scoring.metric import Metric, printed

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)


@FIGURES.register_module(
    "means",
    place=10,
    text="Gain of each method over source with its 95 % interval; without source: the mean",
)
def mean_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """Gain of each method of one group over source, with its paired 95 % interval.

    Filled dots differ from source after Holm's correction. Without a complete run of source: the
    means with their intervals. Writes stem.png, stem.pdf, stem.csv and its caption stem.txt, and
    returns the first three; nothing for a group without a complete mean.
    """
    found = [row for row in rows(runs) if not np.isnan(row.mean)]
    if not found:
        return []
    metric, source = metric_of(runs), source_row(found)
    others = [row for row in found if row is not source]
    compared = [] if source is None else compared_with(source, others, metric)
    of_name = {one.row.name: one for one in compared}
    looks = row_looks(found)
    dots = [_dot(row, looks[row.name], source, of_name.get(row.name), metric) for row in found]
    drawn = pd.DataFrame(
        {
            "method": [row.name for row in found],
            "mean": [row.mean for row in found],
            "half_interval": [drawn_half(row, metric) for row in found],
            "std": [row.std for row in found],
            "seeds": [len(row.values) for row in found],
        }
    )
    lines = f"lines: 95 % intervals, {notes.holds_for(int(drawn['seeds'].max()))}"
    with canvas.drawing():
        figure = canvas.figure((6.4, 1.2 + 0.26 * len(found)), 0.85 + 0.165 * len(found))
        axes = figure.subplots()
        if source is None:
            for place, dot in enumerate(dots):
                draw_dot(axes, dot, place)
            name_rows(axes, [dot.label for dot in dots], canvas)
            what, cut, marks = f"mean {metric.text}", "", ""
        else:
            drawn["gain"] = [dot.value for dot in dots]
            drawn["low"], drawn["high"] = [dot.low for dot in dots], [dot.high for dot in dots]
            drawn["p_holm"] = [
                of_name[row.name].p_holm if row.name in of_name else np.nan for row in found
            ]
            cut = draw_dots(axes, dots, canvas)
            what = f"gain in {metric.symbol} over {source.label} in points (right is better)"
            marks = f"filled: differs from {source.label} (p < {LEVEL} after Holm's correction)"
        write_column(axes, metric.head, [printed(row.mean) for row in found])
        parts = [what, lines, marks, "axis cut at the arrows" if cut else ""]
        canvas.below(figure, "; ".join(filter(None, parts)))
        canvas.title(figure, notes.title(runs))
        sentences = [notes.upper_first(text) + "." for text in (what, lines, marks) if text]
        reasons = [f"{one.row.label}: {one.reason}" for one in compared if one.reason]
        caption = " ".join([f"{notes.title(runs)}.", *sentences, *reasons, cut]).strip()
        return save_figure(figure, drawn, stem, caption)


def _dot(
    row: Row, look: Look, source: Row | None, compared: Compared | None, metric: Metric
) -> Dot:
    """The gain of a row, filled if it differs from source; without source its mean."""
    if source is None:
        half = drawn_half(row, metric)
        return Dot(row.label, look, row.mean, row.mean - half, row.mean + half)
    if compared is None or compared.estimate is None:  # source itself, or not comparable
        gain = metric.gain(source.mean, row.mean)
        return Dot(row.label, look, gain, np.nan, np.nan, filled=row is source)
    found = compared.estimate.scaled(-metric.ascending)
    return Dot(row.label, look, found.mean, found.low, found.high, compared.differs)
