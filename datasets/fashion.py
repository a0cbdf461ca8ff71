"""fashion_c: Fashion-MNIST with the corruptions of Hendrycks and Dietterich, all in the package.

2,000 test images (the first 200 per class of the test set) and 1,000 source images (100 per class
of the training set), grey 28x28, zero-padded to 32x32. The hold-out corruptions show 2,000 other
test images (the next 200 per class), so that nothing is tuned on a scored photograph. Corruptions
have the CIFAR parameters, are deterministic per image, and are made once and cached. Images:
Zalando SE, MIT licence.
"""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ctta_bench.datasets.io.idx import read_split
from ctta_bench.datasets.making.cache import CorruptedCache
from ctta_bench.datasets.making.corruptions import CORRUPTIONS, HOLD_OUT, VERSION
from ctta_bench.errors import DataError, expanded
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import (
    CLEAN,
    ArrayImages,
    Benchmark,
    CorruptionSettings,
    ImageOrder,
    ImageSet,
)

Labelled = tuple[np.ndarray, np.ndarray]
EMBEDDED = Path(__file__).parent / "embedded"
SIDE = 32
DEBIAN_PACKAGE = Path("/usr/share/datasets/fashion-mnist")


class FashionSettings(CorruptionSettings):
    """Settings of fashion_c: by default batches of 50, shuffled by the seed."""

    batch_size: int = Field(50, ge=1, description="images per batch")
    order: ImageOrder = Field("shuffled", description="order within a domain")
    parameters: Literal["cifar", "imagenet"] = Field(
        "cifar",
        description="table of the corruptions' parameters; imagenet's are far stronger here",
    )


class CorruptedImages:
    """One corruption at one severity, read from the cache."""

    def __init__(self, cache: CorruptedCache, name: str, severity: int, labels: np.ndarray) -> None:
        self.cache, self.name, self.severity, self.labels = cache, name, severity, labels

    def fingerprint(self, count: int) -> dict[str, str]:
        """The version of the clean images and corruptions; the cache need not be made."""
        return {"contents": self.cache.folder.name}

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, 32, 32]."""
        return torch.from_numpy(self.cache.load(self.name, self.severity, index))


@BENCHMARKS.register_module("fashion_c")
class FashionC(Benchmark):
    """Fashion-MNIST-C, embedded: 15 corruptions and 4 for hold-out, 2,000 images each, 32 px."""

    Settings = FashionSettings
    name = "fashion_c"
    display_name = "Fashion-C"
    year = 2017
    citation = "xiao2017fashion"
    domain_display_names = "imagenet_c"
    published = False
    num_classes = 10
    default_model = "fashion_vit"
    semantic_shift: ClassVar = {"benchmark": "fashion_rotation", "labels": 4}
    severities = (1, 2, 3, 4, 5)
    separate_hold_out = True
    version = VERSION
    provenance = f"self-made corruptions (version {VERSION})"

    def domain_names(self) -> tuple[str, ...]:
        """The 15 corruptions in their usual order."""
        return CORRUPTIONS

    def extra_domains(self) -> tuple[str, ...]:
        """The four hold-out corruptions, and the clean images."""
        return (*HOLD_OUT, CLEAN)

    def prepare_data(self, report: Callable[[str, int, int], None], workers: int) -> None:
        """Make the corrupted images that the stream needs and that are not in the cache."""
        make_corrupted(self, self._cache, report, workers)

    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """The test or hold-out images with one corruption, in stored order."""
        images, labels = read(split_of(name))
        if name == CLEAN:
            return ArrayImages(images, labels)
        cache = self._cache(split_of(name))
        return CorruptedImages(cache, name, severity or self.settings.severity, labels)

    def source(self) -> ImageSet:
        """1,000 labelled training images."""
        return ArrayImages(*read("source"))

    def training_sets(self, folder: Path | None) -> tuple[ImageSet, ImageSet]:
        """All 60,000 training and 10,000 test images, from the idx files of `folder`.

        By default they are searched in DATA_ROOT/fashion-mnist and in the folder of Debian's
        package dataset-fashion-mnist.
        """
        train, test = training_photographs(self.name, folder, self.cache_folder())
        return ArrayImages(padded(train[0]), train[1]), ArrayImages(padded(test[0]), test[1])

    def _cache(self, split: str) -> CorruptedCache:
        parameters = self.settings.parameters
        return CorruptedCache(stored_file(split), self.cache_folder(), SIDE, parameters)


def make_corrupted(
    benchmark: Benchmark,
    cache_of: Callable[[str], CorruptedCache],
    report: Callable[[str, int, int], None],
    workers: int,
) -> None:
    """Make the corrupted images that a stream needs, if the cache of their split lacks them."""
    wanted = [(name, severity) for name, severity in benchmark.needed() if name != CLEAN]
    for split in ("test", "holdout"):
        cache_of(split).make(
            [(name, severity) for name, severity in wanted if split_of(name) == split],
            min(benchmark.settings.examples or 2000, 2000),
            workers=workers,
            report=lambda done, total: report("corrupting images", done, total),
        )


def split_of(domain: str) -> str:
    """The split that a domain shows: "holdout" for the hold-out corruptions, else "test"."""
    return "holdout" if domain in HOLD_OUT else "test"


def stored_file(split: str) -> Path:
    """The file of the split "test", "holdout" or "source": grey images uint8 [n, 28, 28]."""
    return EMBEDDED / f"fashion_{split}.npz"


def photographs(split: str) -> Labelled:
    """Grey images uint8 [n, 28, 28] and labels int64 [n] of a split of the package."""
    with np.load(stored_file(split), allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"].astype(np.int64)


def read(split: str) -> Labelled:
    """Grey images uint8 [n, 32, 32] with a black border and labels int64 [n] of a split."""
    images, labels = photographs(split)
    return padded(images), labels


def training_photographs(name: str, folder: Path | None, root: Path) -> tuple[Labelled, Labelled]:
    """All 60,000 training and 10,000 test images, uint8 [n, 28, 28], and their labels.

    By default they are searched in ROOT/fashion-mnist and in the folder of Debian's package
    dataset-fashion-mnist. Raises DataError, which begins with `name`, if they are missing.
    """
    places = [expanded(folder)] if folder else [root / "fashion-mnist", DEBIAN_PACKAGE]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise DataError(
            f"{name}: no folder {places[0]} with Fashion-MNIST's four idx files; give it "
            "with --train-data FOLDER (torchvision's FashionMNIST/raw works)."
        )
    return read_split(found, "train"), read_split(found, "test")


def padded(images: np.ndarray) -> np.ndarray:
    """Images [n, 28, 28] with a black border: [n, 32, 32]."""
    return np.pad(images, ((0, 0), (2, 2), (2, 2)))
