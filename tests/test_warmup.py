"""Warm-ups: schedules, augmentation and updates; resume and hand-over are bit-identical."""

import contextlib
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.errors import DataError, MethodError
from ctta_bench.method import Method
from ctta_bench.method.warmup import Warmup, augmented, warmup_rate
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from tests.methods import changed, pictures, plain, snapshot, source_images, tensors, through_disk
from tests.methods import toy as toys

# 40 source images: three updates an epoch.
RECIPE = {"warmup_epochs": 2, "warmup_batch_size": 16, "warmup_lr": 0.01}
SMALL: dict[str, dict[str, Any]] = {
    "paid": {"source_samples": 16, "warmup_augmentation": "colour"},
    "lora": {"source_samples": 16, "warmup_schedule": "cosine"},
    "dora": {"source_samples": 16, "warmup_augmentation": "crop"},
    "vida": {"views": 2, "rank_high": 4, "restore_probability": 0.1},
    "ecotta": {"margin": 1.1},
    "cmae": {"views": 2},
    "rmt": {"projection": 8},
    "petal": {"prior": "posterior", "confidence_threshold": 0.0},
    "dept": {"prompts": 4, "hidden": 16, "bottleneck": 8, "outputs": 12, "stages": 2},
}


def fresh(name: str, **more: Any) -> Method:
    """A method with a warm-up before it, not started."""
    kind = METHODS.get(name)
    return kind(SourceModel(toys.toy_vit()), kind.Hyperparameters(**RECIPE | SMALL[name] | more))


def source_of(method: Method) -> Any:
    return source_images(labelled=method.source_access == "labelled")


def trained(method: Method) -> dict[str, Tensor]:
    warmup = Warmup(method, source_of(method))
    assert len(list(warmup.updates())) == 6
    return warmup.finish()


# -- schedules


def test_cosine_epochs_have_the_rates_of_the_official_imagenet_warm_up() -> None:
    rates = [warmup_rate("cosine", 0.05, update, 10_010) for update in range(30_030)]
    assert rates[0] == 0
    assert rates[5005] == pytest.approx(0.025)
    assert rates[10_009] == pytest.approx(0.05 * 10_009 / 10_010)
    (second,), (third,) = set(rates[10_010:20_020]), set(rates[20_020:])
    assert (second, third) == pytest.approx((0.04523, 0.03273), abs=5e-6)


def test_steps_have_the_rates_of_the_official_cifar_warm_up() -> None:
    first, *others = [
        [warmup_rate("steps", 0.05, 782 * e + i, 782) for i in (0, 781)] for e in range(10)
    ]
    assert first == pytest.approx([0, 0.05 * 781 / 782])
    expected = [0.05, 0.05, 0.01, 0.01, 0.01, 0.002, 0.002, 0.0004, 0.0004]
    assert others == [pytest.approx([rate, rate]) for rate in expected]


def test_a_constant_rate_does_not_rise_and_a_cosine_stays_at_its_end() -> None:
    assert [warmup_rate("constant", 0.1, update, 4) for update in range(9)] == [0.1] * 9
    assert warmup_rate("cosine", 0.1, 4 * 7, 4, cosine_epochs=5) == pytest.approx(0)


# -- the augmentation


def test_without_augmentation_images_pass_and_nothing_is_drawn() -> None:
    images, before = pictures(4), torch.get_rng_state()
    assert augmented(images, "none") is images
    assert torch.equal(before, torch.get_rng_state())


def test_crops_are_whole_pixel_shifts_within_an_eighth_and_mirror_images() -> None:
    ramp = torch.arange(1.0, 17).expand(400, 3, 16, 16) / 16  # by columns
    found = 16 * augmented(ramp, "crop")
    inner = found[:, 0, 8].sort(-1).values  # whichever way it runs; a border of zeros
    shifts = (inner == 0).sum(-1)
    assert set(shifts.tolist()) == {0, 1, 2}
    mirrored = found[:, 0, 8, 8] < found[:, 0, 8, 7]
    assert 0.4 < mirrored.float().mean() < 0.6


def test_colours_change_each_image_by_draws_of_its_own_at_the_published_rates() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        image = pictures(1)
        found = augmented(image.expand(600, -1, -1, -1), "colour")
    same = (found == image).flatten(1).all(1)
    grey = (found[:, 0] == found[:, 1]).flatten(1).all(1)
    # Untouched: neither colours (0.6) nor blur (0.8) nor grey (0.9).
    assert same.float().mean() == pytest.approx(0.6 * 0.8 * 0.9, abs=0.08)
    assert grey.float().mean() == pytest.approx(0.1, abs=0.05)
    assert found.min() >= 0 and found.max() <= 1 + 1e-6
    assert len(torch.unique(found, dim=0)) > 300


# -- updates


@pytest.mark.parametrize("name", SMALL)
def test_what_a_warm_up_left_is_taken_over_as_if_trained_here_to_the_bit(name: str) -> None:
    here, there, giver = fresh(name), fresh(name), fresh(name)
    here.start(source_of(here))
    there.start(source_of(there), through_disk(trained(giver)))
    assert plain(there.state_dict()) == plain(here.state_dict())
    for images in pictures(16).split(8):
        assert torch.equal(there(images), here(images))


@pytest.mark.parametrize("name", SMALL)
def test_an_interrupted_warm_up_goes_on_to_the_same_bits(name: str) -> None:
    whole, first, second = fresh(name), fresh(name), fresh(name)
    cut = Warmup(first, source_of(first))
    lines = list(itertools.islice(cut.updates(), 4))  # in the middle of an epoch
    rest = Warmup(second, source_of(second))
    rest.load_state_dict(through_disk(cut.state_dict()))
    lines += list(rest.updates())
    expected = Warmup(whole, source_of(whole))
    assert lines == list(expected.updates())
    assert plain(rest.finish()) == plain(expected.finish())


@pytest.mark.parametrize("name", SMALL)
def test_a_warm_up_trains_what_it_says_and_hands_the_rest_back(name: str) -> None:
    method = fresh(name)
    before = {n: p.detach().clone() for n, p in method.trainable.items()}
    trainable, optimizer = dict(method.trainable), method.optimizer
    learnt = trained(method)
    names = set(method.warmup_parameters())
    left = set(method.warmup_result())  # and perhaps a teacher
    moved = {n for n, p in method.trainable.items() if not torch.equal(p, before[n])}
    assert moved <= names <= left == set(learnt) - {"random_state"}
    assert moved
    assert method.optimizer is optimizer
    assert not optimizer.state
    assert list(method.trainable) == list(trainable)
    assert all(p.requires_grad and p.grad is None for p in method.trainable.values())


@pytest.mark.parametrize("name", SMALL)
def test_hyper_parameters_of_the_stream_alone_do_not_change_a_warm_up(name: str) -> None:
    kind = METHODS.get(name)
    others = {**dict.fromkeys(kind.stream_only & set(kind.Hyperparameters.model_fields))}
    values = kind.Hyperparameters(**SMALL[name])
    numbers = {k: getattr(values, k) for k in others if type(getattr(values, k)) in (int, float)}
    altered = {k: v / 2 if isinstance(v, float) else v + 1 for k, v in numbers.items()}
    altered |= {k: not getattr(values, k) for k in others if isinstance(getattr(values, k), bool)}
    assert plain(trained(fresh(name, **altered, lr=0.5))) == plain(trained(fresh(name)))


def test_later_epochs_are_shuffled_anew() -> None:
    source = source_images()
    epochs = [torch.cat(list(source.batches(10, epoch=e))) for e in (0, 1, 2)]
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[1], epochs[2])
    sums = [epoch.sum((1, 2, 3)).sort().values for epoch in epochs]
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(torch.cat(list(source.batches(10, epoch=1, first=3))), epochs[1][30:])


def test_updates_that_are_not_finite_are_left_out_and_counted_for_the_warm_up() -> None:
    method = fresh("lora", warmup_lr=1e30, warmup_schedule="constant")
    warmup = Warmup(method, source_of(method))
    lines = list(warmup.updates())
    warmup.finish()
    assert warmup.skipped > 0
    assert any(line["loss"] is None for line in lines)
    assert method.counters["skipped_updates"] == 0


def test_a_length_in_updates_stops_within_an_epoch() -> None:
    method = fresh("vida", warmup_epochs=0, warmup_iterations=5)
    warmup = Warmup(method, source_of(method))
    assert [line["epoch"] for line in warmup.updates()] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("name", SMALL)
def test_a_length_is_given_once(name: str) -> None:
    with pytest.raises(ValueError, match="not both"):
        fresh(name, warmup_iterations=5)


# -- what is handed over


def test_the_warm_up_of_another_model_is_refused() -> None:
    giver, taker = fresh("lora", rank=3), fresh("lora", rank=2)
    with pytest.raises(MethodError, match="belongs to another method or model"):
        taker.start(source_of(taker), trained(giver))


@pytest.mark.parametrize("name", SMALL)
def test_only_a_warm_up_reads_what_it_needs(name: str) -> None:
    kind = METHODS.get(name)
    values = {key: value for key, value in SMALL[name].items() if value != "posterior"}
    cold = kind(SourceModel(toys.toy_vit()), kind.Hyperparameters(**values))
    assert cold.source_access == kind.source_access
    more = max(kind.source_access, kind.warmup_access, key=["none", "unlabelled", "labelled"].index)
    assert fresh(name).source_access == more
    blind = source_images()
    refused = pytest.raises(DataError, match="gets no labels")
    with contextlib.nullcontext() if name == "cmae" else refused:
        fresh(name).start(blind)


@pytest.mark.parametrize("name", SMALL)
def test_a_method_that_does_not_adapt_predicts_and_stays(name: str) -> None:
    kind = METHODS.get(name)
    hyperparameters = kind.Hyperparameters(**RECIPE | SMALL[name])
    method = kind(SourceModel(toys.toy_vit()), hyperparameters, adapts=False)
    method.start(source_of(method))
    before, weights, images = tensors(method.model), snapshot(method), pictures(8)
    logits = method(images)
    with torch.no_grad():
        assert torch.equal(logits, method.predict(images))
    assert torch.equal(logits, method(images))
    assert changed(before, method.model) == set()
    assert plain(snapshot(method)) == plain(weights)
    assert method.passes.backward_images == 0


# -- PAID


def test_statistics_are_of_the_source_weights_unless_the_warmed_ones_are_asked_for() -> None:
    cold = METHODS.get("paid")(
        SourceModel(toys.toy_vit()), METHODS.get("paid").Hyperparameters(source_samples=16)
    )
    cold.start(source_images())
    of_source, of_warmed = fresh("paid"), fresh("paid", statistics_model="warmed")
    for method in (of_source, of_warmed):
        method.start(source_of(method))
    assert torch.equal(of_source.source_statistics.mean, cold.source_statistics.mean)
    with torch.no_grad():
        first = torch.cat([of_warmed.model.features(x) for x in source_images().batches()])[:16]
    torch.testing.assert_close(of_warmed.source_statistics.mean, first.mean(0))
    assert (of_warmed.source_statistics.mean - cold.source_statistics.mean).abs().max() > 1e-3


def test_a_warm_up_of_paid_teaches_magnitudes_and_rotations_only() -> None:
    method = fresh("paid")
    before = tensors(method.model)
    learnt = trained(method)
    assert {name.rpartition(".")[2] for name in learnt} == {"magnitude", "vectors", "random_state"}
    moved = changed(before, method.model)
    assert {name.rpartition(".")[2] for name in moved} == {"magnitude", "vectors"}
