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

from ctta_bench.analysis.figure.canvas import COLUMN_WIDTHS, SCREEN, Canvas, save_figure

FEW_PATCHES = 100  # with fewer, a map can show a region but no shape
COLOUR_MAP = "cividis"  # uniform in lightness: readable in grey and with colour blindness


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

    stem.csv has one row per picture and model (`summary`); stem.npz has the maps
    [pictures, models, rows, columns] and the pictures.
    """
    columns = ["image", "corrupted image", *(grid.shown or grid.labels)]
    size = 1.45
    with canvas.wide.drawing():
        width, height = size * len(columns) + 0.9, (size + 0.42) * len(grid.pictures)
        figure = canvas.wide.figure(
            (width, height + 1.25),
            height * COLUMN_WIDTHS[2] / width + 0.22 * len(grid.pictures) + 1.0,
        )
        cells = figure.subplots(len(grid.pictures), len(columns), squeeze=False)
        for axes, title in zip(cells[0], columns, strict=True):
            axes.set_title(textwrap.fill(title, canvas.pick(18, 12)), fontsize="small")
        for line, picture in zip(cells, grid.pictures, strict=True):
            _draw_row(line, picture, canvas.pick(", ", "\n"))
        canvas.title(figure, grid.title)
        caption = (
            f"Attention rollout ({grid.how}) to the input of the head. Bright: much attention. "
            "Each row has one scale, so a spread-out map is dim everywhere. Below a map: right or "
            "wrong class; spread (0: one patch, 1: all patches equally); moved: the share of "
            f"attention in another place than in the first map. {grid.warning()}"
        )
        figure.supxlabel(
            textwrap.fill(caption, int(16.5 * figure.get_figwidth())),
            x=0.01,
            ha="left",
            fontsize="small",
            color="#333333",
        )
        paths = save_figure(figure, summary(grid), stem)
    return [*paths, _save_maps(grid, stem.with_name(f"{stem.name}.npz"))]


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


def _draw_row(line: Sequence[Axes], picture: Picture, between: str) -> None:
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
        _draw_map(axes, picture, number, between)


def _draw_map(axes: Axes, picture: Picture, number: int, between: str) -> None:
    height, width = picture.corrupted.shape[:2]
    shown: Any = picture.maps[number] / picture.maps.max()
    grey = picture.corrupted.mean(-1)
    axes.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=(0, width, height, 0))
    axes.imshow(
        shown,
        cmap=COLOUR_MAP,
        vmin=0,
        vmax=1,
        alpha=0.72,
        extent=(0, width, height, 0),
        interpolation="nearest",  # patches as they are, no finer than those of the model
    )
    predicted = int(picture.predictions[number])
    verdict = "right" if predicted == picture.label else f"wrong: {predicted}"
    axes.set_xlabel(
        f"{verdict}\nspread {picture.spreads[number]:.2f}{between}"
        f"moved {moved(picture, number):.2f}",
        fontsize="small",
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
