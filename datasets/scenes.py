"""scenes_c: garments in front of coloured grounds, with Hendrycks and Dietterich's corruptions.

All in the package: the photographs of Fashion-MNIST (Zalando SE, MIT licence), tinted, before
procedural grounds (`making/scenes.py`), 32 x 32 in colour. The fifteen test corruptions show 2,000
test photographs; the four hold-out corruptions show 2,000 other ones, so that nothing is tuned on a
photograph that a table scores. The 1,000 source photographs are training images. Corruptions have
parameters of their own (`mixed` in `making/strengths.py`: CIFAR's hardly hurt here), are
deterministic per image, and are made once and cached.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ctta_bench.datasets import fashion
from ctta_bench.datasets.fashion_rotation import TURNS, RotationSettings, turned
from ctta_bench.datasets.making import corruptions, scenes
from ctta_bench.datasets.making.cache import CorruptedCache
from ctta_bench.datasets.making.corruptions import CORRUPTIONS, HOLD_OUT
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import (
    CLEAN,
    ArrayImages,
    Benchmark,
    CorruptionSettings,
    ImageOrder,
    ImageSet,
)

# Scenes per training photograph, each with another ground, tint and place.
TRAINING_SCENES = 4
PARAMETERS = "mixed"  # table of the corruptions' strengths


class ScenesSettings(CorruptionSettings):
    """Settings of scenes_c: by default batches of 50, shuffled by the seed."""

    batch_size: int = Field(50, ge=1, description="images per batch")
    order: ImageOrder = Field("shuffled", description="order within a domain")


@dataclass(frozen=True)
class TrainingScenes:
    """Scenes of the training photographs, drawn when they are loaded."""

    photographs: np.ndarray
    classes: np.ndarray

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """int64 [n], TRAINING_SCENES times those of the photographs."""
        return np.tile(self.classes, TRAINING_SCENES)

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, 32, 32]."""
        chosen = self.photographs[index % len(self.photographs)]
        return torch.from_numpy(channels_first(scenes.render(chosen, index, "train")))


@BENCHMARKS.register_module("scenes_c")
class ScenesC(Benchmark):
    """Scenes-C, embedded: 15 corruptions and 4 for hold-out, 2,000 images each, 32 px, colour."""

    Settings = ScenesSettings
    name = "scenes_c"
    display_name = "Scenes-C"
    year = 2017
    citation = "xiao2017fashion"
    domain_display_names = "imagenet_c"
    published = False
    num_classes = 10
    default_model = "scenes_vit"
    semantic_shift: ClassVar = {"benchmark": "scenes_rotation", "labels": 4}
    severities = (1, 2, 3, 4, 5)
    separate_hold_out = True
    version = 100 * scenes.VERSION + corruptions.VERSION
    provenance = f"self-made scenes and corruptions (version {version})"

    def domain_names(self) -> tuple[str, ...]:
        """The 15 corruptions in their usual order."""
        return CORRUPTIONS

    def extra_domains(self) -> tuple[str, ...]:
        """The four hold-out corruptions, and the clean images."""
        return (*HOLD_OUT, CLEAN)

    def prepare_data(self, report: Callable[[str, int, int], None], workers: int) -> None:
        """Make the corrupted images that the stream needs and that are not in the cache."""
        fashion.make_corrupted(self, self._cache, report, workers)

    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """The test or hold-out scenes with one corruption, in stored order."""
        split = fashion.split_of(name)
        if name == CLEAN:
            return clean(split)
        labels = fashion.photographs(split)[1]
        severity = severity or self.settings.severity
        return fashion.CorruptedImages(self._cache(split), name, severity, labels)

    def source(self) -> ImageSet:
        """1,000 labelled scenes of training photographs."""
        return clean("source")

    def held_out_source(self) -> ImageSet:
        """2,000 scenes of the hold-out photographs."""
        return clean("holdout")

    def training_sets(self, folder: Path | None) -> tuple[ImageSet, ImageSet]:
        """240,000 scenes of the 60,000 training photographs, and those of the hold-out ones.

        The photographs are in the idx files of `folder`, as for fashion_c.
        """
        train, _ = fashion.training_photographs(self.name, folder, self.cache_folder())
        return TrainingScenes(*train), clean("holdout")

    def _cache(self, split: str) -> CorruptedCache:
        return CorruptedCache(
            fashion.stored_file(split),
            self.cache_folder(),
            scenes.SIDE,
            parameters=PARAMETERS,
            draw=functools.partial(scenes.render, split=split),
            drawn=f"scenes{scenes.VERSION}",
        )


@BENCHMARKS.register_module("scenes_rotation")
class ScenesRotation(Benchmark):
    """Quarter turns of the scenes, embedded: another label set, only for fine-tuning.

    As in fashion_rotation, the label is exactly independent of the ten classes.
    """

    Settings = RotationSettings
    name = "scenes_rotation"
    display_name = "Scenes rotation"
    year = 2017
    citation = "xiao2017fashion"
    domain_display_names = {"rotation": "Rotation"}
    num_classes = TURNS
    default_model = "scenes_vit"
    different_label_set = True

    def domain_names(self) -> tuple[str, ...]:
        """The one domain."""
        return ("rotation",)

    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """8,000 test images: 2,000 at four turns each."""
        return turned(clean("test"))

    def source(self) -> ImageSet:
        """4,000 training images: 1,000 at four turns each, labelled by the turn."""
        return turned(clean("source"))


@functools.cache
def clean(split: str) -> ArrayImages:
    """The scenes of the photographs of a split, "test", "holdout" or "source"."""
    images, labels = fashion.photographs(split)
    drawn = scenes.render(images, np.arange(len(images)), split)
    return ArrayImages(channels_first(drawn), labels)


def channels_first(images: np.ndarray) -> np.ndarray:
    """[n, h, w, 3] as [n, 3, h, w]."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
