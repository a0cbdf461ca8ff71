"""The geometry of kept models as two figures: the bars of the paper, and unscaled values."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.style import COLOURS, SOURCE_COLOUR
from ctta_bench.analysis.kept_models.geometry_runs import Geometry
from ctta_bench.analysis.table.table import Table, csv_text
from ctta_bench.analysis.tables.geometry import (
    CIRCULAR,
    geometry_table,
    means,
    ordered_labels,
    scientific,
    shown_labels,
)
from ctta_bench.registry import MODELS

DRAWN = {
    "delta_m": "ΔM, lengths",
    "delta_a": "ΔA, absolute angles",
    "delta_s_per_pair": "ΔS per pair, pairwise angles",
}
SEMANTIC_TEXT = "semantic: fine-tuned, with labels, on another label set"
_KIND_STYLE = {"corruption": (COLOURS[0], ""), "semantic": (COLOURS[1], "////")}


def minmax_figure(geometry: Geometry, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """The figure of the paper: each measure by domain, min-max scaled over the domains of a method.

    One row of panels per method, with the semantic shifts at the right end of each panel. Writes
    stem.png, stem.pdf and stem.csv (raw and scaled values) and returns their paths; nothing
    without a method that was adapted to domains.
    """
    drawn = scaled_bars(geometry.models)
    labels = list(dict.fromkeys(drawn["label"]))
    if not labels:
        return []
    shown = shown_labels(geometry.models)
    with canvas.wide.drawing():
        figure = canvas.wide.figure((11, 1.9 + 1.05 * len(labels)), 1.5 + 0.75 * len(labels))
        grid = figure.subplots(len(labels), len(DRAWN), sharex=True, squeeze=False)
        for line, label in zip(grid, labels, strict=True):
            for axes, measure in zip(line, DRAWN, strict=True):
                bars = drawn[(drawn["label"] == label) & (drawn["measure"] == measure)]
                _draw_scaled(axes, bars)
            line[0].set_ylabel(
                textwrap.fill(shown[label], 18, break_long_words=False),
                rotation=0,
                ha="right",
                va="center",
                labelpad=10,
            )
        for axes, title in zip(grid[0], DRAWN.values(), strict=True):
            axes.set_title(title)
        canvas.title(figure, _title(geometry))
        _caption(
            figure,
            "Change from the source model, pooled over all linear layers, mean over seeds. Each "
            "panel is scaled from its smallest to its largest value (printed in it): compare "
            "heights only within a panel. Short bars next to a tall one may simply be small "
            f"changes of the weights; see the unscaled figure. {CIRCULAR}",
        )
        has_semantic = (drawn["kind"] == "semantic").any()
        texts = {"corruption": "adapted to the domain, without labels", "semantic": SEMANTIC_TEXT}
        _legend(
            figure,
            [
                Patch(facecolor=colour, hatch=hatch, edgecolor="white", lw=0, label=texts[kind])
                for kind, (colour, hatch) in _KIND_STYLE.items()
                if has_semantic or kind == "corruption"
            ],
        )
        return save_figure(figure, drawn.drop(columns="tick"), stem)


def raw_figure(geometry: Geometry, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """The raw values on logarithmic axes: one row per method, one dot per domain.

    The panel of ΔS also has its value at the size of PAID's change, and that of noise. Writes
    stem.png, stem.pdf and stem.csv and returns their paths.
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
        )
        _legend(figure, _raw_handles(drawn))
        return save_figure(figure, drawn, stem)


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
        ("geometry", "Change of lengths, angles and pairwise angles by domain", minmax_figure),
        (
            "raw",
            "The same unscaled, with controls of the size of PAID's change",
            raw_figure,
        ),
    ]
    found = [
        (kind, text, draw(geometry, figures / f"{geometry.name}-{kind}", canvas))
        for kind, text, draw in drawn
    ]
    return table, [figure for figure in found if figure[2]]


def scaled_bars(models: pd.DataFrame) -> pd.DataFrame:
    """Long frame: label, measure, bar (tick: its label), kind, raw and scaled value.

    Bars are the domains of a method, then every semantic shift. Values are scaled to [0, 1] in
    their panel; all are 0 where the values of a panel are equal.
    """
    values = means(models, ["label", "kind", "domain"]).reset_index()
    semantic = values[values["kind"] == "semantic"]
    shown = models.groupby("label")["shown"].first()
    domains = models.groupby("domain")["shown_domain"].first()
    parts = []
    for label in ordered_labels(models[models["kind"] == "corruption"]):
        own = values[values["label"] == label]
        own = own.set_index("domain").loc[_domains(models, label)].reset_index()
        for measure in DRAWN:
            raw = np.concatenate([own[measure].to_numpy(), semantic[measure].to_numpy()])
            spread = np.ptp(raw)
            parts.append(
                pd.DataFrame(
                    {
                        "label": label,
                        "measure": measure,
                        "bar": [*own["domain"], *semantic["label"]],
                        "tick": [*domains[own["domain"]], *shown[semantic["label"]]],
                        "kind": [*own["kind"], *semantic["kind"]],
                        "raw": raw,
                        "scaled": (raw - raw.min()) / spread if spread else 0.0,
                    }
                )
            )
    columns = ["label", "measure", "bar", "tick", "kind", "raw", "scaled"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _domains(models: pd.DataFrame, label: str) -> list[str]:
    return list(dict.fromkeys(models.loc[models["label"] == label, "domain"]))


def _title(geometry: Geometry) -> str:
    return f"Neurons of {MODELS.display_name(geometry.model)}, {geometry.setting}"


def _caption(figure: Figure, text: str) -> None:
    width = int(17 * figure.get_figwidth())
    left: Any = {"x": 0.01, "ha": "left", "fontsize": "small", "color": "#333333"}
    figure.supxlabel(textwrap.fill(text, width), **left)


def _legend(figure: Figure, handles: Sequence[Patch | Line2D]) -> None:
    figure.legend(
        handles=handles,
        loc="outside upper right",
        ncols=len(handles),
        frameon=False,
        fontsize="small",
    )


def _draw_scaled(axes: Axes, bars: pd.DataFrame) -> None:
    positions = np.arange(len(bars))
    for kind, (colour, hatch) in _KIND_STYLE.items():
        mask = (bars["kind"] == kind).to_numpy()
        axes.bar(
            positions[mask],
            bars["scaled"].to_numpy()[mask],
            0.74,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            lw=0,
        )
    axes.set_xticks(positions, bars["tick"], rotation=90, fontsize="small")
    axes.set_ylim(0, 1.32)
    axes.set_yticks([0, 1])
    axes.tick_params(length=0)
    low, high = bars["raw"].min(), bars["raw"].max()
    axes.text(
        0.01,
        0.99,
        f"0: {scientific(low)}   1: {scientific(high)}",
        transform=axes.transAxes,
        va="top",
        fontsize="small",
        color="#333333",
    )


def _draw_raw(axes: Axes, drawn: pd.DataFrame, labels: list[str], measure: str) -> None:
    positions = {label: number for number, label in enumerate(labels)}
    y = drawn["label"].map(positions).to_numpy(dtype=float)
    for number in range(0, len(labels), 2):
        axes.axhspan(number - 0.5, number + 0.5, color="#F3F3F3", lw=0, zorder=0)
    for kind, (colour, _) in _KIND_STYLE.items():
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
            drawn["random_delta_s_per_pair"], y - 0.26, ls="", marker="x", ms=3, color=SOURCE_COLOUR
        )
    if (drawn[measure] > 0).any():
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        # Within a decade the default labels every step, and the labels overlap.
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 10 * low else (1,)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#DDDDDD", lw=0.5)
    axes.set_axisbelow(True)


def _raw_handles(drawn: pd.DataFrame) -> list[Line2D]:
    def handle(marker: str, colour: str, size: float, label: str) -> Line2D:
        return Line2D([], [], ls="", marker=marker, color=colour, ms=size, label=label)

    handles = [handle("o", COLOURS[0], 5, "one domain")]
    if (drawn["kind"] == "semantic").any():
        handles.append(handle("s", COLOURS[1], 6, "one semantic shift"))
    if drawn["matched_delta_s_per_pair"].notna().any():
        handles += [
            handle("|", "black", 6, "scaled to PAID's |ΔW|"),
            handle("x", SOURCE_COLOUR, 4, "noise of PAID's |ΔW|"),
        ]
    return handles
