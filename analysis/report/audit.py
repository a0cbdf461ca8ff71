"""Every number of a folder of runs and of its report, computed again from predictions.npz.

What does not hold is a finding: one sentence with the file, the place and both values.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import escape

from ctta_bench.analysis.paper.printed import PAPER
from ctta_bench.analysis.read.checks import CheckedCell, check_folder
from ctta_bench.analysis.read.collect import Runs, load
from ctta_bench.analysis.report.contents import OF_ALL, MadeTables, made_tables
from ctta_bench.analysis.report.headline import headline
from ctta_bench.analysis.report.write import tables_of_group
from ctta_bench.analysis.table.table import Table, citation_keys, csv_text
from ctta_bench.analysis.tables.measured_cost import find_records, measured_table
from ctta_bench.errors import RunError
from ctta_bench.record.bundle import runs_folder
from ctta_bench.record.find import bundles_in, find_cells, is_report, report_folder
from ctta_bench.record.schema import PAGE_FILE, RESULTS_TABLE_FILE

MAX_OF_FILE = 5  # findings of one file of the report; the last one has the number of others
_OF_RESULT = ("cell", "round", "domain", "metric")  # columns that name a row of results.csv
_LABEL = re.compile(r"\\label\{tab:(.*?)\}")
_GEOMETRY = "geometry-"  # tables of weights, which predictions do not give


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    cells: run folders that were checked. numbers: values of result.json files and of the report
    that were computed again. report: its folder, None if there is no report. findings: a sentence
    for each thing that does not hold. not_checked: files of the report without numbers from
    predictions.
    """

    cells: int
    numbers: int
    report: Path | None
    findings: list[str]
    not_checked: list[str]


def audit(directory: Path, report: Path | None = None, workers: int = 1) -> Audit:
    """Check the cells below `directory` and their report (default: DIRECTORY/report, if any).

    `directory` may be a bundle; its report is then NAME-report. If it is a folder of bundles, its
    CSV files are compared with the tables that the runs give, whatever their names.

    Example: `audit(Path("runs/quickstart")).findings == []`

    Raises RunError if there is no cell, or if `report` is given and is no report.
    """
    asked, directory = directory, runs_folder(directory)
    folders, strays = find_cells(directory)
    if not folders and not strays:
        raise RunError(f"{asked}: no cell to check; name a folder of runs.")
    if report is not None and not is_report(report):
        raise RunError(f"{report}: is no report; `ctta-bench report {asked}` writes one.")
    report = report_folder(asked) if report is None else report
    checked = {folder: check_folder(folder) for folder in folders}
    findings = [f"{folder}: {reason}." for folder, reason in strays]
    findings += [f"{folder}: {text}" for folder, cell in checked.items() for text in cell.findings]
    runs = load(directory, workers)
    findings += _orders(runs, checked)
    findings += _copies(runs, checked)
    findings = [text.replace(str(directory), str(asked)) for text in findings]
    numbers = sum(cell.numbers for cell in checked.values())
    is_loose = bool(directory.is_dir() and bundles_in(directory) and [*directory.glob("*.csv")])
    if not is_report(report) and not is_loose:
        return Audit(len(folders), numbers, None, findings, [])
    report = report if is_report(report) else directory
    of_report = _Report(report, directory)
    (of_report.check_loose if report == directory else of_report.check)(runs)
    return Audit(
        len(folders),
        numbers + of_report.numbers,
        report,
        [*findings, *of_report.findings],
        of_report.not_checked,
    )


def _orders(runs: Runs, checked: Mapping[Path, CheckedCell]) -> Iterator[str]:
    """Cells of one protocol and seed that did not see the images in the same order."""
    for _, cells in runs.finished().cells.groupby(["group", "seed"]):
        first: tuple[str, Path] | None = None
        for path in map(Path, cells["path"]):
            order = checked[path].order if path in checked else ""
            if order and first is None:
                first = order, path
            elif order and first is not None and order != first[0]:
                yield (
                    f"{path}: saw the images in another order than {first[1].name}, a cell of the "
                    "same protocol and seed (order_sha256)."
                )


def _copies(runs: Runs, checked: Mapping[Path, CheckedCell]) -> Iterator[str]:
    """Folders that no table uses, although nothing in them is wrong: copies of a cell."""
    for folder, reason in runs.left_out:
        if folder in checked and not checked[folder].findings:
            yield f"{folder}: {reason}."


class _Report:
    """The files of a report, compared with what the runs give today."""

    def __init__(self, folder: Path, directory: Path) -> None:
        self.folder, self.directory = folder, directory
        self.findings: list[str] = []
        self.not_checked: list[str] = []
        self.numbers = 0

    def check(self, runs: Runs) -> None:
        """Compare results.csv, the tables and the sentences of the page."""
        rows = _rows(csv_text(runs.results), _OF_RESULT)
        self._compare(RESULTS_TABLE_FILE, rows, _OF_RESULT)
        files = {path.name for path in (self.folder / "tables").iterdir()}
        against = PAPER if any(name.endswith(f"-{PAPER}.csv") for name in files) else None
        groups = runs.groups()
        page = (self.folder / PAGE_FILE).read_text("utf-8")
        known = set()
        for group in groups:
            for table in _all_of(tables_of_group(group, runs, against)):
                self._check_table(table)
                known.add(table.name)
            found = headline(group)
            sentences = (*found.verdict.split(". "), *found.warnings)
            lacking = [s for s in sentences if str(escape(s)) not in page]
            self._add(PAGE_FILE, [f'lacks the sentence "{sentence}"' for sentence in lacking])
        others = [t for made in made_tables(runs, OF_ALL).values() for t in made.shown]
        others += [measured_table(record) for record in find_records(self.directory)[0]]
        for table in others:
            self._check_table(table)
            known.add(table.name)
        for name in sorted(files):
            stem = name.rpartition(".")[0]
            if name.endswith(".csv") and stem not in known:
                if stem.startswith(_GEOMETRY):
                    self.not_checked.append(f"tables/{name}")
                else:
                    self._add(f"tables/{name}", ["no run gives this table"])

    def check_loose(self, runs: Runs) -> None:
        """Compare each CSV file of the folder with the table of the same columns most like it."""
        tables = [
            *(t for g in runs.groups() for t in _all_of(tables_of_group(g, runs, None))),
            *_all_of(made_tables(runs, OF_ALL)),
        ]
        known = [table.to_csv() for table in tables]
        for file in sorted(self.folder.glob("*.csv")):
            text = file.read_text("utf-8")
            head, label = text.partition("\n")[0], text.partition(",")[0]
            alike = [_rows(t, [label]) for t in known if t.partition("\n")[0] == head]
            if not alike:
                self.not_checked.append(file.name)
                continue
            stored = _rows(text, [label])
            likest = max(alike, key=lambda rows: sum(stored.get(k) == v for k, v in rows.items()))
            self._compare(file.name, likest, [label])

    def _check_table(self, table: Table) -> None:
        label = table.header[0]
        before = len(self.findings)
        self._compare(f"tables/{table.name}.csv", _rows(table.to_csv(), [label]), [label])
        if len(self.findings) > before:
            return  # its Markdown and LaTeX have the same numbers
        methods = {str(name).partition(" ")[0] for name in table.frame.index}
        keys = citation_keys(methods)
        self._check_text(f"tables/{table.name}.md", lambda: [table.to_markdown()])
        name = f"tables/{table.name}.tex"
        found = _LABEL.search(self._read(name) or "")
        self._check_text(
            name,
            lambda: (
                table.to_latex(cited, ours, found[1] if found else "")
                for ours in ("", *sorted(methods))
                for cited in ({}, keys)
            ),
        )

    def _check_text(self, name: str, expected: Callable[[], Iterable[str]]) -> None:
        """Captions, marks and footnotes, as those that name missing cells."""
        stored = self._read(name)
        if stored is None or any(stored == text for text in expected()):
            return
        texts = min(([*_differing_lines(stored, text)] for text in expected()), key=len)
        self._add(name, texts)

    def _compare(
        self, name: str, expected: Mapping[tuple[str, ...], dict[str, str]], keys: Sequence[str]
    ) -> None:
        """Compare a CSV file row by row and column by column with what the runs give."""
        text = self._read(name)
        if text is None:
            return
        try:
            stored = _rows(text, keys)
        except KeyError as error:
            return self._add(name, [f"has no column {error}"])
        texts = []
        for key in dict.fromkeys([*expected, *stored]):
            place = ", ".join(part for part in key if part)
            if key not in stored:
                texts.append(
                    f"has no row {place}, which the runs have: the report is older than its runs, "
                    "or was changed"
                )
            elif key not in expected:
                texts.append(f"has a row {place}, which the runs do not have")
            else:
                one, other = stored[key], expected[key]
                self.numbers += len(other)
                texts += [
                    f"{place}: {column} is {_value(one, column)}, but {_value(other, column)} from "
                    "the runs"
                    for column in dict.fromkeys([*other, *one])
                    if one.get(column) != other.get(column)
                ]
        self._add(name, texts)

    def _read(self, name: str) -> str | None:
        file = self.folder / name
        if not file.is_file():
            self._add(name, ["is missing, and the runs give this table"])
            return None
        return file.read_text("utf-8")

    def _add(self, name: str, texts: Sequence[str]) -> None:
        shown = list(texts[:MAX_OF_FILE])
        if len(texts) > MAX_OF_FILE:
            shown[-1:] = [f"{len(texts) - MAX_OF_FILE + 1} more places do not hold"]
        self.findings += [f"{self.folder / name}: {text}." for text in shown]


def _all_of(made: Mapping[str, MadeTables]) -> list[Table]:
    return [table for tables in made.values() for table in (*tables.shown, *tables.folded)]


def _rows(text: str, keys: Sequence[str]) -> dict[tuple[str, ...], dict[str, str]]:
    """The rows of a CSV text by the columns that name them. Raises KeyError without these."""
    found = {}
    for row in csv.DictReader(io.StringIO(text)):
        found[tuple(row[key] for key in keys)] = row
    return found


def _value(row: Mapping[str, str | None], column: str) -> str:
    return row.get(column) or "missing"


def _differing_lines(stored: str, expected: str) -> Iterator[str]:
    """The lines of a text that the runs do not give, and those that it lacks."""
    ours, theirs = stored.splitlines(), expected.splitlines()
    for line in ours:
        if line and line not in theirs:
            yield f'the runs do not give the line "{line}"'
    for line in theirs:
        if line and line not in ours:
            yield f'lacks the line "{line}"'
    if set(ours) == set(theirs):
        yield "its lines are in another order or repeated"
