"""ImageNet: its 1,000 classes, and the folders of clean images.

A class number is the position of the synset among the 1,000 sorted synsets (n01440764 is 0,
n15075141 is 999), as in the heads of timm and torchvision; never the position among the folders.
Layout: ROOT/imagenet2012/{train,val}/SYNSET/*.JPEG.
"""

import functools
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.file_images import FileImages
from ctta_bench.datasets.io.listing import class_tree, subfolders
from ctta_bench.errors import DataError

FOLDER = "imagenet2012"


@functools.cache
def synsets(which: str = "imagenet") -> tuple[str, ...]:
    """Sorted synsets: the 1,000 of "imagenet", the 200 of "imagenet_r" or "imagenet_a"."""
    file = resources.files("timm.data") / "_info" / f"{which}_synsets.txt"
    return tuple(sorted(file.read_text(encoding="utf-8").split()))


def positions(which: str) -> tuple[int, ...]:
    """Class numbers, among the 1,000, of the classes of a smaller set."""
    place = {synset: number for number, synset in enumerate(synsets())}
    return tuple(place[synset] for synset in synsets(which))


def class_folders(folder: Path) -> list[str]:
    """The synset folders, sorted. Raises DataError for a folder that is none of the 1,000."""
    known, found = set(synsets()), subfolders(folder)
    for name in found:
        if name not in known:
            raise DataError(
                f"{folder}: the folder {name!r} is none of the 1,000 synsets of ImageNet, whose "
                "order defines the class numbers; rename it to its synset or move it away."
            )
    return found


def class_files(
    folder: Path, geometry: Geometry, classes: Sequence[str] | None = None
) -> FileImages:
    """The images of FOLDER/SYNSET/, sorted by relative path; only those of `classes` if given.

    Labels are positions in `classes` (by default all 1,000). Raises DataError if there are no
    images.
    """
    chosen = synsets() if classes is None else tuple(classes)
    place = {synset: number for number, synset in enumerate(chosen)}
    class_folders(folder)
    tree = class_tree(folder, place)
    names = tree.images
    if not names:
        raise DataError(f"{folder}: holds no images in synset folders.")
    labels = np.asarray([place[name.partition("/")[0]] for name in names], np.int64)
    return FileImages(folder, names, labels, geometry, tree.passed_over, tree.left_out)


def train_images(
    root: Path, geometry: Geometry, classes: Sequence[str] | None = None
) -> FileImages | None:
    """The images of ROOT/imagenet2012/train; None if the folder does not exist."""
    folder = root / FOLDER / "train"
    return class_files(folder, geometry, classes) if folder.is_dir() else None
