"""Mean ranks over domains, with the critical difference of Nemenyi's test."""

from pathlib import Path

import pandas as pd

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.style import COLOURS, SOURCE_COLOUR
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.rows import SOURCE
from ctta_bench.analysis.tables.ranks import ALPHA, Ranks, all_ranks
from ctta_bench.registry import FIGURES


@FIGURES.register_module("ranks", place=10, of="all", kind="means")
def rank_figures(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[tuple[str, list[Path]]]:
    """The ranks of each group and over all: what each figure shows, and its files."""
    return [
        (
            f"Mean ranks: {ranks.title}",
            rank_figure(ranks, stem.with_name(f"{ranks.name}-ranks"), canvas),
        )
        for ranks in all_ranks(runs)
    ]


def rank_figure(ranks: Ranks, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """Mean ranks with bars of half the critical difference to each side.

    Methods with overlapping bars do not differ significantly.
    Writes stem.png, stem.pdf and stem.csv and returns their paths.
    """
    names = [str(name) for name in ranks.ranks.index]
    labels = [ranks.label(name) for name in names]
    half = ranks.critical / 2
    with canvas.drawing():
        figure = canvas.figure((6.4, 1.1 + 0.26 * len(labels)), 0.9 + 0.23 * len(labels))
        axes = figure.subplots()
        best = float(ranks.ranks.iloc[0])
        axes.axvspan(best - half, best + half, color="#EEEEEE", lw=0, zorder=0)
        for place, (name, rank) in enumerate(zip(names, ranks.ranks, strict=True)):
            colour = SOURCE_COLOUR if name == SOURCE else COLOURS[0]
            axes.errorbar(
                rank, place, xerr=half, fmt="o", color=colour, ms=4.5, capsize=2.5, elinewidth=1
            )
        axes.set_yticks(range(len(labels)), canvas.names(labels))
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(labels) - 0.4, -0.6)
        text = (
            f"mean rank over {ranks.blocks} domains (1 is the best); methods differ if their bars "
            f"do not overlap (Nemenyi, level {ALPHA}); a bar that reaches the grey area does not "
            "differ from the best"
        )
        canvas.below(figure, text)
        canvas.title(figure, ranks.title)
        drawn = pd.DataFrame(
            {
                "method": names,
                "mean_rank": ranks.ranks.to_numpy(),
                "critical_difference": ranks.critical,
            }
        )
        return save_figure(figure, drawn, stem)
