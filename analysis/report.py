"""A directory of runs as one report: tables, figures, results.csv, and a page that holds them."""

import base64
import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from ctta_bench.analysis import notes
from ctta_bench.analysis.classes import class_figure, class_tables
from ctta_bench.analysis.collect import Runs, load
from ctta_bench.analysis.costs import cost_table
from ctta_bench.analysis.folders import STATES, is_report
from ctta_bench.analysis.looks import DrawAttention, looks
from ctta_bench.analysis.paper import PAPER, paper_table, with_paper
from ctta_bench.analysis.pictures import picture_figures
from ctta_bench.analysis.plots import bar_figure, stream_figure
from ctta_bench.analysis.radar import settings_figure
from ctta_bench.analysis.rows import metric_of, row_labels, rows, source_row
from ctta_bench.analysis.sweeps import Sweep, batch_size_sweeps, sweep_figure, sweeps
from ctta_bench.analysis.table import Table
from ctta_bench.analysis.tables import main_table, round_table, significance_table
from ctta_bench.errors import ConfigError, RunError

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class ReportFiles:
    """What a report consists of. `tables` are the main tables, `left_out` the unusable folders."""

    page: Path
    results: Path
    table_files: list[Path]
    figure_files: list[Path]
    tables: list[Table]
    left_out: list[tuple[Path, str]]


@dataclass(frozen=True)
class Section:
    """The part of the page about one group; `folded` are tables by class and domain."""

    title: str
    headline: str
    tables: list[Table]
    figures: list[tuple[str, str, str]]  # kind, what it shows, PNG in base64
    cells: list[dict[str, Any]]
    folded: list[Table] = field(default_factory=list)


def write_report(
    directory: Path,
    output: Path | None = None,
    draw_attention: DrawAttention | None = None,
    against: str | None = None,
) -> ReportFiles:
    """Write `output` (default: DIRECTORY/report) with all that the runs below `directory` say.

    Where runs kept their models, that is also the geometry of these and, with `draw_attention`,
    what they attend to. `against` "paper" puts the paper's printed numbers beside ours.

    The whole folder is made beside its place and swapped in, so that a report is never half new;
    an older report is replaced. Raises RunError if there is no cell, or if `output` exists and is
    no report or cannot be written, ConfigError for something else to hold the runs against.
    """
    if against not in (None, PAPER):
        raise ConfigError(f"--against {against!r}: there is {PAPER!r} alone.")
    runs = load(directory)
    if runs.cells.empty:
        reasons = "".join(f" {folder.name}: {reason}." for folder, reason in runs.left_out[:3])
        raise RunError(
            f"{directory}: no cell to report on; run one first, e.g. `ctta-bench grid quickstart`."
            + reasons
        )
    output = directory / "report" if output is None else output
    with _swapped_in(output) as draft:
        main_tables, sections = [], []
        for group in runs.groups():
            section = _section(group, draft, against)
            sections.append(section)
            main_tables.append(section.tables[0])
        for number, sweep in enumerate(batch_size_sweeps(runs)):
            sections[0].figures.extend(
                _sweep_figures([sweep], draft / "figures" / f"sizes-{number + 1}")
            )
        for look in looks(runs, draft, draw_attention):
            shown = [(kind, text, _in_base64(png)) for kind, text, png in look.figures]
            sections.append(Section(look.title, look.text, look.tables, shown, cells=[]))
        runs.results.to_csv(
            draft / "results.csv", index=False, float_format="%.10g", lineterminator="\n"
        )
        (draft / "index.html").write_text(_page(directory, runs, sections), "utf-8")
    return ReportFiles(
        page=output / "index.html",
        results=output / "results.csv",
        table_files=sorted((output / "tables").iterdir()),
        figure_files=sorted((output / "figures").iterdir()),
        tables=main_tables,
        left_out=runs.left_out,
    )


@contextlib.contextmanager
def _swapped_in(output: Path) -> Iterator[Path]:
    """A draft folder that takes the place of `output` if all goes well, and else vanishes."""
    is_free = not output.exists() or (output.is_dir() and not any(output.iterdir()))
    if not is_free and not is_report(output):
        raise RunError(f"{output}: exists and is no report; give another folder, or remove it.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".report-", dir=output.parent))
    except OSError as error:
        raise RunError(f"{output}: cannot be written ({error.strerror}).") from error
    try:
        draft = work / "new"
        for folder in ("tables", "figures"):
            (draft / folder).mkdir(parents=True)
        yield draft
        if output.exists():
            output.replace(work / "old")
        draft.replace(output)
    finally:
        shutil.rmtree(work)


def _section(group: Runs, draft: Path, against: str | None) -> Section:
    significance = significance_table(group)
    main, beside = main_table(group), None
    if against == PAPER:
        main, beside = with_paper(main, group), paper_table(group)
    by_class = class_tables(group)
    made = (main, round_table(group), beside, significance, *by_class[:1], cost_table(group))
    tables = [table for table in made if table]
    for table in (*tables, *by_class[1:]):
        table.write(draft / "tables")
    name = draft / "figures" / notes.table_name(group)
    figures = []
    for kind, text, draw in (
        ("means", "Mean by method; the dashed line is source", bar_figure),
        ("settings", "PAID's settings by domain and on average", settings_figure),
        ("stream", "Errors along the stream", stream_figure),
        ("classes", "IoU by class of source and the best methods", class_figure),
    ):
        if paths := draw(group, name.with_name(f"{name.name}-{kind}")):
            figures.append((kind, text, _in_base64(paths[0])))
    figures += _sweep_figures(sweeps(group), name)
    figures += [
        ("pictures", text, _in_base64(paths[0])) for text, paths in picture_figures(group, name)
    ]
    return Section(
        notes.title(group),
        _headline(group, significance),
        tables,
        figures,
        cells=_cells(group),
        folded=by_class[1:],
    )


def _sweep_figures(found: list[Sweep], name: Path) -> list[tuple[str, str, str]]:
    """Draw each sweep and return it as a figure of a section."""
    return [
        (
            "sweep",
            f"Mean over {sweep.key.replace('_', ' ')}; bars: ± standard deviation over seeds",
            _in_base64(sweep_figure(sweep, name.with_name(f"{name.name}-{sweep.key}"))[0]),
        )
        for sweep in found
    ]


def _in_base64(png: Path) -> str:
    return base64.b64encode(png.read_bytes()).decode()


def _headline(group: Runs, significance_of: Table | None) -> str:
    """The best method, and how it stands to source, as one sentence."""
    found = rows(group)
    source = source_row(found)
    methods = [row for row in found if row is not source and not np.isnan(row.mean)]
    if not methods:
        return "No method has a complete result yet."
    best = methods[0]
    text = f"{best.label} has the {metric_of(group).superlative}, {best.mean:.1f} %"
    if source is None:
        return f"{text}. There is no complete source run to compare with."
    text += f"; the source model without adaptation has {source.mean:.1f} %"
    if significance_of is not None and best.label in significance_of.frame.index:
        p = float(significance_of.frame["p_holm"].to_dict()[best.label])
        text += f" (p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}, corrected)"
    return f"{text}."


def _cells(group: Runs) -> list[dict[str, Any]]:
    """The list of cells: label, seed, state, mean, versions and hyper-parameters as texts."""
    versions = ["ctta_bench", "commit", "python", "torch", "timm", "attention", "device"]
    labels = row_labels(group.cells)
    means = {
        cell: mean
        for row in rows(group)
        for cell, mean in zip(row.finished["cell"], row.seed_means, strict=True)
    }
    return [
        {
            "label": label,
            "cell": cell["cell"],
            "seed": cell["seed"],
            "state": cell["state"],
            "reason": cell["reason"],
            "mean": _decimal(means.get(cell["cell"], np.nan)),
            "seconds": _decimal(cell["seconds"]),
            "versions": ", ".join(
                f"{name} {cell[name]}" for name in versions if not pd.isna(cell[name])
            ),
            "hyperparameters": ", ".join(
                f"{name}={json.dumps(value)}"
                for name, value in json.loads(cell["hyperparameters"]).items()
            ),
        }
        for label, (_, cell) in zip(labels, group.cells.iterrows(), strict=True)
    ]


def _decimal(value: Any) -> str:
    return "–" if pd.isna(value) else f"{value:.1f}"


def _page(directory: Path, runs: Runs, sections: list[Section]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _code
    counts = runs.cells["state"].value_counts()
    return environment.get_template("report.html.j2").render(
        title=directory.resolve().name,
        states=", ".join(f"{counts[state]} {state}" for state in STATES if state in counts),
        sections=sections,
        left_out=[(_relative(folder, directory), reason) for folder, reason in runs.left_out],
    )


def _relative(folder: Path, directory: Path) -> str:
    return str(folder.relative_to(directory)) if folder != directory else folder.name


def _code(text: str) -> Markup:
    """Text between backticks as <code>, everything escaped."""
    return Markup(re.sub("`(.*?)`", r"<code>\1</code>", str(escape(text))))
