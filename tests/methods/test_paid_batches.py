"""PAID's source statistics, and what it makes of parts of a batch and of single images."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.errors import DataError, MethodError
from ctta_bench.model import SourceModel
from ctta_bench.parts.source.moments import SourceStatistics
from ctta_bench.registry import METHODS
from tests.methods import build, changed, pictures, snapshot, source_images, tensors, toy

DOUBLE = {"dtype": torch.float64, "precision": "float64"}


# -- statistics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("paired", [True, False])
def test_source_statistics_are_those_of_the_source_weights(paired: bool) -> None:
    method = build("paid", paired_init=paired, source_samples=32)
    network = SourceModel(toy.toy_vit().eval())
    images = torch.cat(list(source_images().batches()))[:32]
    with torch.no_grad():
        features = network.features(images)
    torch.testing.assert_close(method.source_statistics.mean, features.mean(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        method.source_statistics.std, features.std(0, correction=1), atol=1e-5, rtol=0
    )
    assert method.source_statistics.images == 32


@pytest.mark.parametrize("regime", ["lineage", "true"])
@pytest.mark.parametrize("choice", ["stream", "official"])
def test_source_statistics_are_of_the_inputs_that_are_asked_for(regime: Any, choice: str) -> None:
    """The official code normalises source images, and feeds raw ones from the stream."""
    network = toy.toy_vit().eval()
    network.pretrained_cfg = {"mean": (0.2, 0.4, 0.6), "std": (0.5, 0.25, 0.5)}
    method = METHODS.get("paid")(
        SourceModel(copy.deepcopy(network), preprocessing=regime),
        METHODS.get("paid").Hyperparameters(source_samples=32, stats_preproc=choice),
    )
    source = source_images()
    method.start(source)
    images = torch.cat(list(source.batches()))[:32]
    is_raw = (regime, choice) == ("lineage", "stream")
    mean, std = (torch.tensor(network.pretrained_cfg[k]).view(3, 1, 1) for k in ("mean", "std"))
    inputs = images if is_raw else (images - mean) / std
    with torch.no_grad():
        features = network.forward_head(network.forward_features(inputs), pre_logits=True)
    torch.testing.assert_close(method.source_statistics.mean, features.mean(0), atol=1e-5, rtol=0)
    # The stream goes on as its regime says.
    fed = images if regime == "lineage" else (images - mean) / std
    torch.testing.assert_close(method.model.preprocess(images), fed)


def test_a_filter_that_keeps_no_source_image_is_an_error() -> None:
    with pytest.raises(DataError, match=r"0 source images are left .* entropy < 0\.15"):
        build("paid", entropy_filter=True)


@pytest.mark.parametrize("name", ["paid", "lora", "dora"])
def test_the_limit_of_the_filter_may_be_given_in_nats(name: str) -> None:
    found = build(name, entropy_filter=True, entropy_limit=2.5)  # above ln 10: all images
    plain = build(name)
    assert found.source_statistics.images == plain.source_statistics.images
    assert torch.equal(found.source_statistics.mean, plain.source_statistics.mean)
    with pytest.raises(DataError, match=r"0 source images are left .* entropy < 0\.001"):
        build(name, entropy_filter=True, entropy_limit=0.001)
    with pytest.raises(ValueError, match="entropy_limit needs entropy_filter: true"):
        build(name, entropy_limit=0.5)
    assert "entropy_limit" not in plain.hp.record()


def distance(features: Tensor, source: SourceStatistics) -> Tensor:
    """The objective with a weight of 1, written out."""
    return (features.mean(0) - source.mean).norm() + (features.std(0) - source.std).norm()


@pytest.mark.parametrize(("n", "sizes"), [(8, [2, 2, 2, 2]), (6, [2, 2, 2]), (9, [3, 3, 3])])
def test_parts_of_a_batch_are_averaged(n: int, sizes: list[int]) -> None:
    # A plain step of length 1: the change of a parameter is its gradient.
    settings = {"optimizer": "sgd", "lr": 1.0, "momentum": 0.0, **DOUBLE}
    method = build("paid", chunks=4, **settings)
    images, before = pictures(n).double(), snapshot(method)
    features = method.model.features(images).split(sizes)
    loss = sum(distance(part, method.source_statistics) for part in features) / len(sizes)
    loss.backward()
    expected = {name: before[name] - p.grad for name, p in method.trainable.items()}
    method.optimizer_zero_grad()
    method(images)
    for name, parameter in method.trainable.items():
        torch.testing.assert_close(parameter.detach(), expected[name], atol=1e-10, rtol=0)


@pytest.mark.parametrize(("n", "chunks"), [(8, 4), (9, 4), (7, 2), (3, 8)])
@pytest.mark.parametrize("name", ["paid", "lora", "dora"])
def test_parts_in_two_passes_make_the_step_of_the_whole_batch(
    name: str, n: int, chunks: int
) -> None:
    plain = {"optimizer": "sgd", "lr": 1.0, "momentum": 0.0, **DOUBLE}
    whole, parts = build(name, **plain), build(name, chunks=chunks, two_pass=True, **plain)
    images = pictures(n).double()
    torch.testing.assert_close(parts(images), whole(images), atol=1e-10, rtol=0)
    torch.testing.assert_close(parts.loss, whole.loss, atol=1e-10, rtol=0)
    for key, parameter in whole.trainable.items():
        torch.testing.assert_close(parts.trainable[key], parameter, atol=1e-10, rtol=0)
    assert parts.passes.forward_images == 2 * n
    assert parts.passes.backward_images == n


def test_two_passes_leave_out_an_update_that_is_not_finite() -> None:
    method = build("paid", chunks=2, two_pass=True, lr=0.01)
    images, before = pictures(8), tensors(method.model)
    images[7] = torch.nan
    method(images)
    assert changed(before, method.model) == set()
    assert method.counters["skipped_updates"] == 1


def test_parts_give_the_same_logits_and_another_update() -> None:
    whole, parts = build("paid", lr=0.01), build("paid", lr=0.01, chunks=4)
    torch.testing.assert_close(whole(pictures(8)), parts(pictures(8)), atol=1e-5, rtol=0)
    assert (whole(pictures(8)) - parts(pictures(8))).abs().max() > 1e-3


def test_one_image_is_aligned_by_its_mean_alone() -> None:
    method = build("paid")
    with torch.no_grad():
        expected = (method.model.features(pictures(1))[0] - method.source_statistics.mean).norm()
    method(pictures(1))
    torch.testing.assert_close(method.loss, expected)


def test_single_images_can_be_aligned_by_running_moments() -> None:
    method, images = build("paid", single_image="ema", lr=1e-3), pictures(12) * 0.4
    losses = []
    for image in images.split(1):
        method(image)
        losses.append(method.loss.item())
    assert all(bool(p.isfinite().all()) for p in method.trainable.values())
    assert method.counters["skipped_updates"] == 0
    # Unlike the mean alone, whose distance from the source's is that of one image.
    with torch.no_grad():
        alone = (method.model.features(images[:1])[0] - method.source_statistics.mean).norm()
    assert losses[0] < 0.5 * alone


def test_batches_are_no_matter_of_running_moments() -> None:
    ema, skip = build("paid", single_image="ema", lr=0.01), build("paid", lr=0.01)
    for images in pictures(16).split(8):
        assert torch.equal(ema(images), skip(images))


def test_a_reset_takes_running_moments_back_to_the_source() -> None:
    method = build("paid", single_image="ema", lr=1e-3)
    before = method.running_moments.mean.clone()
    method(pictures(1))
    assert not torch.equal(method.running_moments.mean, before)
    method.reset()
    assert torch.equal(method.running_moments.mean, before)


def test_one_image_is_an_error_on_request() -> None:
    with pytest.raises(MethodError, match="one image has no standard deviation"):
        build("paid", single_image="error")(pictures(1))


@pytest.mark.parametrize(
    ("n", "chunks", "std_weight"), [(1, 1, 1.0), (1, 1, 0.0), (5, 4, 1.0), (13, 4, 1.0)]
)
def test_only_faithful_turns_a_part_of_one_image_into_nan(
    n: int, chunks: int, std_weight: float
) -> None:
    options = {"chunks": chunks, "std_weight": std_weight}
    ours, official = build("paid", **options), build("paid", faithful=True, **options)
    for method in (ours, official):
        assert bool(method(pictures(n)).isfinite().all())
    assert all(bool(p.isfinite().all()) for p in ours.trainable.values())
    assert ours.counters["skipped_updates"] == 0
    assert all(bool(p.isnan().all()) for p in official.trainable.values())


def test_faithful_divides_by_the_parts_asked_for() -> None:
    # Six images make three parts of two; the official code divides by four all the same.
    options = {"chunks": 4, "optimizer": "sgd", "lr": 1.0, "momentum": 0.0, **DOUBLE}
    steps = []
    for faithful in (False, True):
        method = build("paid", faithful=faithful, **options)
        before = snapshot(method)
        method(pictures(6).double())
        steps.append({name: p.detach() - before[name] for name, p in method.trainable.items()})
    for name, step in steps[1].items():
        torch.testing.assert_close(step, 0.75 * steps[0][name], atol=1e-12, rtol=0)


def test_one_bad_part_leaves_the_whole_update_out() -> None:
    method = build("paid", chunks=2, lr=0.01)
    images = pictures(8)
    images[7] = torch.nan
    before = tensors(method.model)
    method(images)
    assert changed(before, method.model) == set()
    assert method.counters["skipped_updates"] == 1
    assert all(p.grad is None for p in method.trainable.values())


def test_the_distance_to_the_source_shrinks() -> None:
    method = build("paid", lr=1e-3)
    losses = []
    for _ in range(10):
        method(pictures(16) * 0.4)
        losses.append(method.loss.item())
    assert losses[-1] < 0.8 * losses[0]
