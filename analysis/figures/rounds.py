"""Curves over rounds: the result of each method as the same domains come back."""

from pathlib import Path

import numpy as np
import pandas as pd

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.curves import has_all_batches
from ctta_bench.analysis.figure.lines import (
    RING,
    Line,
    caption_of,
    draw_rest,
    label_ends,
    rest_text,
    row_looks,
    sorted_out,
)
from ctta_bench.analysis.read.collect import Runs, batches
from ctta_bench.analysis.table.notes import title, upper_first
from ctta_bench.analysis.table.rows import Row, metric_of, rows
from ctta_bench.registry import FIGURES

FEWEST = 3  # rounds of a curve
MOST_TICKS = 12


@FIGURES.register_module(
    "rounds",
    place=20,
    text=(
        "Mean of each round; bands: ± sample standard deviation over seeds, no interval and no "
        "test (no band: one seed); ring: the method reset itself in this round"
    ),
)
def round_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """The mean of each round, one line per method, with a band of ± one deviation over its seeds.

    A ring marks a round in which the method reset itself (`resets` in batches.jsonl); the CSV has
    the number of resets, the mean over seeds. Writes stem.png, stem.pdf, stem.csv and its caption
    stem.txt, and returns the first three; nothing for fewer than three rounds or without a complete
    method.
    """
    found = [row for row in rows(runs) if not np.isnan(row.mean)]
    num_rounds = int(runs.cells["rounds"].iloc[0])
    if num_rounds < FEWEST or not found:
        return []
    curves = {row.name: _curve(row, runs) for row in found}
    looks = row_looks(found)
    groups, rest = sorted_out(
        [
            Line(
                row.name,
                row.label,
                looks[row.name],
                curve["round"].to_numpy(),
                curve["mean"].to_numpy(),
            )
            for row, curve in zip(found, curves.values(), strict=True)
        ]
    )
    metric = metric_of(runs)
    with canvas.drawing():
        figure = canvas.figure((6.4, 3.6), 2.1)
        axes = figure.subplots()
        draw_rest(axes, rest)
        for line, *_ in groups:
            axes.plot(line.x, line.y, **line.look.line, ms=4, lw=1.3)
            spread = curves[line.name]["std"].fillna(0.0)
            low, high = line.y - spread, line.y + spread
            axes.fill_between(line.x, low, high, color=line.look.colour, alpha=0.15, lw=0)
        resets = {line: curves[line.name]["resets"].to_numpy() > 0 for g in groups for line in g}
        for line, reset in resets.items():
            axes.plot(line.x[reset], line.y[reset], **RING, mec=line.look.colour)
        has_reset = any(reset.any() for reset in resets.values())
        axes.set_xticks(range(1, num_rounds + 1, -(-num_rounds // MOST_TICKS)))
        ring = "; ring: the method reset itself" if has_reset else ""
        canvas.below(figure, f"round{ring}{rest_text(rest)}")
        axes.set_ylabel(canvas.narrow(metric.text))
        canvas.title(figure, title(runs))
        label_ends(figure, axes, groups, canvas)
        several = max(len(row.values) for row in found) > 1
        caption = [
            f"{upper_first(metric.text)}, mean of each round: {title(runs)}.",
            "Bands: ± sample standard deviation over seeds, no interval and no test."
            if several
            else "One seed.",
            "A ring marks a round in which the method reset itself." if has_reset else "",
            caption_of(groups, rest),
        ]
        return save_figure(
            figure, pd.concat(curves.values()), stem, " ".join(filter(None, caption))
        )


def _curve(row: Row, runs: Runs) -> pd.DataFrame:
    """Columns method, round from 1, mean and its deviation over seeds (NaN for one seed), resets.

    resets: by the method itself in this round, mean over seeds; NaN without all batches.
    """
    seeds = np.array([_of_seed(row, number) for number in range(len(row.values))])
    several = len(seeds) > 1
    return pd.DataFrame(
        {
            "method": row.name,
            "round": np.arange(1, seeds.shape[1] + 1),
            "mean": seeds.mean(axis=0),
            "std": seeds.std(axis=0, ddof=1) if several else np.nan,
            "seeds": len(seeds),
            "resets": _resets(row, seeds.shape[1]) if has_all_batches(row, runs) else np.nan,
        }
    )


def _resets(row: Row, rounds: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """[rounds] number of resets, mean over seeds; runs of old releases have no such column."""
    counts = np.zeros(rounds)
    for path in row.finished["path"]:
        frame = batches(path)
        if "resets" in frame:
            of_round = frame.groupby("round")["resets"].sum()
            counts += of_round.reindex(range(rounds), fill_value=0).to_numpy(float)
    return counts / len(row.finished)


def _of_seed(row: Row, number: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """[rounds] means over the domains of a finished seed that have something to score."""
    values = np.where(row.empty[number], np.nan, row.values[number])
    means: np.ndarray[tuple[int], np.dtype[np.float64]] = np.nanmean(values, axis=1)
    return means
