"""A table before it is laid out: its best entries, and two tables with their difference."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ctta_bench.analysis.table.table import MISSING, Entry, Table, signed
from ctta_bench.scoring.metric import printed


def decimal(value: float) -> str:
    """With one decimal."""
    return printed(value)


def count(value: float) -> str:
    """Passes: `1`, `11.7`."""
    return f"{round(value, 1):g}"


def parameters(value: float) -> str:
    """`1800`, `0.03M`, `86.57M`."""
    return f"{value:.0f}" if abs(value) < 10_000 else f"{printed(value / 1e6, 2)}M"


@dataclass(frozen=True)
class Cell:
    """A number or a text. better: 1 if more is better, -1 if less, 0 if nothing is bold."""

    value: float | str
    show: Callable[[float], str] = decimal
    better: int = 0

    @property
    def text(self) -> str:
        """As printed."""
        if isinstance(self.value, str):
            return self.value
        return MISSING if np.isnan(self.value) else self.show(self.value)

    def minus(self, other: "Cell") -> "Cell":
        """The difference of two numbers, with its sign; no text for texts."""
        if isinstance(self.value, str) or isinstance(other.value, str):
            return Cell("")
        show = self.show if self.show is not signed else decimal
        return Cell(self.value - other.value, functools.partial(_signed, show=show))


def _signed(value: float, show: Callable[[float], str]) -> str:
    text = show(abs(value))
    return text if not text.strip("0.M") else ("+" if value > 0 else "−") + text


Line = tuple[str, str, list[Cell]]  # its name in the frame, its label, its entries


@dataclass(frozen=True)
class Grid:
    """A table before its bold entries are known. by_line: the best of a line, else of a column."""

    number: int
    what: str
    of: str
    header: tuple[str, ...]
    columns: list[str]
    lines: list[Line]
    footnotes: tuple[str, ...]
    rules: tuple[int, ...] = ()
    spans: tuple[tuple[str, int], ...] = ()
    by_line: bool = False

    def table(self, ending: str = "") -> Table:
        """The table, with the best entries bold; `ending` is that of its name."""
        cells = [cells for _, _, cells in self.lines]
        best = (
            _best(cells)
            if self.by_line
            else [*zip(*_best([*zip(*cells, strict=True)]), strict=True)]
        )
        return Table(
            name=f"table-{self.number:02}" + f"-{ending}" * bool(ending),
            caption=f"Table {self.number} of the paper of PAID, {self.of}: {self.what}.",
            frame=pd.DataFrame(
                [[cell.value for cell in line] for line in cells],
                index=[name for name, _, _ in self.lines],
                columns=self.columns,
            ),
            header=self.header,
            lines=tuple(
                (label, tuple(Entry(c.text, b) for c, b in zip(line, marks, strict=True)))
                for (_, label, line), marks in zip(self.lines, best, strict=True)
            ),
            footnotes=self.footnotes,
            spans=self.spans,
            rules=self.rules,
        )


def _best(groups: Sequence[Sequence[Cell]]) -> list[list[bool]]:
    """For each group which of its cells are best, by their printed values."""
    found = []
    for group in groups:
        values = np.array(
            [
                cell.better * float(printed(cell.value))
                if cell.better and not isinstance(cell.value, str)
                else np.nan
                for cell in group
            ]
        )
        known = values[np.isfinite(values)]
        differ = len(known) > 1 and known.min() < known.max()
        found.append([bool(differ and value == known.max()) for value in values])
    return found


def both(ours: Grid, theirs: Grid) -> Grid:
    """Each line of ours, the same line of theirs, and the difference; nothing is bold."""
    lines: list[Line] = []
    for (name, label, cells), (_, other, quoted_cells) in zip(
        ours.lines, theirs.lines, strict=True
    ):
        own = [dataclasses.replace(cell, better=0) for cell in cells]
        paper = [dataclasses.replace(cell, better=0) for cell in quoted_cells]
        pairs = zip(own, paper, strict=True)
        lines += [
            (name, label, own),
            (f"{name}, paper", f"{other}, paper" if other else "paper", paper),
            (f"{name}, difference", "difference", [a.minus(b) for a, b in pairs]),
        ]
    return dataclasses.replace(
        ours,
        of=f"{ours.of}, and {theirs.of}",
        lines=lines,
        rules=tuple(range(3, len(lines), 3)),
        footnotes=(*ours.footnotes, *theirs.footnotes),
    )
