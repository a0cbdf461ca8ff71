"""Errors along the stream, one line per method."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.curves import MAX_BANDS, curves, has_all_batches, window_text
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
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.notes import averaged, enumerated, title, upper_first
from ctta_bench.analysis.table.rows import domain_labels, metric_of, rows
from ctta_bench.record.schema import BATCHES_FILE
from ctta_bench.registry import FIGURES

MAX_MARKERS = 15  # per line
NAMES_PER_INCH = 6.5  # of domains, upright
Floats = npt.NDArray[np.float64]


@FIGURES.register_module(
    "stream", place=50, text="Errors along the stream; a ring marks a reset of the method"
)
def stream_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """Errors over the stream of one group, one line per method, averaged over its seeds.

    Errors are wrong images, or wrong pixels if the metric is of pixels. The axis states the window
    of the moving average (see `curves`). A ring marks a batch in which the method reset itself
    (`resets` in batches.jsonl). Writes stem.png, stem.pdf, stem.csv and its caption stem.txt, and
    returns the first three. A method with an incomplete batches.jsonl has no line; the caption
    says so.
    """
    finished = [row for row in rows(runs) if len(row.values)]
    found = [row for row in finished if has_all_batches(row, runs)]
    if not found:
        return []
    metric, looks = metric_of(runs), row_looks(found)
    drawn, window = curves(found, metric.count_key, metric.factor)
    of_row = {row.name: drawn[drawn["method"] == row.name] for row in found}
    by_domain = canvas.columns == 1 and window is not None  # batches are too many for its width
    lines = [
        Line(row.name, row.label, looks[row.name], *_steps(of_row[row.name], by_domain))
        for row in found
    ]
    groups, rest = sorted_out(lines)
    coloured = [line for group in groups for line in group]
    with canvas.drawing():
        figure = canvas.figure((10, 4.4), 2.6)
        axes = figure.subplots()
        _draw_bands(axes, of_row[found[0].name], domain_labels(runs), canvas, figure.get_figwidth())
        draw_rest(axes, rest)
        for position, (line, *_) in enumerate(groups):
            _draw_line(axes, line, of_row[line.name], (position + 1) / (len(groups) + 1))
        has_reset = [_draw_resets(axes, line, of_row[line.name]) for line in coloured]
        ring = "; ring: the method reset itself" if any(has_reset) else ""
        canvas.below(figure, f"images seen{ring}{rest_text(rest)}")
        over = "mean of each domain" if by_domain else window_text(window)
        text = f"{metric.errors_text} in {metric.unit} ({over})"
        axes.set_ylabel(canvas.narrow(text))
        canvas.title(figure, title(runs))
        label_ends(figure, axes, groups, canvas)
        without = [row.label for row in finished if row not in found]
        caption = [
            f"{upper_first(text)} along the stream: {title(runs)}.",
            f"Mean {of_seeds}." if (of_seeds := averaged(runs, "seeds")) else "",
            "A ring marks a reset by the method itself." if any(has_reset) else "",
            caption_of(groups, rest),
            f"Not drawn, because {BATCHES_FILE} is incomplete: {enumerated(without)}."
            if without
            else "",
        ]
        columns = ["method", "batch", "round", "domain", "images", "error", "smoothed", "resets"]
        # `window`: batches of the average; empty where it is over the round.
        numbers = drawn[columns].assign(window=window)
        return save_figure(figure, numbers, stem, " ".join(filter(None, caption)))


def _draw_bands(
    axes: Axes, curve: pd.DataFrame, labels: Mapping[str, str], canvas: Canvas, width: float
) -> None:
    bands = curve.groupby("band").agg({"round": "first", "domain": "first", "images": "last"})
    ends = bands["images"].to_numpy()
    starts = np.concatenate([[0.0], ends[:-1]])
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axes.axvspan(start, end, color="#F1F1F1" if number % 2 else "white", lw=0, zorder=0)
    axes.set_xlim(0, ends[-1])
    axes.locator_params(axis="x", nbins=canvas.pick(8, 4))
    above: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "fontsize": "small"}
    if len(bands) <= min(MAX_BANDS, NAMES_PER_INCH * width):
        upright = len(bands) > canvas.pick(6, 4)
        for start, end, domain in zip(starts, ends, bands["domain"], strict=True):
            middle = (start + end) / 2
            turned: dict[str, Any] = {
                "rotation": 90 if upright else 0,
                "ha": "center",
                "va": "bottom",
            }
            axes.text(middle, 1.01, labels.get(domain, domain), **above, **turned)
    rounds = bands["round"].unique().tolist()
    for place, round_ in enumerate(rounds if len(rounds) > 1 else []):
        start = float(starts[bands["round"].to_numpy() == round_][0])
        axes.axvline(start, color="#888888", lw=0.8, zorder=0.5)
        if place % -(-len(rounds) // canvas.pick(12, 4)) == 0:
            axes.text(start, 0.99, f" round {round_ + 1}", **above, va="top")


def _steps(curve: pd.DataFrame, by_domain: bool) -> tuple[Floats, Floats]:
    """Images seen and errors at both ends of each batch, so that one batch is a line.

    by_domain: the mean of the batches of each domain instead, weighted by what they count.
    """
    ends, errors = curve["images"], curve["smoothed"]
    if by_domain:
        bands = curve.groupby("band")
        scored = bands["of"].sum()
        ends = bands["images"].last()
        errors = (curve["error"] * curve["of"]).groupby(curve["band"]).sum() / scored
    starts = np.concatenate([[0.0], ends.to_numpy()[:-1]])
    return np.stack([starts, ends], axis=1).ravel(), np.repeat(errors.to_numpy(), 2)


def _draw_line(axes: Axes, line: Line, curve: pd.DataFrame, place: float) -> None:
    """A method as steps; its markers are at `place` in [0, 1] of the length of a domain."""
    style = line.look.line
    marker = style.pop("marker")
    axes.plot(line.x, line.y, **style, lw=1.2)
    bands = curve.groupby("band")["images"]
    last = bands.last().to_numpy()
    first = np.concatenate([[0.0], last[:-1]])
    every = -(-len(first) // MAX_MARKERS)
    marked = (first + place * (last - first))[int(place * every) :: every]
    at = np.searchsorted(line.x[1::2], marked)
    axes.plot(marked, line.y[1::2][at], ls="", marker=marker, color=line.look.colour, ms=3.5)


def _draw_resets(axes: Axes, line: Line, curve: pd.DataFrame) -> bool:
    """A ring at each batch in which the method reset itself; whether there is one."""
    resets = curve.loc[curve["resets"] > 0, "images"].to_numpy()
    at = np.searchsorted(line.x[1::2], resets)
    axes.plot(resets, line.y[1::2][at], **RING, mec=line.look.colour)
    return bool(len(resets))
