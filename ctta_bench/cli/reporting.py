"""Reports of runs, geometry of weights and attention maps of adapted models."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ctta_bench.cli.command import (
    DataRoot,
    Format,
    Plugin,
    check_format,
    command,
    load_plugins,
    print_error,
    print_json,
    printer,
)
from ctta_bench.cli.completion import one_of
from ctta_bench.errors import ConfigError

Runs = Annotated[
    Path, typer.Argument(help="Folder of runs that stored their models (--keep-models).")
]
Out = Annotated[
    Path | None, typer.Option(help="Folder of the output.", show_default="DIRECTORY/looking")
]


@command
def report(
    directory: Annotated[Path | None, typer.Argument(help="Folder of runs, or a bundle.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the report.", show_default="DIRECTORY/report")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="paper",
            help="Show the numbers of the PAID paper next to those of the runs.",
            autocompletion=one_of("paper"),
        ),
    ] = None,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper", help="Print only the tables of the PAID paper, with their means recomputed."
        ),
    ] = False,
    as_: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="paper",
            help="Print and write the tables and figures in the shape of the PAID paper: from the "
            "runs, with --against paper also the quoted numbers and the differences; without a "
            "folder of runs the quoted numbers alone.",
            autocompletion=one_of("paper"),
        ),
    ] = None,
    columns: Annotated[
        int | None,
        typer.Option(
            metavar="1|2", help="Width of figures in columns of a paper: 3.25 or 6.75 inches."
        ),
    ] = None,
    citations: Annotated[
        bool, typer.Option("--citations", help="Add a \\citep after each method in LaTeX tables.")
    ] = False,
    ours: Annotated[
        str,
        typer.Option(
            metavar="METHOD", help="The method that stands last in LaTeX tables, below a rule."
        ),
    ] = "",
    opened: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser afterwards.")
    ] = False,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Write tables, figures and one HTML page from finished runs, and print the leaderboards.

    Example: `ctta-bench report runs/quickstart`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    if as_ is not None:
        if as_ != "paper" or paper or against not in (None, "paper"):
            raise ConfigError(
                "report --as: choose 'paper', with or without --against paper, not with --paper."
            )
        return _print_as_paper(
            directory, out, against == "paper", columns, citations, as_json=as_json
        )
    if paper:
        if directory is not None or against is not None:
            raise ConfigError("report --paper: takes neither a folder of runs nor --against.")
        return _print_quoted(out, as_json, citations)
    if directory is None:
        raise ConfigError("report: give a folder of runs, e.g. runs/quickstart, or --paper.")
    from ctta_bench.analysis.figure.canvas import Canvas
    from ctta_bench.analysis.report.write import write_report
    from ctta_bench.api.discover import method_facts
    from ctta_bench.cli.terminal.console import print_leaderboards

    files = write_report(
        directory,
        out,
        draw_attention=_draw_attention,
        against=against,
        describe_methods=method_facts,
        canvas=Canvas(columns),
        workers=os.cpu_count() or 1,
        citations=citations,
        ours=ours,
    )
    if as_json:
        print_json(_as_records(files))
        return
    if files.leaderboards:
        print_leaderboards(files.leaderboards, files.headlines)
    else:
        _print_tables(files.tables)
    if files.agreement is not None:
        _print_whole([files.agreement])
    for folder, reason in files.left_out:
        print_error(f"{folder}: {reason}", "left out")
    if opened:
        open_page(files.page)
    else:
        typer.echo(f"page: {files.page.resolve()}")


def write_and_open(directory: Path) -> None:
    """Write the report on a folder of runs, and open its page."""
    from ctta_bench.analysis.report.write import write_report
    from ctta_bench.api.discover import method_facts

    files = write_report(
        directory,
        draw_attention=_draw_attention,
        describe_methods=method_facts,
        workers=os.cpu_count() or 1,
    )
    open_page(files.page)


def open_page(page: Path) -> None:
    """Print the path of a page, and open it in the browser; a note where there is none."""
    import webbrowser

    typer.echo(f"page: {page.resolve()}")
    if not webbrowser.open(page.resolve().as_uri()):
        print_error("there is no browser here; open the page above yourself", "note")


@command
def audit(
    directory: Annotated[Path, typer.Argument(help="Folder of runs, or a bundle.")],
    report: Annotated[
        Path | None, typer.Option(help="Folder of the report.", show_default="DIRECTORY/report")
    ] = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Compute every number of runs and of their report again, and list what does not hold.

    The runs are a folder, a bundle, or a folder of bundles whose CSV files are then checked. Names,
    hashes, orders and footnotes are checked as well. The exit code is 1 if anything does not hold.

    Example: `ctta-bench audit runs/quickstart`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.analysis.report.audit import audit as audit_runs

    found = audit_runs(directory, report, workers=os.cpu_count() or 1)
    if as_json:
        print_json(vars(found))
    else:
        for finding in found.findings:
            typer.echo(finding)
        for file in found.not_checked:
            print_error(f"{file}: this command does not count its numbers again", "not checked")
        if found.report is None:
            print_error(f"{directory}: there is no report, so only cells were checked", "note")
        result = f"{len(found.findings)} do not hold" if found.findings else "all hold"
        typer.echo(f"{found.cells} run folders, {found.numbers} numbers computed again: {result}")
    if found.findings:
        raise typer.Exit(1)


def _print_quoted(out: Path | None, as_json: bool, citations: bool) -> None:
    """Print the paper's tables, and write them if a folder is given."""
    from ctta_bench.analysis.paper.quoted import quoted_tables, write_quoted

    tables = quoted_tables()
    written = [] if out is None else write_quoted(out, citations)
    if as_json:
        print_json([_as_record(table) for table in tables])
        return
    _print_tables(tables)
    if written:
        typer.echo(f"tables: {written[0].parent.resolve()}")


def _print_as_paper(
    directory: Path | None,
    out: Path | None,
    with_paper: bool,
    columns: int | None,
    citations: bool,
    *,
    as_json: bool,
) -> None:
    """Print the tables in the paper's shape, and say where the files are."""
    from ctta_bench.analysis.figure.canvas import Canvas
    from ctta_bench.analysis.paper.as_paper import as_paper

    if directory is None and with_paper:
        raise ConfigError("report --as paper --against paper: give a folder of runs to compare.")
    made = as_paper(
        directory,
        out,
        with_paper=with_paper,
        canvas=Canvas(columns),
        workers=os.cpu_count() or 1,
        citations=citations,
    )
    if as_json:
        tables = [_as_record(table) for table in made.tables]
        print_json({"folder": made.folder, "figures": made.figures, "tables": tables})
        return
    _print_whole(made.tables)
    for folder, reason in made.left_out:
        print_error(f"{folder}: {reason}", "left out")
    if made.folder is not None:
        typer.echo(f"tables and figures: {made.folder.resolve()}")


def _print_whole(tables: Sequence[Any]) -> None:
    """Print tables in their own shape, with caption and footnotes, at any width of the terminal."""
    from ctta_bench.cli.terminal.console import aligned

    for table in tables:
        typer.echo("\n".join(["", table.caption, "", *aligned(table)]))
        for note in table.footnotes:
            typer.echo(f"- {note}")


def _print_tables(tables: Sequence[Any]) -> None:
    """Print each table, with its caption and footnotes below."""
    from ctta_bench.cli.terminal.console import comparison_table

    for table in tables:
        width = printer().width
        printer().print(comparison_table(table.heads, table.lines, table.unit, width))
        printer().print(table.caption, style="dim", highlight=False)
        for note in table.footnotes:
            printer().print(f"- {note}", style="dim", highlight=False, markup=False)


def _as_records(files: Any) -> dict[str, Any]:
    """What `report --format json` prints: the main tables with headline and leaderboard."""
    boards = [board.frame.reset_index().to_dict("records") for board in files.leaderboards]
    headlines = files.headlines or [""] * len(files.tables)
    tables = [
        {
            "headline": headline,
            "caption": table.caption,
            "rows": table.frame.reset_index().to_dict("records"),
            "leaderboard": board,
        }
        for table, headline, board in zip(
            files.tables, headlines, boards or [[]] * len(files.tables), strict=True
        )
    ]
    records = {"page": files.page, "results": files.results, "tables": tables}
    agreement = {} if files.agreement is None else {"agreement": _as_record(files.agreement)}
    return records | agreement


def _as_record(table: Any) -> dict[str, Any]:
    """A table's caption, its numbers as one record a row, and its footnotes."""
    rows = table.frame.rename_axis("method").reset_index().to_dict("records")
    return {"name": table.name, "caption": table.caption, "rows": rows, "notes": table.footnotes}


def _draw_attention(runs: Any, folder: Path, canvas: Any) -> Any:
    """Attention figures of a report; torch is only loaded if a run stored its models."""
    from ctta_bench.measuring.attention_maps import draw_attention

    return draw_attention(runs, folder, canvas)


@command
def geometry(
    directory: Runs,
    out: Out = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="File of source weights, if no `source` cell stored them."),
    ] = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Measure how adaptation changed the weight vectors of neurons: lengths and angles.

    Example: `ctta-bench geometry runs/geometry`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.analysis.figures.geometry import write_geometry
    from ctta_bench.analysis.kept_models.geometry_runs import read_geometry
    from ctta_bench.analysis.table.table import write_references
    from ctta_bench.measuring.attention_maps import source_layers, visualisation_folder

    folder = visualisation_folder(directory, out)
    found, left_out = read_geometry(directory, lambda m, sha: source_layers(m, sha, weights))
    written = [write_geometry(g, folder, folder) for g in found]
    write_references(folder, (method for g in found for method in g.models["method"]))
    for reason in left_out:
        print_error(reason, "left out")
    files = [file for _, figures in written for _, _, paths in figures for file in paths]
    if as_json:
        tables = [
            {"caption": t.caption, "rows": t.frame.reset_index().to_dict("records")}
            for t, _ in written
        ]
        print_json({"folder": folder, "figures": files, "tables": tables, "left_out": left_out})
        return
    from ctta_bench.cli.terminal.console import plain_table

    for table, _ in written:
        rows = [[label, *(entry.text for entry in entries)] for label, entries in table.lines]
        printer().print(plain_table(list(table.header), rows))
        printer().print(table.caption, style="dim", highlight=False, markup=False)
        for note in table.footnotes:
            printer().print(f"- {note}", style="dim", highlight=False, markup=False)
    typer.echo(f"tables and figures: {folder.resolve()}")


@command
def attention(
    directory: Runs,
    domain: Annotated[
        list[str] | None,
        typer.Option(help="Domain of the images; repeatable.", show_default="the first one"),
    ] = None,
    image: Annotated[
        list[int] | None,
        typer.Option(
            metavar="<int>", help="Number of an image; repeatable.", show_default="0 to 3"
        ),
    ] = None,
    fusion: Annotated[
        str,
        typer.Option(
            metavar="mean|max|min",
            help="How the heads are fused into one map.",
            autocompletion=one_of("mean", "max", "min"),
        ),
    ] = "mean",
    discard: Annotated[
        float, typer.Option(help="Share of the smallest values that is set to 0.")
    ] = 0.8,
    residual: Annotated[float, typer.Option(help="Share of the residual path.")] = 0.5,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the cells.", show_default="the lowest")
    ] = None,
    out: Out = None,
    data_root: DataRoot = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Draw attention maps (attention rollout) of stored models on the same images.

    Example: `ctta-bench attention runs/attention --domain fog --image 0 --image 5`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.analysis.figures.attention import attention_figure, summary
    from ctta_bench.analysis.kept_models.attention import RolloutSettings
    from ctta_bench.measuring.attention_maps import (
        DEFAULT_PICTURES,
        attention_grids,
        visualisation_folder,
    )

    folder = visualisation_folder(directory, out)
    grids = attention_grids(
        directory,
        domains=domain or (),
        pictures=image or DEFAULT_PICTURES,
        settings=RolloutSettings(fusion, discard, residual),
        seed=seed,
        data_root=data_root,
    )
    files = [attention_figure(grid, folder / grid.name) for grid in grids]
    if as_json:
        rows = [summary(grid).to_dict("records") for grid in grids]
        print_json({"folder": folder, "files": files, "rows": rows})
        return
    for grid, paths in zip(grids, files, strict=True):
        printer().print(f"{grid.title}: {grid.how}", highlight=False, markup=False)
        if grid.warning():
            printer().print(grid.warning(), style="dim", highlight=False, markup=False)
        typer.echo("\n".join(str(path) for path in paths))
