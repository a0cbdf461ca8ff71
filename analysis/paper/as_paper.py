"""Tables 1 to 12 and Figures 6 and 7 of the paper of PAID, written in its shape."""

from dataclasses import dataclass
from pathlib import Path

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas
from ctta_bench.analysis.paper.of_runs import numbers_of
from ctta_bench.analysis.paper.panels import drawn_figures
from ctta_bench.analysis.paper.shape import name_of, quoted, tables
from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.table.table import Table, citation_keys, csv_text, write_references
from ctta_bench.errors import RunError
from ctta_bench.record.schema import RESULTS_TABLE_FILE
from ctta_bench.registry import METHODS

FOLDER = "as-paper"  # below that of the runs
PAGE = "tables.md"


@dataclass(frozen=True)
class AsPaper:
    """What was made. folder: None if nothing was written. left_out: unusable run folders."""

    tables: list[Table]
    figures: list[Path]
    folder: Path | None
    left_out: list[tuple[Path, str]]


def as_paper(
    directory: Path | None = None,
    out: Path | None = None,
    *,
    with_paper: bool = False,
    canvas: Canvas = SCREEN,
    workers: int = 1,
    citations: bool = False,
) -> AsPaper:
    """The tables and figures of the paper, from runs, from the quoted numbers, or both.

    directory: of runs, e.g. `runs` for all experiments; None: the quoted numbers. with_paper: the
    quoted number and the difference below each number of the runs. out: folder of the files, by
    default DIRECTORY/as-paper; without runs nothing is written unless it is given. Each table is
    written as Markdown, LaTeX and CSV, and all together as tables.md; figures as PNG, PDF, SVG and
    CSV.

    Example: `as_paper(Path("runs"), with_paper=True).tables`

    Raises RunError if no run fills a table or figure of the paper.
    """
    if directory is None:
        made, runs, left_out = tables(quoted()), None, []
    else:
        runs = load(directory, workers)
        left_out = runs.left_out
        numbers = numbers_of(runs)
        against = quoted() if with_paper else None
        made = [table for each in numbers for table in tables(each, against)]
        out = out or directory / FOLDER
    if out is None:
        return AsPaper(made, [], None, left_out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file in (*out.glob("table-*"), *out.glob("figure-*")):
            file.unlink()  # of an earlier call
        figures = drawn_figures(out, runs, with_paper or runs is None, canvas)
        if not made and not figures:
            raise RunError(
                f"{directory}: no run fills a table or figure of the paper; they are made of "
                "finished cells of `ctta-bench grid paper/...` (setting continual, at least two "
                "rows of a table)."
            )
        _write(made, figures, out, citations)
        if runs is None:
            (out / RESULTS_TABLE_FILE).write_text(csv_text(quoted().results), "utf-8")
        else:
            for each in numbers:
                ending = f"-{each.regime}" * bool(each.regime)
                (out / f"results{ending}.csv").write_text(csv_text(each.results), "utf-8")
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error.strerror}).") from error
    return AsPaper(made, figures, out, left_out)


def _write(made: list[Table], figures: list[Path], out: Path, citations: bool) -> None:
    methods = METHODS.names()
    keys = {name_of(name): key for name in methods for key in citation_keys([name]).values()}
    for table in made:
        table.write(out, keys if citations else {})
    write_references(out, methods)
    pictures = [
        f"{png.with_suffix('.txt').read_text('utf-8')}\n![{png.stem}]({png.name})\n"
        for png in figures
        if png.suffix == ".png"
    ]
    texts = [table.to_markdown() for table in made]
    (out / PAGE).write_text("\n".join([*texts, *pictures]), "utf-8")
