"""gratings: stripes in eight directions, made here; no licence and no download is needed."""

import numpy as np

from ctta_bench.registry import BENCHMARKS
from ctta_bench.stream import ArrayImages, Benchmark

SIDE, COUNT = 32, 160


@BENCHMARKS.register_module("gratings")
class Gratings(Benchmark):
    """Stripes in ten directions, bright and dark: an example of a benchmark in a package."""

    name = "gratings"
    display_name = "Gratings"
    num_classes = 10
    default_model = "fashion_vit"
    different_label_set = True  # fashion_vit was trained on garments

    def domain_names(self):
        """The domains in the order of the stream."""
        return ("bright", "dark")

    def domain(self, name, severity=None):
        """The same stripes in every domain, of another contrast."""
        images, labels = stripes(seed=1)
        return ArrayImages(images // 3 if name == "dark" else images, labels)


def stripes(seed):
    """Images uint8 [n, 3, 32, 32], and the number of their direction int64 [n]."""
    random = np.random.default_rng(seed)
    labels = np.arange(COUNT) % 10
    y, x = np.mgrid[:SIDE, :SIDE]
    angles = labels * np.pi / 10
    along = np.cos(angles)[:, None, None] * x + np.sin(angles)[:, None, None] * y
    waves = 0.5 + 0.4 * np.sin(along + random.uniform(0, 6, (COUNT, 1, 1)))
    noisy = np.clip(waves + random.normal(0, 0.05, waves.shape), 0, 1)
    return np.repeat((255 * noisy).astype(np.uint8)[:, None], 3, axis=1), labels
