"""Dots with intervals, one row each, on an axis that may be cut where single rows are far away."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from ctta_bench.analysis.figure.canvas import Canvas
from ctta_bench.analysis.figure.palette import Look
from ctta_bench.analysis.table.notes import enumerated
from ctta_bench.analysis.table.table import signed

FAR = 5  # times the median distance from 0: such a row is cut off if it takes most of the axis
_ROOM = 0.06  # of the axis, at its ends

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Dot:
    """A value with the ends of its interval (NaN for none); `filled` or hollow."""

    label: str
    look: Look
    value: float
    low: float
    high: float
    filled: bool = True


def draw_dots(axes: Axes, dots: Sequence[Dot], canvas: Canvas) -> str:
    """Draw differences from 0, the first on top, with a grey line at 0.

    Returns a sentence on the rows that the axis cuts off; "" for none. They have an arrow and their
    value at the edge.
    """
    left, right = limits(dots)
    room = _ROOM * (right - left)
    axes.axvline(0, color="#777777", lw=0.8, zorder=0.5)
    cut = []
    for place, dot in enumerate(dots):
        if left - room <= dot.value <= right + room:
            draw_dot(axes, dot, place)
            continue
        cut.append(f"{dot.label} ({signed(dot.value)})")
        is_low = dot.value < left
        edge = left - room if is_low else right + room
        axes.plot(
            edge, place, marker="<" if is_low else ">", color=dot.look.colour, ms=5, clip_on=False
        )
        axes.annotate(
            signed(dot.value),
            (edge, place),
            (7 if is_low else -7, 0),
            textcoords="offset points",
            ha="left" if is_low else "right",
            va="center",
            fontsize="small",
        )
    axes.set_xlim(left - room, right + room)
    name_rows(axes, [dot.label for dot in dots], canvas)
    return f"The axis is cut; outside of it (arrows): {enumerated(cut)}." if cut else ""


def draw_dot(axes: Axes, dot: Dot, place: float) -> None:
    """One dot with its interval at a height; a look without a marker is a thin diamond."""
    colour = dot.look.colour
    if np.isfinite(dot.low):
        axes.plot([dot.low, dot.high], [place, place], color=colour, lw=1.1, solid_capstyle="butt")
    face = colour if dot.filled else "white"
    marker = dot.look.marker or "d"
    axes.plot(dot.value, place, ls="", marker=marker, mec=colour, mfc=face, ms=5, mew=1)


def draw_groups(axes: Axes, dots: Sequence[Dot], values: Sequence[Sequence[float]]) -> None:
    """In each row the values of several, side by side: a dot of each look, without intervals.

    values: those of each dot [dots][rows]; NaN for none.
    """
    axes.axvline(0, color="#777777", lw=0.8, zorder=0.5)
    for number, (dot, of_rows) in enumerate(zip(dots, values, strict=True)):
        lift = 0.6 * (number - (len(dots) - 1) / 2) / max(len(dots) - 1, 1)
        for place, value in enumerate(of_rows):
            draw_dot(axes, replace(dot, value=value, low=np.nan, high=np.nan), place + lift)


def limits(dots: Sequence[Dot]) -> tuple[float, float]:
    """The ends of the axis: of all intervals and 0, or without rows that are far away.

    A row is far away if its value is more than FAR times the median distance from 0, and if the
    axis would be more than twice as long with the rows of its side. A row whose value is on the
    axis has its whole interval there.

    Example: values 1, 2, -1 and -40 give (-1, 2).
    """
    values = np.array([dot.value for dot in dots])
    low, high = (
        np.array(
            [end if np.isfinite(end) else dot.value for dot, end in zip(dots, ends, strict=True)]
        )
        for ends in ([dot.low for dot in dots], [dot.high for dot in dots])
    )

    def ends(chosen: npt.NDArray[np.bool_]) -> tuple[float, float]:
        return min(0.0, float(low[chosen].min())), max(0.0, float(high[chosen].max()))

    away = np.abs(values)
    whole = np.ones(len(dots), bool)
    shown = away <= FAR * np.median(away[away > 0]) if (away > 0).any() else whole
    left, right = ends(shown)
    longest = 2 * (right - left)
    for side in (values < 0, values > 0):
        longer = ends(shown | side)
        if longer[1] - longer[0] <= longest:
            shown = shown | side
    for _ in dots:  # an interval that is added may bring another dot onto the axis
        left, right = ends(shown)
        room = _ROOM * (right - left)
        shown = shown | ((left - room <= values) & (values <= right + room))
    left, right = ends(shown)
    return (left, right) if right > left else (-1.0, 1.0)


def name_rows(axes: Axes, labels: Sequence[str], canvas: Canvas) -> None:
    """Names at the left, faint lines from them, the first row on top."""
    axes.set_yticks(range(len(labels)), canvas.names(labels))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="y", color="#EEEEEE", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)


def write_column(axes: Axes, head: str, texts: Sequence[str]) -> None:
    """Texts at the right of each row, below a head."""
    at = axes.get_yaxis_transform()
    axes.text(1.02, -0.75, head, transform=at, fontsize="small", va="bottom", color="#444444")
    for place, text in enumerate(texts):
        axes.text(1.02, place, text, transform=at, fontsize="small", va="center")
