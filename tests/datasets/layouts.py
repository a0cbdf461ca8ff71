"""Tiny data in the true layouts, and pictures whose colour spells a class number."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ctta_bench.datasets.io.imagenet import synsets
from ctta_bench.registry import load_plugin

SIDE = 8


def load_class_reader() -> None:
    load_plugin(str(Path(__file__).with_name("class_reader.py")))


def colour(number: int) -> tuple[int, int, int]:
    """The digits of a class number as shares of 25."""
    return 25 * (number // 100), 25 * (number // 10 % 10), 25 * (number % 10)


def picture(file: Path, number: int, size: tuple[int, int] = (SIDE, SIDE)) -> Path:
    """Lossless, whatever the suffix: readers go by content."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream:
        Image.new("RGB", size, colour(number)).save(stream, "PNG")
    return file


def synset_tree(folder: Path, classes: dict[int, list[str]], **options: Any) -> Path:
    """FOLDER/SYNSET/FILE for class numbers and their files."""
    for number, files in classes.items():
        for file in files:
            picture(folder / synsets()[number] / file, number, **options)
    return folder


def val(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def cifar_c(folder: Path, n: int, names: tuple[str, ...], num_classes: int = 10) -> Path:
    """CIFAR-10-C with n images a severity: every pixel of image i at severity s is 20 s + i."""
    folder.mkdir(parents=True)
    values = (20 * np.arange(1, 6)[:, None] + np.arange(n)).reshape(-1).astype(np.uint8)
    images = np.broadcast_to(values[:, None, None, None], (5 * n, 32, 32, 3))
    for name in names:
        np.save(folder / f"{name}.npy", images)
    np.save(folder / "labels.npy", np.tile(np.arange(n) % num_classes, 5).astype(np.uint8))
    return folder


def cifar_batch(file: Path, n: int, first: int, key: str = "labels", protocol: int = 2) -> Path:
    """A file of CIFAR's python version: image i is grey `first` + i."""
    file.parent.mkdir(parents=True, exist_ok=True)
    values = (first + np.arange(n)).astype(np.uint8)
    content = {
        b"data": np.repeat(values[:, None], 3072, 1),
        key.encode(): [int(v) % 10 for v in values],
        b"batch_label": b"a batch",
    }
    file.write_bytes(pickle.dumps(content, protocol=protocol))
    return file
