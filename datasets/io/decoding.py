"""Image files to arrays: the one way to decode. Without torch: worker processes import this too."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from ctta_bench.errors import DataError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
Interpolation = Literal["bilinear", "bicubic"]
# What Pillow raises on damaged files; SyntaxError for a damaged PNG.
UNDECODABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


@dataclass(frozen=True)
class Geometry:
    """How a decoded image becomes a square of `size` pixels.

    "exact": it must have this size. "squash": both sides are resized to it. "crop": the shorter
    side is resized to `resize`, then the centre is cropped.
    """

    size: int
    fit: Literal["exact", "squash", "crop"] = "exact"
    resize: int = 0
    interpolation: Interpolation = "bilinear"

    def apply(self, image: Image.Image) -> Image.Image:
        """An RGB image of `size` x `size`. Raises ValueError for another size with "exact"."""
        if self.fit == "crop":
            return self._crop(image)
        if image.size == (self.size, self.size):
            return image
        if self.fit == "exact":
            width, height = image.size
            raise ValueError(f"{width}x{height} pixels, expected {self.size}x{self.size}")
        return image.resize((self.size, self.size), self._filter())

    def _crop(self, image: Image.Image) -> Image.Image:
        """Resize and centre crop, rounded as in torchvision (a test compares them)."""
        width, height = image.size
        short = min(width, height)
        if short != self.resize:
            # The longer side is rounded down, as in torchvision.
            sides = [int(self.resize * side / short) for side in (width, height)]
            image = image.resize((sides[0], sides[1]), self._filter())
        left, top = (round((side - self.size) / 2) for side in image.size)
        return image.crop((left, top, left + self.size, top + self.size))

    def _filter(self) -> Image.Resampling:
        return Image.Resampling[self.interpolation.upper()]


@contextlib.contextmanager
def opened(file: Path | BytesIO, name: str = "", what: str = "image") -> Iterator[Image.Image]:
    """An open image file; errors of Pillow become a DataError of one sentence."""
    try:
        with Image.open(file) as image:
            yield image
    except FileNotFoundError:
        raise DataError(f"{name or file}: no such {what}.") from None
    except UNDECODABLE as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{name or file}: is not a readable {what} ({reason}).") from error


def decode(file: Path | BytesIO, geometry: Geometry, name: str = "") -> np.ndarray:
    """An image, uint8 [3, size, size]. Raises DataError that names the file (or `name`)."""
    with opened(file, name) as image:
        rgb = geometry.apply(image if image.mode == "RGB" else image.convert("RGB"))
        return np.asarray(rgb).transpose(2, 0, 1)


def image_names(folder: Path) -> list[str]:
    """Sorted names of the image files in a folder."""
    with os.scandir(folder) as entries:  # a training set has a million of them
        return sorted(
            e.name
            for e in entries
            if Path(e.name).suffix.lower() in SUFFIXES and not e.name.startswith(".")
        )


def subfolders(folder: Path) -> list[str]:
    """Sorted names of the folders in `folder`, without hidden ones."""
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
