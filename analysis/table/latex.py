r"""A table as LaTeX for two-column papers: booktabs, 8 or 7 points, split where it is too wide.

Widths are estimated from the letters of Computer Modern, which are wider than those of Times. The
first form that fits is taken: one column of the page at 8, then 7 points, both columns (`table*`)
at 8, then 7 points; then the columns are split into tables below each other, and rows over several
floats. Nothing is scaled, so no text is smaller than 7 points.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ctta_bench.analysis.table.table import Entry, Table

COLUMN, PAGE = 234.0, 487.0  # points, of 3.25 and 6.75 inches
MAX_LINES = 58  # of a float, at 7 points
GROUPS = ("Without source data", "With source data")  # of rows, in their order
_UPRIGHT_FROM = 10  # with more columns, the heads are upright
_TEXT, _NAME = 17.0, 24.0  # em: wider columns, or names of rows, are broken into lines
_CITED = 8.0  # em, of a citation after a method
_BOLD = 1.15  # times the width
_SOURCE = "source"
_MARKS = ("†", "–", "n/a", "*", "Rows with *")  # a note that begins so explains a mark
_ESCAPED = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "×": r"$\times$",
    "Δ": r"$\Delta$",
    "λ": r"$\lambda$",
    "·": r"$\cdot$",
    "→": r"$\rightarrow$",
    "|": r"$|$",
    "✓": r"\checkmark",
    "✗": r"\ding{55}",
    "†": r"$^\dagger$",
    "‡": r"$^\ddagger$",
    "–": "--",
}
_MARK_PACKAGES = {"✓": "amssymb", "✗": "pifont"}


class Printing(NamedTuple):
    """What the LaTeX of all tables of a report has in common.

    citations: BibTeX keys by display name. ours: the registry name of the own method, or "".
    """

    citations: Mapping[str, str] = MappingProxyType({})
    ours: str = ""


@dataclass(frozen=True)
class _Form:
    """How wide a table is printed: columns of the page, points of a letter and of \tabcolsep."""

    columns: int
    size: int
    between: float

    @property
    def width(self) -> float:
        """Points that there are."""
        return COLUMN if self.columns == 1 else PAGE

    @property
    def begin(self) -> str:
        """The commands at the start of the float."""
        return (
            rf"\fontsize{{{self.size}}}{{{1.2 * self.size:.1f}}}\selectfont"
            rf"\setlength{{\tabcolsep}}{{{self.between:g}pt}}"
        )


_FORMS = (_Form(1, 8, 3), _Form(1, 7, 2), _Form(2, 8, 3), _Form(2, 7, 2), _Form(2, 7, 1.2))


def to_latex(table: "Table", citations: Mapping[str, str], ours: str, label: str) -> str:
    r"""The floats of a table, with its protocol as a comment above them.

    citations: BibTeX keys by display name; a row label that begins with such a name gets a
    `\citep{KEY}`. ours: the registry name of the own method, which stands last, below a rule.
    label: of the table, without `tab:`.
    """
    rows = _rows(table, citations, ours)
    cited = any(r"\citep" in row.label for row in rows)
    form, chunks = _layout(table, cited)
    parts = [
        _tabular(table, rows[start : start + MAX_LINES], chunk, form, cited)
        for start in range(0, len(rows), MAX_LINES)
        for chunk in chunks
    ]
    at_once = max(1, MAX_LINES // max(1, min(len(rows), MAX_LINES)))
    floats = [parts[start : start + at_once] for start in range(0, len(parts), at_once)]
    packages = ["array", "booktabs", *(["graphicx"] if _upright(table) else [])]
    packages += ["natbib"] if cited else []
    texts = "".join(e.text for _, entries in table.lines for e in entries)
    packages += [package for mark, package in _MARK_PACKAGES.items() if mark in texts]
    lines = [rf"% \usepackage{{{','.join(packages)}}}"]
    for sentence in (table.caption, *table.footnotes):
        lines += [f"% {line}" for line in textwrap.wrap(_escape(sentence), 96)]
    for number, of_float in enumerate(floats):
        lines += _float(table, of_float, form, label, number)
    return "\n".join(lines) + "\n"


def appendix(table: "Table", label: str) -> str:
    """A paragraph on the table for an appendix: its whole caption, and its notes."""
    texts = [_sentence(table.caption), *map(_sentence, table.footnotes)]
    return rf"\paragraph{{Table~\ref{{tab:{label}}}.}} {' '.join(texts)}" + "\n"


def stable_label(name: str) -> str:
    """The name of a table without the hash of its protocol.

    Example: `stable_label("fashion_c-mixed-vit-1a2b3c4d-cost")` is "fashion_c-mixed-vit-cost".
    """
    return re.sub(r"-[0-9a-f]{8}(?=-|$)", "", name)


def _float(
    table: "Table", parts: Sequence[Sequence[str]], form: _Form, label: str, number: int
) -> list[str]:
    star = "*" if form.columns == 2 else ""
    notes = [note for note in table.footnotes if note.startswith(_MARKS)]
    return [
        rf"\begin{{table{star}}}[t]",
        *([r"\addtocounter{table}{-1}"] if number else []),
        rf"\centering{form.begin}",
        rf"\caption{{{'Continued.' if number else _escape(table.one_sentence)}}}",
        *([rf"\label{{tab:{label}}}"] if not number else []),
        r"\smallskip",
        *"\n\\par\\medskip\n".join("\n".join(part) for part in parts).split("\n"),
        *(rf"\par\smallskip\raggedright {_sentence(note)}" for note in notes if not number),
        rf"\end{{table{star}}}",
    ]


@dataclass(frozen=True)
class _Row:
    """A printed row; `above`: what stands over it (a rule, the name of a group)."""

    label: str
    entries: Sequence[str]
    above: str = ""


def _rows(table: "Table", citations: Mapping[str, str], ours: str) -> list[_Row]:
    """The rows in print: source first, then by group, then the own method below a rule."""
    names = [str(name) for name in table.frame.index]
    groups = table.groups or ("",) * len(table.lines)
    kinds = [group for group in GROUPS if group in groups]
    # The rows of a matrix, and of a table in the paper's shape, stay where they are.
    fixed = bool(table.rules) or names == [str(name) for name in table.frame.columns]

    def kind_of(place: int) -> int:
        method = names[place].partition(" ")[0]
        if method == _SOURCE and not fixed:
            return 0
        if method == ours and not fixed:
            return len(kinds) + 2
        return 1 + (kinds.index(groups[place]) if groups[place] else 0)

    found: list[_Row] = []
    last = None
    for place in sorted(range(len(table.lines)), key=kind_of):
        label, entries = table.lines[place]
        kind, above = kind_of(place), r"\midrule" if place in table.rules else ""
        if kind != last and found:
            above = r"\midrule"
        if kind != last and 0 < kind <= len(kinds) and len(kinds) > 1:
            above += rf"\multicolumn{{1}}{{@{{}}l}}{{\emph{{{_escape(kinds[kind - 1])}}}}} \\"
        last = kind
        found.append(_Row(_cited(label, citations), [_entry(entry) for entry in entries], above))
    return found


def _tabular(
    table: "Table", rows: Sequence[_Row], chunk: Sequence[int], form: _Form, cited: bool
) -> list[str]:
    """The lines of one tabular: the first column and those of the chunk."""
    kinds = [_column(table, place, form, cited) for place in (0, *chunk)]
    heads = [_escape(table.header[place]) for place in (0, *chunk)]
    if _upright(table):
        heads[1:] = [rf"\rotatebox{{90}}{{{head}}}" for head in heads[1:]]
    lines = [rf"\begin{{tabular}}{{@{{}}{''.join(kinds)}@{{}}}}", r"\toprule"]
    lines += [*_spans(table, chunk), _ampersands(heads), r"\midrule"]
    for row in rows:
        lines += [row.above] if row.above else []
        lines.append(_ampersands([row.label, *(row.entries[place - 1] for place in chunk)]))
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _column(table: "Table", place: int, form: _Form, cited: bool) -> str:
    """The kind of a column: numbers at the right, text at the left, long text in lines."""
    most = _TEXT if place else _NAME
    if _natural(table, place, cited) > most:
        return rf">{{\raggedright\arraybackslash}}p{{{most * form.size:.0f}pt}}"
    return "l" if place == 0 else "r"


def _layout(table: "Table", cited: bool) -> tuple[_Form, list[list[int]]]:
    """The first form in which all columns fit, or the last with the columns in chunks."""
    places = list(range(1, len(table.header)))
    for form in _FORMS:
        if _width(table, places, form, cited) <= form.width:
            return form, [places]
    # As few chunks as possible, and then as even as possible.
    whole = form.width
    count = len(_chunks(table, form, cited, whole))
    while len(tighter := _chunks(table, form, cited, 0.97 * whole)) == count and whole > 1:
        whole *= 0.97
    return form, _chunks(table, form, cited, whole) if tighter else [places]


def _chunks(table: "Table", form: _Form, cited: bool, width: float) -> list[list[int]]:
    """The columns in chunks that are at most so wide, if a single unit is."""
    found: list[list[int]] = []
    for unit in _units(table):
        if found and _width(table, [*found[-1], *unit], form, cited) <= width:
            found[-1] = [*found[-1], *unit]
        else:
            found.append(unit)
    return found


def _units(table: "Table") -> list[list[int]]:
    """The columns that stay together: those below one head, else each column."""
    found, place = [], 0
    for text, count in table.spans:
        columns = [c for c in range(place, place + count) if c]
        found += [columns] if text else [[c] for c in columns]
        place += count
    return found + [[place] for place in range(max(place, 1), len(table.header))]


def _width(table: "Table", chunk: Sequence[int], form: _Form, cited: bool) -> float:
    """Points of a tabular."""
    widths = [min(_natural(table, p, cited), _TEXT if p else _NAME) for p in (0, *chunk)]
    return form.size * sum(widths) + 2 * form.between * len(chunk)


def _natural(table: "Table", place: int, cited: bool) -> float:
    """The width of a column in em without line breaks."""
    head = table.header[place]
    widths = [1.3 if place and _upright(table) else max(map(_em, head.split(" ")), default=0)]
    if not (place and _upright(table)):
        widths = [_em(head)]
    if place == 0:
        widths += [_em(label) + _CITED * cited for label, _ in table.lines]
    else:
        entries = [entries[place - 1] for _, entries in table.lines]
        widths += [_em(e.text) * (_BOLD if e.best else 1) + 0.5 * e.flagged for e in entries]
    return max(widths)


def _em(text: str) -> float:
    """The estimated width of a text in em."""
    return sum(_letter(char) for char in text)


def _letter(char: str) -> float:
    if char in "ijlt.,:;|'()[] ":
        return 0.4
    if char in "mwMW±−×≈→↑↓%":
        return 0.95
    return 0.8 if char.isupper() else 0.58


def _upright(table: "Table") -> bool:
    return len(table.header) > _UPRIGHT_FROM


def _spans(table: "Table", chunk: Sequence[int]) -> list[str]:
    """The line of heads above the column heads, and the rules below it."""
    if not table.spans:
        return []
    above = [
        (text, number) for number, (text, count) in enumerate(table.spans) for _ in range(count)
    ]
    cells, rules, column = [], [], 1
    runs: list[list[int]] = []
    for place in (0, *chunk):
        if runs and above[runs[-1][-1]] == above[place]:
            runs[-1].append(place)
        else:
            runs.append([place])
    for run in runs:
        text, count = above[run[0]][0], len(run)
        cells.append(rf"\multicolumn{{{count}}}{{c}}{{{_escape(text)}}}")
        if text:
            rules.append(rf"\cmidrule(lr){{{column}-{column + count - 1}}}")
        column += count
    return [_ampersands(cells), "".join(rules)]


def _ampersands(texts: Sequence[str]) -> str:
    return " & ".join(texts) + r" \\"


def _entry(entry: "Entry") -> str:
    text = _escape(entry.text)
    if entry.best:
        text = rf"\textbf{{{text}}}"
    if entry.second:
        text = rf"\underline{{{text}}}"
    return text + _escape("†") * entry.flagged


def _cited(label: str, citations: Mapping[str, str]) -> str:
    """A row label in LaTeX, with the citation after the method's name."""
    for name in sorted(citations, key=len, reverse=True):
        rest = label.removeprefix(name)
        if rest != label and rest[:1] in ("", " ", ","):
            return rf"{_escape(name)}~\citep{{{citations[name]}}}{_escape(rest)}"
    return _escape(label)


def _sentence(text: str) -> str:
    """A sentence with commands between backticks."""
    return re.sub("`(.*?)`", r"\\texttt{\1}", _escape(text))


def _escape(text: str) -> str:
    return "".join(_ESCAPED.get(char, char) for char in text)
