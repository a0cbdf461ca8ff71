"""Reading label maps from PNG files, with checks for wrong content under the right name."""

from pathlib import Path

import numpy as np

from ctta_bench.datasets.io.decoding import opened
from ctta_bench.datasets.io.street_classes import CLASSES, IGNORE, LABEL_IDS
from ctta_bench.errors import DataError

_CHANNELS = {"RGB": 3, "RGBA": 4, "LA": 2, "CMYK": 4, "YCbCr": 3}


def _train_ids() -> np.ndarray:
    """The train id of each raw id, uint8 [256]; 255: the raw id is not evaluated."""
    table = np.full(256, IGNORE, np.uint8)
    table[list(LABEL_IDS)] = np.arange(len(CLASSES))
    return table


TRAIN_IDS = _train_ids()


def read_map(file: Path, *, raw_ids: bool = False) -> np.ndarray:
    """Train ids uint8 [H, W] of a label file; `raw_ids`: the file holds Cityscapes' raw ids.

    Raises DataError that names the file and its content if it holds colours, or raw ids instead of
    train ids, or if it is missing or damaged.
    """
    values = _values(file)
    if (
        values.ndim != 2
        or values.dtype.kind not in "iub"
        or not 0 <= values.min() <= values.max() <= 255
    ):
        raise DataError(
            f"{file}: holds values other than the numbers 0 to 255 of a label map (as a map of "
            "instances does); replace it by the file of label ids."
        )
    values = values.astype(np.uint8)
    if raw_ids:
        return TRAIN_IDS[values]
    present = np.bincount(values.ravel(), minlength=256).nonzero()[0]
    wrong = [int(v) for v in present if v >= len(CLASSES) and v != IGNORE]
    if wrong:
        raise DataError(
            f"{file}: holds the value {wrong[0]}, but train ids are 0 to {len(CLASSES) - 1}, and "
            f"{IGNORE} for ignored pixels; these look like raw label ids: replace it by the file "
            "of train ids (cityscapesScripts' csCreateTrainIdLabelImgs makes them)."
        )
    return values


def _values(file: Path) -> np.ndarray:
    with opened(file, what="label map") as image:
        if image.mode in _CHANNELS:
            raise DataError(
                f"{file}: has {_CHANNELS[image.mode]} channels, but a label map has one: this is a "
                "colour image; replace it by the file of train ids."
            )
        return np.asarray(image)
