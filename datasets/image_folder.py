"""image_folder: any folder of the layout ROOT/DOMAIN/CLASS/IMAGE as a benchmark.

Domains and classes are the sorted names of the folders, images are taken in the order of their
sorted relative paths; the file system's listing plays no part. A domain called `source`, if there
is one, is the source set. Symbolic links are followed.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from pydantic import Field
from torch import Tensor

from ctta_bench.errors import DataError
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import Benchmark, ImageSet, StreamSettings

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
SOURCE = "source"


class FolderSettings(StreamSettings):
    """Settings of image_folder."""

    image_size: int = Field(224, ge=8, le=4096, description="images are resized to this square")


class FileImages:
    """Image files with labels, decoded when they are asked for."""

    def __init__(self, files: list[Path], labels: np.ndarray, size: int) -> None:
        self.files, self.labels, self.size = files, labels, size

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, size, size]. Raises DataError naming a file that does not decode."""
        images = [decode(self.files[i], self.size) for i in index]
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def decode(file: Path, size: int) -> np.ndarray:
    """An image as uint8 [size, size, 3]; bilinear resize if it has another size."""
    try:
        with Image.open(file) as image:
            rgb = image.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise DataError(f"{file}: is not a readable image ({error}).") from error
    if rgb.size != (size, size):
        rgb = rgb.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(rgb)


def subfolders(path: Path) -> list[str]:
    """Sorted names of the folders in `path`, hidden ones left out."""
    return sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


@BENCHMARKS.register_module("image_folder")
class ImageFolder(Benchmark):
    """Your own images: ROOT/DOMAIN/CLASS/IMAGE, domains and classes in sorted order."""

    Settings = FolderSettings
    name = "image_folder"

    @property
    def num_classes(self) -> int:  # type: ignore[override] # elsewhere a constant of the class
        """Number of class folders over all domains."""
        return len(self._classes())

    def problems(self) -> list[str]:
        """A missing root, or a root without domains and classes."""
        if self.root is None:
            return ["needs a folder ROOT/DOMAIN/CLASS/IMAGE; give it with --data-root ROOT."]
        if not self.root.is_dir():
            return [f"no folder {self.root}; give the right one with --data-root ROOT."]
        if not self.domain_names() or not self._classes():
            return [f"{self.root} holds no DOMAIN/CLASS folders; give --data-root ROOT."]
        return []

    def domain_names(self) -> tuple[str, ...]:
        """All folders of the root but `source`."""
        if self.root is None or not self.root.is_dir():
            raise DataError(f"{self.name}: {self.problems()[0]}")
        return tuple(n for n in subfolders(self.root) if n != SOURCE)

    def domain(self, name: str) -> ImageSet:
        """The images of one domain, sorted by class and file name."""
        assert self.root is not None
        files: list[Path] = []
        labels: list[int] = []
        for label, class_name in enumerate(self._classes()):
            folder = self.root / name / class_name
            found = sorted(folder.iterdir(), key=lambda p: p.name) if folder.is_dir() else []
            images = [p for p in found if p.suffix.lower() in SUFFIXES]
            files += images
            labels += [label] * len(images)
        if not files:
            raise DataError(f"{self.root / name}: holds no images in class folders.")
        return FileImages(files, np.asarray(labels, np.int64), self.settings.image_size)

    def source(self) -> ImageSet | None:
        """The domain called `source`, if there is one."""
        assert self.root is not None
        return self.domain(SOURCE) if (self.root / SOURCE).is_dir() else None

    def _classes(self) -> list[str]:
        assert self.root is not None
        return sorted({c for d in subfolders(self.root) for c in subfolders(self.root / d)})
