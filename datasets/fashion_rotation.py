"""fashion_rotation: the embedded images with another label set, their rotation.

Every image is shown at 0, 90, 180 and 270 degrees and labelled by its quarter turns, so the label
is exactly independent of the ten classes (the task of Gidaris et al. 2018, arXiv:1803.07728). A
model of the ten classes was not trained for it: fine-tuning on it is a semantic shift, as
fine-tuning on CIFAR-100 is for a model of ImageNet.
"""

import numpy as np
from pydantic import Field

from ctta_bench.datasets.fashion import read
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import ArrayImages, Benchmark, ImageOrder, ImageSet, StreamSettings

TURNS = 4


class RotationSettings(StreamSettings):
    """Settings of fashion_rotation."""

    batch_size: int = Field(50, ge=1, description="images per batch")
    order: ImageOrder = Field("shuffled", description="order within the domain")


@BENCHMARKS.register_module("fashion_rotation")
class FashionRotation(Benchmark):
    """Quarter turns of Fashion-MNIST, embedded: another label set, only for fine-tuning."""

    Settings = RotationSettings
    name = "fashion_rotation"
    display_name = "Fashion rotation"
    year = 2017
    citation = "xiao2017fashion"
    domain_display_names = {"rotation": "Rotation"}
    num_classes = TURNS
    default_model = "fashion_vit"
    different_label_set = True

    def domain_names(self) -> tuple[str, ...]:
        """The one domain."""
        return ("rotation",)

    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """8,000 test images: 2,000 at four turns each."""
        return turned(ArrayImages(*read("test")))

    def source(self) -> ImageSet:
        """4,000 training images: 1,000 at four turns each, labelled by the turn."""
        return turned(ArrayImages(*read("source")))


def turned(upright: ArrayImages) -> ArrayImages:
    """Image i at turn t is number 4 i + t with label t, so the first images are balanced."""
    images = upright.images
    views = np.stack([np.rot90(images, turn, axes=(-2, -1)) for turn in range(TURNS)], axis=1)
    labels = np.tile(np.arange(TURNS, dtype=np.int64), len(images))
    return ArrayImages(views.reshape(-1, *images.shape[1:]), labels)
