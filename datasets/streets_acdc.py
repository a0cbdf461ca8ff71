"""streets_acdc: street scenes made on the fly, in the form of Cityscapes -> ACDC; no download.

The source domain is clear weather; the domains are ACDC's conditions in its order. Every image is a
different scene. It depends only on its domain and number, not on the seed of a run, on workers or
on earlier reads. Classes are Cityscapes' 19, of which train and motorcycle never occur.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from ctta_bench.datasets.io.street_classes import CLASSES
from ctta_bench.datasets.streets.scene import Scene, make_scene
from ctta_bench.datasets.streets.weather import HELD_OUT, WEATHER
from ctta_bench.errors import DataError
from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import CLEAN, Benchmark, ImageSet, SegmentationSettings

# First number of a scene's seed: no two sets share a scene.
SETS = {"train": 1, CLEAN: 2, "fog": 3, "night": 4, "rain": 5, "snow": 6, "dusk": 7, "dust": 8}
SCALE = (128, 256)  # height and width of images; label maps are twice as large
IMAGES = 400  # per domain, as in ACDC's training split
CLEAN_IMAGES, SOURCE_IMAGES, TRAINING_IMAGES = 200, 500, 3000


class StreetsSettings(SegmentationSettings):
    """Settings of streets_acdc: by default a fourth of the images."""

    examples: int | None = Field(
        100, ge=1, le=IMAGES, description="images per domain, the first ones; null: all 400"
    )


class Streets:
    """The first `count` scenes of a set in its weather; label maps have twice the images' size."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count

    @property
    def labels(self) -> np.ndarray:
        """Zeros int64 [n]: an image has no single class."""
        return np.zeros(self.count, np.int64)

    def fingerprint(self, count: int) -> dict[str, str]:
        """Nothing: the version of generated scenes is in the identity of a cell."""
        return {}

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, 128, 256]."""
        images = [self._image(number, scene) for number, scene in self._scenes(index)]
        return torch.from_numpy(np.stack(images)).movedim(-1, 1).contiguous()

    def maps(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 256, 512]."""
        return torch.from_numpy(np.stack([scene.label for _, scene in self._scenes(index)]))

    def _scenes(self, index: np.ndarray) -> list[tuple[int, Scene]]:
        return [(number, scene_of(self.name, number)) for number in np.asarray(index).tolist()]

    def _image(self, number: int, scene: Scene) -> NDArray[np.uint8]:
        weather = (WEATHER | HELD_OUT).get(self.name)
        if weather is None:
            return scene.image
        return weather(scene, np.random.default_rng((SETS[self.name], number, 1)))


class CachedStreets(Streets):
    """Scenes that are made once and cached (0.13 MB each); label maps have the images' size.

    For training, which reads them in every epoch.
    """

    def __init__(self, name: str, count: int) -> None:
        super().__init__(name, count)
        self.cached: dict[int, tuple[NDArray[np.uint8], NDArray[np.uint8]]] = {}

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, 128, 256]."""
        images = [self._pair(number)[0] for number in np.asarray(index).tolist()]
        return torch.from_numpy(np.stack(images)).movedim(-1, 1).contiguous()

    def maps(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 128, 256]."""
        return torch.from_numpy(np.stack([self._pair(n)[1] for n in np.asarray(index).tolist()]))

    def _pair(self, number: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        if number not in self.cached:
            scene = make_scene((SETS[self.name], number))
            self.cached[number] = (self._image(number, scene), scene.small)
        return self.cached[number]


_latest: dict[tuple[str, int], Scene] = {}
LATEST = 64  # cached scenes, since an image and its labels are read one after the other


def scene_of(name: str, number: int) -> Scene:
    """Scene `number` of a set; the latest scenes are cached for images and label maps."""
    key = (name, number)
    found = _latest.get(key)
    if found is None:
        found = make_scene((SETS[name], number))
        if len(_latest) >= LATEST:
            _latest.pop(next(iter(_latest)))
        _latest[key] = found
    return found


@BENCHMARKS.register_module("streets_acdc")
class StreetsACDC(Benchmark):
    """Segmentation, embedded: generated streets in fog, night, rain, snow; 400 images each."""

    Settings = StreetsSettings
    name = "streets_acdc"
    display_name = "Streets-ACDC"
    domain_display_names = {
        "fog": "Fog", "night": "Night", "rain": "Rain", "snow": "Snow",
        "clean": "Clean", "dusk": "Dusk", "dust": "Dust",
    }  # fmt: skip
    published = False
    task = "segmentation"
    num_classes = len(CLASSES)
    class_names = CLASSES
    default_model = "streets_segformer"
    same_images = False
    separate_hold_out = True
    decodes = True
    provenance = f"procedural scenes and weather (version {Benchmark.version}), no photographs"

    def facts(self) -> dict[str, Any]:
        """The facts of a segmentation benchmark, and the size of all images."""
        return super().facts() | {"scale": list(SCALE)}

    def domain_names(self) -> tuple[str, ...]:
        """ACDC's conditions in its order."""
        return tuple(WEATHER)

    def extra_domains(self) -> tuple[str, ...]:
        """Clear weather, as in the source data, with other scenes; and the hold-out domains."""
        return (CLEAN, *HELD_OUT)

    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """400 scenes in one weather or light; 200 clean scenes."""
        return Streets(name, CLEAN_IMAGES if name == CLEAN else IMAGES)

    def source(self) -> ImageSet:
        """The first 500 of the scenes that the source model was trained on."""
        return Streets("train", SOURCE_IMAGES)

    def training_sets(self, folder: Path | None) -> tuple[ImageSet, ImageSet]:
        """3,000 clear scenes with labels of the images' size, and the clean scenes to test on."""
        if folder is not None:
            raise DataError(
                f"{self.name}: its scenes are generated, not read: leave out --train-data."
            )
        return CachedStreets("train", TRAINING_IMAGES), self.domain(CLEAN)
