"""The report on a directory of runs: tables, figures, results.csv, and a page with all of them."""

import base64
import contextlib
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas
from ctta_bench.analysis.paper.agreement import agreement_table
from ctta_bench.analysis.paper.printed import PAPER, with_paper
from ctta_bench.analysis.read.collect import Runs, load
from ctta_bench.analysis.report.contents import (
    OF_ALL,
    MadeFigure,
    MadeTables,
    made_figures,
    made_tables,
)
from ctta_bench.analysis.report.headline import headline
from ctta_bench.analysis.report.interactive import (
    comparison_data,
    row_facts,
    shades,
    stream_data,
)
from ctta_bench.analysis.report.kept_models import DrawAttention, visualisations
from ctta_bench.analysis.report.page import (
    DescribeMethods,
    Picture,
    Section,
    Shown,
    cell_pages,
    render,
)
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.latex import Printing
from ctta_bench.analysis.table.missing import listed
from ctta_bench.analysis.table.rows import is_balanced, metric_of, rows
from ctta_bench.analysis.table.table import Table, citation_keys, csv_text, write_references
from ctta_bench.analysis.tables.measured_cost import find_records, measured_table
from ctta_bench.analysis.tables.protocol import methods_left_out
from ctta_bench.errors import ConfigError, RunError
from ctta_bench.record.bundle import runs_folder
from ctta_bench.record.find import is_report, report_folder
from ctta_bench.record.schema import PAGE_FILE, RESULTS_TABLE_FILE
from ctta_bench.registry import canonical


@dataclass(frozen=True)
class ReportFiles:
    """The files of a report.

    tables: the main tables; those of measured cost if there are no runs. leaderboards: that of
    each main table, and headlines: the sentences over it. left_out: the unusable folders.
    agreement: with the paper, if the report is compared with it.
    """

    page: Path
    results: Path
    table_files: list[Path]
    figure_files: list[Path]
    tables: list[Table]
    leaderboards: list[Table]
    left_out: list[tuple[Path, str]]
    headlines: list[str]
    agreement: Table | None = None


def write_report(
    directory: Path,
    output: Path | None = None,
    draw_attention: DrawAttention | None = None,
    against: str | None = None,
    describe_methods: DescribeMethods | None = None,
    canvas: Canvas = SCREEN,
    workers: int = 1,
    citations: bool = False,
    ours: str = "",
) -> ReportFiles:
    """Write the report on the runs below `directory` to `output` (default: DIRECTORY/report).

    `directory` may be a bundle; the report is then next to it, NAME-report.

    Example: `write_report(Path("runs/quickstart")).page`

    If runs kept their models, the report also shows the geometry of their weights and, with
    `draw_attention`, their attention maps. `describe_methods` returns facts on each method.
    `against` "paper" adds the printed numbers of the paper of PAID. `canvas` is the layout of
    figures. `workers` is the number of processes that read run folders. With `citations`, LaTeX
    tables have a `\\citep` after each method; tables/references.bib is always written. `ours` is
    the method that stands last in LaTeX tables, below a rule.

    The folder is written under another name and then renamed, so a report is never incomplete; an
    older report is replaced. Raises RunError if there is no cell, if `output` exists and is no
    report, or if it cannot be written; ConfigError for an unknown `against` or `ours`.
    """
    if against not in (None, PAPER):
        raise ConfigError(f"--against {against!r}: choose {PAPER!r}, the only one.")
    asked, directory = directory, runs_folder(directory)
    runs = load(directory, workers)
    measured, damaged = find_records(directory)
    runs.left_out.extend(damaged)
    if runs.cells.empty and not measured:
        reasons = "".join(f" {folder.name}: {reason}." for folder, reason in runs.left_out[:3])
        raise RunError(
            f"{asked}: no cell to report on; run one first, e.g. `ctta-bench grid quickstart`."
            + reasons
        )
    output = report_folder(asked) if output is None else output
    with _swapped_in(output) as draft:
        groups, names = runs.groups(), sorted(runs.cells["method"].unique())
        methods = [
            *names,
            *(str(row["method"]) for record in measured for row in record["methods"]),
        ]
        printing = Printing(citation_keys(methods) if citations else {}, _own(ours, names))
        made = [_section(group, runs, draft, against, canvas, printing) for group in groups]
        main_tables = [main for _, main in made]
        sections = _with_unique_titles([section for section, _ in made])
        leaderboards = [section.leaderboard.table for section in sections if section.leaderboard]
        headlines = [" ".join((section.text, *section.warnings)) for section in sections]
        if main_tables:
            sections.append(_overall(runs, draft, canvas, printing))
        for part in visualisations(runs, draft, draw_attention, canvas):
            tables = [Shown(part.title, table) for table in part.tables]
            pictures = [
                Picture(kind, text, f"{text}.", png.stem, _files(png))
                for kind, text, png in part.figures
            ]
            sections.append(Section(part.title, part.text, tables, pictures))
        if measured:
            sections.append(_measured(measured, draft, printing))
            main_tables = main_tables or [shown.table for shown in sections[-1].tables]
        agreement = agreement_table(runs) if against == PAPER else None
        if agreement is not None:
            agreement.write(draft / "tables", *printing)
            (count,) = agreement.footnotes
            shown = Shown("Agreement with the paper", agreement)
            sections.append(Section("Agreement with the paper", count, [shown], []))
        (draft / RESULTS_TABLE_FILE).write_text(csv_text(runs.results), "utf-8")
        write_references(draft / "tables", methods)
        facts = {} if describe_methods is None else describe_methods(names)
        again = _again(asked, output, against, canvas, printing)
        page = render(directory, runs, sections, facts, again, printing)
        (draft / PAGE_FILE).write_text(page, "utf-8")
    return ReportFiles(
        page=output / PAGE_FILE,
        results=output / RESULTS_TABLE_FILE,
        table_files=sorted((output / "tables").iterdir()),
        figure_files=sorted((output / "figures").iterdir()),
        tables=main_tables,
        leaderboards=leaderboards,
        left_out=runs.left_out,
        headlines=headlines,
        agreement=agreement,
    )


@contextlib.contextmanager
def _swapped_in(output: Path) -> Iterator[Path]:
    """A draft folder that replaces `output` on success, and is removed on failure."""
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


def _section(
    group: Runs,
    runs: Runs,
    draft: Path,
    against: str | None,
    canvas: Canvas,
    printing: Printing,
) -> tuple[Section, Table]:
    """The section of a group, and its main table."""
    made = tables_of_group(group, runs, against)
    for tables in made.values():
        for table in (*tables.shown, *tables.folded):
            table.write(draft / "tables", *printing)
    (board,), (main,) = made.pop("leaderboard").shown, made["main"].shown
    in_order = [*main.frame.index] == [row.name for row in rows(group)]
    if against is None and in_order and is_balanced(group):
        made.pop("main")  # the leaderboard has its numbers
    stem = draft / "figures" / notes.table_name(group)
    figures = made_figures(group, stem, canvas)
    streams = [figure.paths for figure in figures if figure.entry == "stream"]
    found = headline(group)
    section = Section(
        notes.title(group),
        found.verdict,
        [_shown(name, tables, table, group) for name, tables, table in _each(made, "shown")],
        [_picture(figure) for figure in figures],
        cells=cell_pages(group),
        warnings=found.warnings,
        leaderboard=Shown("Leaderboard", board),
        notes=tuple(
            dict.fromkeys((board.caption, main.caption, *board.footnotes, *main.footnotes))
        ),
        folded=[_shown(name, of, table, group) for name, of, table in _each(made, "folded")],
        facts=row_facts(group),
        stream=next((stream_data(pd.read_csv(csv), group) for _, _, csv in streams), None),
        comparison=comparison_data(group),
    )
    return section, main


def _each(made: Mapping[str, MadeTables], part: str) -> Iterator[tuple[str, MadeTables, Table]]:
    for name, tables in made.items():
        for table in getattr(tables, part):
            yield name, tables, table


def _shown(name: str, of: MadeTables, table: Table, group: Runs) -> Shown:
    heat = shades(table, metric_of(group).ascending) if name == "pairs" else None
    return Shown(of.heading, table, heat)


def tables_of_group(group: Runs, runs: Runs, against: str | None) -> dict[str, MadeTables]:
    """The tables of a group by the name of their entry, with the footnotes on other protocols."""
    made = made_tables(group, against=against)
    if against == PAPER:
        made["main"].shown[:] = [with_paper(table, group) for table in made["main"].shown]
    left_out = methods_left_out(runs, group)
    for name in ("leaderboard", "main"):
        made[name].shown[:] = [
            replace(table, footnotes=(*table.footnotes, *left_out)) for table in made[name].shown
        ]
    return made


def _with_unique_titles(sections: Sequence[Section]) -> list[Section]:
    """Sections of one title get the number of their protocol, as in the table of protocols."""
    counts = Counter(section.title for section in sections)
    return [
        replace(section, title=f"{section.title} (protocol {number})")
        if counts[section.title] > 1
        else section
        for number, section in enumerate(sections, 1)
    ]


def _overall(runs: Runs, draft: Path, canvas: Canvas, printing: Printing) -> Section:
    """Tables and figures of all groups: protocols, orders of domains, ranks, ..."""
    made = made_tables(runs, OF_ALL)
    tables = [Shown(of.heading, table) for _, of, table in _each(made, "shown")]
    for shown in tables:
        shown.table.write(draft / "tables", *printing)
    figures = made_figures(runs, draft / "figures" / OF_ALL, canvas, OF_ALL)
    text = "The protocols of all runs, and comparisons over several protocols or domains."
    return Section("Protocols and ranks", text, tables, [_picture(figure) for figure in figures])


def _measured(records: Sequence[Mapping[str, Any]], draft: Path, printing: Printing) -> Section:
    """The tables of what `ctta-bench cost` measured."""
    tables = [Shown("Measured cost", measured_table(record)) for record in records]
    for shown in tables:
        shown.table.write(draft / "tables", *printing)
    text = (
        "All methods, TENT and the plain model were measured alternately in one process. Compare "
        "the ratios; absolute times depend on the machine."
    )
    return Section("Measured cost", text, tables, [])


def _again(
    directory: Path, output: Path, against: str | None, canvas: Canvas, printing: Printing
) -> str:
    """The command that makes the report again."""
    words = ["ctta-bench", "report", str(directory)]
    words += ["--out", str(output)] if output != report_folder(directory) else []
    words += ["--against", against] if against else []
    words += ["--columns", str(canvas.columns)] if canvas.columns else []
    words += ["--ours", printing.ours] if printing.ours else []
    return shlex.join(words + ["--citations"] * bool(printing.citations))


def _own(ours: str, methods: Sequence[str]) -> str:
    """The registry name of the own method. Raises ConfigError if no run is of it."""
    if ours and canonical(ours) not in methods:
        raise ConfigError(f"--ours {ours}: no run is of this method; there are {listed(methods)}.")
    return canonical(ours) if ours else ""


def _picture(figure: MadeFigure) -> Picture:
    png = figure.paths[0]
    caption = png.with_name(f"{png.stem}.txt")
    text = caption.read_text("utf-8").strip() if caption.is_file() else f"{figure.text}."
    return Picture(figure.kind, figure.text, text, png.stem, _files(png))


def _files(png: Path) -> dict[str, str]:
    """The files of a figure by their ending, in base64."""
    files = {ending: png.with_name(f"{png.stem}.{ending}") for ending in ("png", "pdf", "svg")}
    return {
        ending: base64.b64encode(file.read_bytes()).decode()
        for ending, file in files.items()
        if file.is_file()
    }
