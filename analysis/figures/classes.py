"""IoU by class as bars: source next to the best methods."""

from pathlib import Path

import numpy as np
import pandas as pd

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.style import COLOURS, SOURCE_COLOUR
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import SOURCE, rows
from ctta_bench.analysis.table.table import MISSING
from ctta_bench.analysis.tables.classes import by_class, classes_of, mean_over
from ctta_bench.registry import FIGURES

MAX_BARS = 5  # methods; the tables have all


@FIGURES.register_module("classes", place=60, text="IoU by class of source and the best methods")
def class_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """Bars of the IoU of each class, over all domains: source next to the best methods.

    Writes stem.png, stem.pdf and stem.csv and returns their paths; nothing without such scores.
    """
    classes = classes_of(runs)
    found = [row for row in rows(runs) if not np.isnan(row.mean)][:MAX_BARS]
    if not classes or not found:
        return []
    values = {row.name: mean_over(by_class(runs, row, classes), 3) for row in found}
    with canvas.wide.drawing():
        figure = canvas.wide.figure((11, 3.6), 2.4)
        axes = figure.subplots()
        width = 0.84 / len(found)
        for number, row in enumerate(found):
            is_source = row.method == SOURCE
            axes.bar(
                np.arange(len(classes)) + (number - (len(found) - 1) / 2) * width,
                np.nan_to_num(values[row.name]),
                width,
                color="#BBBBBB" if is_source else COLOURS[number % len(COLOURS)],
                hatch="///" if is_source else "",
                edgecolor="white",
                lw=0,
                label=row.label,
            )
        absent = np.all([np.isnan(v) for v in values.values()], axis=0)
        for place in np.flatnonzero(absent).tolist():
            axes.text(place, 1, MISSING, ha="center", color=SOURCE_COLOUR)
        axes.set_xticks(range(len(classes)), classes, rotation=40, ha="right")
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.6, len(classes) - 0.4)
        axes.set_ylabel("IoU in % (higher is better)")
        axes.legend(
            frameon=False,
            ncols=len(found),
            loc="lower left",
            bbox_to_anchor=(0, 1),
            fontsize="small",
        )
        canvas.title(figure, notes.title(runs))
        drawn = pd.DataFrame(values, index=pd.Index(classes, name="class")).reset_index()
        return save_figure(figure, drawn, stem)
