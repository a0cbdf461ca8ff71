"""A table: its numbers, their printed form, and its Markdown, LaTeX and CSV."""

import html
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from ctta_bench.registry import METHODS, references
from ctta_bench.scoring.metric import EQUAL_DECIMALS, printed

MISSING = "–"
EMPTY = "n/a"  # nothing to score
DAGGER = "†"
REFERENCES_FILE = "references.bib"
_UPRIGHT_FROM = 10  # LaTeX: with more columns, the heads are upright, to fit a page
_LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "≥": r"$\geq$",
    "×": r"$\times$",
    "Δ": r"$\Delta$",
    "·": r"$\cdot$",
    "→": r"$\rightarrow$",
    "|": r"$|$",
    DAGGER: r"$^\dagger$",
    MISSING: "--",
}


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
    unit: of all entries, e.g. `error %`; "" if they differ.
    """

    name: str
    caption: str
    frame: pd.DataFrame
    header: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Entry, ...]], ...]
    footnotes: tuple[str, ...] = ()
    spans: tuple[tuple[str, int], ...] = ()
    unit: str = ""

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

    def write(self, folder: Path, citations: Mapping[str, str] = MappingProxyType({})) -> None:
        """Write NAME.md, NAME.tex (see `to_latex`) and NAME.csv."""
        for ending, text in (
            ("md", self.to_markdown()),
            ("tex", self.to_latex(citations)),
            ("csv", self.to_csv()),
        ):
            (folder / f"{self.name}.{ending}").write_text(text, "utf-8")

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

    def to_latex(self, citations: Mapping[str, str] = MappingProxyType({})) -> str:
        r"""A table environment with booktabs rules; it needs the packages booktabs and graphicx.

        `citations` are BibTeX keys by display name: a row label that begins with such a name gets
        a `\citep{KEY}` after it, which needs the package natbib.
        """
        body = [[_cited(label, citations), *map(_latex, entries)] for label, entries in self.lines]
        packages = "booktabs,graphicx" + ",natbib" * bool(citations)
        lines = [
            rf"\begin{{table}}[t]  % \usepackage{{{packages}}}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{_escape(self.caption)}}}",
            rf"\label{{tab:{self.name}}}",
            r"\smallskip",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}",
            r"\toprule",
            *_latex_spans(self.spans),
            _ampersands(_latex_heads(self.header)),
            r"\midrule",
            *map(_ampersands, body),
            r"\bottomrule",
            r"\end{tabular}}",
            *_latex_notes(self.footnotes),
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


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

    Printed values are compared, so that equal ones have the same mark; if all are equal, none is
    best. A missing value is printed as MISSING, or as EMPTY for the rows in `empty`.
    """
    texts = [
        printed(value) if np.isfinite(value) else EMPTY if row in empty else MISSING
        for row, value in values.items()
    ]
    best, second = best_two(texts, higher)
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


def _latex_heads(heads: Sequence[str]) -> list[str]:
    escaped = [_escape(head) for head in heads]
    if len(heads) <= _UPRIGHT_FROM:
        return escaped
    return [escaped[0], *(rf"\rotatebox{{90}}{{{head}}}" for head in escaped[1:])]


def _latex_spans(spans: Sequence[tuple[str, int]]) -> list[str]:
    """The line of heads above the column heads, and the rules below it."""
    cells, rules, column = [], [], 1
    for text, count in spans:
        cells.append(rf"\multicolumn{{{count}}}{{c}}{{{_escape(text)}}}")
        if text:
            rules.append(rf"\cmidrule(lr){{{column}-{column + count - 1}}}")
        column += count
    return [_ampersands(cells), "".join(rules)] if spans else []


def _ampersands(texts: Sequence[str]) -> str:
    return " & ".join(texts) + r" \\"


def _latex(entry: Entry) -> str:
    text = _escape(entry.text)
    if entry.best:
        text = rf"\textbf{{{text}}}"
    if entry.second:
        text = rf"\underline{{{text}}}"
    return text + _escape(DAGGER) * entry.flagged


def _cited(label: str, citations: Mapping[str, str]) -> str:
    """A row label in LaTeX, with the citation after the method's name."""
    for name in sorted(citations, key=len, reverse=True):
        rest = label.removeprefix(name)
        if rest != label and rest[:1] in ("", " ", ","):
            return rf"{_escape(name)}~\citep{{{citations[name]}}}{_escape(rest)}"
    return _escape(label)


def _escape(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text)


def _latex_notes(notes: Sequence[str]) -> list[str]:
    if not notes:
        return []
    parts = [re.sub("`(.*?)`", r"\\texttt{\1}", _escape(note)) for note in notes]
    return [r"\par\smallskip\raggedright\footnotesize", *(rf"{part}\par" for part in parts)]
