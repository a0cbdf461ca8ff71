"""The contents of a report: the registered tables and figures, in the order of their places."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ctta_bench.analysis.figure.canvas import Canvas
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.notes import source_data_group
from ctta_bench.analysis.table.rows import rows
from ctta_bench.analysis.table.table import Table
from ctta_bench.registry import FIGURES, TABLES

OF_ALL = "all"  # entries for all runs; the other entries are for runs that share a table


@dataclass(frozen=True)
class MadeTables:
    """The tables of an entry: `shown` on the page, or `folded` into an element that opens.

    heading: of each table on the page.
    """

    heading: str
    shown: list[Table]
    folded: list[Table]


@dataclass(frozen=True)
class MadeFigure:
    """A figure of an entry. kind: its CSS class on the page. paths: its PNG, PDF and CSV."""

    entry: str
    kind: str
    text: str
    paths: list[Path]


def made_tables(
    runs: Runs, of: str | None = None, against: str | None = None
) -> dict[str, MadeTables]:
    """The tables of these runs, by the name of their entry.

    `against`: what the report is compared with; some entries are only for that.
    """
    found = {}
    groups = runs.groups() if of == OF_ALL else [runs]
    needs = {row.name: source_data_group(row) for group in groups for row in rows(group)}
    for name in TABLES.names_with(of=of):
        facts = TABLES.find(name).attributes
        if facts.get("against") in (None, against):
            made = TABLES.get(name)(runs)
            tables = [
                _grouped(table, needs)
                for table in ([made] if isinstance(made, Table) else made or [])
            ]
            shown = facts.get("shown", len(tables))
            heading = str(facts.get("heading", name.replace("_", " ").capitalize()))
            found[name] = MadeTables(heading, tables[:shown], tables[shown:])
    return found


def _grouped(table: Table, needs: Mapping[str, str]) -> Table:
    """A table of methods, in print in groups by what they need; others as they are."""
    names = [str(name) for name in table.frame.index]
    if table.groups or names == [*map(str, table.frame.columns)] or not {*names} <= needs.keys():
        return table
    return replace(table, groups=tuple(needs[name] for name in names))


def made_figures(runs: Runs, stem: Path, canvas: Canvas, of: str | None = None) -> list[MadeFigure]:
    """The figures of these runs; their files begin with `stem`.

    An entry with a `text` draws one figure at stem-NAME. An entry without draws several, and
    returns the text and the files of each.
    """
    found = []
    for name in FIGURES.names_with(of=of):
        facts, draw = FIGURES.find(name).attributes, FIGURES.get(name)
        if "text" in facts:
            drawn = [(facts["text"], draw(runs, stem.with_name(f"{stem.name}-{name}"), canvas))]
        else:
            drawn = draw(runs, stem, canvas)
        kind = facts.get("kind", name)
        found += [MadeFigure(name, kind, text, paths) for text, paths in drawn if paths]
    return found
