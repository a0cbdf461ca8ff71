"""The metric over time and over parameters, with the Pareto front."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.lines import BEST, FEW, row_looks
from ctta_bench.analysis.figure.palette import GREY, Look
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.missing import listed
from ctta_bench.analysis.table.notes import enumerated, title, upper_first
from ctta_bench.analysis.table.rows import SOURCE, Row, metric_of, rows
from ctta_bench.errors import counted
from ctta_bench.registry import FIGURES
from ctta_bench.scoring.metric import EQUAL_DECIMALS

_PANELS = {  # the cost in the cells, and the axis
    "seconds": "seconds for the stream",
    "trainable_parameters": "learnable parameters",
}
FEWEST = 3  # methods


@FIGURES.register_module(
    "tradeoff",
    place=30,
    text="Mean over time and over learnable parameters; filled marks: Pareto front",
)
def tradeoff_figure(runs: Runs, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """Mean of each method of one group over its time and its parameters.

    Filled marks, joined by steps, are the Pareto front: no other method is both cheaper and better.
    Time is that of predicting and adapting, averaged over seeds. Of many methods, source, the best
    five and those on a front have colours. Writes stem.png, stem.pdf, stem.csv and its caption
    stem.txt, and returns the first three; nothing for fewer than three methods with costs.
    """
    found = [row for row in rows(runs) if not np.isnan(row.mean)]
    metric = metric_of(runs)
    drawn = pd.DataFrame(
        [{"method": row.name, "mean": row.mean, "std": row.std, **_costs(row)} for row in found]
    )
    panels = [
        name for name in _PANELS if len(found) >= FEWEST and drawn[name].notna().sum() >= FEWEST
    ]
    if not panels:
        return []
    for name in panels:
        costs, means = drawn[name].to_numpy(), drawn["mean"].round(EQUAL_DECIMALS).to_numpy()
        drawn[f"{name}_front"] = on_front(costs, metric.ascending * means)
    fronts = drawn[[f"{name}_front" for name in panels]].any(axis=1)
    shown = [
        len(found) <= FEW or is_front or row.method == SOURCE or place <= BEST
        for place, (row, is_front) in enumerate(zip(found, fronts, strict=True))
    ]
    looks = row_looks(found)
    marks = [
        _mark(looks[row.name] if is_shown else None)
        for row, is_shown in zip(found, shown, strict=True)
    ]
    with canvas.drawing():
        lines, columns = canvas.panels(len(panels))
        figure = canvas.figure((3.6 * len(panels) + 2.0, 4.2), 2.0 * lines)
        axes_of = figure.subplots(lines, columns, sharey=True, squeeze=False).ravel()
        for axes, name in zip(axes_of, panels, strict=True):
            _draw(axes, marks, drawn, name)
        for axes in axes_of[:lines]:
            axes.set_ylabel(canvas.narrow(f"mean {metric.text}"))
        for row, mark, is_shown in zip(found, marks, shown, strict=True):
            if is_shown:
                axes_of[0].plot([], [], ls="", **mark, label=row.label)
        rest = len(found) - sum(shown)
        if rest:
            label = counted(rest, "other method")
            axes_of[0].plot([], [], ls="", **_mark(None), label=label)
        canvas.legend(figure, fontsize="small", title="filled: on the Pareto front")
        canvas.title(figure, title(runs))
        grey = [row.label for row, is_shown in zip(found, shown, strict=True) if not is_shown]
        caption = (
            f"{upper_first(metric.text)} over {enumerated([_PANELS[name] for name in panels])}: "
            f"{title(runs)}. Filled, joined by steps: no other method is both cheaper and better."
            + (f" Grey: {listed(grey)}." if grey else "")
        )
        return save_figure(figure, drawn, stem, caption)


def on_front(
    costs: npt.NDArray[np.float64], badness: npt.NDArray[np.float64]
) -> npt.NDArray[np.bool_]:
    """Points that no other point dominates: at most as high in both, and lower in one.

    A point without a cost (NaN) is not on the front.
    """
    no_cheaper = costs[:, None] >= costs[None, :]
    no_better = badness[:, None] >= badness[None, :]
    differs = (costs[:, None] > costs[None, :]) | (badness[:, None] > badness[None, :])
    known = np.isfinite(costs)
    return np.asarray(known & ~(no_cheaper & no_better & differs).any(axis=1))


def _costs(row: Row) -> dict[str, float]:
    return {
        name: float(pd.to_numeric(row.finished[name], errors="coerce").mean()) for name in _PANELS
    }


def _mark(look: Look | None) -> dict[str, Any]:
    """How a method is marked; None: one of many others."""
    if look is None:
        return {"marker": "o", "ms": 3, "mec": GREY, "mfc": GREY, "zorder": 1.0}
    return {"marker": look.marker or "d", "ms": 6, "mec": look.colour, "mfc": look.colour}


def _draw(axes: Axes, marks: Sequence[dict[str, Any]], drawn: pd.DataFrame, name: str) -> None:
    is_front = drawn[f"{name}_front"].to_numpy()
    for mark, cost, mean, filled in zip(marks, drawn[name], drawn["mean"], is_front, strict=True):
        hollow = not filled and mark["mec"] != GREY
        axes.plot(cost, mean, ls="", **mark | ({"mfc": "white"} if hollow else {}))
    front = drawn[is_front].sort_values(name)
    dashes: dict[str, Any] = {"color": "#999999", "lw": 0.9, "ls": (0, (3, 2)), "zorder": 0.5}
    axes.step(front[name], front["mean"], where="post", **dashes)
    if name == "trainable_parameters":
        axes.set_xscale("symlog", linthresh=100)  # source has none
        axes.set_xlim(left=-30)
    else:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    axes.set_xlabel(_PANELS[name])
    axes.grid(color="#EEEEEE", lw=0.6)
