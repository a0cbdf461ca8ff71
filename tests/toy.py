"""A benchmark of a second: three domains of random pictures, labelled by the clean model itself.

So the source model is right on every clean image, and errors come from the domains alone. It is a
plug-in like a user's: tests load it by path, in this process and in others.
"""

import copy
import functools
from collections.abc import Callable

import numpy as np
import torch
from pydantic import Field
from torch import nn

from ctta_bench.registry import BENCHMARKS, MODELS
from ctta_bench.stream import ArrayImages, Benchmark, ImageSet, StreamSettings
from ctta_bench.testing import SIDE, tiny_vit

CLASSES, IMAGES = 10, 40


@MODELS.register_module("toy_vit")
def toy_vit() -> nn.Module:
    """ViT of width 24 and depth 4 with fixed random weights."""
    network = copy.deepcopy(_vit())  # faster than to build it again
    network.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "input_size": (3, SIDE, SIDE)}
    return network


_vit = functools.cache(tiny_vit)


@MODELS.register_module("toy_cnn")
def toy_cnn() -> nn.Module:
    """Two convolutions with BatchNorm, fixed random weights, statistics of random pictures."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        network = nn.Sequential(
            nn.Conv2d(3, 12, 3, 2, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, 2, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24 * 9, CLASSES),
        )
        network(pictures(64) * 2 - 1)  # training mode: sets the running statistics
    network.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    return network.eval()


def pictures(count: int, seed: int = 0) -> torch.Tensor:
    """Smooth random pictures, float [count, 3, SIDE, SIDE] in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 4, 4, generator=generator)
    return nn.functional.interpolate(coarse, size=SIDE, mode="bilinear")


def labelled(seed: int, labeller: str) -> tuple[np.ndarray, np.ndarray]:
    """Clean pictures uint8 and the labels that the model called `labeller` gives them."""
    images, labels = _labelled(seed, MODELS.get(labeller))
    return images.copy(), labels.copy()


@functools.cache  # every domain of every run asks for them
def _labelled(seed: int, network: Callable[[], nn.Module]) -> tuple[np.ndarray, np.ndarray]:
    images = (pictures(IMAGES, seed) * 255).byte()
    with torch.no_grad():
        labels = network().eval()((images.float() / 255 - 0.5) / 0.5).argmax(-1)
    return images.numpy(), labels.numpy()


class ToySettings(StreamSettings):
    """Settings of the toy benchmark."""

    batch_size: int = Field(8, ge=1)
    order: str = Field("shuffled", pattern="^(file|shuffled)$")
    labeller: str = "toy_vit"


@BENCHMARKS.register_module("toy")
class Toy(Benchmark):
    """Three domains of 40 random pictures: clean, dark, noise; and grey, which is held out."""

    Settings = ToySettings
    name = "toy"
    num_classes = CLASSES
    default_model = "toy_vit"

    def domain_names(self) -> tuple[str, ...]:
        return ("clean", "dark", "noise")

    def extra_domains(self) -> tuple[str, ...]:
        return ("grey",)

    def domain(self, name: str) -> ImageSet:
        images, labels = labelled(1, self.settings.labeller)
        noise = np.random.RandomState(3).randint(-60, 60, images.shape)
        changed = {
            "clean": images,
            "dark": (images * 0.4).astype(np.uint8),
            "grey": (images * 0.2 + 100).astype(np.uint8),
            "noise": np.clip(images + noise, 0, 255).astype(np.uint8),
        }
        return ArrayImages(changed[name], labels)

    def source(self) -> ImageSet:
        return ArrayImages(*labelled(2, self.settings.labeller))
