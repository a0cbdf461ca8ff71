"""Segmented pictures: image, ground truth and the prediction of each method, side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ctta_bench.analysis.figure.canvas import COLUMN_WIDTHS, SCREEN, Canvas, save_figure
from ctta_bench.analysis.figure.palette import colours_of
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.read.predictions import read_arrays, read_segmented
from ctta_bench.analysis.table.notes import title
from ctta_bench.analysis.table.rows import Row, domain_labels, rows
from ctta_bench.analysis.table.table import safe_name
from ctta_bench.analysis.tables.classes import classes_of
from ctta_bench.record.read import UnusableCellError
from ctta_bench.record.schema import PICTURES_FILE
from ctta_bench.registry import FIGURES
from ctta_bench.scoring.metric import printed

MAX_PANELS = 12  # of a frame: image, ground truth and ten rows of the table
WIDTHS = (4, 5, 6, 3)  # panels in a line, in order of preference
PANEL = 3.0  # inches

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


@FIGURES.register_module("pictures", place=80)
def picture_figures(
    runs: Runs, stem: Path, canvas: Canvas = SCREEN
) -> list[tuple[str, list[Path]]]:
    """For each domain with kept pictures: what the figure shows, and its files.

    The pictures are those that the finished cells of the lowest seed have in common; source comes
    first. Writes stem-pictures-DOMAIN.png, .pdf and .csv (mIoU of each picture).
    """
    classes = classes_of(runs)
    if not classes:
        return []
    kept = list(_kept(runs))[: MAX_PANELS - 2]
    made = []
    for place, (domain, label) in enumerate(domain_labels(runs).items()):
        frames = _frames(kept, place)
        if frames:
            name = stem.with_name(f"{stem.name}-pictures-{safe_name(domain)}")
            paths = _draw(frames, classes, f"{label}: {title(runs)}", name, canvas.wide)
            made.append((f"{_text(label, frames)} {_missing(runs, kept)}".strip(), paths))
    return made


def _text(domain: str, frames: Sequence[Frame]) -> str:
    count = "first picture" if len(frames) == 1 else f"first {len(frames)} pictures"
    return (
        f"{domain}, the {count} of the first round: ground truth (black: not labelled) and "
        "predictions, each with the mIoU of this picture"
    )


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
    """The rows that are not shown, in brackets; "" if all are."""
    shown = {k.row.name for k in kept}
    others = [row.label for row in rows(runs) if len(row.finished) and row.name not in shown]
    return f"(not shown: {', '.join(others)})" if others else ""


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
    frames: Sequence[Frame], classes: Sequence[str], text: str, stem: Path, canvas: Canvas
) -> list[Path]:
    colours = colours_of(classes)
    panels = [_panels(frame, colours) for frame in frames]
    wide = _width(len(panels[0]))
    high = -(-len(panels[0]) // wide)
    height, width = frames[0].label.shape
    line = PANEL * height / width + 0.25
    with canvas.drawing():
        height = line * high * len(frames)
        figure = canvas.figure(
            (PANEL * wide, height + 1.1), height * COLUMN_WIDTHS[2] / (PANEL * wide) + 0.5
        )
        grid = figure.subplots(high * len(frames), wide, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for number, of_frame in enumerate(panels):
            for place, (name, picture) in enumerate(of_frame):
                _show(grid[number * high + place // wide][place % wide], name, picture)
        figure.legend(
            handles=_legend(frames, classes, colours),
            loc="outside lower center",
            ncols=min(7, 2 * wide),
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
        return save_figure(figure, drawn, stem)


def _width(panels: int) -> int:
    """The number of panels in a line: the one that leaves the fewest places empty."""
    return min(WIDTHS, key=lambda width: (-panels % width, WIDTHS.index(width)))


def _panels(frame: Frame, colours: npt.NDArray[np.uint8]) -> list[tuple[str, Array]]:
    """Image, ground truth, and each prediction with its mIoU."""
    return [
        (f"picture {frame.index}", frame.image),
        ("ground truth", colours[frame.label]),
        *(
            (_panel_title(row.label, miou), colours[prediction])
            for row, miou, prediction in zip(
                frame.rows, frame.mious, frame.predictions, strict=True
            )
        ),
    ]


def _panel_title(label: str, miou: float) -> str:
    return label if np.isnan(miou) else f"{label}: {printed(miou)}"


def _show(axes: Axes, name: str, picture: Array) -> None:
    axes.imshow(picture, interpolation="nearest")
    axes.set_title(name, fontsize="small", pad=2)


def _legend(
    frames: Sequence[Frame], classes: Sequence[str], colours: npt.NDArray[np.uint8]
) -> list[Patch]:
    """The classes that are in the maps."""
    maps = [m for frame in frames for m in (frame.label, *frame.predictions)]
    there = np.unique(np.concatenate([np.unique(m) for m in maps]))
    return [
        Patch(color=colours[k] / 255, label=classes[k])
        for k in there.tolist()
        if k < len(classes)  # 255: no label
    ]
