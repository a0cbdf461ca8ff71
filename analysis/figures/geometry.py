"""The geometry of kept models as two figures: by domain, and by method with controls."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.palette import COLOURS
from ctta_bench.analysis.figure.palette import looks as looks_of
from ctta_bench.analysis.kept_models.geometry_runs import Geometry
from ctta_bench.analysis.table.table import Table, csv_text
from ctta_bench.analysis.tables.geometry import (
    CIRCULAR,
    geometry_table,
    means,
    ordered_labels,
    shown_labels,
)
from ctta_bench.registry import MODELS

DRAWN = {
    "delta_m": "ΔM, lengths",
    "delta_a": "ΔA, absolute angles",
    "delta_s_per_pair": "ΔS per pair, pairwise angles",
}
CONTROL_COLOUR = "#555555"
SEMANTIC_TEXT = "semantic: fine-tuned, with labels, on another label set"
_KIND_COLOUR = {"corruption": COLOURS[0], "semantic": COLOURS[1]}
_SEMANTIC: dict[str, Any] = {
    "marker": "s", "ms": 5, "color": COLOURS[1], "mec": "black", "mew": 0.6,
}  # fmt: skip


def domain_figure(geometry: Geometry, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """Each measure by domain, one line per method, on logarithmic axes; then semantic shifts.

    The paper scales each panel from its smallest to its largest value. A semantic shift is often a
    hundred times larger than the others, which are flat then. Writes stem.png, stem.pdf, stem.csv
    and its caption stem.txt, and returns the first three; nothing without a method that was
    adapted to domains.
    """
    drawn = by_domain(geometry.models)
    labels = list(dict.fromkeys(drawn.loc[drawn["kind"] == "corruption", "label"]))
    if not labels:
        return []
    shown = shown_labels(geometry.models)
    methods = dict(zip(geometry.models["label"], geometry.models["method"], strict=True))
    looks = looks_of(methods)
    ticks = drawn.drop_duplicates("place").set_index("place")["tick"].sort_index()
    with canvas.drawing():
        figure = canvas.figure((11, 6.4), 5.2)
        panels = figure.subplots(len(DRAWN), 1, sharex=True)
        for axes, (measure, title) in zip(panels, DRAWN.items(), strict=True):
            of = drawn[drawn["measure"] == measure]
            for label in labels:
                line = of[of["label"] == label]
                axes.plot(line["place"], line["drawn"], **looks[label].line, ms=4, lw=1)
            semantic = of[of["kind"] == "semantic"]
            if len(semantic):
                axes.plot(semantic["place"], semantic["drawn"], ls="", **_SEMANTIC)
                axes.axvline(semantic["place"].min() - 1, color="#999999", lw=0.8, ls=(0, (3, 2)))
            axes.set_title(title, loc="left", fontsize="medium")
            axes.margins(y=0.12)
            logarithmic(axes, "y")
            axes.grid(color="#EEEEEE", lw=0.6)
        panels[-1].set_xticks(ticks.index, ticks, rotation=90, fontsize="small")
        handles = [
            Line2D([], [], **looks[label].line, ms=4, lw=1, label=shown[label]) for label in labels
        ]
        if (drawn["kind"] == "semantic").any():
            handles.append(Line2D([], [], ls="", **_SEMANTIC, label=SEMANTIC_TEXT))
        canvas.title(figure, _title(geometry))
        has_zero = bool((drawn["value"] == 0).any())
        text = (
            "Change from the source model, pooled over all linear layers, mean over seeds. "
            f"Logarithmic axes{'; 0 is drawn at the lower end' * has_zero}. {CIRCULAR}"
        )
        _caption(figure, text, canvas)
        _legend(
            figure,
            handles,
            canvas.pick("outside right upper", "outside upper left"),
            canvas.columns or 1,
        )
        caption = f"{_title(geometry)}, by domain. {text}"
        return save_figure(figure, drawn.drop(columns=["tick", "place", "drawn"]), stem, caption)


def raw_figure(geometry: Geometry, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """The raw values on logarithmic axes: one row per method, one dot per domain.

    The panel of ΔS also has its value at the size of PAID's change, and that of noise. Writes
    stem.png, stem.pdf, stem.csv and its caption stem.txt, and returns the first three.
    """
    models = geometry.models
    labels, shown = ordered_labels(models), shown_labels(models)
    drawn = means(models, ["label", "kind", "domain"]).reset_index()
    with canvas.wide.drawing():
        figure = canvas.wide.figure((11, 2.1 + 0.36 * len(labels)), 1.7 + 0.28 * len(labels))
        panels = figure.subplots(1, len(DRAWN), sharey=True)
        for axes, (measure, title) in zip(panels, DRAWN.items(), strict=True):
            axes.set_title(title)
            _draw_raw(axes, drawn, labels, measure)
        panels[0].set_yticks(range(len(labels)), [shown[label] for label in labels])
        panels[0].invert_yaxis()
        canvas.title(figure, _title(geometry))
        _caption(
            figure,
            "Change from the source model, pooled over all linear layers, mean over seeds. "
            f"{CIRCULAR}",
            canvas,
        )
        _legend(figure, _raw_handles(drawn), "outside upper right", 4)
        caption = (
            f"{_title(geometry)}, by method; a dot is a domain. Change from the source model, "
            f"pooled over all linear layers, mean over seeds. Logarithmic axes. {CIRCULAR}"
        )
        return save_figure(figure, drawn, stem, caption)


def write_geometry(
    geometry: Geometry, tables: Path, figures: Path, canvas: Canvas = SCREEN
) -> tuple[Table, list[tuple[str, str, list[Path]]]]:
    """Table and figures of one source model, and the values per layer as NAME-layers.csv.

    Returns the table and for each figure its kind, what it shows, and its files.
    """
    table = geometry_table(geometry)
    table.write(tables)
    (tables / f"{geometry.name}-layers.csv").write_text(csv_text(geometry.layers), "utf-8")
    drawn = [
        ("geometry", "Change of lengths, angles and pairwise angles by domain", domain_figure),
        (
            "raw",
            "The same by method, with controls of the size of PAID's change",
            raw_figure,
        ),
    ]
    found = [
        (kind, text, draw(geometry, figures / f"{geometry.name}-{kind}", canvas))
        for kind, text, draw in drawn
    ]
    return table, [figure for figure in found if figure[2]]


def by_domain(models: pd.DataFrame) -> pd.DataFrame:
    """Long frame: label, kind, domain, measure, value; and what the figure needs of each.

    place: along the axis, domains first, then a gap and semantic shifts. tick: the text there.
    drawn: the value, or for 0, which has no place on a logarithmic axis, a third of the smallest.
    """
    values = means(models, ["label", "kind", "domain"]).reset_index()
    values["tick"] = values["domain"].map(models.groupby("domain")["shown_domain"].first())
    is_semantic = values["kind"] == "semantic"
    names = models.groupby("label")["shown"].first()
    values.loc[is_semantic, "tick"] = values.loc[is_semantic, "label"].map(names)
    domains = list(dict.fromkeys(values.loc[~is_semantic, "domain"]))
    places = {name: place for place, name in enumerate(domains)}
    values["place"] = values["domain"].map(places).astype(float)
    values.loc[is_semantic, "place"] = len(domains) + 1 + np.arange(is_semantic.sum())
    order = {label: place for place, label in enumerate(ordered_labels(models))}
    long = values.melt(
        ["label", "kind", "domain", "tick", "place"], [*DRAWN], "measure", "value"
    ).sort_values(["label", "place"], key=lambda c: c.map(order) if c.name == "label" else c)
    least = long[long["value"] > 0].groupby("measure")["value"].min()
    floor = long["measure"].map(least / 3)
    long["drawn"] = long["value"].where(long["value"] > 0, floor)
    return long.reset_index(drop=True)


def _title(geometry: Geometry) -> str:
    return f"Neurons of {MODELS.display_name(geometry.model)}, {geometry.setting}"


def _caption(figure: Figure, text: str, canvas: Canvas) -> None:
    """A caption in the figure on a screen; on paper it stands below it, from the file."""
    if canvas.columns is not None:
        return
    width = int(17 * figure.get_figwidth())
    left: Any = {"x": 0.01, "ha": "left", "fontsize": "small", "color": "#333333"}
    figure.supxlabel(textwrap.fill(text, width), **left)


def _legend(figure: Figure, handles: Sequence[Line2D], place: Any, ncols: int) -> None:
    figure.legend(handles=handles, loc=place, ncols=ncols, frameon=False, fontsize="small")


def _draw_raw(axes: Axes, drawn: pd.DataFrame, labels: list[str], measure: str) -> None:
    positions = {label: number for number, label in enumerate(labels)}
    y = drawn["label"].map(positions).to_numpy(dtype=float)
    for number in range(0, len(labels), 2):
        axes.axhspan(number - 0.5, number + 0.5, color="#F3F3F3", lw=0, zorder=0)
    for kind, colour in _KIND_COLOUR.items():
        mask = (drawn["kind"] == kind).to_numpy()
        axes.plot(
            drawn.loc[mask, measure],
            y[mask],
            ls="",
            marker="o" if kind == "corruption" else "s",
            ms=4 if kind == "corruption" else 6,
            color=colour,
            alpha=0.75,
            mew=0,
        )
    if measure == "delta_s_per_pair":
        # Below and above the dots of the same row.
        axes.plot(
            drawn["matched_delta_s_per_pair"], y + 0.24, ls="", marker="|", ms=5, color="black"
        )
        axes.plot(
            drawn["random_delta_s_per_pair"],
            y - 0.26,
            ls="",
            marker="x",
            ms=3,
            color=CONTROL_COLOUR,
        )
    if (drawn[measure] > 0).any():
        logarithmic(axes, "x")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#DDDDDD", lw=0.5)
    axes.set_axisbelow(True)


def logarithmic(axes: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis. Within a decade matplotlib labels no step of it, or each: here three."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = axis.get_view_interval()
    if high < 10 * low:
        axis.set_major_locator(MaxNLocator(3))
        axis.set_major_formatter("{x:.1e}")
    axis.set_minor_formatter(NullFormatter())


def _raw_handles(drawn: pd.DataFrame) -> list[Line2D]:
    def handle(marker: str, colour: str, size: float, label: str) -> Line2D:
        return Line2D([], [], ls="", marker=marker, color=colour, ms=size, label=label)

    handles = [handle("o", COLOURS[0], 5, "one domain")]
    if (drawn["kind"] == "semantic").any():
        handles.append(handle("s", COLOURS[1], 6, "one semantic shift"))
    if drawn["matched_delta_s_per_pair"].notna().any():
        handles += [
            handle("|", "black", 6, "scaled to PAID's |ΔW|"),
            handle("x", CONTROL_COLOUR, 4, "noise of PAID's |ΔW|"),
        ]
    return handles
