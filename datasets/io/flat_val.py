"""ImageNet's validation images in one flat folder, as unpacked from their archive.

Their classes are read from a file in the folder, in its parent, or in `ILSVRC2012_devkit_t12/data`
(the development kit) there; the first found of:

    imagenet_2012_validation_synset_labels.txt, synset_labels.txt     one synset per image
    LOC_val_solution.csv                                             lines FILE,SYNSET x y x y ...
    val_map.txt, val_labels.txt, val.txt                             lines FILE CLASS, or CLASS
    ILSVRC2012_validation_ground_truth.txt, with meta.mat next to it  development kit's numbers

A CLASS is a synset or its position among the 1,000 sorted synsets, from 0. Some files with these
names hold the development kit's numbers, which have another order. All files are therefore compared
with the 5,000 images whose synsets are in RobustBench's list; one that contradicts it is refused.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.file_images import FileImages
from ctta_bench.datasets.io.image_lists import ROBUSTBENCH, labels_of, read_list
from ctta_bench.datasets.io.imagenet import synsets
from ctta_bench.datasets.io.listing import is_left_out, left_out, strays
from ctta_bench.errors import DataError

KIT = Path("ILSVRC2012_devkit_t12") / "data"
BY_ID, META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
LABEL_FILES = (
    "imagenet_2012_validation_synset_labels.txt", "synset_labels.txt", "LOC_val_solution.csv",
    "val_map.txt", "val_labels.txt", "val.txt", BY_ID,
)  # fmt: skip
IMAGES = 50_000
LEAST_CHECKED = 10  # images of the list that a file of numbers must agree with
_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})\.jpe?g", re.IGNORECASE)
_STEM = re.compile(r"ILSVRC2012_val_\d{8}")


def flat_classes(folder: Path) -> dict[str, str] | None:
    """The synset of each image of a flat folder, by file name; None for a folder of synset folders.

    Raises DataError if no file states the classes, or if it cannot be trusted.
    """
    with os.scandir(folder) as entries:
        found = [e.name for e in entries if not is_left_out(e.name)]
    images = sorted(name for name in found if _IMAGE.fullmatch(name))
    if not images or any((folder / name).is_dir() for name in set(found) - set(images)):
        return None
    file = _label_file(folder)
    if file is None:
        raise DataError(
            f"{folder}: holds images without synset folders, and no file that states their "
            f"classes: move each to {folder.name}/SYNSET/ (valprep.sh of PyTorch's examples does), "
            f"or put {LABEL_FILES[0]} or LOC_val_solution.csv next to them."
        )
    known = read_labels(file)
    lacking = [name for name in images if Path(name).stem not in known]
    if lacking:
        raise DataError(
            f"{file}: has no class for {lacking[0]} of {folder}; get the complete file."
        )
    return {name: known[Path(name).stem] for name in images}


def _label_file(folder: Path) -> Path | None:
    places = (folder, folder.parent, folder.parent / KIT)
    found = (place / name for name in LABEL_FILES for place in places)
    return next((file for file in found if file.is_file()), None)


def read_labels(file: Path) -> dict[str, str]:
    """Synset by image name without suffix. Raises DataError for a file with other content."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{file}: is not a readable text file of image classes.") from None
    words = [re.split(r"[,\s]+", line) for line in lines if line]
    if words and words[0][0] == "ImageId":
        words = words[1:]
    alone = bool(words) and all(len(fields) == 1 for fields in words)
    if alone and len(words) != IMAGES:
        raise DataError(f"{file}: has {len(words):,} lines instead of {IMAGES:,}, one per image.")
    order = _order(file)
    found: dict[str, str] = {}
    for number, fields in enumerate(words, 1):
        stem = f"ILSVRC2012_val_{number:08d}" if alone else _stem(fields[0])
        synset = order.get(fields[-1] if alone else fields[1])
        if stem is None or synset is None:
            raise DataError(
                f"{file}:{number}: {' '.join(fields)!r} is not an image of ImageNet's validation "
                "set with its class, a synset or a number from 0 to 999."
            )
        found[stem] = synset
    is_numbers = any(fields[-1 if alone else 1].isdigit() for fields in words)
    _check_against_list(file, found, LEAST_CHECKED if is_numbers else 0)
    return found


def _stem(name: str) -> str | None:
    found = _STEM.match(name.rpartition("/")[2])
    return found[0] if found else None


def _order(file: Path) -> dict[str, str]:
    """From the class as written in the file to its synset."""
    if file.name != BY_ID:
        numbers = {str(number): synset for number, synset in enumerate(synsets())}
        return numbers | {synset: synset for synset in synsets()}
    meta = file.with_name(META)
    if not meta.is_file():
        raise DataError(
            f"{file}: numbers the classes in its own order, which {META} of the development kit "
            f"defines: put that file next to it, or use {LABEL_FILES[0]} instead."
        )
    return _read_meta(meta)


def _read_meta(meta: Path) -> dict[str, str]:
    """From the development kit's number to the synset, for the 1,000 synsets."""
    from scipy.io import loadmat

    try:
        rows = loadmat(meta, squeeze_me=True)["synsets"]
        numbers = {str(int(row["ILSVRC2012_ID"])): str(row["WNID"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, IndexError, NotImplementedError) as error:
        raise DataError(f"{meta}: is not the development kit's table ({error}).") from None
    known = set(synsets())
    return {number: synset for number, synset in numbers.items() if synset in known}


def _check_against_list(file: Path, found: dict[str, str], needed: int) -> None:
    agreeing = 0
    for line in read_list(ROBUSTBENCH):
        synset, _, name = line.partition("/")
        stated = found.get(name.partition(".")[0])
        if stated is None:
            continue
        if stated != synset:
            raise DataError(
                f"{file}: states that {name} is {stated}, but it is {synset}: its classes are "
                f"numbered in another order; use {LABEL_FILES[0]} or LOC_val_solution.csv instead."
            )
        agreeing += 1
    if agreeing < needed:
        raise DataError(
            f"{file}: has class numbers, but too few images to find out their order; write "
            "synsets instead."
        )


def flat_files(
    folder: Path,
    classes: dict[str, str],
    geometry: Geometry,
    wanted: Sequence[str] | None = None,
    what: str = "",
) -> FileImages:
    """Images of a flat folder: the wanted SYNSET/FILE in their order, or all by file name.

    `what`: the name of the wanted list in messages. Raises DataError if a wanted image is missing
    or has another class.
    """
    if wanted is None:
        names = sorted(classes)
        labels = labels_of([f"{classes[n]}/{n}" for n in names])
        passed_over = [name for name in strays(folder) if name not in classes]
        return FileImages(folder, names, labels, geometry, passed_over, left_out(folder))
    names = [line.rpartition("/")[2] for line in wanted]
    odd = [
        line
        for line, name in zip(wanted, names, strict=True)
        if f"{classes.get(name)}/{name}" != line
    ]
    if odd:
        raise DataError(
            f"{folder}: lacks {len(odd)} of the {len(names):,} images of {what}, first {odd[0]}; "
            "complete it, or stream all images that are there with --set images=all."
        )
    return FileImages(folder, names, labels_of(wanted), geometry)
