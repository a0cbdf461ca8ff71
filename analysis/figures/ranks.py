"""Mean ranks over domains, with the critical difference of Nemenyi's test."""

from pathlib import Path

import pandas as pd

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.dots import Dot, draw_dot, name_rows
from ctta_bench.analysis.figure.palette import looks as looks_of
from ctta_bench.analysis.read.collect import Runs
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
    Writes stem.png, stem.pdf, stem.csv and its caption stem.txt, and returns the first three.
    """
    names = [str(name) for name in ranks.ranks.index]
    labels = [ranks.label(name) for name in names]
    looks = looks_of({name: name.partition(" ")[0] for name in names})
    half = ranks.critical / 2
    with canvas.drawing():
        figure = canvas.figure((6.4, 1.2 + 0.26 * len(labels)), 0.95 + 0.165 * len(labels))
        axes = figure.subplots()
        best = float(ranks.ranks.iloc[0])
        axes.axvspan(best - half, best + half, color="#EEEEEE", lw=0, zorder=0)
        for place, (name, rank) in enumerate(zip(names, ranks.ranks, strict=True)):
            filled = rank - best <= ranks.critical
            dot = Dot(labels[place], looks[name], rank, rank - half, rank + half, filled)
            draw_dot(axes, dot, place)
        name_rows(axes, labels, canvas)
        text = (
            f"mean rank over {ranks.blocks} domains (1 is the best); methods differ if their bars "
            f"do not overlap (Nemenyi, level {ALPHA}); filled, its bar reaches the grey area: not "
            "distinguishable from the best"
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
        return save_figure(figure, drawn, stem, f"{ranks.title}: {text}.")
