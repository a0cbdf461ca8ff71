"""A directory of runs as one report: tables, figures, results.csv, and a page that holds them."""

import base64
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas
from ctta_bench.analysis.figure.plots import bar_figure, stream_figure
from ctta_bench.analysis.figures.pictures import picture_figures
from ctta_bench.analysis.figures.rounds import round_figure
from ctta_bench.analysis.figures.sweeps import Sweep, batch_size_sweeps, sweep_figure, sweeps
from ctta_bench.analysis.figures.tradeoff import tradeoff_figure
from ctta_bench.analysis.paper.printed import PAPER, paper_table, with_paper
from ctta_bench.analysis.paper.radar import settings_figure
from ctta_bench.analysis.read.collect import Runs, load
from ctta_bench.analysis.report.kept_models import DrawAttention, looks
from ctta_bench.analysis.report.page import (
    DescribeMethods,
    Section,
    cell_pages,
    render,
    stream_data,
)
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import metric_of, rows, source_row
from ctta_bench.analysis.table.table import Table
from ctta_bench.analysis.tables.by_setting import setting_tables
from ctta_bench.analysis.tables.calibration import calibration_table
from ctta_bench.analysis.tables.classes import class_figure, class_tables
from ctta_bench.analysis.tables.cost import cost_table
from ctta_bench.analysis.tables.forgetting import forgetting_table
from ctta_bench.analysis.tables.main import main_table, round_table, significance_table
from ctta_bench.analysis.tables.measured_cost import find_records, measured_section
from ctta_bench.analysis.tables.order_sensitivity import order_tables
from ctta_bench.analysis.tables.pairs import pair_table
from ctta_bench.analysis.tables.protocol import elsewhere, protocol_table, seed_table
from ctta_bench.analysis.tables.ranks import all_ranks, rank_figure, rank_table
from ctta_bench.analysis.tables.severities import severity_tables
from ctta_bench.analysis.tables.stability import stability_table
from ctta_bench.errors import ConfigError, RunError
from ctta_bench.record.find import is_report
from ctta_bench.record.schema import PAGE_FILE, RESULTS_TABLE_FILE


@dataclass(frozen=True)
class ReportFiles:
    """What a report consists of. `tables` are the main tables, `left_out` the unusable folders."""

    page: Path
    results: Path
    table_files: list[Path]
    figure_files: list[Path]
    tables: list[Table]
    left_out: list[tuple[Path, str]]


def write_report(
    directory: Path,
    output: Path | None = None,
    draw_attention: DrawAttention | None = None,
    against: str | None = None,
    describe_methods: DescribeMethods | None = None,
    canvas: Canvas = SCREEN,
    workers: int = 1,
) -> ReportFiles:
    """Write `output` (default: DIRECTORY/report) with all that the runs below `directory` say.

    Where runs kept their models, that is also the geometry of these and, with `draw_attention`,
    what they attend to. `describe_methods` brings what the suite says of each method. `against`
    "paper" puts the paper's printed numbers beside ours. `canvas` tells how figures are laid out;
    many folders are read by so many `workers`.

    The whole folder is made beside its place and swapped in, so that a report is never half new;
    an older report is replaced. Raises RunError if there is no cell, or if `output` exists and is
    no report or cannot be written, ConfigError for something else to hold the runs against.
    """
    if against not in (None, PAPER):
        raise ConfigError(f"--against {against!r}: there is {PAPER!r} alone.")
    runs = load(directory, workers)
    measured, damaged = find_records(directory)
    runs.left_out.extend(damaged)
    if runs.cells.empty and not measured:
        reasons = "".join(f" {folder.name}: {reason}." for folder, reason in runs.left_out[:3])
        raise RunError(
            f"{directory}: no cell to report on; run one first, e.g. `ctta-bench grid quickstart`."
            + reasons
        )
    output = directory / "report" if output is None else output
    with _swapped_in(output) as draft:
        main_tables, sections = [], []
        for group in runs.groups():
            section = _section(group, runs, draft, against, canvas)
            sections.append(section)
            main_tables.append(section.tables[0])
        if main_tables:
            sections.append(_overall(runs, draft, canvas))
        for number, sweep in enumerate(batch_size_sweeps(runs)):
            sections[-1].figures.extend(
                _sweep_figures([sweep], draft / "figures" / f"sizes-{number + 1}", canvas)
            )
        for look in looks(runs, draft, draw_attention, canvas):
            shown = [(kind, text, _in_base64(png)) for kind, text, png in look.figures]
            sections.append(Section(look.title, look.text, look.tables, shown, cells=[]))
        if measured:
            sections.append(measured_section(measured, draft))
            main_tables = main_tables or sections[-1].tables
        runs.results.to_csv(
            draft / RESULTS_TABLE_FILE, index=False, float_format="%.10g", lineterminator="\n"
        )
        names = sorted(runs.cells["method"].unique())
        facts = {} if describe_methods is None else describe_methods(names)
        (draft / PAGE_FILE).write_text(render(directory, runs, sections, facts), "utf-8")
    return ReportFiles(
        page=output / PAGE_FILE,
        results=output / RESULTS_TABLE_FILE,
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


def _section(group: Runs, runs: Runs, draft: Path, against: str | None, canvas: Canvas) -> Section:
    significance = significance_table(group)
    main, beside = main_table(group), None
    if against == PAPER:
        main, beside = with_paper(main, group), paper_table(group)
    main = replace(main, footnotes=(*main.footnotes, *elsewhere(runs, group)))
    by_class = class_tables(group)
    made = (
        main,
        round_table(group),
        stability_table(group),
        forgetting_table(group),
        beside,
        significance,
        pair_table(group),
        seed_table(group),
        calibration_table(group),
        *by_class[:1],
        cost_table(group),
    )
    tables = [table for table in made if table]
    for table in (*tables, *by_class[1:]):
        table.write(draft / "tables")
    name = draft / "figures" / notes.table_name(group)
    figures: list[tuple[str, str, str]] = []
    stream = None
    for kind, text, draw in (
        ("means", "Mean by method; the dashed line is source", bar_figure),
        ("rounds", "Mean of each round; bands: ± standard deviation over seeds", round_figure),
        ("tradeoff", "Accuracy against time and parameters", tradeoff_figure),
        ("settings", "PAID's settings by domain and on average", settings_figure),
        ("stream", "Errors along the stream", stream_figure),
        ("classes", "IoU by class of source and the best methods", class_figure),
    ):
        if paths := draw(group, name.with_name(f"{name.name}-{kind}"), canvas):
            figures.append((kind, text, _in_base64(paths[0])))
            if kind == "stream":
                stream = stream_data(pd.read_csv(paths[2]), metric_of(group).mistakes)
    figures += _sweep_figures(sweeps(group), name, canvas)
    figures += [
        ("pictures", text, _in_base64(paths[0]))
        for text, paths in picture_figures(group, name, canvas)
    ]
    return Section(
        notes.title(group),
        _headline(group, significance),
        tables,
        figures,
        cells=cell_pages(group),
        folded=by_class[1:],
        stream=stream,
    )


def _overall(runs: Runs, draft: Path, canvas: Canvas) -> Section:
    """What concerns all groups: their protocols, orders of domains, and ranks over them."""
    tables = [
        protocol_table(runs),
        *setting_tables(runs),
        *order_tables(runs),
        *severity_tables(runs),
    ]
    figures = []
    for ranks in all_ranks(runs):
        tables.append(rank_table(ranks))
        paths = rank_figure(ranks, draft / "figures" / f"{ranks.name}-ranks", canvas)
        figures.append(("means", f"Mean ranks: {ranks.title}", _in_base64(paths[0])))
    for table in tables:
        table.write(draft / "tables")
    text = "The protocols of the parts above, and how the methods rank over their domains."
    return Section("Protocols and ranks", text, tables, figures, cells=[])


def _sweep_figures(found: list[Sweep], name: Path, canvas: Canvas) -> list[tuple[str, str, str]]:
    """Draw each sweep and return it as a figure of a section."""
    return [
        (
            "sweep",
            f"Mean over {sweep.key.replace('_', ' ')}; bars: ± standard deviation over seeds",
            _in_base64(sweep_figure(sweep, name.with_name(f"{name.name}-{sweep.key}"), canvas)[0]),
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
