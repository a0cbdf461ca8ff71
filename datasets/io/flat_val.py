"""ImageNet's validation images in one flat folder, as their archive unpacks.

Their classes then come from a file in the folder, in the one above, or in the development kit's
`ILSVRC2012_devkit_t12/data` there, the first of:

    imagenet_2012_validation_synset_labels.txt, synset_labels.txt    a synset for each image
    LOC_val_solution.csv                                            lines FILE,SYNSET x y x y ...
    val_map.txt, val_labels.txt, val.txt                            lines FILE CLASS, or CLASS
    ILSVRC2012_validation_ground_truth.txt with meta.mat beside it  numbers of the development kit

A CLASS is a synset or its place among the 1,000 sorted ones, from 0. Some files of these names hold
the development kit's numbers, which are in another order; so all are held against the 5,000 images
whose synsets RobustBench's list tells, and a file that contradicts it is refused.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.file_images import FileImages
from ctta_bench.datasets.io.image_lists import ROBUSTBENCH, labels_of, read_list
from ctta_bench.datasets.io.imagenet import synsets
from ctta_bench.errors import DataError

KIT = Path("ILSVRC2012_devkit_t12") / "data"
BY_ID, META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
LABEL_FILES = (
    "imagenet_2012_validation_synset_labels.txt", "synset_labels.txt", "LOC_val_solution.csv",
    "val_map.txt", "val_labels.txt", "val.txt", BY_ID,
)  # fmt: skip
IMAGES = 50_000
LEAST_CHECKED = 10  # images of the list that must vouch for a file of numbers
_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})\.jpe?g", re.IGNORECASE)
_STEM = re.compile(r"ILSVRC2012_val_\d{8}")


def flat_classes(folder: Path) -> dict[str, str] | None:
    """The synset of each image of a flat folder by its file name, None for a folder of synsets.

    Raises DataError if no file tells the classes, or if it can't be trusted to.
    """
    with os.scandir(folder) as entries:
        found = [e.name for e in entries if not e.name.startswith(".")]
    images = sorted(name for name in found if _IMAGE.fullmatch(name))
    if not images or any((folder / name).is_dir() for name in set(found) - set(images)):
        return None
    file = _label_file(folder)
    if file is None:
        raise DataError(
            f"{folder}: holds images in no synset folders, and nothing that tells their classes: "
            f"move each to {folder.name}/SYNSET/ (valprep.sh of PyTorch's examples does), or put "
            f"{LABEL_FILES[0]} or LOC_val_solution.csv beside them."
        )
    known = read_labels(file)
    lacking = [name for name in images if Path(name).stem not in known]
    if lacking:
        raise DataError(f"{file}: names no class for {lacking[0]} of {folder}; get the whole file.")
    return {name: known[Path(name).stem] for name in images}


def _label_file(folder: Path) -> Path | None:
    places = (folder, folder.parent, folder.parent / KIT)
    found = (place / name for name in LABEL_FILES for place in places)
    return next((file for file in found if file.is_file()), None)


def read_labels(file: Path) -> dict[str, str]:
    """Synsets by the images' names without suffix. Raises DataError for a file of other things."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{file}: is not a readable text of the images' classes.") from None
    words = [re.split(r"[,\s]+", line) for line in lines if line]
    if words and words[0][0] == "ImageId":
        words = words[1:]
    alone = bool(words) and all(len(parts) == 1 for parts in words)
    if alone and len(words) != IMAGES:
        raise DataError(f"{file}: has {len(words):,} lines, where {IMAGES:,} images have one each.")
    order = _order(file)
    found: dict[str, str] = {}
    for number, parts in enumerate(words, 1):
        stem = f"ILSVRC2012_val_{number:08d}" if alone else _stem(parts[0])
        synset = order.get(parts[-1] if alone else parts[1])
        if stem is None or synset is None:
            raise DataError(
                f"{file}:{number}: {' '.join(parts)!r} is no image of ImageNet's validation set "
                "and its class, a synset or a number from 0 to 999."
            )
        found[stem] = synset
    is_numbers = any(parts[-1 if alone else 1].isdigit() for parts in words)
    _check_against_list(file, found, LEAST_CHECKED if is_numbers else 0)
    return found


def _stem(name: str) -> str | None:
    found = _STEM.match(name.rpartition("/")[2])
    return found[0] if found else None


def _order(file: Path) -> dict[str, str]:
    """What a class is written as, to its synset."""
    if file.name != BY_ID:
        numbers = {str(number): synset for number, synset in enumerate(synsets())}
        return numbers | {synset: synset for synset in synsets()}
    meta = file.with_name(META)
    if not meta.is_file():
        raise DataError(
            f"{file}: counts the classes in an order of its own, which {META} of the development "
            f"kit tells: put that beside it, or {LABEL_FILES[0]} in its place."
        )
    return _read_meta(meta)


def _read_meta(meta: Path) -> dict[str, str]:
    """The development kit's number of each of the 1,000 synsets."""
    from scipy.io import loadmat

    try:
        rows = loadmat(meta, squeeze_me=True)["synsets"]
        numbers = {str(int(row["ILSVRC2012_ID"])): str(row["WNID"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, IndexError, NotImplementedError) as error:
        raise DataError(f"{meta}: is not the development kit's table ({error}).") from None
    known = set(synsets())
    return {number: synset for number, synset in numbers.items() if synset in known}


def _check_against_list(file: Path, found: dict[str, str], needed: int) -> None:
    vouched = 0
    for line in read_list(ROBUSTBENCH):
        synset, _, name = line.partition("/")
        told = found.get(name.partition(".")[0])
        if told is None:
            continue
        if told != synset:
            raise DataError(
                f"{file}: says that {name} is {told}, but it is {synset}: its classes are counted "
                f"in another order; take {LABEL_FILES[0]} or LOC_val_solution.csv instead."
            )
        vouched += 1
    if vouched < needed:
        raise DataError(
            f"{file}: has class numbers, and too few images to tell in which order these are; "
            "write synsets instead."
        )


def flat_files(
    folder: Path,
    classes: dict[str, str],
    geometry: Geometry,
    wanted: Sequence[str] | None = None,
    what: str = "",
) -> FileImages:
    """Images of a flat folder: the wanted SYNSET/FILE in their order, or all by file name.

    Raises DataError for a wanted image that is not there, or is of another class.
    """
    if wanted is None:
        names = sorted(classes)
        return FileImages(folder, names, labels_of([f"{classes[n]}/{n}" for n in names]), geometry)
    names = [line.rpartition("/")[2] for line in wanted]
    odd = [
        line
        for line, name in zip(wanted, names, strict=True)
        if f"{classes.get(name)}/{name}" != line
    ]
    if odd:
        raise DataError(
            f"{folder}: lacks {len(odd)} of the {len(names):,} images of {what}, first {odd[0]}; "
            "complete it, or stream all that is there with --set images=all."
        )
    return FileImages(folder, names, labels_of(wanted), geometry)
