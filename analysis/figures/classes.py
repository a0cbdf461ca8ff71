"""The gain in IoU of each class over source, from the class that gains most."""

from pathlib import Path

import numpy as np
import pandas as pd

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.dots import Dot, draw_groups, name_rows, write_column
from ctta_bench.analysis.figure.lines import BEST, FEW, row_looks
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.missing import listed
from ctta_bench.analysis.table.rows import rows, source_row
from ctta_bench.analysis.table.table import MISSING
from ctta_bench.analysis.tables.classes import by_class, classes_of, mean_over
from ctta_bench.registry import FIGURES
from ctta_bench.scoring.metric import printed


@FIGURES.register_module(
    "classes", place=60, text="Gain in IoU over source by class, sorted by the mean of these gains"
)
def class_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """Dots of the gain in IoU over source for each class, over all domains.

    Of more than eight methods the best five are drawn, and the caption names the others; without
    source, the IoU itself. Writes stem.png, stem.pdf, stem.csv (IoU of all methods) and its caption
    stem.txt, and returns the first three; nothing without such scores.
    """
    classes = classes_of(runs)
    found = [row for row in rows(runs) if not np.isnan(row.mean)]
    if not classes or not found:
        return []
    source = source_row(found)
    others = [row for row in found if row is not source]
    shown = others if len(found) <= FEW else others[:BEST]
    values = {row.name: mean_over(by_class(runs, row, classes), 3) for row in found}
    of_source = np.zeros(len(classes)) if source is None else values[source.name]
    gains = {row.name: values[row.name] - of_source for row in shown}
    stacked = np.array([*gains.values()] or [of_source])
    some = np.isfinite(stacked)
    means = np.where(some, stacked, 0).sum(0) / np.maximum(some.sum(0), 1)
    order = np.argsort(np.where(some.any(0), -means, np.inf), kind="stable")
    looks = row_looks(found)
    dots = [Dot(row.label, looks[row.name], 0.0, np.nan, np.nan) for row in shown]
    with canvas.drawing():
        figure = canvas.figure((6.4, 1.3 + 0.26 * len(classes)), 0.9 + 0.165 * len(classes))
        axes = figure.subplots()
        draw_groups(axes, dots, [gains[row.name][order].tolist() for row in shown])
        name_rows(axes, [classes[place] for place in order], canvas)
        if source is not None:
            texts = [MISSING if np.isnan(v) else printed(v) for v in of_source[order]]
            write_column(axes, f"{source.label}, IoU %", texts)
        for dot in dots:
            style = dot.look.line | {"ls": ""}
            axes.plot([], [], **style, ms=5, label=dot.label)
        what = (
            "IoU in % (higher is better)"
            if source is None
            else f"gain in IoU over {source.label} in points (right is better)"
        )
        axes.set_xlabel(what)
        canvas.title(figure, notes.title(runs))
        if dots:
            canvas.legend(figure, fontsize="small")
        left = [row.label for row in others if row not in shown]
        caption = (
            f"{notes.title(runs)}. {notes.upper_first(what)}, by class, sorted by the mean over "
            "the methods that are drawn; mean over the domains, rounds and seeds in which a class "
            "has an IoU." + (f" Not drawn: {listed(left)}." if left else "")
        )
        drawn = pd.DataFrame(values, index=pd.Index(classes, name="class")).reset_index()
        return save_figure(figure, drawn, stem, caption)
