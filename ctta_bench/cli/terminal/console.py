"""Results and lists in a terminal: tables and sentences."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.cli.command import printer
from ctta_bench.names import late
from ctta_bench.record.schema import CellRecord, ResultRecord

_ALWAYS = 3  # columns of a leaderboard after rank and method: error, gain, time

# In 0.1.0 the progress bars were in this module.
__getattr__ = late("ctta_bench.cli.terminal", "progress")


def result_table(result: ResultRecord, source: ResultRecord | None = None) -> Table:
    """A result's errors or mIoU by domain, one column per round, then those of source."""
    metric, table = result["metric"], Table()
    head = metric_named(metric).head
    rounds = [*result["rounds"], *(source["rounds"] if source else [])]
    table.add_column("domain")
    for place, entry in enumerate(rounds):
        of = f"{head} " if place < len(result["rounds"]) else "Source "
        table.add_column(f"{of}(round {entry['round'] + 1})", justify="right")
    for rows in zip(*(entry["domains"] for entry in rounds), strict=True):
        table.add_row(rows[0]["domain"], *(_percent(row[metric]) for row in rows))
    table.add_section()
    table.add_row("mean", *(_percent(entry["mean"]) for entry in rounds))
    for rows in zip(*(entry.get("severities", []) for entry in result["rounds"]), strict=True):
        name = f"mean at severity {rows[0]['severity']}"
        table.add_row(name, *(f"{row['mean']:.1f}" for row in rows))
    return table


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f}"


def model_line(cell: CellRecord, result: ResultRecord) -> str:
    """Model, weights, number of parameters and normalisation of a result."""
    model, given = cell["model"], cell["preprocessing"]
    parts = [f"model {model['name']}", f"weights {model['sha256'][:8]}"]
    if "model_parameters" in result:  # results of earlier versions lack it
        parts.append(f"{result['model_parameters']:,} parameters")
    values = [
        f"{key} {' '.join(f'{v:g}' for v in given[key])}"
        for key in ("mean", "std", "size")
        if given[key] is not None
    ]
    enlarged = [f"short side {given['enlarge']}"] if "enlarge" in given else []
    processing = f"normalisation {given['regime']} ({', '.join([*values, *enlarged])})"
    return ", ".join([*parts, processing])


def updates_line(result: ResultRecord) -> str:
    """What a run updated, and how many updates it skipped, as a sentence."""
    cost, counters = result.get("cost", {}), result.get("counters", {})
    tensors = cost.get("trainable_tensors", {})
    if not tensors:
        return "no parameter was updated"
    line = f"updates {cost['trainable_parameters']:,} values in {len(tensors)} tensors"
    skipped = counters.get("skipped_updates", 0)
    return line + (f"; {skipped} updates skipped, as they were not finite" if skipped else "")


def comparison_table(header: tuple[str, ...], lines: Any, unit: str, width: int) -> Table:
    """A report's table, transposed so that it fits a terminal: one column per method.

    header: "method" and the columns; lines: (method, entries with `text`, `best`, `second`); unit:
    of the entries, e.g. `error %`; width: of the terminal in characters. If the methods do not fit,
    they are rows, and only the columns from the mean on are shown; the report's files have all.
    """
    columns = list(enumerate(header[1:]))
    cells = {
        (row, column): Text(e.text, _style(e))
        for row, (_, entries) in enumerate(lines)
        for column, e in enumerate(entries)
    }
    table = Table()
    table.add_column(unit, no_wrap=True)
    if sum(3 + max(len(method), 4) for method, _ in lines) > width - 16:
        first = next((number for number, name in columns if name == "mean"), 0)
        for _, name in columns[first:]:
            table.add_column(name, justify="right")
        for row, (method, _) in enumerate(lines):
            table.add_row(method, *(cells[row, column] for column, _ in columns[first:]))
        return table
    for method, _ in lines:
        table.add_column(method, justify="right")
    for column, name in columns:
        if name == "mean":
            table.add_section()
        table.add_row(name, *(cells[row, column] for row in range(len(lines))))
    return table


def aligned(table: Any) -> list[str]:
    """The lines of a report's table in its own shape, columns aligned; not cut to the terminal."""
    rows = [
        [*table.header],
        *([label, *(e.text for e in entries)] for label, entries in table.lines),
    ]
    above = [text for text, count in table.spans for text in (text, *[""] * (count - 1))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]
    rule = "-" * max(map(len, lines))
    heads = "  ".join(map(str.ljust, above, widths)).rstrip()
    body = [
        line
        for number, text in enumerate(lines[1:])
        for line in ([rule] * (number in table.rules) + [text])
    ]
    return [*([heads] if above else []), lines[0], rule, *body]


def leaderboard_table(board: Any, console: Console) -> tuple[Table, list[str]]:
    """A leaderboard with as many of its columns as fit the console, and the heads of the others.

    The rank comes before the method. Of the columns with any value, the last are left out first;
    rank, method, error, gain and time are always there.
    """
    from ctta_bench.analysis.table.table import MISSING  # late: `status` must not load pandas

    method, rank, *others = board.header
    unlimited = console.options.update_width(10_000)
    filled = [
        place
        for place in range(1, len(others) + 1)
        if any(entries[place].text != MISSING for _, entries in board.lines)
    ]
    for count in range(len(filled), 0, -1):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
        table.add_column(rank, justify="left")
        table.add_column(method, overflow="fold")
        for place in filled[:count]:
            table.add_column(others[place - 1], justify="right", no_wrap=True)
        for label, entries in board.lines:
            cells = (Text(entries[place].text, _style(entries[place])) for place in filled[:count])
            table.add_row(entries[0].text, Text(label), *cells)
        if count <= _ALWAYS or Measurement.get(console, unlimited, table).maximum <= console.width:
            break
    return table, [others[place - 1] for place in filled[count:]]


def _style(entry: Any) -> str:
    return "bold" if entry.best else "underline" if entry.second else ""


def plain_table(columns: list[str], rows: list[list[str]], title: str = "") -> Table:
    """A table of strings; all columns but the first may wrap."""
    table = Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, no_wrap=column == columns[0])
    for row in rows:
        table.add_row(*map(Text, row))  # in Text, brackets are no markup
    return table


def list_table(columns: list[str], rows: list[list[str]]) -> Table:
    """A list for a terminal: no wider than it, without frames; all but the names may wrap."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, no_wrap=column == columns[0], overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def hyperparameter_tables(name: str, description: dict[str, Any]) -> list[Table]:
    """A method's hyper-parameters, and the values of its presets."""
    columns = ["name", "type", "range", "default", "searched", "description"]
    rows = [[str(field[c]) for c in columns] for field in description["hyperparameters"]]
    presets = [
        [preset, benchmark, ", ".join(f"{k}={v}" for k, v in (values or {}).items())]
        for preset, section in description["presets"].items()
        for benchmark, values in section.items()
    ]
    tables = [plain_table(columns, rows, name)] if rows else []
    if any(values for *_, values in presets):
        tables.append(plain_table(["preset", "benchmark", "values"], presets, f"{name}: presets"))
    return tables


COMPATIBILITY_COLUMNS = [
    "method", "updated values", "tensors", "scored", "source data", "not supported because"
]  # fmt: skip


def compatibility_rows(pairs: list[Any]) -> list[list[str]]:
    """What each method updates in a model, the scored network, or why it is not supported."""
    return [
        [
            pair.method,
            "–" if pair.refusal else f"{pair.parameters:,}",
            "–" if pair.refusal else str(len(pair.trainable)),
            "–" if pair.refusal else f"{pair.scored}, before the update",
            pair.source_access or "–",
            pair.refusal,
        ]
        for pair in pairs
    ]


def parity_table(verdicts: list[Any]) -> Table:
    """Reference outputs: their source, our difference from them, and the verdict."""
    rows = [
        [
            v.case,
            v.method or "–",
            f"{v.source} {v.commit[:8]}".strip(),
            "–" if v.agrees is None else f"{v.difference:.1e}",
            "–" if v.agrees is None else f"{v.tolerance:.0e}",
            v.words,
            v.detail,
        ]
        for v in verdicts
    ]
    columns = ["case", "method", "source", "largest difference", "tolerance", "verdict", "detail"]
    return plain_table(columns, rows)


def print_leaderboards(boards: Sequence[Any], headlines: Sequence[str]) -> None:
    """Print each leaderboard at the width of the terminal, and what it shows in a sentence."""
    from ctta_bench.analysis.tables.leaderboard import KEY

    for board, headline in zip(boards, headlines, strict=True):
        title, *_ = board.caption.partition(". ")
        printer().print(f"\n{title}", style="bold", highlight=False, markup=False)
        table, left_out = leaderboard_table(board, printer())
        printer().print(table)
        room = [f"No room for {', '.join(left_out)}: see the report."] if left_out else []
        for note in (*room, *board.footnotes):
            printer().print(f"- {note}", style="dim", highlight=False, markup=False)
        printer().print(headline, highlight=False, markup=False)
    printer().print(f"\n{KEY}", style="dim", highlight=False, markup=False)
