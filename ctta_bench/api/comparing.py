"""Results next to each other: a table with intervals and marks, figures, and the report's page."""

import contextlib
import html
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctta_bench.api.discover import method_facts
from ctta_bench.api.pictures import Picture, picture
from ctta_bench.api.results import Result, load_results
from ctta_bench.errors import ConfigError
from ctta_bench.record.schema import CELL_FILE
from ctta_bench.registry import TABLES

if TYPE_CHECKING:
    import pandas as pd

    from ctta_bench.analysis.read.collect import Runs
    from ctta_bench.analysis.table.table import Table

Given = Result | Path | str
_WHAT = {  # what two results of one table share, and what a message calls it
    "benchmark": "benchmark or stream",
    "model": "source model",
    "preprocessing": "pre-processing",
    "precision": "precision",
}


@dataclass(frozen=True)
class Comparison:
    """Methods of one protocol next to each other, as the report shows them.

    table: the leaderboard, a row per method: rank, mean ± half its 95 % interval, gain over
    `source` with its interval and a mark, cost, source data, domains. sentence: the finding in
    words, with what weakens it.
    """

    results: Sequence[Result]
    table: "Table"
    sentence: str

    def to_frame(self) -> "pd.DataFrame":
        """The numbers: a row per method, from the best to the worst."""
        return self.table.frame

    def to_markdown(self) -> str:
        """The table with caption and footnotes."""
        return self.table.to_markdown()

    def to_latex(self) -> str:
        """The table for a paper; it needs the packages booktabs and graphicx."""
        return self.table.to_latex()

    def plot(self, figure: str = "stream") -> Picture:
        """A figure of the report on these results, e.g. "stream", "means" or "tradeoff"."""
        with _on_disk(self.results) as runs:
            return picture(runs, figure)

    def __repr__(self) -> str:
        notes = (f"- {note}" for note in self.table.footnotes)
        return "\n".join([self.sentence, "", _text(self.table), *notes])

    def _repr_html_(self) -> str:
        escaped = (html.escape(note) for note in self.table.footnotes)
        items = (re.sub("`(.*?)`", r"<code>\1</code>", note) for note in escaped)
        notes = "".join(f"<li>{item}</li>" for item in items)
        return f"<p>{html.escape(self.sentence)}</p>{_html(self.table)}<ul>{notes}</ul>"


def compare(*results: Given | Iterable[Result]) -> Comparison:
    """Methods next to each other, with paired differences from the source model.

        source, tent = (evaluate(name, "scenes_c", examples=50) for name in ("source", "tent"))
        compare(source, tent)

    results: Results, run folders, folders of runs, or lists of Results. All must share benchmark,
    stream, source model and precision; several seeds of a method are one row. Raises ConfigError,
    with what differs, if they do not.
    """
    from ctta_bench.analysis.report.headline import headline

    found = _collected(results)
    _check_alike(found)
    with _on_disk(found) as runs:
        (group,) = runs.groups()
        return Comparison(found, TABLES.get("leaderboard")(group), str(headline(group)))


def report(results: Any, out: Path | str = "report") -> Path:
    """Write the report on results, a page with tables and figures; returns the path of the page.

    results: a list of Results, run folders or folders of runs, of any protocols. out: the folder.
    Raises RunError if it exists and is no report.

    Example: `report([source, tent], "runs/report")`
    """
    from ctta_bench.analysis.report.write import write_report

    given = [results] if isinstance(results, Result | Path | str) else results
    with tempfile.TemporaryDirectory() as folder:
        for result in _collected(given):
            result.save(folder)
        page = write_report(
            Path(folder), Path(out).expanduser(), describe_methods=method_facts
        ).page
        return page


def _collected(given: Iterable[Given | Iterable[Result]]) -> list[Result]:
    """All results, each cell once."""
    found: dict[str, Result] = {}
    for one in given:
        for result in _results_of(one):
            if result.name in found and result.files != found[result.name].files:
                raise ConfigError(
                    f"{result.name}: is given twice with different results; leave one out."
                )
            found[result.name] = result
    if not found:
        raise ConfigError("there are no results; give those of evaluate(...).")
    return list(found.values())


def _results_of(given: Given | Iterable[Result]) -> Iterable[Result]:
    if isinstance(given, Result):
        return [given]
    if isinstance(given, str | Path):
        is_cell = (Path(given).expanduser() / CELL_FILE).is_file()
        return [Result.load(given)] if is_cell else load_results(given)
    found = list(given) if isinstance(given, Iterable) else [given]
    wrong = [one for one in found if not isinstance(one, Result)]
    if wrong:
        raise ConfigError(f"{type(wrong[0]).__name__} is no result; give those of evaluate(...).")
    return found


def _check_alike(results: Sequence[Result]) -> None:
    first, *others = (result.cell for result in results)
    for other in others:
        for key, name in _WHAT.items():
            one, two = first[key], other[key]  # type: ignore[literal-required]
            if one == two:
                continue
            if isinstance(one, dict):
                keys = [k for k in {**one, **two} if one.get(k) != two.get(k)]
                name = f"{name} ({keys[0]}: {one.get(keys[0])} and {two.get(keys[0])})"
            raise ConfigError(
                f"{first['id']} and {other['id']} differ in {name}, so that they share no table; "
                "compare results of one protocol, or write a report(...) on all."
            )


@contextlib.contextmanager
def _on_disk(results: Sequence[Result]) -> Iterator["Runs"]:
    """The results as runs in a folder that lasts for the block."""
    from ctta_bench.analysis.read.collect import load

    with tempfile.TemporaryDirectory() as folder:
        for result in results:
            result.save(folder)
        yield load(Path(folder))


def _text(table: "Table") -> str:
    from tabulate import tabulate

    rows = [[label, *(entry.text for entry in entries)] for label, entries in table.lines]
    return tabulate(rows, table.heads, "simple", disable_numparse=True)


def _html(table: "Table") -> str:
    heads = "".join(f"<th>{html.escape(head)}</th>" for head in table.heads)
    rows = "".join(
        f"<tr><td>{html.escape(label)}</td>"
        + "".join(
            f"<td><b>{html.escape(e.text)}</b></td>"
            if e.best
            else f"<td>{html.escape(e.text)}</td>"
            for e in entries
        )
        + "</tr>"
        for label, entries in table.lines
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
