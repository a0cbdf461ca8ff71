"""fashion_c: Fashion-MNIST with the corruptions of Hendrycks and Dietterich, all in the package.

2,000 test images (the first 200 per class of the test set) and 1,000 source images (100 per class
of the training set), grey 28x28, zero-padded to 32x32. Corruptions have the CIFAR parameters, are
deterministic per image, and are made once and cached. Images: Zalando SE, MIT licence.
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
        wanted = [(name, severity) for name, severity in self.needed() if name != CLEAN]
        count = min(self.settings.examples or 2000, 2000)
        self._cache().make(
            wanted,
            count,
            workers=workers,
            report=lambda done, total: report("corrupting images", done, total),
        )

    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """The test images with one corruption, in stored order."""
        images, labels = read("test")
        if name == CLEAN:
            return ArrayImages(images, labels)
        return CorruptedImages(self._cache(), name, severity or self.settings.severity, labels)

    def source(self) -> ImageSet:
        """1,000 labelled training images."""
        return ArrayImages(*read("source"))

    def training_sets(self, folder: Path | None) -> tuple[ImageSet, ImageSet]:
        """All 60,000 training and 10,000 test images, from the idx files of `folder`.

        By default they are searched in DATA_ROOT/fashion-mnist and in the folder of Debian's
        package dataset-fashion-mnist.
        """
        places = (
            [expanded(folder)]
            if folder
            else [self.cache_folder() / "fashion-mnist", DEBIAN_PACKAGE]
        )
        found = next((place for place in places if place.is_dir()), None)
        if found is None:
            raise DataError(
                f"{self.name}: no folder {places[0]} with Fashion-MNIST's four idx files; give it "
                "with --train-data FOLDER (torchvision's FashionMNIST/raw works)."
            )
        train, test = (read_split(found, split) for split in ("train", "test"))
        return ArrayImages(padded(train[0]), train[1]), ArrayImages(padded(test[0]), test[1])

    def _cache(self) -> CorruptedCache:
        images, parameters = EMBEDDED / "fashion_test.npz", self.settings.parameters
        return CorruptedCache(images, self.cache_folder(), SIDE, parameters)


def read(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Grey images uint8 [n, 32, 32] and labels int64 [n] of the split "test" or "source"."""
    with np.load(EMBEDDED / f"fashion_{split}.npz", allow_pickle=False) as arrays:
        return padded(arrays["images"]), arrays["labels"].astype(np.int64)


def padded(images: np.ndarray) -> np.ndarray:
    """Images [n, 28, 28] with a black border: [n, 32, 32]."""
    return np.pad(images, ((0, 0), (2, 2), (2, 2)))
