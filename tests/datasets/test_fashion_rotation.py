"""The other label set: quarter turns, independent of the class to the last image."""

import numpy as np

from ctta_bench.datasets.fashion import read
from ctta_bench.registry import BENCHMARKS


def benchmark():
    return BENCHMARKS.get("fashion_rotation")()


def test_every_image_stands_at_every_turn_and_is_labelled_by_it():
    images, classes = read("source")
    turned = benchmark().source()
    assert len(turned.labels) == 4 * len(images)
    for class_ in range(10):
        labels = turned.labels.reshape(-1, 4)[classes == class_]
        assert np.bincount(labels.ravel()).tolist() == [100] * 4


def test_label_t_is_t_quarter_turns_against_the_clock():
    images, _ = read("test")
    found = benchmark().domain("rotation").load(np.arange(4, 8)).numpy()[:, 0]
    corner = images[1]
    assert np.array_equal(found[0], corner)
    assert np.array_equal(found[1], corner.T[::-1])
    assert np.array_equal(found[2], corner[::-1, ::-1])
    assert np.array_equal(found[3], corner.T[:, ::-1])


def test_the_first_images_are_balanced():
    labels = benchmark().domain("rotation").labels[:100]
    assert np.bincount(labels).tolist() == [25] * 4
