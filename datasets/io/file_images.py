"""Sets of labelled image files, decoded when they are loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ctta_bench.datasets.io.decoding import Geometry, decode
from ctta_bench.stream import file_fingerprint


@dataclass(frozen=True)
class FileImages:
    """Labelled image files under one folder; `names` are relative to it, labels int64 [n].

    Sets may share one list of names: 15 domains of 50,000 images store each name once.
    passed_over: files of the folder that look like images and are not read. left_out: its hidden
    and system folders.
    """

    folder: Path
    names: Sequence[str]
    labels: np.ndarray
    geometry: Geometry
    passed_over: Sequence[str] = ()
    left_out: Sequence[str] = ()

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, size, size]. Raises DataError that names a file which cannot be decoded."""
        size = self.geometry.size
        out = np.empty((len(index), 3, size, size), np.uint8)
        for row, number in enumerate(index):
            out[row] = decode(self.folder / self.names[number], self.geometry)
        return torch.from_numpy(out)

    def fingerprint(self, count: int) -> dict[str, str]:
        """What tells the first `count` images from others."""
        return file_fingerprint(self.folder, self.names[:count])

    def without(self, numbers: Sequence[int]) -> "FileImages":
        """The same set without these images."""
        kept = np.setdiff1d(np.arange(len(self.names)), np.asarray(numbers, np.int64))
        names = [self.names[i] for i in kept]
        return replace(self, names=names, labels=self.labels[kept])

    def cut(self, count: int) -> "FileImages":
        """The first `count` images."""
        return replace(self, names=self.names[:count], labels=self.labels[:count])
