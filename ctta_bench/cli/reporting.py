"""Tables, figures and the page."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ctta_bench import registry
from ctta_bench.cli.command import Format, check_format, command, error_printer, print_json, printer
from ctta_bench.errors import ConfigError


@command
def report(
    directory: Annotated[Path | None, typer.Argument(help="A folder of runs.")] = None,
    out: Annotated[Path | None, typer.Option(help="Instead of DIRECTORY/report.")] = None,
    against: Annotated[
        str | None, typer.Option(help="paper: its printed numbers beside these.", metavar="WHAT")
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Its tables alone, with recomputed means; no runs.")
    ] = False,
    columns: Annotated[
        int | None, typer.Option(help="Figures 1 or 2 columns of a paper wide (3.25, 6.75 in).")
    ] = None,
    format: Format = "text",
) -> None:
    """Write tables, figures and one HTML page from finished runs, and print the tables.

    Example: `ctta-bench report runs/quickstart`
    """
    as_json = check_format(format)
    if paper:
        if directory is not None or against is not None:
            raise ConfigError("report --paper: takes neither a folder of runs nor --against.")
        return _print_quoted(out, as_json)
    if directory is None:
        raise ConfigError("report: give a folder of runs, e.g. runs/quickstart, or --paper.")
    from ctta_bench.analysis.figure.canvas import Canvas
    from ctta_bench.analysis.report.write import write_report

    files = write_report(
        directory,
        out,
        draw_attention=_draw_attention,
        against=against,
        describe_methods=_describe_methods,
        canvas=Canvas(columns),
        workers=os.cpu_count() or 1,
    )
    if as_json:
        tables = [
            {"caption": t.caption, "rows": t.frame.reset_index().to_dict("records")}
            for t in files.tables
        ]
        print_json({"page": files.page, "results": files.results, "tables": tables})
        return
    _print_tables(files.tables)
    for folder, reason in files.left_out:
        error_printer().print(f"left out: {folder}: {reason}", markup=False, soft_wrap=True)
    typer.echo(f"page: {files.page.resolve()}")


def _print_quoted(out: Path | None, as_json: bool) -> None:
    """The paper's tables; their files too where a folder is given."""
    from ctta_bench.analysis.paper.quoted import quoted_tables, write_quoted

    tables = quoted_tables()
    written = [] if out is None else write_quoted(out)
    if as_json:
        print_json([_as_record(table) for table in tables])
        return
    _print_tables(tables)
    if written:
        typer.echo(f"tables: {written[0].parent.resolve()}")


def _print_tables(tables: Sequence[Any]) -> None:
    from ctta_bench.cli.console import comparison_table

    for table in tables:
        width = printer().width
        printer().print(comparison_table(table.heads, table.lines, table.unit, width))
        printer().print(table.caption, style="dim", highlight=False)
        for note in table.footnotes:
            printer().print(f"- {note}", style="dim", highlight=False, markup=False)


def _as_record(table: Any) -> dict[str, Any]:
    """A table's caption, its numbers as one record a row, and its footnotes."""
    rows = table.frame.rename_axis("method").reset_index().to_dict("records")
    return {"name": table.name, "caption": table.caption, "rows": rows, "notes": table.footnotes}


def _describe_methods(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """What the registry says of each method, read from its file without importing it."""
    from ctta_bench.analysis.paper.verdicts import parity_words

    entries = registry.METHODS.entries()
    kept = ("paper", "checked_against", "source_access", "warmup_access")
    found = {}
    for name in names:
        if name not in entries:
            continue
        entry = entries[name]
        is_ours = entry.module.startswith("ctta_bench.methods")
        found[name] = {
            "description": entry.description,
            **{key: str(entry.attributes.get(key) or "") for key in kept},
            "parity": parity_words(name) if is_ours else "not recorded: it is a plug-in",
        }
    return found


def _draw_attention(runs: Any, folder: Path, canvas: Any) -> Any:
    """Attention figures of a report; torch is loaded where a run kept its models, not before."""
    from ctta_bench.measuring.attention_maps import draw_attention

    return draw_attention(runs, folder, canvas)
