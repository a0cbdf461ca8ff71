"""Image files to arrays: the one way to decode. Without torch: worker processes import this too."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from ctta_bench.errors import DataError

Interpolation = Literal["bilinear", "bicubic"]
# What Pillow raises on damaged files; SyntaxError for a damaged PNG.
UNDECODABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


@dataclass(frozen=True)
class Geometry:
    """How a decoded image becomes a square of `size` pixels.

    "exact": it must have this size. "squash": both sides are resized to `resize` (0: to the size),
    "crop": the shorter side is; then the centre is cropped.
    """

    size: int
    fit: Literal["exact", "squash", "crop"] = "exact"
    resize: int = 0
    interpolation: Interpolation = "bilinear"

    def apply(self, image: Image.Image) -> Image.Image:
        """An RGB image of `size` x `size`. Raises ValueError for another size with "exact"."""
        width, height = image.size
        if self.fit == "exact":
            if (width, height) != (self.size, self.size):
                raise ValueError(f"{width}x{height} pixels, expected {self.size}x{self.size}")
            return image
        if self.fit == "squash":
            side = self.resize or self.size
            sides = side, side
        else:  # The longer side is rounded down, as in torchvision (a test compares them).
            short = min(width, height)
            sides = int(self.resize * width / short), int(self.resize * height / short)
        if (width, height) != sides:
            image = image.resize(sides, self._filter())
        if image.size == (self.size, self.size):
            return image
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
        return np.asarray(geometry.apply(as_rgb(image))).transpose(2, 0, 1)


def as_rgb(image: Image.Image) -> Image.Image:
    """An image in 8-bit RGB; of the first picture of a file that holds several.

    As torchvision's loader: transparency is dropped, and the orientation in EXIF is not applied.
    Grey values of up to 16 bits are scaled. Raises ValueError for values of unknown range (32-bit
    integers, floats, signed ones) and for colours that Pillow does not convert.
    """
    bits, signed = _tiff_sample(image)
    if signed:
        raise ValueError("it holds signed or floating-point values; convert it to 8 bits")
    is_16_bit = image.mode.startswith("I;16")
    if is_16_bit or (image.mode == "I" and image.format in ("PNG", "PPM")):  # Pillow scales PPM
        highest = 2 ** (bits if is_16_bit else 16) - 1
        values = np.asarray(image).astype(np.int64)
        scaled = (values * 255 + highest // 2) // highest
        return Image.fromarray(scaled.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        kind = "32-bit integers" if image.mode == "I" else "floating-point values"
        raise ValueError(f"it holds {kind}, whose range is unknown; convert it to 8 bits")
    image.load()
    image.info.pop("transparency", None)  # has no effect on RGB, but makes Pillow warn
    return image if image.mode == "RGB" else image.convert("RGB")


def _tiff_sample(image: Image.Image) -> tuple[int, bool]:
    """Bits of a value of a TIFF image, and whether values are signed or floats; else 16, False."""
    tags = getattr(image, "tag_v2", {})
    kinds = tags.get(339, (1,))  # SampleFormat; 1: unsigned integers
    return max(tags.get(258, (16,))), any(kind in (2, 3) for kind in kinds)
