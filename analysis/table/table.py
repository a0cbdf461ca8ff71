"""A table: numbers, what is printed for them, and its Markdown, LaTeX and CSV."""

import html
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

MISSING = "–"
EMPTY = "n/a"  # nothing to score
DAGGER = "†"
_UPRIGHT_FROM = 10  # LaTeX: columns beyond which the heads stand upright, to fit a page
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

    name: stem of its files. frame: numbers only, NaN where missing, one row per line of the table.
    header: printed column heads, the first for the row labels. lines: label and entries of each
    row. footnotes: sentences in which a command stands between backticks. spans: a head over
    columns that belong together, with their number, from the first column on; "" over the others.
    unit: what the entries are, where they are all the same, e.g. `error %`.
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
        """The column heads in one line, each with the head above it: `round 1 fog`."""
        above = [text for text, count in self.spans for _ in range(count)] or [""] * len(
            self.header
        )
        return [
            f"{over} {head}" if over else head
            for over, head in zip(above, self.header, strict=True)
        ]

    def write(self, folder: Path) -> None:
        """Write NAME.md, NAME.tex and NAME.csv."""
        for ending, text in (
            ("md", self.to_markdown()),
            ("tex", self.to_latex()),
            ("csv", self.to_csv()),
        ):
            (folder / f"{self.name}.{ending}").write_text(text, "utf-8")

    def to_csv(self) -> str:
        """The numbers at full precision, an empty field where one is missing."""
        return self.frame.to_csv(
            index_label=self.header[0], float_format="%.10g", lineterminator="\n"
        )

    def to_markdown(self) -> str:
        """Caption, GitHub table and footnotes."""
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        body = [[label, *map(_markdown, entries)] for label, entries in self.lines]
        table = "\n".join(_pipes(line) for line in [self.heads, rule, *body])
        notes = "".join(f"- {note}\n" for note in self.footnotes)
        return f"{self.caption}\n\n{table}\n" + (f"\n{notes}" if notes else "")

    def to_latex(self) -> str:
        """A table environment with booktabs rules; it needs the packages booktabs and graphicx."""
        body = [[_escape(label), *map(_latex, entries)] for label, entries in self.lines]
        lines = [
            r"\begin{table}[t]  % \usepackage{booktabs,graphicx}",
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


def ranked(
    values: "pd.Series[float]",
    higher: bool,
    empty: Collection[str] = (),
    flagged: Collection[str] = (),
) -> list[Entry]:
    """Printed values of a column with its best and second, a dagger at the flagged row labels.

    Ranks go by what is printed, so that equals look equal; where all are equal, none is best. A
    value that is not there is MISSING, or EMPTY for the labels in `empty`.
    """
    printed = [
        f"{value:.1f}" if np.isfinite(value) else EMPTY if label in empty else MISSING
        for label, value in values.items()
    ]
    best, second = best_two(printed, higher)
    return [
        Entry(text, text == best, text == second, label in flagged)
        for label, text in zip(values.index, printed, strict=True)
    ]


def best_two(printed: Sequence[str], higher: bool = False) -> tuple[str | None, str | None]:
    """The best and the second-best of printed numbers as they are printed; None where all tie."""
    numbers = {text for text in printed if text not in (EMPTY, MISSING)}
    order = sorted(numbers, key=float, reverse=higher)
    return (order[0], order[1]) if len(order) > 1 else (None, None)


def signed(value: float) -> str:
    """`+1.2`, `−1.2`, `0.0`, or MISSING."""
    if np.isnan(value):
        return MISSING
    text = f"{abs(value):.1f}"
    return text if text == "0.0" else ("+" if value > 0 else "−") + text


def safe_name(text: str) -> str:
    """`text` as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:80].strip("-.")


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
    """The line of heads above the heads, and the rules below them."""
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


def _escape(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text)


def _latex_notes(notes: Sequence[str]) -> list[str]:
    if not notes:
        return []
    parts = [re.sub("`(.*?)`", r"\\texttt{\1}", _escape(note)) for note in notes]
    return [r"\par\smallskip\raggedright\footnotesize", *(rf"{part}\par" for part in parts)]
