"""A table: numbers, what is printed for them, and its Markdown, LaTeX and CSV."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

MISSING = "–"
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
    row. footnotes: sentences in which a command stands between backticks.
    """

    name: str
    caption: str
    frame: pd.DataFrame
    header: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Entry, ...]], ...]
    footnotes: tuple[str, ...] = ()

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
        table = "\n".join(_pipes(line) for line in [list(self.header), rule, *body])
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
            _ampersands(_latex_heads(self.header)),
            r"\midrule",
            *map(_ampersands, body),
            r"\bottomrule",
            r"\end{tabular}}",
            *_latex_notes(self.footnotes),
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


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
