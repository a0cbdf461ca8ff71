"""Lines with their names at their ends; with many, a few stand out and the rest is grey."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ctta_bench.analysis.figure.canvas import Canvas
from ctta_bench.analysis.figure.palette import GREY, SOURCE_LOOK, Look, looks
from ctta_bench.analysis.table.missing import listed
from ctta_bench.analysis.table.notes import enumerated
from ctta_bench.analysis.table.rows import Row
from ctta_bench.errors import counted

FEW = 8  # lines that can all stand out
BEST = 5  # of many
SAME = 0.007  # share of the axis, about the width of a line: closer lines cannot be told apart
WIDE = 20  # ratio of the largest to the smallest value from which the axis is logarithmic
_LETTERS = (26, 15)  # of a name at a line's end, on a screen and on paper
_LONGEST = 20  # letters of a word at a line's end, in one column
_IN_LEGEND = 48  # letters of a line, in one column
_LINE_HEIGHT = 1.25  # times the size of the font
RING: dict[str, Any] = {"ls": "", "marker": "o", "mfc": "white", "ms": 7}  # a reset
_GAP, _KEY = 9, 14  # points: between an axis and a key, and the length of the key

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Line:
    """What a line shows: its name in files, its printed name, how it looks, its points [n]."""

    name: str
    label: str
    look: Look
    x: Floats
    y: Floats


def row_looks(found: Sequence[Row]) -> dict[str, Look]:
    """The look of each row by its name."""
    return looks({row.name: row.method for row in found})


def sorted_out(lines: Sequence[Line]) -> tuple[list[list[Line]], list[Line]]:
    """The lines that stand out, in groups that coincide, and the rest.

    lines: from the best to the worst. All of a few stand out; of many, source and the best five.
    """
    others = [line for line in lines if line.look != SOURCE_LOOK]
    rest = others[BEST:] if len(lines) > FEW else []
    return coinciding([line for line in lines if line not in rest]), rest


def draw_rest(axes: Axes, rest: Sequence[Line]) -> None:
    """Draw the lines that do not stand out, grey and behind the others."""
    for line in rest:
        axes.plot(line.x, line.y, color=GREY, lw=0.7, zorder=1.0)


def rest_text(rest: Sequence[Line]) -> str:
    """`; grey: 24 other methods` for the label of an axis, or ""."""
    return f"; grey: {counted(len(rest), 'other method')}" if rest else ""


def caption_of(groups: Sequence[Sequence[Line]], rest: Sequence[Line]) -> str:
    """Which lines coincide, and what is grey, in sentences; "" if there is neither."""
    several = [enumerated([line.label for line in group]) for group in groups if len(group) > 1]
    parts = [
        f"The lines of {'; of '.join(several)} coincide." if several else "",
        f"Grey: {listed([line.label for line in rest])}." if rest else "",
    ]
    return " ".join(filter(None, parts))


def label_ends(
    figure: Figure, axes: Axes, groups: Sequence[Sequence[Line]], canvas: Canvas
) -> None:
    """Write the names of each group of lines that coincide at the right of its end, `TENT = SAR`.

    A key with the look of the line stands before the name. Call it last: names are placed by the
    final height of the axes. In one column of a paper, names of long words would take most of the
    width: they are in a legend below.
    """
    names = [" = ".join(line.label for line in group) for group in groups]
    letters = canvas.pick(*_LETTERS)
    if canvas.columns == 1 and max(map(len, " ".join(names).split()), default=0) > _LONGEST:
        for (first, *_), name in zip(groups, names, strict=True):
            axes.plot([], [], label=textwrap.fill(name, _IN_LEGEND), **first.look.line, lw=1.2)
        axes.set_xlabel(figure.get_supxlabel())  # above the legend
        figure.supxlabel("")
        canvas.legend(figure)
        return
    notes = [
        axes.annotate(
            textwrap.fill(name, letters, break_long_words=False),
            (1, group[0].y[-1]),
            xycoords=axes.get_yaxis_transform(),
            xytext=(_GAP + _KEY + 3, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            annotation_clip=False,
        )
        for group, name in zip(groups, names, strict=True)
    ]
    figure.draw_without_rendering()  # only now the height of the axes is known
    box, point = axes.get_window_extent(), figure.dpi / 72
    ends = axes.transData.transform([(group[0].x[-1], group[0].y[-1]) for group in groups])
    heights = [note.get_window_extent().height * _LINE_HEIGHT for note in notes]
    places = spread_out(ends[:, 1] - box.y0, heights, box.height)
    for (first, *_), note, place, end in zip(groups, notes, places, ends, strict=True):
        note.set_position((_GAP + _KEY + 3, (place + box.y0 - end[1]) / point))
        left, right = 1 + _GAP * point / box.width, 1 + (_GAP + _KEY) * point / box.width
        height = place / box.height
        leader = {"color": first.look.colour, "lw": 0.6, "ls": "-"}
        key = first.look.line | {"markevery": [1], "lw": 1.2, "ms": 3.5}
        for xs, ys, style in (
            (
                [(end[0] - box.x0) / box.width, left],
                [(end[1] - box.y0) / box.height, height],
                leader,
            ),
            ([left, (left + right) / 2, right], [height] * 3, key),
        ):
            drawn = Line2D(xs, ys, transform=axes.transAxes, clip_on=False, **style)
            drawn.set_in_layout(False)
            axes.add_artist(drawn)


def coinciding(lines: Sequence[Line]) -> list[list[Line]]:
    """The lines in groups that nowhere differ by more than a line's width on a common axis.

    A line joins the first group with whose first line it coincides; that line is drawn for all.
    """
    heights = np.concatenate([np.zeros(0), *(line.y[np.isfinite(line.y)] for line in lines)])
    height = float(np.ptp(heights)) if len(heights) else 0.0
    groups: list[list[Line]] = []
    for line in lines:
        for group in groups:
            first = group[0]
            if np.array_equal(first.x, line.x) and np.allclose(
                first.y, line.y, rtol=0, atol=SAME * height, equal_nan=True
            ):
                group.append(line)
                break
        else:
            groups.append([line])
    return groups


def spread_out(wanted: Floats, heights: Sequence[float], height: float) -> list[float]:
    """Centres near the wanted ones, of texts that do not overlap, between 0 and `height`.

    Where there is no room for all, the lowest ones go below 0.

    Example: `spread_out(np.array([5., 5.]), [4, 4], 10)` is [4, 8].
    """
    order = np.argsort(wanted, kind="stable")
    centres = np.zeros(len(wanted))
    bottom = 0.0
    for place in order:
        centres[place] = max(wanted[place], bottom + heights[place] / 2)
        bottom = centres[place] + heights[place] / 2
    top = height
    for place in order[::-1]:
        centres[place] = min(centres[place], top - heights[place] / 2)
        top = centres[place] - heights[place] / 2
    return [float(centre) for centre in centres]


def scale_by_values(axes: Axes, values: "pd.Series[float]") -> None:
    """A logarithmic axis for values over orders of magnitude, linear near a zero among them."""
    shown = sorted(set(values))
    positive = [value for value in shown if value > 0]
    if len(positive) > 1 and positive[-1] / positive[0] >= WIDE:
        if shown[0] <= 0:
            axes.set_xscale("symlog", linthresh=positive[0])
            axes.set_xlim(shown[0] - 0.2 * positive[0], 1.25 * shown[-1])
        else:
            axes.set_xscale("log")
    axes.set_xticks(shown, [f"{value:g}" for value in shown])
    axes.minorticks_off()
