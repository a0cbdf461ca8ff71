"""Files of street images and label maps: found, paired, and resized as in mmsegmentation."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor

from ctta_bench.datasets.io.decoding import as_rgb, opened
from ctta_bench.datasets.io.label_files import read_map
from ctta_bench.errors import DataError
from ctta_bench.stream import file_fingerprint

Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class StreetImages:
    """Images under one folder, without labels; `names` are relative to it.

    box: height and width that images are resized to fit with their aspect ratio kept, as in mmcv.
    """

    folder: Path
    names: Sequence[str]
    box: Size

    @property
    def labels(self) -> np.ndarray:
        """Zeros int64 [n]."""
        return np.zeros(len(self.names), np.int64)

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, H, W]. Raises DataError for a file that cannot be decoded.

        All images of one call must have the same size after resizing.
        """
        images = [resized(_rgb(self.folder / self.names[i]), self.box) for i in index]
        sizes = [image.shape for image in images]
        if len(set(sizes)) > 1:
            odd = next(i for i, size in zip(index, sizes, strict=True) if size != sizes[0])
            raise DataError(
                f"{self.folder / self.names[odd]}: has another shape than the images before it; "
                "set batch_size=1."
            )
        return torch.from_numpy(np.stack([image.transpose(2, 0, 1) for image in images]))

    def fingerprint(self, count: int) -> dict[str, str]:
        """What tells the first `count` images from others."""
        return file_fingerprint(self.folder, self.names[:count])


@dataclass(frozen=True)
class StreetFiles(StreetImages):
    """Images with label maps `maps_folder`/`map_names`: train ids or Cityscapes' raw ids."""

    maps_folder: Path
    map_names: Sequence[str]
    raw_ids: bool = False

    def maps(self, index: np.ndarray) -> Tensor:
        """Train ids uint8 [k, H, W] in the size of the files. Raises DataError for a wrong file."""
        return torch.from_numpy(np.stack([self._map(int(i)) for i in index]))

    def fingerprint(self, count: int) -> dict[str, str]:
        """What tells the first `count` images and label maps from others."""
        maps = file_fingerprint(self.maps_folder, self.map_names[:count])
        return super().fingerprint(count) | {f"map_{key}": value for key, value in maps.items()}

    def _map(self, number: int) -> np.ndarray:
        file, image = self.maps_folder / self.map_names[number], self.folder / self.names[number]
        found = read_map(file, raw_ids=self.raw_ids)
        with opened(image) as shown:
            if shown.size[::-1] != found.shape:
                raise DataError(
                    f"{file}: has {found.shape[1]}x{found.shape[0]} pixels, but its image {image} "
                    f"has {shown.width}x{shown.height}."
                )
        return found


def listed(folder: Path, suffix: str) -> list[str]:
    """Relative paths of the files under `folder` that end in `suffix`, sorted as in mmseg."""
    found = []
    for place, _, names in os.walk(folder, followlinks=True):
        inside = Path(place).relative_to(folder)
        found += [(inside / name).as_posix() for name in names if name.endswith(suffix)]
    return sorted(found)


def resized(image: np.ndarray, box: Size) -> np.ndarray:
    """An image uint8 [H, W, 3] resized to fit a box with its aspect ratio; mmcv's `imrescale`."""
    height, width = image.shape[:2]
    scale = min(max(box) / max(height, width), min(box) / min(height, width))
    size = int(width * scale + 0.5), int(height * scale + 0.5)
    if size == (width, height):
        return image
    return cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)


def _rgb(file: Path) -> np.ndarray:
    """uint8 [H, W, 3]."""
    with opened(file) as image:
        return np.asarray(as_rgb(image))
