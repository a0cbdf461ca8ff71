"""Rehearsals: small sets in the layout of a published benchmark, made from the embedded images.

Folder names, file names, formats and shapes are those of the published sets, so that readers,
settings and whole experiments can be tried before a download. The images are a few of
Fashion-MNIST.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ctta_bench.datasets.domainnet import D109
from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.files import writing
from ctta_bench.datasets.io.imagenet import FOLDER, synsets
from ctta_bench.datasets.making.clean import CleanFolder, CleanImages, store
from ctta_bench.datasets.making.corrupted_sets import make_set
from ctta_bench.datasets.making.corruptions import CORRUPTIONS, HOLD_OUT, U8
from ctta_bench.datasets.making.shards import Layout, Recipe
from ctta_bench.datasets.rehearsal.photos import (
    LISTED,
    SHARED,
    STAND_INS,
    SYNSETS,
    VARIANTS,
    put,
    record_files,
    write_ccc,
    write_listed,
    write_train,
    write_val,
    write_variant,
)
from ctta_bench.datasets.rehearsal.pickled_batches import Value, pickled_batch
from ctta_bench.datasets.rehearsal.streets import LAYOUT as STREETS
from ctta_bench.datasets.rehearsal.streets import write_streets
from ctta_bench.errors import ConfigError

CORRUPTED = ("imagenet_c", "cifar10_c", "cifar100_c", "imagenet_3dcc")
LAYOUTS = (*CORRUPTED, *VARIANTS, *LISTED, "ccc", STREETS)
EMBEDDED = Path(__file__).parents[1] / "embedded"
MADE = (*CORRUPTIONS, *HOLD_OUT)
IMAGES = 10  # per corruption and severity
TRAINING = 30  # source images


def rehearse(
    layout: str,
    root: Path,
    *,
    images: int = IMAGES,
    workers: int = 1,
    report: Callable[[int, int], None] | None = None,
    full_size: bool = False,
) -> list[Path]:
    """Make the rehearsal of a benchmark under `root`; returns its folders.

    images: per corruption and severity, 1 to 2,000. full_size: streets of the published size, not
    of a fourth of its sides; the images of the other sets have theirs in any case. After an
    interruption the next call resumes.

    Example: `rehearse("cifar10_c", Path("rehearsal"), images=20)`

    Raises ConfigError for an unknown layout, DataError if other data are in the way.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"--layout {layout!r}: choose {', '.join(LAYOUTS)}.")
    if not 1 <= images <= 2000:
        raise ConfigError(f"--images {images}: give a number from 1 to 2000.")
    if full_size and layout != STREETS:
        raise ConfigError(f"--full-size: only for --layout {STREETS}; {layout} has its full size.")
    if layout == STREETS:
        return write_streets(root, images, report, full_size=full_size)
    if layout not in CORRUPTED:
        return _uncorrupted(layout, root, images)
    made = _cifar if layout.startswith("cifar") else _imagenet
    staging = root / f".rehearsal-{layout}"
    try:
        with writing(staging):
            staging.mkdir(parents=True, exist_ok=True)
        return made(layout, root, staging, images, workers, report)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def embedded(split: str, count: int) -> tuple[U8, np.ndarray]:
    """The first `count` grey images [n, 28, 28] of a split, classes in turn, and their labels."""
    with np.load(EMBEDDED / f"fashion_{split}.npz", allow_pickle=False) as arrays:
        images, labels = arrays["images"], arrays["labels"].astype(np.int64)
    # The first of each class, then the second of each, ...: a few images cover all classes.
    rank = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        rank[labels == label] = np.arange((labels == label).sum())
    chosen = np.lexsort((labels, rank))[:count]
    return images[chosen], labels[chosen]


def _make(
    clean: CleanImages,
    target: Path,
    layout: Layout,
    workers: int,
    report: Callable[[int, int], None] | None,
    folder_names: dict[str, str] | None = None,
) -> None:
    parameters = "cifar" if layout == "arrays" else "imagenet"
    # Frost with CIFAR's parameters: the package lacks the full-size pictures of ImageNet's.
    make_set(
        clean,
        target,
        Recipe(layout, parameters, frost="cifar", folder_names=folder_names),
        corruptions=MADE if folder_names is None else tuple(folder_names),
        workers=workers,
        facts={"rehearsal": True} | ({"stand_ins": folder_names} if folder_names else {}),
        report=report,
    )


# -- CIFAR: arrays, and python batches as source data ----------------------------------------------


def _cifar(
    layout: str,
    root: Path,
    staging: Path,
    count: int,
    workers: int,
    report: Callable[[int, int], None] | None,
) -> list[Path]:
    is_hundred = layout == "cifar100_c"
    name = "CIFAR-100-C" if is_hundred else "CIFAR-10-C"
    test, train = _small(*embedded("test", count)), _small(*embedded("source", TRAINING))
    if is_hundred:
        test, train = (_hundred(*test), _hundred(*train))
    _make(store(*test, staging), root / name, "arrays", workers, report)
    files = list(_hundred_files(test, train) if is_hundred else _ten_files(test, train))
    folder = root / ("cifar-100-python" if is_hundred else "cifar-10-batches-py")
    for file, entries in files:
        put(folder / file, pickled_batch(entries))
    record_files(folder, [file for file, _ in files])
    return [root / name, folder]


def _small(images: U8, labels: np.ndarray) -> tuple[U8, np.ndarray]:
    """The images as 32 x 32 RGB, as in CIFAR."""
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    return np.repeat(padded[..., None], 3, axis=-1), labels


def _hundred(images: U8, labels: np.ndarray) -> tuple[U8, np.ndarray]:
    """A hundred classes: ten times the embedded class plus a running digit."""
    return images, labels * 10 + np.arange(len(labels)) // 10 % 10


def _rows(images: U8) -> np.ndarray:
    """CIFAR's rows of 3,072 values: the red, the green and the blue plane."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def _names(count: int, what: str) -> list[bytes]:
    return [f"{what}_{number:05d}.png".encode() for number in range(count)]


def _ten_files(test: Any, train: Any) -> Iterator[tuple[str, dict[bytes, Value]]]:
    batches = [*zip(*(np.array_split(array, 5) for array in train), strict=True), test]
    for number, (images, labels) in enumerate(batches, 1):
        is_test = number == 6
        title = b"testing batch 1 of 1" if is_test else f"training batch {number} of 5".encode()
        entries: dict[bytes, Value] = {
            b"batch_label": title,
            b"labels": labels.tolist(),
            b"data": _rows(images),
            b"filenames": _names(len(images), "test" if is_test else f"train{number}"),
        }
        yield "test_batch" if is_test else f"data_batch_{number}", entries
    classes = [f"class {label}".encode() for label in range(10)]
    facts: dict[bytes, Value] = {
        b"num_cases_per_batch": len(batches[0][1]),
        b"label_names": classes,
        b"num_vis": 3072,
    }
    yield "batches.meta", facts


def _hundred_files(test: Any, train: Any) -> Iterator[tuple[str, dict[bytes, Value]]]:
    for name, title, (images, labels) in (
        ("train", b"training batch 1 of 1", train),
        ("test", b"testing batch 1 of 1", test),
    ):
        entries: dict[bytes, Value] = {
            b"filenames": _names(len(images), name),
            b"batch_label": title,
            b"fine_labels": labels.tolist(),
            b"coarse_labels": (labels // 5).tolist(),
            b"data": _rows(images),
        }
        yield name, entries
    fine, coarse = (
        [f"{kind} {n}".encode() for n in range(m)] for kind, m in (("class", 100), ("group", 20))
    )
    yield "meta", {b"fine_label_names": fine, b"coarse_label_names": coarse}


# -- ImageNet: synset folders ----------------------------------------------------------------------


def _imagenet(
    layout: str,
    root: Path,
    staging: Path,
    count: int,
    workers: int,
    report: Callable[[int, int], None] | None,
) -> list[Path]:
    write_val(root, embedded("test", count))
    write_train(root, embedded("source", TRAINING), SYNSETS)
    clean = CleanFolder(root / FOLDER / "val", Geometry(224, "crop", 256))
    is_3d = layout == "imagenet_3dcc"
    folder = root / ("ImageNet-3DCC" if is_3d else "ImageNet-C")
    _make(clean, folder, "folders", workers, report, STAND_INS if is_3d else None)
    return [folder, root / FOLDER]


def _uncorrupted(layout: str, root: Path, count: int) -> list[Path]:
    test, train = embedded("test", count), embedded("source", TRAINING)
    if layout == "domainnet126":  # a domain is the source
        return write_listed(layout, root, test, train)
    if layout == "imagenet_d109":
        classes = tuple(synsets()[D109[label]] for _, label in LISTED[layout][3])
        write_train(root, train, classes)
        return [*write_listed(layout, root, test), root / FOLDER]
    classes = SHARED if VARIANTS.get(layout, ("", ()))[1] is SHARED else SYNSETS
    folder = write_ccc(root, test) if layout == "ccc" else write_variant(layout, root, test)
    write_train(root, train, classes)
    return [folder, root / FOLDER]
