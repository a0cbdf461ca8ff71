"""What a report shows of kept models: their geometry, and what they attend to."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas
from ctta_bench.analysis.figures.geometry import write_geometry
from ctta_bench.analysis.kept_models.geometry_runs import geometries, has_kept_models
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.table import Table
from ctta_bench.errors import CttaBenchError

# Draws into a folder; for each figure what it shows and its files. Needs networks, so that the
# caller of a report brings it along.
DrawAttention = Callable[[Runs, Path, Canvas], list[tuple[str, list[Path]]]]


@dataclass(frozen=True)
class Visualisation:
    """One part of a report: a table at most, and figures by kind, with what they show."""

    title: str
    text: str
    tables: list[Table]
    figures: list[tuple[str, str, Path]]


def visualisations(
    runs: Runs, draft: Path, draw_attention: DrawAttention | None, canvas: Canvas = SCREEN
) -> list[Visualisation]:
    """The parts about kept models, their files below `draft`; [] if no run kept any.

    What cannot be drawn is said in the text of its part: it takes nothing from the report.
    """
    if not has_kept_models(runs):
        return []
    tables, figures = draft / "tables", draft / "figures"
    found, left_out = geometries(runs)
    parts = []
    for geometry in found:
        table, drawn = write_geometry(geometry, tables, figures, canvas)
        shown = [(kind, text, paths[0]) for kind, text, paths in drawn]
        parts.append(
            Visualisation(f"Geometry of adapted weights – {geometry.model}", "", [table], shown)
        )
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
        return Visualisation("Attention left out", str(error), [], [])
    return Visualisation(
        "Attention", "", [], [("attention", text, paths[0]) for text, paths in drawn]
    )
