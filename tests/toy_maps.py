"""A benchmark of label maps that runs in a second; a tiny segmentor's outputs define its labels.

So the source model is right on every clean pixel, and errors come from the domains alone. Labels
are twice as large as the images, a part of them is ignored. It is a plug-in like a user's.
"""

import functools

import numpy as np
import torch
from torch import nn
from torch.nn.functional import interpolate

from ctta_bench.registry import BENCHMARKS, MODELS
from ctta_bench.source_models.tiny import CLASSES, TinySegmentor, fixed, tiny_segmentor
from ctta_bench.stream import ArrayMaps, Benchmark, ImageSet, SegmentationSettings

IMAGES, SIDE = 7, 32
CFG = {"mean": (0.5,) * 3, "std": (0.5,) * 3}


@MODELS.register_module("toy_segmentor")
def toy_segmentor() -> nn.Module:
    """The tiny segmentor with a recorded normalisation."""
    network = tiny_segmentor()
    network.pretrained_cfg = CFG
    return network


@MODELS.register_module("toy_streets")
def toy_streets() -> nn.Module:
    """The same network for the 19 classes of streets, untrained."""
    network = fixed(lambda: TinySegmentor(19))
    network.pretrained_cfg = CFG
    return network


@MODELS.register_module("toy_segformer")
def toy_segformer() -> nn.Module:
    """A true SegFormer of narrow stages for the 19 classes of streets, untrained."""
    from ctta_bench.source_models.segformer import SegFormer, Size

    return fixed(lambda: SegFormer(Size(4, (1, 1, 1, 1), heads=(1, 1, 2, 2), decoder=8)))


def labelled(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Clean pictures uint8 [n, 3, 32, 48] and their maps uint8 [n, 64, 96], left edge ignored."""
    images, maps = _labelled(seed)
    return images.copy(), maps.copy()


@functools.cache  # every domain of every run asks for them
def _labelled(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(IMAGES, 3, 4, 6, generator=generator)
    images = (interpolate(coarse, size=(SIDE, 48), mode="bilinear") * 255).byte()
    with torch.no_grad():
        logits = toy_segmentor()((images.float() / 255 - 0.5) / 0.5)
        maps = interpolate(logits, size=(64, 96), mode="bilinear").argmax(1).byte()
    maps[:, :, :8] = 255
    return images.numpy(), maps.numpy()


@BENCHMARKS.register_module("toy_maps")
class ToyMaps(Benchmark):
    """Three domains of seven random pictures: clean, dark, noise."""

    Settings = SegmentationSettings
    name = "toy_maps"
    task = "segmentation"
    num_classes = CLASSES
    class_names = tuple("abcdefghij")
    default_model = "toy_segmentor"

    def domain_names(self) -> tuple[str, ...]:
        return ("clean", "dark", "noise")

    def extra_domains(self) -> tuple[str, ...]:
        return ("blank",)

    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        images, maps = labelled(1)
        noise = np.random.RandomState(3).randint(-60, 60, images.shape)
        changed = {
            "clean": images,
            "blank": images,
            "dark": (images * 0.4).astype(np.uint8),
            "noise": np.clip(images + noise, 0, 255).astype(np.uint8),
        }
        return ArrayMaps(changed[name], np.full_like(maps, 255) if name == "blank" else maps)

    def source(self) -> ImageSet:
        return ArrayMaps(*labelled(2))
