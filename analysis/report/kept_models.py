"""Sections of a report on kept models: geometry of their weights, and attention maps."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas
from ctta_bench.analysis.figures.geometry import write_geometry
from ctta_bench.analysis.kept_models.geometry_runs import geometries, has_kept_models
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.table import Table
from ctta_bench.errors import CttaBenchError
from ctta_bench.registry import MODELS

# Draws into a folder; returns the text and the files of each figure. It needs networks, so the
# caller of a report provides it.
DrawAttention = Callable[[Runs, Path, Canvas], list[tuple[str, list[Path]]]]


@dataclass(frozen=True)
class Visualisation:
    """One section of a report: at most one table, and figures as kind, text and PNG file."""

    title: str
    text: str
    tables: list[Table]
    figures: list[tuple[str, str, Path]]


def visualisations(
    runs: Runs, draft: Path, draw_attention: DrawAttention | None, canvas: Canvas = SCREEN
) -> list[Visualisation]:
    """The sections about kept models, with their files below `draft`; [] if no run kept any.

    If something cannot be drawn, the text of its section gives the reason, and the rest of the
    report is written.
    """
    if not has_kept_models(runs):
        return []
    tables, figures = draft / "tables", draft / "figures"
    found, left_out = geometries(runs)
    parts = []
    for geometry in found:
        table, drawn = write_geometry(geometry, tables, figures, canvas)
        shown = [(kind, text, paths[0]) for kind, text, paths in drawn]
        model = MODELS.display_name(geometry.model)
        parts.append(Visualisation(f"Geometry of adapted weights – {model}", "", [table], shown))
    if left_out:
        parts.append(Visualisation("Geometry left out", " ".join(left_out), [], []))
    if draw_attention is not None:
        parts.append(_attention(runs, figures, draw_attention, canvas))
    return parts


def _attention(
    runs: Runs, figures: Path, draw_attention: DrawAttention, canvas: Canvas
) -> Visualisation:
    try:
        drawn = draw_attention(runs, figures, canvas)
    except CttaBenchError as error:
        return Visualisation("Attention maps left out", str(error), [], [])
    return Visualisation(
        "Attention maps", "", [], [("attention", text, paths[0]) for text, paths in drawn]
    )
