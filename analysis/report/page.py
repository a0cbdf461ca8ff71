"""The page of a report: one HTML file with all figures, data and scripts in it."""

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from ctta_bench.analysis.read import experiments
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.latex import Printing
from ctta_bench.analysis.table.rows import row_names, rows
from ctta_bench.analysis.table.table import Table
from ctta_bench.record.progress import STATES
from ctta_bench.record.schema import CELL_FILE, ENVIRONMENT_FILE, LOG_FILE
from ctta_bench.registry import METHODS
from ctta_bench.scoring.metric import printed

_TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("tables", "methods", "compare", "curves", "page")  # in their order on the page
MAX_CELL_PAGES = 300  # cells with configuration, environment and log on the page
LOG_LINES = 20
# By method: description, paper, checked_against, source_access, parity. The caller of a report
# provides it.
DescribeMethods = Callable[[Sequence[str]], dict[str, dict[str, str]]]


@dataclass(frozen=True)
class Shown:
    """A table on the page under its heading. shades: of its entries, from -1 (worse) to 1."""

    heading: str
    table: Table
    shades: list[list[float]] | None = None


@dataclass(frozen=True)
class Picture:
    """A figure on the page. kind: its CSS class. name: of its files, by their ending in base64."""

    kind: str
    text: str
    caption: str
    name: str
    files: dict[str, str]

    @property
    def heading(self) -> str:
        """The beginning of its text."""
        return re.split("[:;]", self.text)[0]


@dataclass(frozen=True)
class Section:
    """The section of the page about one group; `folded` are tables by class and domain.

    warnings: what weakens the text. leaderboard: the table on top. notes: the protocol and
    footnotes, folded. facts: by the label of each row (see `row_facts`). stream, comparison: the
    data of the interactive parts.
    """

    title: str
    text: str
    tables: list[Shown]
    pictures: list[Picture]
    cells: list[dict[str, Any]] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    leaderboard: Shown | None = None
    notes: tuple[str, ...] = ()
    folded: list[Shown] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    stream: dict[str, Any] | None = None
    comparison: dict[str, Any] | None = None


def render(
    directory: Path,
    runs: Runs,
    sections: Sequence[Section],
    methods: dict[str, dict[str, str]],
    again: str,
    printing: Printing,
) -> str:
    """The page. `methods` are facts by method name; a method may have none.

    again: the command that makes the report. printing: of the tables in LaTeX.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code": _code, "embedded": _embedded, "means_first": means_first}
    counts = runs.cells["state"].value_counts()
    facts = {label: of for section in sections for label, of in section.facts.items()}
    paths = runs.cells.groupby("experiment")["path"].first()
    folders = {str(name): Path(path).parent for name, path in paths.items()}
    return environment.get_template("report.html.j2").render(
        title=_title(folders, directory),
        folder=directory.resolve().name,
        states=", ".join(f"{counts[state]} {state}" for state in STATES if state in counts),
        date=_last_day(runs),
        commands=[*(experiments.command(*of) for of in folders.items()), again],
        sections=sections,
        facts=facts,
        papers={name: METHODS.declared(name, "paper", "") for name in runs.cells["method"]},
        copies=lambda table: _copies(table, printing),
        methods=_method_pages(runs, methods),
        left_out=[(_relative(folder, directory), reason) for folder, reason in runs.left_out],
        chart_script=_chart_script(),
        chart_style=Markup((_TEMPLATES / "uPlot.min.css").read_text("utf-8")),
        script=_script(),
        style=Markup((_TEMPLATES / "page.css").read_text("utf-8")),
        has_streams=any(section.stream for section in sections),
    )


def _title(folders: Mapping[str, Path], directory: Path) -> str:
    """The title of the only experiment of a report, else the name of the directory."""
    if len(folders) != 1:
        return directory.resolve().name
    return experiments.title(*next(iter(folders.items())))


def means_first(table: Table) -> Table:
    """The table with mean, gain and seeds before the domains, so that a screen shows them."""
    if "mean" not in table.header or table.spans:
        return table
    first = table.header.index("mean")
    label, *domains = table.header[:first]
    return replace(
        table,
        header=(label, *table.header[first:], *domains),
        lines=tuple(
            (name, (*entries[first - 1 :], *entries[: first - 1])) for name, entries in table.lines
        ),
    )


def _copies(table: Table, printing: Printing) -> Markup:
    """What the buttons of a table copy or save, by the ending of its file."""
    texts = {"csv": table.to_csv(), "md": table.to_markdown(), "tex": table.to_latex(*printing)}
    return _embedded(texts)


def _script() -> Markup:
    """The scripts of the page, as one."""
    texts = [(_TEMPLATES / f"{name}.js").read_text("utf-8") for name in SCRIPTS]
    return Markup('(() => {\n"use strict";\n' + "\n".join(texts) + "\n})();")


def _chart_script() -> Markup:
    """The library that draws the curves (uPlot, MIT), with its licence."""
    licence = (_TEMPLATES / "uPlot.LICENSE").read_text("utf-8")
    script = (_TEMPLATES / "uPlot.iife.min.js").read_text("utf-8")
    return Markup(f"/*\n{licence}*/\n{script}")


def _last_day(runs: Runs) -> str:
    """The day of the newest finished run, by its record; "" if none has one."""
    days = []
    for path in runs.finished().cells["path"]:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            environment = json.loads((Path(path) / ENVIRONMENT_FILE).read_text("utf-8"))
            days.append(str(environment.get("time", ""))[:10])
    return max(days, default="")


def cell_pages(group: Runs) -> list[dict[str, Any]]:
    """The cells of a group: label, seed, state, mean, versions, and the texts of their files."""
    versions = ["ctta_bench", "commit", "python", "torch", "timm", "attention", "device"]
    names, labels = row_names(group.cells)
    means = {
        cell: mean
        for row in rows(group)
        for cell, mean in zip(row.finished["cell"], row.seed_means, strict=True)
    }
    return [
        {
            "label": labels[name],
            "cell": cell["cell"],
            "method": cell["method"],
            "seed": cell["seed"],
            "state": cell["state"],
            "reason": cell["reason"],
            "mean": _decimal(means.get(cell["cell"], np.nan)),
            "seconds": _decimal(cell["seconds"]),
            "versions": ", ".join(
                f"{key} {cell[key]}" for key in versions if not pd.isna(cell[key])
            ),
            "hyperparameters": ", ".join(
                f"{name}={json.dumps(value)}"
                for name, value in json.loads(cell["hyperparameters"]).items()
            ),
            "files": _files(Path(cell["path"])) if place < MAX_CELL_PAGES else [],
        }
        for place, (name, (_, cell)) in enumerate(zip(names, group.cells.iterrows(), strict=True))
    ]


def _files(folder: Path) -> list[tuple[str, str]]:
    """Configuration, environment and the end of the log, as far as the files exist."""
    found = []
    for name, what in ((CELL_FILE, "configuration"), (ENVIRONMENT_FILE, "environment")):
        if (folder / name).is_file():
            found.append((f"{what} ({name})", (folder / name).read_text("utf-8", "replace")))
    if (log := folder / LOG_FILE).is_file():
        lines = log.read_text("utf-8", "replace").splitlines()[-LOG_LINES:]
        found.append((f"last {len(lines)} lines of {LOG_FILE}", "\n".join(lines)))
    return found


def _method_pages(runs: Runs, facts: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """Each method with its facts and the hyper-parameters of its runs."""
    pages = []
    for name, cells in runs.cells.groupby("method"):
        values: dict[str, list[str]] = {}
        for text in cells["hyperparameters"].unique():
            for key, value in json.loads(text).items():
                shown = value if isinstance(value, str) else json.dumps(value)
                if shown not in values.setdefault(key, []):
                    values[key].append(shown)
        about = facts.get(str(name), {})
        pages.append(
            {
                "name": str(name),
                "label": METHODS.display_name(str(name)),
                "facts": [(key.replace("_", " "), text) for key, text in about.items() if text],
                "presets": ", ".join(sorted(cells["preset"].unique())),
                "values": sorted(values.items()),
                "cells": len(cells),
            }
        )
    return pages


def _decimal(value: Any) -> str:
    return "–" if pd.isna(value) else printed(value)


def _relative(folder: Path, directory: Path) -> str:
    is_below = folder != directory and folder.is_relative_to(directory)
    return str(folder.relative_to(directory)) if is_below else folder.name


def _code(text: str) -> Markup:
    """Text between backticks as <code>, everything escaped."""
    return Markup(re.sub("`(.*?)`", r"<code>\1</code>", str(escape(text))))


def _embedded(data: Any) -> Markup:
    """JSON for a script element, escaped so that it cannot end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))
