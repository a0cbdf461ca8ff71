"""Curves over rounds: the result of each method as the same domains come back."""

from pathlib import Path

import numpy as np
import pandas as pd

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.style import line_style
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.notes import title
from ctta_bench.analysis.table.rows import SOURCE, Row, metric_of, rows
from ctta_bench.registry import FIGURES

FEWEST = 3  # rounds of a curve


@FIGURES.register_module(
    "rounds",
    place=20,
    text=(
        "Mean of each round; bands: ± sample standard deviation over seeds, no interval and no "
        "test (no band: one seed)"
    ),
)
def round_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """The mean of each round, one line per method, with a band of ± one deviation over its seeds.

    Writes stem.png, stem.pdf and stem.csv and returns their paths; nothing for fewer than three
    rounds or without a complete method.
    """
    found = [row for row in rows(runs) if not np.isnan(row.mean)]
    num_rounds = int(runs.cells["rounds"].iloc[0])
    if num_rounds < FEWEST or not found:
        return []
    curves = [_curve(row) for row in found]
    with canvas.drawing():
        figure = canvas.figure((6.4, 3.6), 2.1)
        axes = figure.subplots()
        for place, (row, curve) in enumerate(zip(found, curves, strict=True)):
            style = line_style(place, is_source=row.method == SOURCE)
            axes.plot(
                curve["round"],
                curve["mean"],
                **style,
                ms=4,
                lw=1.3,
                label=row.label,
            )
            spread = curve["std"].fillna(0.0)
            axes.fill_between(
                curve["round"],
                curve["mean"] - spread,
                curve["mean"] + spread,
                color=style["color"],
                alpha=0.15,
                lw=0,
            )
        axes.set_xticks(range(1, num_rounds + 1))
        axes.set_xlabel("round")
        axes.set_ylabel(canvas.narrow(metric_of(runs).text))
        canvas.legend(figure, handlelength=3)
        canvas.title(figure, title(runs))
        return save_figure(figure, pd.concat(curves), stem)


def _curve(row: Row) -> pd.DataFrame:
    """Columns method, round from 1, mean and its deviation over seeds (NaN for one seed)."""
    seeds = np.array([_of_seed(row, number) for number in range(len(row.values))])
    several = len(seeds) > 1
    return pd.DataFrame(
        {
            "method": row.name,
            "round": np.arange(1, seeds.shape[1] + 1),
            "mean": seeds.mean(axis=0),
            "std": seeds.std(axis=0, ddof=1) if several else np.nan,
            "seeds": len(seeds),
        }
    )


def _of_seed(row: Row, number: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """[rounds] means over the domains of a finished seed that have something to score."""
    values = np.where(row.empty[number], np.nan, row.values[number])
    means: np.ndarray[tuple[int], np.dtype[np.float64]] = np.nanmean(values, axis=1)
    return means
