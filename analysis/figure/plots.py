"""The figures of a report: means as bars, and mistakes along the stream.

Each figure is saved as PNG and PDF beside a CSV of the very numbers it draws.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.curves import MAX_BANDS, curves, has_all_batches, window_text
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.notes import title
from ctta_bench.analysis.table.rows import SOURCE, Row, metric_of, rows, short_names, source_row
from ctta_bench.record.schema import BATCHES_FILE

SOURCE_COLOUR = "#555555"
# Okabe & Ito's palette without black and yellow, in an order of alternating lightness.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (5, 1, 1, 1)))
MARKERS = "osD^vP*X"
MAX_MARKERS = 15  # per line
_RING: dict[str, Any] = {"ls": "", "marker": "o", "mfc": "white", "ms": 7}  # a reset


def line_style(number: int, *, is_source: bool) -> dict[str, Any]:
    """Colour, dashes and marker of the line of that number; the source model has neither mark."""
    if is_source:
        return {"color": SOURCE_COLOUR, "ls": DASHES[0], "marker": ""}
    return {
        "color": COLOURS[number % len(COLOURS)],
        "ls": DASHES[number // len(COLOURS) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def bar_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """The mean of each method of one group with whiskers of ± one deviation over the seeds.

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
            [(row.label, row.mean, row.std, len(row.values)) for row in found],
            columns=["method", "mean", "std", "seeds"],
        )
        return save_figure(figure, drawn, stem)


def stream_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """Errors over the stream of one group, a line per method, averaged over its seeds.

    They are wrong images, or wrong pixels where the metric is of pixels. What the moving average
    spans is written on the axis (see `curves`). A ring marks a batch in which the method reset
    itself, where batches.jsonl says so (`resets`). Writes stem.png, stem.pdf and stem.csv and
    returns their paths. A method whose batches.jsonl is not whole has no line, and the legend says
    so.
    """
    finished = [row for row in rows(runs) if len(row.values)]
    found = [row for row in finished if has_all_batches(row, runs)]
    if not found:
        return []
    metric = metric_of(runs)
    drawn, window = curves(found, metric.of)
    with canvas.drawing():
        figure = canvas.figure((10, 4.4 if len(found) <= 8 else 6), 2.4)
        axes = figure.subplots()
        _draw_bands(axes, drawn[drawn["method"] == found[0].label])
        for position, row in enumerate(found):
            curve = drawn[drawn["method"] == row.label]
            _draw_curve(axes, row, curve, position, (position + 1) / (len(found) + 1))
        if (drawn["resets"] > 0).any():
            axes.plot([], [], label="reset", **_RING, mec="black")
        for row in finished:
            if row not in found:
                axes.plot([], [], ls="", label=f"{row.label}: {BATCHES_FILE} cut")
        canvas.legend(
            figure,
            handlelength=3.5,
            title="mean over seeds" if any(len(row.values) > 1 for row in found) else None,
        )
        axes.set_xlabel("images seen")
        axes.set_ylabel(canvas.narrow(f"{metric.mistakes} in % ({window_text(window)})"))
        canvas.title(figure, title(runs))
        columns = ["method", "batch", "round", "domain", "images", "error", "smoothed", "resets"]
        # How many batches the average spans; none where it is that of the round.
        return save_figure(figure, drawn[columns].assign(window=window), stem)


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
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # over source's line
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


def _draw_bands(axes: Axes, curve: pd.DataFrame) -> None:
    bands = curve.groupby("band").agg(
        {"round": "first", "domain": "first", "images": "last", "n": "first"}
    )
    ends = bands["images"].to_numpy()
    starts = np.concatenate([[0.0], ends[:-1]])
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axes.axvspan(start, end, color="#F1F1F1" if number % 2 else "white", lw=0, zorder=0)
    axes.set_xlim(0, ends[-1])
    names = short_names(list(dict.fromkeys(bands["domain"])))
    shown = dict(zip(dict.fromkeys(bands["domain"]), names, strict=True))
    several_rounds = bands["round"].nunique() > 1
    if len(bands) <= MAX_BANDS:
        upright = len(bands) > 6
        for start, end, domain in zip(starts, ends, bands["domain"], strict=True):
            axes.text(
                (start + end) / 2,
                1.01,
                shown[domain],
                transform=axes.get_xaxis_transform(),
                rotation=90 if upright else 0,
                ha="center",
                va="bottom",
                fontsize="small",
            )
    if several_rounds:
        for round_ in bands["round"].unique().tolist():
            start = float(starts[bands["round"].to_numpy() == round_][0])
            axes.axvline(start, color="#888888", lw=0.8, zorder=0.5)
            axes.text(
                start,
                0.99,
                f" round {round_ + 1}",
                transform=axes.get_xaxis_transform(),
                va="top",
                fontsize="small",
            )


def _draw_curve(axes: Axes, row: Row, curve: pd.DataFrame, position: int, place: float) -> None:
    """One method as steps; its markers stand at `place` in [0, 1] of the length of a domain."""
    style = line_style(position, is_source=row.method == SOURCE)
    colour, dashes, marker = style["color"], style["ls"], style["marker"]
    ends, errors = curve["images"].to_numpy(), curve["smoothed"].to_numpy()
    starts = np.concatenate([[0.0], ends[:-1]])
    # Both ends of each batch, so that a domain of a single batch still is a line.
    x = np.stack([starts, ends], axis=1).ravel()
    axes.plot(x, np.repeat(errors, 2), color=colour, ls=dashes, lw=1.2)
    bands = pd.DataFrame({"band": curve["band"], "start": starts, "end": ends}).groupby("band")
    first, last = bands["start"].min().to_numpy(), bands["end"].max().to_numpy()
    every = -(-len(first) // MAX_MARKERS)
    marked = (first + place * (last - first))[position % every :: every]
    axes.plot(
        marked, errors[np.searchsorted(ends, marked)], ls="", marker=marker, color=colour, ms=4
    )
    axes.plot([], [], color=colour, ls=dashes, lw=1.2, marker=marker, ms=4, label=row.label)
    resets = curve[curve["resets"] > 0]
    axes.plot(resets["images"], resets["smoothed"], **_RING, mec=colour)
