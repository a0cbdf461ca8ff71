"""Figures 6 and 7 of the paper of PAID, as joint panels: errors over a swept value.

The paper prints these figures without numbers. What its text and tables give is PAID's error at the
published value, which is drawn as a star.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.lines import scale_by_values
from ctta_bench.analysis.figure.palette import COLOURS, MARKERS, Look, looks
from ctta_bench.analysis.paper.as_run import as_run
from ctta_bench.analysis.paper.match import BATCH_SIZE, families, regimes
from ctta_bench.analysis.paper.shape import OURS, quoted
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.analysis.table.compared import drawn_half
from ctta_bench.analysis.table.notes import enumerated, half_interval
from ctta_bench.analysis.table.rows import metric_of
from ctta_bench.registry import BENCHMARKS, METHODS

_PRINTED = {"imagenet_c": "imagenet", "cifar100_c": "cifar100", "cifar10_c": "cifar10"}
_FEWEST = 2  # values of a line
PAPER, RUNS = "paper", "runs"


@dataclass(frozen=True)
class Panel:
    """A panel. key: what is swept. by_method: lines of methods on ImageNet-C, not of benchmarks."""

    key: str
    label: str
    by_method: bool = False


FIGURES: dict[int, tuple[str, tuple[Panel, ...]]] = {
    6: (
        "the number of reflections, of source images, and of images in a batch",
        (
            Panel("rank", "(a) reflections r"),
            Panel("source_samples", "(b) source images"),
            Panel(BATCH_SIZE, "(c) batch size, ImageNet-C", by_method=True),
        ),
    ),
    7: ("the weight of the deviation term", (Panel("std_weight", "weight λ"),)),
}


def drawn_figures(
    folder: Path, runs: Runs | None, with_paper: bool, canvas: Canvas = SCREEN
) -> list[Path]:
    """Write figure-6 and figure-7 into the folder; returns their PNG, PDF and CSV files.

    runs: drawn as lines; None for the paper's points alone. A figure without any line of the runs
    is not written.

    Example: `drawn_figures(Path("tables"), None, with_paper=True)`
    """
    files: list[Path] = []
    for number, (what, panels) in FIGURES.items():
        points = pd.concat(
            [
                *([_of_paper(panel) for panel in panels] if with_paper else []),
                *([_of_runs(panel, runs) for panel in panels] if runs is not None else []),
            ]
        )
        if runs is None or RUNS in set(points["of"]):
            files += _drawn(number, what, panels, points, folder / f"figure-{number}", canvas)
    return files


_COLUMNS = ["panel", "line", "value", "mean", "half_interval", "seeds", "of"]


def _of_paper(panel: Panel) -> pd.DataFrame:
    """PAID's printed mean on each benchmark, at the value that it was run with."""
    numbers, lines = quoted(), []
    for benchmark, table in _PRINTED.items():
        known = as_run(benchmark, OURS)
        if known is None or (panel.by_method and benchmark != "imagenet_c"):
            continue
        value = known.batch_size if panel.key == BATCH_SIZE else known.values[panel.key]
        mean = numbers.value(table, benchmark, OURS, "1", "mean", "error")
        line = OURS if panel.by_method else benchmark
        lines.append((panel.key, line, float(value), mean, 0.0, 0, PAPER))
    return pd.DataFrame(lines, columns=_COLUMNS)


def _of_runs(panel: Panel, runs: Runs) -> pd.DataFrame:
    """The nearest rows to the published ones at each value, where a line has several values."""
    lines = []
    for family in families([one for own in regimes(runs)[:1] for one in own]):
        if family.benchmark not in _PRINTED or (
            panel.by_method and family.benchmark != "imagenet_c"
        ):
            continue
        methods = dict.fromkeys(one.row.method for one in family.candidates)
        for method in methods if panel.by_method else [OURS]:
            own = [one for one in family.candidates if one.row.method == method]
            values = {one.values[panel.key] for one in own if panel.key in one.values}
            taken = [(v, family.pick(method, **{panel.key: v})) for v in sorted(values)]
            found = [
                (
                    panel.key,
                    method if panel.by_method else family.benchmark,
                    float(value),
                    one.row.mean,
                    drawn_half(one.row, metric_of(one.group)),
                    len(one.row.values),
                    RUNS,
                )
                for value, one in taken
                if one is not None
            ]
            lines += found if len(found) >= _FEWEST else []
    return pd.DataFrame(lines, columns=_COLUMNS)


def _drawn(
    number: int,
    what: str,
    panels: Sequence[Panel],
    points: pd.DataFrame,
    stem: Path,
    canvas: Canvas,
) -> list[Path]:
    with canvas.drawing():
        rows, columns = canvas.panels(len(panels))
        figure = canvas.figure((3.4 * columns + 1.8, 3.2 * rows), 2.1 * rows)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        named = _looks(points)
        shown: set[str] = set()
        for panel, own in zip(panels, axes, strict=True):
            part = points[points["panel"] == panel.key]
            _draw(own, part, named, shown)
            own.set_xlabel(panel.label)
            if RUNS not in set(part["of"]) and RUNS in set(points["of"]):
                own.set_title("not run", loc="left", fontsize="medium")
        axes[0].set_ylabel(canvas.narrow(metric_named("error").text))
        canvas.legend(figure)
        caption = _caption(number, what, points)
        canvas.title(figure, caption.partition(". ")[0])
        return save_figure(figure, points, stem, caption)


def _looks(points: pd.DataFrame) -> dict[str, Look]:
    """A look for each method, and for each benchmark."""
    lines = [str(line) for line in dict.fromkeys(points["line"])]
    methods = {line: line for line in lines if line not in _PRINTED}
    return looks(methods) | {
        name: Look(COLOURS[place], MARKERS[place]) for place, name in enumerate(_PRINTED)
    }


def _draw(axes: Axes, points: pd.DataFrame, named: dict[str, Look], shown: set[str]) -> None:
    """The lines and stars of one panel; each name is in the legend once."""
    for (line, of), part in points.groupby(["line", "of"], sort=False):
        look = named[str(line)]
        known = BENCHMARKS if line in _PRINTED else METHODS
        text = known.display_name(str(line))
        label = f"{text}, paper" if of == PAPER else text
        label = "_" * (label in shown) + label
        drawn: dict[str, Any] = {"label": label}
        if of == PAPER:
            drawn |= {"color": look.colour, "marker": "*", "ms": 10, "ls": "", "mfc": "none"}
            axes.plot(part["value"], part["mean"], **drawn)
        else:
            half = part["half_interval"]
            axes.errorbar(part["value"], part["mean"], half, capsize=2.5, **drawn, **look.line)
        shown.add(label)
    if len(points):
        scale_by_values(axes, points["value"])
        axes.tick_params("x", labelrotation=90 if points["value"].nunique() > 6 else 0)


def _caption(number: int, what: str, points: pd.DataFrame) -> str:
    of = [name for name in (RUNS, PAPER) if name in set(points["of"])]
    whose = enumerated([{RUNS: "of these runs", PAPER: "quoted"}[name] for name in of])
    parts = [f"Figure {number} of the paper of PAID, {whose}: mean error over {what}."]
    if RUNS in of:
        seeds = int(points["seeds"].max())
        parts.append(f"Lines: runs, all else as published; bars: ± {half_interval(seeds)}.")
    if PAPER in of:
        parts.append(
            "Stars: PAID in the paper, at the published value. The paper draws curves without "
            "printing their numbers."
        )
    return " ".join(parts)
