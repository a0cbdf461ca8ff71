"""Rollout maps as a grid of pictures: clean image, corrupted image, and one map per model."""

import textwrap
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from ctta_bench.analysis.figure.canvas import COLUMN_WIDTHS, SCREEN, Canvas, save_figure

FEW_PATCHES = 100  # with fewer, a map can show a region but no shape
ATTENTION_COLOURS = "cividis"  # uniform in lightness: readable in grey and with colour blindness
CHANGE_COLOURS = "PuOr"
CHANGE_SHARE = 0.99  # of the patches are within the scale of changes
OUTLINE_SQUARES = 32  # along the shorter side of an image
Scales = tuple[tuple[Normalize, str], tuple[Normalize, str]]
_SCALE_TEXTS = (
    "{}: attention (1: an even share)",
    "change from {} (in even shares; + more, − less; 1 % of the patches lie beyond the ends)",
)


@dataclass(frozen=True)
class Picture:
    """One row of the grid.

    clean, corrupted: [H, W, 3] in [0, 1]; maps: [models, rows, columns], each of sum 1;
    predictions: [models] class numbers; spreads: [models] in [0, 1].
    """

    domain: str
    index: int
    label: int
    clean: npt.NDArray[np.floating] | None
    corrupted: npt.NDArray[np.floating]
    maps: npt.NDArray[np.floating]
    predictions: npt.NDArray[np.integer]
    spreads: npt.NDArray[np.floating]


@dataclass(frozen=True)
class AttentionGrid:
    """Maps of the same pictures under several models; `title` names model and benchmark.

    labels: of the models, as stored in files. shown: as printed; the labels if it is empty.
    """

    name: str
    title: str
    how: str
    labels: Sequence[str]
    pictures: Sequence[Picture]
    shown: Sequence[str] = ()

    @property
    def patches(self) -> tuple[int, int]:
        """Rows and columns of a map."""
        _, rows, columns = self.pictures[0].maps.shape
        return int(rows), int(columns)

    @property
    def is_readable(self) -> bool:
        """Whether the maps are fine enough to show more than a region."""
        rows, columns = self.patches
        return rows * columns >= FEW_PATCHES

    def warning(self) -> str:
        """A sentence if the maps are too coarse to show shapes; else ""."""
        if self.is_readable:
            return ""
        rows, columns = self.patches
        return (
            f"The model has {rows} x {columns} patches, too few for a map to show a shape. Such a "
            "map shows the region and how spread out it is."
        )


def attention_figure(grid: AttentionGrid, stem: Path, canvas: Canvas = SCREEN) -> list[Path]:
    """Draw the grid; writes stem.png, stem.pdf, stem.csv and stem.npz and returns their paths.

    The first model (source) has its map, the others how their maps differ from it: the maps
    themselves look alike. Both are in shares of an even map, with one scale for the figure.
    stem.csv has one row per picture and model (`summary`); stem.npz has the maps
    [pictures, models, rows, columns] and the pictures. The caption is in stem.txt.
    """
    first, *others = grid.shown or grid.labels
    titles = ["image", "corrupted image", f"{first}: attention", *(f"{o}: change" for o in others)]
    size = 1.45
    with canvas.wide.drawing():
        width, height = size * len(titles) + 0.9, (size + 0.42) * len(grid.pictures)
        figure = canvas.wide.figure(
            (width, height + 2.0),
            height * COLUMN_WIDTHS[2] / width + 0.22 * len(grid.pictures) + 1.3,
        )
        cells = figure.subplots(len(grid.pictures), len(titles), squeeze=False)
        for axes, title in zip(cells[0], titles, strict=True):
            axes.set_title(textwrap.fill(title, canvas.pick(18, 12)), fontsize="small")
        scales = _scales(grid)
        for line, picture in zip(cells, grid.pictures, strict=True):
            _draw_row(line, picture, scales, canvas.pick(", ", "\n"))
        for scale, text in zip(scales[: len(grid.labels)], _SCALE_TEXTS, strict=False):
            bar = figure.colorbar(
                ScalarMappable(*scale),
                ax=cells,
                location="bottom",
                shrink=0.4,
                aspect=40,
                pad=0.01,
                extend="neither" if scale is scales[0] else "both",
            )
            bar.set_label(text.format(first), fontsize="small")
            bar.ax.tick_params(labelsize="small")
            bar.outline.set_visible(False)
        canvas.title(figure, grid.title)
        text = (
            f"Attention rollout ({grid.how}) to the input of the head. Shares are multiples of the "
            "share that each patch has in an even map. Lines: outlines of the image. + and −: the "
            f"largest changes. Below a map: right or wrong class; spread (0: one patch, 1: all "
            f"patches equally); moved: the share of attention in another place than in the map of "
            f"{first}. {grid.warning()}"
        ).strip()
        if canvas.columns is None:
            figure.supxlabel(
                textwrap.fill(text, int(16.5 * figure.get_figwidth())),
                x=0.01,
                ha="left",
                fontsize="small",
                color="#333333",
            )
        paths = save_figure(figure, summary(grid), stem, f"{grid.title}. {text}")
    return [*paths, _save_maps(grid, stem.with_name(f"{stem.name}.npz"))]


def _scales(grid: AttentionGrid) -> Scales:
    """The colours of attention and of its change, in multiples of an even share."""
    rows, columns = grid.patches
    maps = np.stack([picture.maps for picture in grid.pictures]) * rows * columns
    changes = np.abs(maps[:, 1:] - maps[:, :1]).ravel()
    change = float(np.quantile(changes, CHANGE_SHARE)) if len(changes) else 0.0
    change = change or 1.0
    return (
        (Normalize(0, float(maps[:, 0].max())), ATTENTION_COLOURS),
        (Normalize(-change, change), CHANGE_COLOURS),
    )


def summary(grid: AttentionGrid) -> pd.DataFrame:
    """One row per picture and model: prediction, spread, and the share that moved."""
    return pd.DataFrame(
        [
            {
                "domain": picture.domain,
                "image": picture.index,
                "label": picture.label,
                "model": label,
                "prediction": int(picture.predictions[number]),
                "spread": float(picture.spreads[number]),
                "moved": moved(picture, number),
            }
            for picture in grid.pictures
            for number, label in enumerate(grid.labels)
        ]
    )


def moved(picture: Picture, number: int) -> float:
    """Share of attention, in [0, 1], in another place than in the map of the first model."""
    return float(np.abs(picture.maps[number] - picture.maps[0]).sum() / 2)


def _draw_row(
    line: Sequence[Axes],
    picture: Picture,
    scales: Scales,
    between: str,
) -> None:
    for axes in line:
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)
    if picture.clean is not None:
        line[0].imshow(picture.clean, vmin=0, vmax=1)
    else:
        inside: Any = {"ha": "center", "transform": line[0].transAxes, "fontsize": "small"}
        line[0].text(0.5, 0.5, "not available", **inside)
    line[0].set_ylabel(
        f"{picture.domain.replace('_', ' ')}\nimage {picture.index}", fontsize="small"
    )
    line[0].set_xlabel(f"class {picture.label}", fontsize="small")
    line[1].imshow(picture.corrupted, vmin=0, vmax=1)
    for number, axes in enumerate(line[2:]):
        _draw_map(axes, picture, number, scales, between)


def _draw_map(
    axes: Axes,
    picture: Picture,
    number: int,
    scales: Scales,
    between: str,
) -> None:
    height, width = picture.corrupted.shape[:2]
    rows, columns = picture.maps.shape[1:]
    shown = (picture.maps[number] - (picture.maps[0] if number else 0)) * rows * columns
    norm, colours = scales[min(number, 1)]
    # Patches as they are, no finer than those of the model.
    place: Any = {"extent": (0, width, height, 0), "interpolation": "nearest"}
    axes.imshow(shown, cmap=colours, norm=norm, **place)
    outlined = picture.corrupted if picture.clean is None else picture.clean
    _outline(axes, outlined, "white" if number == 0 else "#777777")
    if number:
        _sign(axes, shown, float(norm.vmax or 1), (height / rows, width / columns))
    predicted = int(picture.predictions[number])
    verdict = "right" if predicted == picture.label else f"wrong: {predicted}"
    axes.set_xlabel(
        f"{verdict}\nspread {picture.spreads[number]:.2f}{between}"
        f"moved {moved(picture, number):.2f}",
        fontsize="small",
    )


def _outline(axes: Axes, image: npt.NDArray[np.floating], colour: str) -> None:
    """The line at half of the brightness of an image [H, W, 3], averaged over squares."""
    grey = image.mean(-1)
    step = max(1, min(grey.shape) // OUTLINE_SQUARES)
    rows, columns = (side // step for side in grey.shape)
    coarse = grey[: rows * step, : columns * step].reshape(rows, step, columns, step).mean((1, 3))
    low, high = float(coarse.min()), float(coarse.max())
    if high > low and min(coarse.shape) > 1:
        ys, xs = ((np.arange(count) + 0.5) * step for count in (rows, columns))
        axes.contour(xs, ys, coarse, [(low + high) / 2], colors=colour, linewidths=0.5)


def _sign(
    axes: Axes, change: npt.NDArray[np.floating], most: float, patch: tuple[float, float]
) -> None:
    """+ and − in the patches with more than half of the largest change: also read in grey."""
    for row, column in np.argwhere(np.abs(change) > most / 2).tolist():
        axes.text(
            (column + 0.5) * patch[1],
            (row + 0.5) * patch[0],
            "+" if change[row, column] > 0 else "−",
            ha="center",
            va="center",
            fontsize="small",
            color="white" if abs(change[row, column]) > 0.75 * most else "black",
            clip_on=True,
        )


def _save_maps(grid: AttentionGrid, path: Path) -> Path:
    """Store the arrays of the figure; equal arrays give bit-identical files."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "maps": np.stack([p.maps for p in grid.pictures]),
        "corrupted": np.stack([p.corrupted for p in grid.pictures]),
        "label": np.array([p.label for p in grid.pictures]),
        "image": np.array([p.index for p in grid.pictures]),
        "domain": np.array([p.domain for p in grid.pictures]),
        "model": np.array(list(grid.labels)),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w") as entry:
                np.lib.format.write_array(entry, values, allow_pickle=False)
    return path
