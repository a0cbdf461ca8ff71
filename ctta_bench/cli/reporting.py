"""Tables, figures and the page."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ctta_bench.cli.shared import Format, check_format, error_printer, kind, print_json, printer


@kind
def report(
    directory: Annotated[Path, typer.Argument(help="A folder of runs.")],
    out: Annotated[Path | None, typer.Option(help="Instead of DIRECTORY/report.")] = None,
    format: Format = "text",
) -> None:
    """Write tables, figures and one HTML page from finished runs, and print the tables.

    Example: `ctta-bench report runs/quickstart`
    """
    as_json = check_format(format)
    from ctta_bench.analysis.report import write_report

    files = write_report(directory, out, _draw_attention)
    if as_json:
        tables = [
            {"caption": t.caption, "rows": t.frame.reset_index().to_dict("records")}
            for t in files.tables
        ]
        print_json({"page": files.page, "results": files.results, "tables": tables})
        return
    from ctta_bench.console import comparison_table

    for table in files.tables:
        printer().print(comparison_table(table.header, table.lines))
        printer().print(table.caption, style="dim", highlight=False)
        for note in table.footnotes:
            printer().print(f"- {note}", style="dim", highlight=False, markup=False)
    for folder, reason in files.left_out:
        error_printer().print(f"left out: {folder}: {reason}", markup=False, soft_wrap=True)
    typer.echo(f"page: {files.page.resolve()}")


def _draw_attention(runs: Any, folder: Path) -> Any:
    """Attention figures of a report; torch is loaded where a run kept its models, not before."""
    from ctta_bench.viewing import draw_attention

    return draw_attention(runs, folder)
