"""Sets of labelled image files, decoded when they are loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ctta_bench.datasets.io.decoding import Geometry, decode


@dataclass(frozen=True)
class FileImages:
    """Labelled image files under one folder; `names` are relative to it, labels int64 [n].

    Sets may share one list of names: 15 domains of 50,000 images store each name once.
    """

    folder: Path
    names: Sequence[str]
    labels: np.ndarray
    geometry: Geometry

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, size, size]. Raises DataError that names a file which cannot be decoded."""
        size = self.geometry.size
        out = np.empty((len(index), 3, size, size), np.uint8)
        for row, number in enumerate(index):
            out[row] = decode(self.folder / self.names[number], self.geometry)
        return torch.from_numpy(out)

    def without(self, numbers: Sequence[int]) -> "FileImages":
        """The same set without these images."""
        kept = np.setdiff1d(np.arange(len(self.names)), np.asarray(numbers, np.int64))
        names = [self.names[i] for i in kept]
        return FileImages(self.folder, names, self.labels[kept], self.geometry)

    def cut(self, count: int) -> "FileImages":
        """The first `count` images."""
        return FileImages(self.folder, self.names[:count], self.labels[:count], self.geometry)
