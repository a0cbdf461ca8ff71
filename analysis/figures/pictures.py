"""Segmented pictures: ground truth, predictions, and where each method differs from source."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.patches import Patch

from ctta_bench.analysis.figure.canvas import COLUMN_WIDTHS, SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.palette import IGNORE, colours_of
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.read.predictions import read_segmented
from ctta_bench.analysis.table.notes import title, upper_first
from ctta_bench.analysis.table.rows import SOURCE, Row, domain_labels, rows
from ctta_bench.analysis.table.table import safe_name, signed
from ctta_bench.analysis.tables.classes import classes_of
from ctta_bench.record.arrays import read_arrays
from ctta_bench.record.read import UnusableCellError
from ctta_bench.record.schema import PICTURES_FILE
from ctta_bench.registry import FIGURES
from ctta_bench.scoring.metric import printed

WIDTHS = (4, 5, 6)  # panels in a line, in order of preference
PANEL = 3.0  # inches, on a screen
MOST_INCHES = 8.2  # of a figure on paper
# In grey: dark, middle, light.
Colour = tuple[int, int, int]
BETTER, WORSE, BOTH_WRONG = (0, 50, 110), (255, 160, 40), (222, 222, 222)
DIFFERENCES: dict[str, Colour] = {
    "right, Source wrong": BETTER,
    "wrong, Source right": WORSE,
    "both wrong": BOTH_WRONG,
}

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Frame:
    """One picture of a domain that all rows kept.

    image [h, w, 3], label [h, w] and predictions [h, w] of the rows: uint8. mious: mIoU of the
    whole picture at label size in %, one per row; NaN without a labelled pixel.
    """

    index: int
    image: Array
    label: Array
    rows: list[Row]
    predictions: list[Array]
    mious: list[float]

    @property
    def has_source(self) -> bool:
        """Whether the first row is source."""
        return self.rows[0].method == SOURCE

    @property
    def differing(self) -> list[int]:
        """The rows that predict another class than source somewhere."""
        return [
            number
            for number in range(1, len(self.rows))
            if not np.array_equal(self.predictions[number], self.predictions[0])
        ]

    @property
    def best(self) -> int | None:
        """The row whose printed mIoU is above that of all others; None: source, or a tie."""
        texts = [printed(miou) for miou in self.mious]
        place = int(np.argmax(np.nan_to_num(self.mious, nan=-1)))
        return place if place and texts.count(texts[place]) == 1 else None

    @property
    def num_panels(self) -> int:
        """Image, ground truth, and one or two predictions with differences, or all predictions."""
        if not self.has_source:
            return 2 + len(self.rows)
        return 3 + (self.best is not None) + len(self.differing)

    def difference(self, number: int) -> Array:
        """[h, w, 3] where a row is right or wrong other than source, in the colours of above."""
        source, own = (self.predictions[k] == self.label for k in (0, number))
        picture = np.full((*self.label.shape, 3), 255, np.uint8)
        labelled = self.label != IGNORE
        for where, colour in zip(
            (own & ~source, source & ~own, ~own & ~source), DIFFERENCES.values(), strict=True
        ):
            picture[where & labelled] = colour
        return picture


@FIGURES.register_module("pictures", place=80)
def picture_figures(
    runs: Runs, stem: Path, canvas: Canvas = SCREEN
) -> list[tuple[str, list[Path]]]:
    """For each domain with kept pictures: what the figure shows, and its files.

    Image, ground truth, the prediction of source and of the method that gains most, then for every
    method where it differs from source. The pictures are those that the finished cells of the
    lowest seed have in common. Writes stem-pictures-DOMAIN.png, .pdf, .csv (mIoU of each picture)
    and the caption .txt.
    """
    classes = classes_of(runs)
    if not classes:
        return []
    kept = list(_kept(runs))
    made = []
    for place, (domain, label) in enumerate(domain_labels(runs).items()):
        frames = _frames(kept, place)
        if frames:
            shown = _fitting(frames, canvas.wide)
            text = ". ".join(
                filter(None, [_text(label, shown), _same(shown), _missing(runs, kept)])
            )
            name = stem.with_name(f"{stem.name}-pictures-{safe_name(domain)}")
            caption = f"{title(runs)}: {text}."
            paths = _draw(shown, classes, f"{label}: {title(runs)}", name, canvas.wide, caption)
            made.append((text, paths))
    return made


def _fitting(frames: Sequence[Frame], canvas: Canvas) -> Sequence[Frame]:
    """The first frames that have room on a page: at least one."""
    count = len(frames)
    while canvas.columns and count > 1 and _height(frames[:count], canvas) > MOST_INCHES:
        count -= 1
    return frames[:count]


def _lines(frames: Sequence[Frame]) -> tuple[int, list[int]]:
    """The number of panels in a line, and the number of lines of each frame."""
    panels = [frame.num_panels for frame in frames]
    wide = _width(max(panels))
    return wide, [-(-count // wide) for count in panels]


def _height(frames: Sequence[Frame], canvas: Canvas) -> float:
    """Inches of the panels."""
    wide, lines = _lines(frames)
    height, width = frames[0].label.shape
    panel = canvas.pick(PANEL, COLUMN_WIDTHS[2] / wide) * height / width
    return float((panel + canvas.pick(0.25, 0.2)) * sum(lines))


def _text(domain: str, frames: Sequence[Frame]) -> str:
    count = "first picture" if len(frames) == 1 else f"first {len(frames)} pictures"
    text = f"{domain}, the {count} of the first round: image, ground truth (black: not labelled)"
    if not frames[0].has_source:
        return f"{text} and predictions, each with the mIoU of this picture"
    return (
        f"{text}, predictions with their mIoU, and for each method where it is right or wrong "
        "other than source, with its gain in mIoU (white: right in both, or not labelled)"
    )


def _same(frames: Sequence[Frame]) -> str:
    """The methods that have no panel because they predict the same as source."""
    parts = []
    for frame in frames if frames[0].has_source else ():
        alike = [row.label for n, row in enumerate(frame.rows) if n and n not in frame.differing]
        if alike:
            parts.append(f"the same as source in picture {frame.index}: {', '.join(alike)}")
    return upper_first("; ".join(parts)) if parts else ""


@dataclass(frozen=True, eq=False)
class _Kept:
    """The pictures and the scored images of a row's cell."""

    row: Row
    image: Array
    label: Array
    prediction: Array
    domain: Array
    index: Array
    mious: dict[tuple[int, int], float]  # by domain and index, in the first round


def _kept(runs: Runs) -> Iterator[_Kept]:
    """The pictures of each row of a group that has readable ones, in the table's order."""
    for row in rows(runs):
        if not len(row.finished):
            continue
        folder = Path(str(row.finished["path"].iloc[0]))
        try:
            image, label, prediction, domain, index = read_arrays(
                folder, PICTURES_FILE, "image", "label", "prediction", "domain", "index"
            )
            images = read_segmented(folder)
        except UnusableCellError:
            continue
        first = images.round == images.round.min()
        keys = zip(images.domain[first].tolist(), images.index[first].tolist(), strict=True)
        mious = images.tallies.at(first).miou().tolist()
        scores = dict(zip(keys, mious, strict=True))
        yield _Kept(row, image, label, prediction, domain, index, scores)


def _missing(runs: Runs, kept: Sequence[_Kept]) -> str:
    """The rows without readable pictures; "" if all have some."""
    shown = {k.row.name for k in kept}
    others = [row.label for row in rows(runs) if len(row.finished) and row.name not in shown]
    return f"Not shown, without pictures: {', '.join(others)}" if others else ""


def _frames(kept: Sequence[_Kept], domain: int) -> list[Frame]:
    """The pictures of a domain that every row kept, in the first row's order."""
    if not kept:
        return []
    places = [
        {int(k.index[i]): i for i in np.flatnonzero(k.domain == domain).tolist()} for k in kept
    ]
    common = [index for index in places[0] if all(index in place for place in places)]
    first = kept[0]
    return [
        Frame(
            index=index,
            image=first.image[places[0][index]],
            label=first.label[places[0][index]],
            rows=[k.row for k in kept],
            predictions=[k.prediction[place[index]] for k, place in zip(kept, places, strict=True)],
            mious=[k.mious.get((domain, index), float("nan")) for k in kept],
        )
        for index in common
    ]


def _draw(
    frames: Sequence[Frame],
    classes: Sequence[str],
    text: str,
    stem: Path,
    canvas: Canvas,
    caption: str,
) -> list[Path]:
    colours = colours_of(classes)
    wide, lines = _lines(frames)
    with canvas.drawing():
        height = _height(frames, canvas)
        figure = canvas.figure((PANEL * wide, height + 1.3), height + 0.75)
        grid = figure.subplots(sum(lines), wide, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for number, frame in enumerate(frames):
            for place, (name, picture) in enumerate(_panels(frame, colours)):
                axes = grid[sum(lines[:number]) + place // wide][place % wide]
                axes.imshow(picture, interpolation="nearest")
                axes.set_title(textwrap.fill(name, canvas.pick(60, 24)), fontsize="small", pad=2)
        figure.legend(
            handles=_legend(frames, classes, colours),
            loc="outside lower center",
            ncols=min(7, canvas.pick(2 * wide, 6)),
            frameon=False,
            fontsize="small",
        )
        canvas.title(figure, text)
        drawn = pd.DataFrame(
            [
                {"picture": frame.index, "method": row.name, "miou": miou}
                for frame in frames
                for row, miou in zip(frame.rows, frame.mious, strict=True)
            ]
        )
        return save_figure(figure, drawn, stem, caption)


def _width(panels: int) -> int:
    """The number of panels in a line: the one that leaves the fewest places empty."""
    return min(WIDTHS, key=lambda width: (-panels % width, WIDTHS.index(width)))


def _panels(frame: Frame, colours: npt.NDArray[np.uint8]) -> list[tuple[str, Array]]:
    """Image, ground truth, predictions with their mIoU, and differences from source."""
    predicted = [
        (_panel_title(row.label, miou), colours[prediction])
        for row, miou, prediction in zip(frame.rows, frame.mious, frame.predictions, strict=True)
    ]
    first = [(f"picture {frame.index}", frame.image), ("ground truth", colours[frame.label])]
    if not frame.has_source:
        return [*first, *predicted]
    best = [] if frame.best is None else [predicted[frame.best]]
    differences = [
        (_gain_title(frame, number), frame.difference(number)) for number in frame.differing
    ]
    return [*first, predicted[0], *best, *differences]


def _panel_title(label: str, miou: float) -> str:
    return label if np.isnan(miou) else f"{label}: {printed(miou)} %"


def _gain_title(frame: Frame, number: int) -> str:
    label = frame.rows[number].label
    gain = frame.mious[number] - frame.mious[0]
    return label if np.isnan(gain) else f"{label}: {signed(gain)}"


def _legend(
    frames: Sequence[Frame], classes: Sequence[str], colours: npt.NDArray[np.uint8]
) -> list[Patch]:
    """The classes that are in the maps, and the colours of differences."""
    maps = [m for frame in frames for m in (frame.label, *frame.predictions)]
    there = np.unique(np.concatenate([np.unique(m) for m in maps]))
    found = [
        Patch(color=colours[k] / 255, label=classes[k])
        for k in there.tolist()
        if k < len(classes)  # 255: no label
    ]
    if frames[0].has_source:
        edge: dict[str, Any] = {"edgecolor": "#777777", "lw": 0.5}
        found += [
            Patch(facecolor="#{:02x}{:02x}{:02x}".format(*colour), label=name, **edge)
            for name, colour in DIFFERENCES.items()
        ]
    return found
