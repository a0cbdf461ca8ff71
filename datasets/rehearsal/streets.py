"""The rehearsal of cityscapes_acdc: scenes of streets_acdc in the folders of the published sets.

Names, formats and encodings are those of ACDC and Cityscapes as unpacked; images have a fourth of
their sides, or the full size.
"""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from ctta_bench.datasets.io.street_classes import IGNORE, LABEL_IDS
from ctta_bench.datasets.rehearsal.photos import mark_as_rehearsal, put, record_files
from ctta_bench.datasets.streets.scene import make_scene
from ctta_bench.datasets.streets.weather import WEATHER

LAYOUT = "cityscapes_acdc"
ACDC_SIZE, CITYSCAPES_SIZE = (480, 270), (512, 256)  # width, height
FULL = 4  # times these sides are the published ones
SEQUENCES = ("GOPR0475", "GP010475")
CITIES = {"train": ("aachen", "zurich"), "val": ("munster",)}
TRAINING, VALIDATION = 8, 4  # images of Cityscapes
FULL_TRAINING, FULL_VALIDATION = 2, 1  # of full size, for which SegFormer-B5 takes long on a CPU
# First number of a scene's seed; those of streets_acdc itself are smaller.
_SEEDS = {"train": 11, "train_ref": 12, "val": 13, "cityscapes": 14}

File = tuple[str, bytes]  # relative path and content


def write_streets(
    root: Path,
    images: int,
    report: Callable[[int, int], None] | None = None,
    *,
    full_size: bool = False,
) -> list[Path]:
    """Write both data sets under `root`: `images` per condition, and a fourth of that for `val`.

    full_size: images of 1920 x 1080 and 2048 x 1024 pixels, as published. Raises DataError if other
    data are in the way.
    """
    times = FULL if full_size else 1
    source = (FULL_TRAINING, FULL_VALIDATION) if full_size else (TRAINING, VALIDATION)
    folders = [root / name for name in ("rgb_anon", "gt", "leftImg8bit", "gtFine")]
    for folder in folders:
        mark_as_rehearsal(folder)
    counts = {"train": images, "train_ref": -(-images // 4), "val": -(-images // 4)}
    total = len(WEATHER) * sum(counts.values()) + sum(source)
    for done, files in enumerate(_everything(counts, source, times), 1):
        for name, content in files:
            put(root / name, content)
        if report is not None:
            report(done, total)
    for folder in folders:
        record_files(folder, sorted(p.name for p in folder.iterdir() if p.is_dir()))
    return folders


def _everything(
    counts: dict[str, int], source: tuple[int, int], times: int
) -> Iterator[list[File]]:
    """The files of each scene; source: the training and validation images of Cityscapes."""
    for position, condition in enumerate(WEATHER):
        for split, count in counts.items():
            for number in range(count):
                yield _acdc(condition, split, number, (_SEEDS[split], position, number), times)
    for position, (split, count) in enumerate(zip(("train", "val"), source, strict=True)):
        for number in range(count):
            yield _cityscapes(split, number, (_SEEDS["cityscapes"], position, number), times)


def _acdc(condition: str, split: str, number: int, seed: tuple[int, ...], times: int) -> list[File]:
    scene = make_scene(seed)
    ref = "_ref" if split.endswith("_ref") else ""
    image = scene.image if ref else WEATHER[condition](scene, np.random.default_rng((*seed, 1)))
    sequence = SEQUENCES[number % len(SEQUENCES)]
    place = f"{condition}/{split}/{sequence}/{sequence}_frame_{number + 1:06d}"
    width, height = (times * side for side in ACDC_SIZE)
    label = _labels(scene.label, (width, height))
    return [
        (f"rgb_anon/{place}_rgb{ref}_anon.png", _png(_image(image, (width, height)))),
        (f"gt/{place}_gt{ref}_labelTrainIds.png", _png(label)),
        (f"gt/{place}_gt{ref}_labelIds.png", _png(_raw_ids(label))),
    ]


def _cityscapes(split: str, number: int, seed: tuple[int, ...], times: int) -> list[File]:
    """As downloaded: raw ids only; train ids are made by cityscapesScripts."""
    scene = make_scene(seed)
    cities = CITIES[split]
    city = cities[number % len(cities)]
    place = f"{split}/{city}/{city}_{number:06d}_000019"
    width, height = (times * side for side in CITYSCAPES_SIZE)
    label = _raw_ids(_labels(scene.label, (width, height)))
    return [
        (f"leftImg8bit/{place}_leftImg8bit.png", _png(_image(scene.image, (width, height)))),
        (f"gtFine/{place}_gtFine_labelIds.png", _png(label)),
    ]


def _image(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)


def _labels(label: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return cv2.resize(label, size, interpolation=cv2.INTER_NEAREST)


def _raw_ids(label: np.ndarray) -> np.ndarray:
    """Cityscapes' raw ids for train ids; ignored pixels become 0, `unlabeled`."""
    table = np.zeros(256, np.uint8)
    table[: len(LABEL_IDS)] = LABEL_IDS
    table[IGNORE] = 0
    return table[label]


def _png(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "PNG")
    return stream.getvalue()
