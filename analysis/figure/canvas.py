"""Layout of figures: of any width for a screen, or one or two columns of a paper wide."""

import contextlib
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from ctta_bench.analysis.table.table import csv_text
from ctta_bench.errors import ConfigError

STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,  # TrueType: text stays text, and venues accept the file
    "svg.fonttype": "none",
    "svg.hashsalt": "ctta-bench",  # same runs, same bytes
}
# In print nothing is scaled: "small" text is 6.2 points on paper.
_PRINTED: dict[str, Any] = {
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.5,
}
COLUMN_WIDTHS = {
    1: 3.25,
    2: 6.75,
}  # inches, of one and two columns: CVPR's, and within NeurIPS's margins
TITLE_SIZE = 10  # points
CHARACTERS_PER_INCH = 12  # of a title, with some reserve
LETTERS_ON_SCREEN = 14  # per inch, of a label
LETTERS_PER_INCH = 17  # of a label on paper
LETTERS_UPRIGHT = 24  # of a label of a vertical axis on paper
LETTERS_OF_NAME = 24  # of a name at a vertical axis, in one column
_LETTER, _KEY, _LINE = 0.052, 0.5, 0.15  # inches, in a legend on paper
_LETTER_ON_SCREEN, _KEY_ON_SCREEN, _LINE_ON_SCREEN = 0.075, 0.7, 0.19


@dataclass(frozen=True)
class Canvas:
    """The layout of a figure.

    columns: 1 or 2, of a paper: the figure has its final width and no title, because the paper has
    a caption. None: for a screen, with a title and a width that each figure chooses.
    """

    columns: int | None = None

    def __post_init__(self) -> None:
        if self.columns not in (None, *COLUMN_WIDTHS):
            raise ConfigError(f"--columns {self.columns}: figures are 1 or 2 columns wide.")

    @property
    def wide(self) -> "Canvas":
        """The canvas for grids of many panels, which need both columns of a paper."""
        return self if self.columns is None else Canvas(2)

    def pick(self, screen: Any, paper: Any) -> Any:
        """`screen` for a screen, else `paper`."""
        return screen if self.columns is None else paper

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """The settings of matplotlib while a figure is drawn and saved."""
        with matplotlib.rc_context(STYLE | self.pick({}, _PRINTED)):
            yield

    def figure(self, screen: tuple[float, float], paper: float) -> Figure:
        """An empty figure: width and height in inches on a screen; only the height on paper."""
        size = screen if self.columns is None else (COLUMN_WIDTHS[self.columns], paper)
        return Figure(figsize=size, layout="constrained")

    def panels(self, count: int) -> tuple[int, int]:
        """Rows and columns of `count` panels: below each other in one column of a paper."""
        return (count, 1) if self.columns == 1 else (1, count)

    def below(self, figure: Figure, text: str) -> None:
        """The label of a horizontal axis, below the whole figure, because axes can be narrow.

        Each line but the first makes the figure higher, so that the axes keep their size.
        """
        letters = round(self.pick(LETTERS_ON_SCREEN, LETTERS_PER_INCH) * figure.get_figwidth())
        lines = textwrap.fill(text, letters, break_on_hyphens=False)
        higher = lines.count("\n") * self.pick(_LINE_ON_SCREEN, _LINE)
        figure.set_figheight(figure.get_figheight() + higher)
        figure.supxlabel(lines, fontsize="medium")

    def narrow(self, text: str) -> str:
        """A label of a short side; on paper broken into lines that fit."""
        return str(self.pick(text, textwrap.fill(text, LETTERS_UPRIGHT, break_on_hyphens=False)))

    def names(self, names: Iterable[str]) -> list[str]:
        """Names at a vertical axis; in one column broken into lines, to leave room."""
        if self.columns != 1:
            return list(names)
        filled = (textwrap.fill(name.replace("=", "= "), LETTERS_OF_NAME) for name in names)
        return [name.replace("= ", "=") for name in filled]

    def legend(self, figure: Figure, **options: Any) -> None:
        """The legend of all panels, drawn last: at the right on a screen, below them on paper.

        On a screen, names that do not fit into one column get more columns, and the figure gets
        wider.
        """
        labels = [label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]]
        if self.columns is None:
            lines = int(figure.get_figheight() / _LINE_ON_SCREEN) - 2
            right: dict[str, Any] = {
                "loc": "outside right center",
                "ncols": max(-(-len(labels) // lines), 1),
            }
            chosen = right | options | {"frameon": False}
            if chosen["loc"] == right["loc"]:
                width = _KEY_ON_SCREEN + _LETTER_ON_SCREEN * max(map(len, labels), default=0)
                figure.set_figwidth(figure.get_figwidth() + (chosen["ncols"] - 1) * width)
            figure.legend(**chosen)
            return
        width = _KEY + _LETTER * max(map(len, labels))
        ncols = max(1, int(figure.get_figwidth() / width))
        lines = -(-len(labels) // ncols) + ("title" in options)
        figure.set_figheight(figure.get_figheight() + lines * _LINE)
        below = {"loc": "outside lower left", "ncols": ncols, "fontsize": "small"}
        figure.legend(**(options | below | {"frameon": False}))

    def title(self, figure: Figure, text: str) -> None:
        """A title at the left edge, in as many lines as necessary; none on paper."""
        if self.columns is None:
            characters = int(figure.get_figwidth() * CHARACTERS_PER_INCH)
            lines = textwrap.fill(text, characters, break_on_hyphens=False)
            figure.suptitle(lines, x=0.01, ha="left", fontsize=TITLE_SIZE)


SCREEN = Canvas()


def save_figure(figure: Figure, drawn: pd.DataFrame, stem: Path, caption: str = "") -> list[Path]:
    """Write stem.png, stem.pdf and stem.csv (the numbers that are drawn); returns their paths.

    The same as vectors for slides and pages is written to stem.svg, a caption, in sentences, to
    stem.txt.
    """
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "pdf", "csv")]
    figure.savefig(paths[0], dpi=200)
    figure.set_layout_engine("none")  # the others have the layout of the first
    figure.savefig(paths[1], metadata={"CreationDate": None})  # same runs, same bytes
    figure.savefig(stem.with_name(f"{stem.name}.svg"), metadata={"Date": None})
    paths[2].write_text(csv_text(drawn), "utf-8")
    if caption:
        stem.with_name(f"{stem.name}.txt").write_text(f"{caption}\n", "utf-8")
    return paths
