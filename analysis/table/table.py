"""A table: its numbers, their printed form, and its Markdown, LaTeX and CSV."""

import html
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from ctta_bench.analysis.table import latex
from ctta_bench.analysis.table.latex import stable_label
from ctta_bench.registry import METHODS, references
from ctta_bench.scoring.metric import EQUAL_DECIMALS, printed

MISSING = "–"
EMPTY = "n/a"  # nothing to score
DAGGER = "†"
CHOSEN = "‡"  # after the label of a row with a value that the remade paper does not give
REFERENCES_FILE = "references.bib"
MOST_TIES = 3  # more equal values are not marked as best


@dataclass(frozen=True)
class Entry:
    """One printed value. `best` is set bold, `second` underlined, `flagged` gets a dagger."""

    text: str
    best: bool = False
    second: bool = False
    flagged: bool = False


@dataclass(frozen=True)
class Table:
    """A captioned table.

    name: stem of its files. frame: the numbers by registry names, NaN where missing, one row per
    line of the table. header: printed column heads, the first for the row labels. lines: printed
    label and entries of each row. footnotes: sentences, with commands between backticks. spans:
    heads over several columns, each with their number, from the first column on; "" for no head.
    unit: of all entries, e.g. `error %`; "" if they differ. brief: one sentence, the caption in
    print; "": the first of the caption. groups: a head in print for each line, such as whether a
    method needs source data, or "" for none. rules: numbers of the lines with a rule above them in
    print.
    """

    name: str
    caption: str
    frame: pd.DataFrame
    header: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Entry, ...]], ...]
    footnotes: tuple[str, ...] = ()
    spans: tuple[tuple[str, int], ...] = ()
    unit: str = ""
    brief: str = ""
    groups: tuple[str, ...] = ()
    rules: tuple[int, ...] = ()

    @property
    def heads(self) -> list[str]:
        """The column heads in one line, each with the head above it: `round 1 Fog`."""
        above = [text for text, count in self.spans for _ in range(count)] or [""] * len(
            self.header
        )
        return [
            f"{over} {head}" if over else head
            for over, head in zip(above, self.header, strict=True)
        ]

    @property
    def one_sentence(self) -> str:
        """The caption in print: `brief`, or the first sentence of the caption."""
        return f"{(self.brief or self.caption.partition('. ')[0]).rstrip('.')}."

    def write(
        self,
        folder: Path,
        citations: Mapping[str, str] = MappingProxyType({}),
        ours: str = "",
    ) -> None:
        r"""Write NAME.md, NAME.csv, NAME.tex (see `to_latex`) and NAME-appendix.tex.

        The label in LaTeX is the name without the hash of the protocol. Where another table of the
        folder has the same, it ends in a number.
        """
        label = stable_label(self.name)
        stems = {path.stem for path in folder.glob("*.tex")} - {self.name}
        same = sum(stable_label(stem) == label for stem in stems)
        label += f"-{same + 1}" if same else ""
        for ending, text in (
            (".md", self.to_markdown()),
            (".tex", self.to_latex(citations, ours, label)),
            ("-appendix.tex", latex.appendix(self, label)),
            (".csv", self.to_csv()),
        ):
            (folder / f"{self.name}{ending}").write_text(text, "utf-8")

    def to_csv(self) -> str:
        """The numbers at full precision, an empty field where one is missing."""
        return csv_text(self.frame, self.header[0])

    def to_markdown(self) -> str:
        """Caption, GitHub table and footnotes."""
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        body = [[label, *map(_markdown, entries)] for label, entries in self.lines]
        table = "\n".join(_pipes(line) for line in [self.heads, rule, *body])
        notes = "".join(f"- {note}\n" for note in self.footnotes)
        return f"{self.caption}\n\n{table}\n" + (f"\n{notes}" if notes else "")

    def to_latex(
        self,
        citations: Mapping[str, str] = MappingProxyType({}),
        ours: str = "",
        label: str = "",
    ) -> str:
        r"""Floats with booktabs rules at 8 or 7 points; their first line names the packages.

        `citations` are BibTeX keys by display name: a row label that begins with such a name gets
        a `\citep{KEY}` after it, which needs the package natbib. `ours` is the registry name of
        the own method, which stands last, below a rule, as Source stands first. `label` is what
        stands in `\label{tab:...}`, by default the name without the hash of the protocol.
        """
        return latex.to_latex(self, citations, ours, label or stable_label(self.name))


def csv_text(frame: pd.DataFrame, index_label: str | None = None) -> str:
    """A frame as CSV, numbers at full precision and never -0; the index only if it has a label."""
    numbers = frame.select_dtypes("float").columns
    positive = frame.assign(**{name: frame[name] + 0.0 for name in numbers})
    return positive.to_csv(
        index=index_label is not None,
        index_label=index_label,
        float_format="%.10g",
        lineterminator="\n",
    )


def ranked(
    values: "pd.Series[float]",
    higher: bool,
    empty: Collection[str] = (),
    flagged: Collection[str] = (),
) -> list[Entry]:
    """Printed values of a column: best bold, second underlined, a dagger at the rows in `flagged`.

    Printed values are compared, so that equal ones have the same mark; if all are equal, or more
    than MOST_TIES, none is best. A missing value is printed as MISSING, or as EMPTY for the rows in
    `empty`.
    """
    texts = [
        printed(value) if np.isfinite(value) else EMPTY if row in empty else MISSING
        for row, value in values.items()
    ]
    best, second = best_two(texts, higher)
    if texts.count(str(best)) > MOST_TIES:
        best = second = None
    if texts.count(str(second)) > MOST_TIES:
        second = None
    return [
        Entry(text, text == best, text == second, row in flagged)
        for row, text in zip(values.index, texts, strict=True)
    ]


def in_order(frame: pd.DataFrame, column: str, higher: bool) -> pd.DataFrame:
    """The rows from the best value of a column to the worst; equal ones stay in their order."""
    rounded = frame[column].round(EQUAL_DECIMALS)
    order = rounded.sort_values(ascending=not higher, kind="stable").index
    return frame.loc[order]


def best_two(texts: Sequence[str], higher: bool = False) -> tuple[str | None, str | None]:
    """The best and the second best of printed numbers, as printed; None if all are equal."""
    numbers = {text for text in texts if text not in (EMPTY, MISSING)}
    order = sorted(numbers, key=float, reverse=higher)
    return (order[0], order[1]) if len(order) > 1 else (None, None)


def signed(value: float) -> str:
    """`+1.2`, `−1.2`, `0.0`, or MISSING."""
    if np.isnan(value):
        return MISSING
    text = printed(abs(value))
    return text if text == "0.0" else ("+" if value > 0 else "−") + text


def plus_minus(half: float) -> str:
    """` ± 1.2` for half an interval, ` ± <0.1` for a small one, "" without variation."""
    if not np.isfinite(half) or half == 0:
        return ""
    return f" ± {printed(half)}" if half >= 0.05 else " ± <0.1"


def safe_name(text: str) -> str:
    """`text` with characters that are safe in a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:80].strip("-.")


def citation_keys(methods: Iterable[str]) -> dict[str, str]:
    """The BibTeX key of each method that has one, by display name."""
    keys = {METHODS.display_name(name): METHODS.citation(name) for name in sorted(set(methods))}
    return {name: key for name, key in keys.items() if key}


def write_references(folder: Path, methods: Iterable[str]) -> None:
    """Write references.bib with the papers of these methods; nothing if none has any."""
    keys = sorted(set(citation_keys(methods).values()) & references().keys())
    if keys:
        entries = [references()[key]["bibtex"] for key in keys]
        (folder / REFERENCES_FILE).write_text("\n\n".join(entries) + "\n", "utf-8")


def _pipes(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _markdown(entry: Entry) -> str:
    text = entry.text
    if entry.best:
        text = f"**{text}**"
    if entry.second:
        text = f"<u>{html.escape(text)}</u>"
    return text + DAGGER * entry.flagged
