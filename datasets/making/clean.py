"""Clean images to corrupt: a folder CLASS/IMAGE or an array; images are read by number.

Without torch, since worker processes import this too.
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ctta_bench.datasets.io.decoding import Geometry, decode
from ctta_bench.datasets.io.files import atomic
from ctta_bench.datasets.io.listing import ClassTree, class_tree, strays
from ctta_bench.datasets.making.corruptions import U8
from ctta_bench.errors import DataError


class CleanImages(Protocol):
    """Labelled images of one size: `names` are CLASS/STEM, labels int64 [n]."""

    @property
    def names(self) -> Sequence[str]:
        """Unique names: class and file name without suffix."""
        ...

    @property
    def labels(self) -> np.ndarray:
        """Class numbers int64 [n]."""
        ...

    def image(self, number: int) -> U8:
        """One image, uint8 [H, W, 3]."""
        ...

    def sha256(self) -> str:
        """A hash that identifies the images."""
        ...


@dataclass(frozen=True)
class CleanFolder:
    """Images FOLDER/CLASS/IMAGE, sorted by relative name.

    Grey and transparent images are converted to RGB by Pillow. `classes`: for a folder without
    class folders, the class of each file name; files then count as if in folders of these names.
    """

    folder: Path
    geometry: Geometry
    classes: Mapping[str, str] | None = None

    @functools.cached_property
    def files(self) -> list[str]:
        """CLASS/IMAGE, sorted."""
        if self.classes is not None:
            return sorted(f"{synset}/{name}" for name, synset in self.classes.items())
        return self._tree.images

    @functools.cached_property
    def _tree(self) -> ClassTree:
        return class_tree(self.folder)

    @property
    def passed_over(self) -> list[str]:
        """Files that look like images and are not read."""
        if self.classes is not None:
            return [name for name in strays(self.folder) if name not in self.classes]
        return self._tree.passed_over

    @functools.cached_property
    def names(self) -> list[str]:
        """The files without suffixes. Raises DataError if two become equal."""
        names = [file.rpartition(".")[0] for file in self.files]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(
                f"{self.folder}: {twice} exists with two suffixes; remove one of the files."
            )
        return names

    @property
    def labels(self) -> np.ndarray:
        """Position of each image's class among the sorted classes with images, int64 [n]."""
        of_files = [file.partition("/")[0] for file in self.files]
        position = {name: label for label, name in enumerate(sorted(set(of_files)))}
        labels = [position[name] for name in of_files]
        return np.asarray(labels, np.int64)

    def image(self, number: int) -> U8:
        """uint8 [size, size, 3]. Raises DataError that names a file which cannot be decoded."""
        return decode(self._path(self.files[number]), self.geometry).transpose(1, 2, 0)

    def _path(self, file: str) -> Path:
        return self.folder / (file if self.classes is None else file.rpartition("/")[2])

    def sha256(self) -> str:
        """Hash of names, file sizes and geometry; reading all of ImageNet would take too long."""
        digest = hashlib.sha256(repr(self.geometry).encode())
        for file in self.files:
            digest.update(f"{file}\0{self._path(file).stat().st_size}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class CleanArray:
    """Images of an .npy file, memory-mapped: uint8 [n, H, W, 3], or grey [n, H, W] read as RGB.

    `classes`: class names by label; None: the labels are the names.
    """

    file: Path
    labels: np.ndarray
    classes: Sequence[str] | None = None

    @functools.cached_property
    def _images(self) -> np.ndarray:
        images = _load(self.file, mmap=True)
        is_rgb = images.ndim == 4 and images.shape[-1] == 3
        if images.dtype != np.uint8 or not (is_rgb or images.ndim == 3):
            raise DataError(
                f"{self.file}: holds {images.dtype} {list(images.shape)}; images to corrupt are "
                "uint8 [n, H, W, 3] or [n, H, W]."
            )
        if len(images) != len(self.labels):
            raise DataError(
                f"{self.file}: holds {len(images)} images, but there are {len(self.labels)} labels."
            )
        return images

    @property
    def names(self) -> list[str]:
        """CLASS/NUMBER."""
        classes = self.classes
        return [
            f"{label if classes is None else classes[label]}/{number:08d}"
            for number, label in enumerate(self.labels)
        ]

    def image(self, number: int) -> U8:
        """uint8 [H, W, 3]."""
        image = np.asarray(self._images[number])
        return np.repeat(image[..., None], 3, axis=-1) if image.ndim == 2 else image

    def sha256(self) -> str:
        """Hash of images and labels."""
        digest = hashlib.sha256(np.ascontiguousarray(self._images).data)
        digest.update(np.asarray(self.labels, "<i8").tobytes())
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        """Without the mapped images: each process maps the file itself."""
        return {name: value for name, value in vars(self).items() if name != "_images"}


def clean_images(path: Path, geometry: Geometry, work: Path) -> CleanImages:
    """The images of a folder CLASS/IMAGE, of an .npz (`images`, `labels`), or of an .npy.

    An .npy needs a labels.npy in the same folder. `geometry` applies to folders; arrays are used as
    they are. `work`: a folder for unpacked arrays. Raises DataError for any other path.
    """
    if path.is_dir():
        from ctta_bench.datasets.io.flat_val import flat_classes  # reads ImageNet's classes of timm

        clean: CleanImages = CleanFolder(path, geometry, flat_classes(path))
    elif path.suffix == ".npy":
        clean = CleanArray(path, _labels(_load(path.with_name("labels.npy")), path))
    elif path.suffix == ".npz":
        clean = _unpacked(path, work)
    else:
        raise DataError(
            f"--source {path}: is no folder CLASS/IMAGE, no .npz with images and labels, and no "
            ".npy next to a labels.npy."
        )
    if not len(clean.labels):
        raise DataError(f"--source {path}: holds no images in class folders.")
    return clean


def store(
    images: np.ndarray, labels: np.ndarray, work: Path, classes: Sequence[str] | None = None
) -> CleanArray:
    """Write images in memory, uint8 [n, H, W(, 3)], to an array that worker processes can open."""
    file = work / "clean.npy"
    with atomic(file) as temporary, temporary.open("wb") as stream:
        np.save(stream, images)
    return CleanArray(file, np.asarray(labels, np.int64), classes)


def _unpacked(file: Path, work: Path) -> CleanArray:
    arrays = _load(file)
    try:
        lacking = {"images", "labels"} - set(arrays.files)
        if lacking:
            raise DataError(f"{file}: lacks the array {' and '.join(sorted(lacking))}.")
        return store(arrays["images"], _labels(arrays["labels"], file), work)
    finally:
        arrays.close()


def _labels(labels: np.ndarray, file: Path) -> np.ndarray:
    if labels.ndim != 1 or labels.dtype.kind not in "ui":
        raise DataError(
            f"{file}: its labels are {labels.dtype} {list(labels.shape)}, not integers [n]."
        )
    return labels.astype(np.int64)


def _load(file: Path, *, mmap: bool = False) -> Any:
    try:
        return np.load(file, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file}: cannot be read as an array ({error}).") from error
