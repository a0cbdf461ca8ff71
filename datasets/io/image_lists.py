"""Lists of ImageNet validation images: which images a benchmark streams, and in which order.

A list is a text file of lines SYNSET/FILE. `lists/imagenet_5000.txt` is RobustBench's list, used in
the published tables: 5,000 images of 997 classes in random order, never shuffled.
"""

import functools
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.file_images import FileImages
from ctta_bench.datasets.io.imagenet import class_folders, synsets
from ctta_bench.datasets.io.listing import class_tree, subfolders
from ctta_bench.errors import DataError

ROBUSTBENCH = Path(__file__).parents[1] / "lists" / "imagenet_5000.txt"
SMALL = "all images of a set smaller than RobustBench's list of 5,000"  # a footnote
_LINE = re.compile(r"(n\d{8})/([^/\\]+)")


@functools.lru_cache(maxsize=8)
def _read(file: Path, _stamp: tuple[int, int]) -> tuple[str, ...]:
    known = set(synsets())
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{file}: is not a text file of lines SYNSET/FILE.") from None
    lines = [line.strip() for line in text.splitlines()]
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        found = _LINE.fullmatch(line)
        if line and (found is None or found[1] not in known):
            raise DataError(
                f"{file}:{number}: {line!r} is not SYNSET/FILE with a synset of ImageNet."
            )
        if line and line in seen:
            raise DataError(f"{file}:{number}: {line} is listed twice; list each image once.")
        seen.add(line)
    names = tuple(line for line in lines if line)
    if not names:
        raise DataError(f"{file}: lists no images; write one line SYNSET/FILE per image.")
    return names


def read_list(file: Path) -> tuple[str, ...]:
    """The images of a list, in its order. Raises DataError if the file is not such a list."""
    try:
        stat = file.stat()
    except OSError:
        raise DataError(
            f"{file}: no such list of images; give a file of lines SYNSET/FILE."
        ) from None
    return _read(file, (stat.st_size, stat.st_mtime_ns))


def labels_of(names: Sequence[str]) -> np.ndarray:
    """Class numbers int64 [n] of images SYNSET/FILE."""
    place = {synset: number for number, synset in enumerate(synsets())}
    return np.asarray([place[name.partition("/")[0]] for name in names], np.int64)


def listed_files(folder: Path, names: Sequence[str], what: str, geometry: Geometry) -> FileImages:
    """The listed images of a folder, in the list's order; `what` is the list's name in messages.

    Raises DataError if some are missing.
    """
    absent = absent_files(folder, names)
    if absent:
        raise DataError(
            f"{folder}: lacks {len(absent)} of the {len(names):,} images of {what}, first "
            f"{absent[0]}; complete it, or stream all images that are there with --set images=all."
        )
    return FileImages(folder, names, labels_of(names), geometry)


def absent_files(folder: Path, names: Sequence[str]) -> list[str]:
    """The names CLASS/FILE that are not in a folder; each class folder is listed once."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for name in names:
        synset, _, file = name.partition("/")
        wanted[synset].add(file)
    found: set[str] = set()
    for synset, files in wanted.items():
        here = folder / synset
        if here.is_dir():
            with os.scandir(here) as entries:
                found |= {f"{synset}/{e.name}" for e in entries if e.name in files}
    return [name for name in names if name not in found]


def all_files(folder: Path, geometry: Geometry) -> FileImages:
    """Every image of FOLDER/SYNSET/, sorted by file name.

    ImageNet's validation images are numbered in random order of classes, so this order mixes the
    classes; sorting by folder would not.
    """
    class_folders(folder)
    tree = class_tree(folder)
    names = tree.images
    if not names:
        raise DataError(f"{folder}: holds no images in synset folders.")
    names.sort(key=lambda name: name.partition("/")[::-1])
    labels = labels_of(names)
    return FileImages(folder, tuple(names), labels, geometry, tree.passed_over, tree.left_out)


def robustbench_files(folder: Path, geometry: Geometry) -> tuple[FileImages, str | None]:
    """RobustBench's 5,000 images of a folder, or all images if the folder is too small.

    A folder is too small if it lacks classes of the list and has fewer images than the list, as
    `data make` may write. The second value is then the footnote for results, else None.
    """
    names = read_list(ROBUSTBENCH)
    class_folders(folder)
    if {name.partition("/")[0] for name in names} <= set(subfolders(folder)):
        return listed_files(folder, names, "RobustBench's list", geometry), None
    everything = all_files(folder, geometry)
    if len(everything.names) >= len(names):
        return listed_files(folder, names, "RobustBench's list", geometry), None
    return everything, SMALL
