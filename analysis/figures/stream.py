"""Errors along the stream, one line per method."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.curves import MAX_BANDS, curves, has_all_batches, window_text
from ctta_bench.analysis.figure.style import line_style
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.notes import title
from ctta_bench.analysis.table.rows import SOURCE, Row, domain_labels, metric_of, rows
from ctta_bench.record.schema import BATCHES_FILE
from ctta_bench.registry import FIGURES

MAX_MARKERS = 15  # per line
_RING: dict[str, Any] = {"ls": "", "marker": "o", "mfc": "white", "ms": 7}  # a reset


@FIGURES.register_module(
    "stream", place=50, text="Errors along the stream; a ring marks a reset of the method"
)
def stream_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """Errors over the stream of one group, one line per method, averaged over its seeds.

    Errors are wrong images, or wrong pixels if the metric is of pixels. The axis states the window
    of the moving average (see `curves`). A ring marks a batch in which the method reset itself
    (`resets` in batches.jsonl). Writes stem.png, stem.pdf and stem.csv and returns their paths. A
    method with an incomplete batches.jsonl has no line; the legend says so.
    """
    finished = [row for row in rows(runs) if len(row.values)]
    found = [row for row in finished if has_all_batches(row, runs)]
    if not found:
        return []
    metric = metric_of(runs)
    drawn, window = curves(found, metric.count_key, metric.factor)
    with canvas.drawing():
        figure = canvas.figure((10, 4.4 if len(found) <= 8 else 6), 2.4)
        axes = figure.subplots()
        _draw_bands(axes, drawn[drawn["method"] == found[0].name], domain_labels(runs))
        for position, row in enumerate(found):
            curve = drawn[drawn["method"] == row.name]
            _draw_curve(axes, row, curve, position, (position + 1) / (len(found) + 1))
        if (drawn["resets"] > 0).any():
            axes.plot([], [], label="reset", **_RING, mec="black")
        for row in finished:
            if row not in found:
                axes.plot([], [], ls="", label=f"{row.label}: {BATCHES_FILE} is incomplete")
        canvas.legend(
            figure,
            handlelength=3.5,
            title="mean over seeds" if any(len(row.values) > 1 for row in found) else None,
        )
        axes.set_xlabel("images seen")
        axes.set_ylabel(
            canvas.narrow(f"{metric.errors_text} in {metric.unit} ({window_text(window)})")
        )
        canvas.title(figure, title(runs))
        columns = ["method", "batch", "round", "domain", "images", "error", "smoothed", "resets"]
        # `window`: batches of the average; empty where it is over the round.
        return save_figure(figure, drawn[columns].assign(window=window), stem)


def _draw_bands(axes: Axes, curve: pd.DataFrame, labels: Mapping[str, str]) -> None:
    bands = curve.groupby("band").agg(
        {"round": "first", "domain": "first", "images": "last", "n": "first"}
    )
    ends = bands["images"].to_numpy()
    starts = np.concatenate([[0.0], ends[:-1]])
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axes.axvspan(start, end, color="#F1F1F1" if number % 2 else "white", lw=0, zorder=0)
    axes.set_xlim(0, ends[-1])
    several_rounds = bands["round"].nunique() > 1
    if len(bands) <= MAX_BANDS:
        upright = len(bands) > 6
        for start, end, domain in zip(starts, ends, bands["domain"], strict=True):
            axes.text(
                (start + end) / 2,
                1.01,
                labels[domain],
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
    """One method as steps; its markers are at `place` in [0, 1] of the length of a domain."""
    style = line_style(position, is_source=row.method == SOURCE)
    colour, dashes, marker = style["color"], style["ls"], style["marker"]
    ends, errors = curve["images"].to_numpy(), curve["smoothed"].to_numpy()
    starts = np.concatenate([[0.0], ends[:-1]])
    # Both ends of each batch, so that a domain of one batch is a line.
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
