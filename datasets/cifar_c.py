"""CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, 2019): the .npy files of Zenodo.

Layout: ROOT/CIFAR-10-C/CORRUPTION.npy, uint8 [5 n, 32, 32, 3], severity s in rows (s - 1) n to s n,
and labels.npy, [5 n]; n is 10,000 as published. Files are memory-mapped, never read as a whole.
A file of one severity alone, [n, 32, 32, 3], is read if the request names the severity.
Clean images: ROOT/cifar-10-batches-py or ROOT/cifar-100-python; the training set is the source set.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ctta_bench.datasets.io.python_batches import read_batches
from ctta_bench.datasets.io.roots import data_root, how_to_get, provenance
from ctta_bench.datasets.making.corruptions import CORRUPTIONS, HOLD_OUT
from ctta_bench.errors import DataError, expanded
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import (
    CLEAN,
    ArrayImages,
    Benchmark,
    CorruptionSettings,
    ImageSet,
    StreamSettings,
)

SEVERITIES = (1, 2, 3, 4, 5)
SIDE = 32
TEST_IMAGES = 10_000  # of CIFAR-10 and of CIFAR-100


@dataclass(frozen=True)
class SeverityRows:
    """The images of one severity: the rows of a file from `first` on; workers get only its path."""

    file: Path
    first: int
    labels: np.ndarray

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, 32, 32]."""
        rows = mapped(self.file)[self.first + np.asarray(index)]
        return torch.from_numpy(np.ascontiguousarray(rows.transpose(0, 3, 1, 2)))


@functools.lru_cache(maxsize=64)
def mapped(file: Path) -> np.ndarray:
    """An array as a memory map. Raises DataError if it is damaged or holds Python objects."""
    try:
        array: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"no file {file}.") from None
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{file}: is not a complete .npy array ({reason}); download or extract it again."
        ) from None
    return array


class CifarC(Benchmark):
    """Base of both benchmarks."""

    Settings = CorruptionSettings
    severities = SEVERITIES
    folder = ""
    clean_folder = ""
    label_key = ""
    splits: Mapping[str, tuple[str, ...]] = {}  # files of the clean set

    def __init__(self, settings: StreamSettings | None = None, root: Path | None = None) -> None:
        super().__init__(settings, root)
        self._alone: set[str] = set()  # files of one severity alone

    @property
    def home(self) -> Path:
        """ROOT/`folder`."""
        return data_root(self.root) / self.folder

    @property
    def provenance(self) -> str | None:  # type: ignore[override] # elsewhere a constant
        """The footnote of self-made images and of files of one severity; None without them."""
        alone = None
        if self._alone:
            files = ", ".join(sorted(self._alone))
            alone = (
                f"files of one severity alone, read as severity {self.settings.severity}: {files}"
            )
        return "; ".join(filter(None, [provenance(self.home), alone])) or None

    def domain_names(self) -> tuple[str, ...]:
        """The 15 corruptions in their usual order."""
        return CORRUPTIONS

    def extra_domains(self) -> tuple[str, ...]:
        """The four hold-out corruptions, and the clean test images."""
        return (*HOLD_OUT, CLEAN)

    def unknown_folders(self) -> list[str]:
        """Files that are not of a corruption."""
        known = {*CORRUPTIONS, *HOLD_OUT, "labels"}
        return sorted(p.name for p in self.home.glob("*.npy") if p.stem not in known)

    def problems(self) -> list[str]:
        """Files needed by the stream that are missing or have a wrong shape."""
        if not self.home.is_dir() and any(name != CLEAN for name, _ in self.needed()):
            return [
                f"no folder {self.home}; expected are CORRUPTION.npy and labels.npy in it. "
                + how_to_get(self.name, data_root(self.root))
            ]
        found = []
        for name, severity in self.needed():
            try:
                self.domain(name, severity)
            except DataError as error:
                found.append(str(error))
        return list(dict.fromkeys(found))

    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """The test images with one corruption, in the order of the file."""
        if name == CLEAN:
            return self._clean("test")
        labels = self._labels()
        count, severity = len(labels), severity or self.settings.severity
        file = self.home / f"{name}.npy"
        if not file.is_file():
            raise DataError(
                f"no file {file}, expected {count:,} x 5 images (uint8); "
                + how_to_get(self.name, data_root(self.root))
            )
        array, shape = mapped(file), [SIDE, SIDE, 3]
        rows = len(array) if array.ndim else 0
        is_alone = rows == count
        if array.dtype != np.uint8 or [*array.shape[1:]] != shape or rows not in (count, 5 * count):
            raise DataError(
                f"{file}: holds {array.dtype} {list(array.shape)}, expected uint8 "
                f"{[5 * count, *shape]} of five severities or {[count, *shape]} of one, since "
                f"labels.npy is of {count:,} images; {how_to_get(self.name, data_root(self.root))}"
            )
        if is_alone:
            self._check_alone(file, count, severity)
        return SeverityRows(file, 0 if is_alone else (severity - 1) * count, labels)

    def _check_alone(self, file: Path, count: int, severity: int) -> None:
        """Raise DataError unless the request names the severity of a file of one severity."""
        if "severity" not in self.settings.model_fields_set:
            raise DataError(
                f"{file}: holds the {count:,} images of one severity alone, and nothing says of "
                "which: name it with --set severity=N, or get the file of five severities."
            )
        if severity != self.settings.severity:
            raise DataError(
                f"{file}: holds the {count:,} images of one severity alone, read as severity "
                f"{self.settings.severity}, but the stream needs severity {severity}, too; choose "
                "another setting, or get the file of five severities."
            )
        self._alone.add(file.name)

    def source(self) -> ImageSet | None:
        """The training images, if the folder of the clean set exists."""
        return self._clean("train") if (data_root(self.root) / self.clean_folder).is_dir() else None

    def training_sets(self, folder: Path | None) -> tuple[ImageSet, ImageSet]:
        """All clean training and test images, from `folder` or the data root."""
        place = expanded(folder or data_root(self.root) / self.clean_folder)
        if not place.is_dir():
            raise DataError(
                f"no folder {place}; expected are {', '.join(self.splits['train'])} in it (CIFAR's "
                "python version); give another folder with --train-data FOLDER."
            )
        return self._clean("train", place), self._clean("test", place)

    def source_location(self) -> str:
        """ROOT/`clean_folder`."""
        return f"{data_root(self.root) / self.clean_folder} (CIFAR's python version)"

    def _clean(self, split: str, folder: Path | None = None) -> ImageSet:
        folder = folder or data_root(self.root) / self.clean_folder
        files = tuple(folder / name for name in self.splits[split])
        images, labels = read_batches(files, self.label_key)
        return ArrayImages(images, in_range(labels, self.num_classes, folder))

    def _labels(self) -> np.ndarray:
        """The labels of one severity, int64 [n]: those of all five severities must be equal."""
        file = self.home / "labels.npy"
        labels = mapped(file)
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
            raise DataError(
                f"{file}: holds {labels.dtype} {list(labels.shape)}, expected integers, one row "
                "per image and severity."
            )
        labels = in_range(labels, self.num_classes, file)
        first = labels[: len(labels) // 5]
        if np.array_equal(labels, np.tile(first, 5)):
            return first
        if len(labels) == TEST_IMAGES:
            return labels
        raise DataError(
            f"{file}: holds {len(labels):,} rows, expected integers, one row per image and "
            f"severity: five equal blocks, or the {TEST_IMAGES:,} labels of one severity; "
            + how_to_get(self.name, data_root(self.root))
        )


def in_range(labels: np.ndarray, num_classes: int, file: Path) -> np.ndarray:
    """Labels as int64. Raises DataError if one is not a class number."""
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise DataError(
            f"{file}: label {int(labels[wrong[0]])} in row {wrong[0]} is not one of the "
            f"{num_classes} classes; is this the file of another set?"
        )
    return labels.astype(np.int64)


@BENCHMARKS.register_module("cifar10_c")
class Cifar10C(CifarC):
    """CIFAR-10-C: 15 corruptions and 4 for hold-out, at 5 severities, 10,000 images each."""

    name = "cifar10_c"
    display_name = "CIFAR-10-C"
    year = 2019
    citation = "hendrycks2019corruptions"
    domain_display_names = "imagenet_c"
    default_model = "cifar10_vit_base"
    folder = "CIFAR-10-C"
    num_classes = 10
    clean_folder = "cifar-10-batches-py"
    label_key = "labels"
    semantic_shift: ClassVar = {"benchmark": "cifar100_c", "labels": 100, "domains": ["clean"]}
    splits = {"train": tuple(f"data_batch_{n}" for n in range(1, 6)), "test": ("test_batch",)}


@BENCHMARKS.register_module("cifar100_c")
class Cifar100C(CifarC):
    """CIFAR-100-C: 15 corruptions and 4 for hold-out, at 5 severities, 10,000 images each."""

    name = "cifar100_c"
    display_name = "CIFAR-100-C"
    year = 2019
    citation = "hendrycks2019corruptions"
    domain_display_names = "imagenet_c"
    default_model = "cifar100_vit_base"
    folder = "CIFAR-100-C"
    num_classes = 100
    clean_folder = "cifar-100-python"
    label_key = "fine_labels"
    semantic_shift: ClassVar = {"benchmark": "cifar10_c", "labels": 10, "domains": ["clean"]}
    splits = {"train": ("train",), "test": ("test",)}
