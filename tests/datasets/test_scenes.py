"""scenes_c: the scenes, which photographs a domain shows, and the source models."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ctta_bench.datasets.fashion import photographs
from ctta_bench.datasets.making.corruptions import CORRUPTIONS, HOLD_OUT, corrupt
from ctta_bench.datasets.making.scenes import render
from ctta_bench.datasets.scenes import ScenesC, ScenesSettings, TrainingScenes
from ctta_bench.source_models.pretrained import load_source_model
from ctta_bench.stream import as_input

MODELS = ("scenes_vit", "scenes_cnn", "scenes_cnn_gn")


def test_a_scene_depends_on_its_photograph_split_and_number_only() -> None:
    images, _ = photographs("test")
    together = render(images[:6], np.arange(6), "test")
    assert together.shape == (6, 32, 32, 3)
    assert np.array_equal(render(images[4:5], np.array([4]), "test")[0], together[4])
    for other in (render(images[4:5], np.array([5]), "test"), render(images[4:5], [4], "train")):
        assert np.abs(other[0].astype(int) - together[4]).mean() > 10


def test_scenes_have_not_changed_since_version_1() -> None:
    images, _ = photographs("test")
    scenes = render(images[:20], np.arange(20), "test").astype(np.int64)
    assert scenes.sum() == 5_482_739
    assert scenes[7, 16, 16].tolist() == [39, 35, 44]


def test_half_of_the_garments_are_darker_than_their_grounds() -> None:
    white = np.full((200, 28, 28), 255, np.uint8)
    white[:, :10] = 0  # ground
    scenes = render(white, np.arange(200), "test").astype(float).mean(-1)
    darker = scenes[:, 20:24, 12:20].mean((1, 2)) < scenes[:, :5].mean((1, 2))
    assert 0.35 < darker.mean() < 0.65


def test_domains_show_test_photographs_and_hold_out_domains_others(tmp_path: Path) -> None:
    settings = ScenesSettings(domains=("fog", "spatter"), examples=3)
    benchmark = ScenesC(settings, tmp_path)
    benchmark.prepare_data(lambda *_: None, 1)
    for name, split in (("fog", "test"), ("spatter", "holdout")):
        images, labels = photographs(split)
        shown = benchmark.domain(name)
        assert np.array_equal(shown.labels, labels)
        clean = render(images[2:3], np.array([2]), split)[0]
        expected = corrupt(clean, name, 5, parameters="mixed", seed=0, index=2)
        found = shown.load(np.array([2])).numpy()[0].transpose(1, 2, 0)
        assert np.array_equal(found, expected)
    assert benchmark.domain_names() == CORRUPTIONS
    assert benchmark.hold_out_domains() == HOLD_OUT
    assert benchmark.separate_hold_out


def test_forgetting_is_measured_on_hold_out_photographs() -> None:
    benchmark = ScenesC()
    apart, scored = benchmark.held_out_source(), benchmark.domain("clean")
    assert len(apart.labels) == len(scored.labels) == 2000
    assert not torch.equal(apart.load(np.arange(5)), scored.load(np.arange(5)))
    assert np.bincount(benchmark.source().labels).tolist() == [100] * 10


def test_a_training_photograph_stands_in_four_scenes() -> None:
    images, labels = photographs("source")
    found = TrainingScenes(images, labels)
    assert np.array_equal(found.labels, np.tile(labels, 4))
    views = found.load(np.array([3, 1003, 2003, 3003])).float()
    assert len({view.numpy().tobytes() for view in views}) == 4


@pytest.mark.parametrize("name", MODELS)
def test_the_shipped_models_are_calibrated_on_clean_hold_out_photographs(name: str) -> None:
    model = load_source_model(name).eval()
    clean = ScenesC().held_out_source()
    with torch.no_grad():
        output = torch.cat(
            [
                model(as_input(clean.load(part))).softmax(1)
                for part in np.array_split(np.arange(2000), 20)
            ]
        )
    confidence, predicted = output.max(1)
    right = (predicted.numpy() == clean.labels).astype(float)
    bins = np.minimum((confidence.numpy() * 15).astype(int), 14)
    gaps = [
        abs(right[bins == b].mean() - confidence.numpy()[bins == b].mean()) * (bins == b).mean()
        for b in np.unique(bins)
    ]
    assert sum(gaps) <= 0.05
    assert right.mean() >= 0.8
    assert sum(p.numel() for p in model.parameters()) <= 1_500_000
