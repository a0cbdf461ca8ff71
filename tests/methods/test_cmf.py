"""The invariants of CMF: β sequence and fixed point, ties to ROID, reset. h filtered weights."""

import pytest
import torch

from ctta_bench.errors import MethodError
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from tests.methods import build, pictures, plain, snapshot, toy

DOUBLE = {"dtype": torch.float64, "precision": "float64"}
TOY_VALUES = 9 * 2 * 24  # of the toy ViT's norms


def gains(process_noise: float, steps: int) -> list[float]:
    method = build("cmf", process_noise=process_noise)
    return [method.gain(0.99) for _ in range(steps)]


@pytest.mark.parametrize(
    ("values", "limit"), [(38_400, 0.9400), (53_120, 0.9283), (17_952, 0.9612), (25_216, 0.9527)]
)
def test_the_gain_falls_to_the_fixed_point_of_its_network(values: int, limit: float) -> None:
    # As many values, by way of the noise.
    assert gains(0.005 * values / TOY_VALUES, 300)[-1] == pytest.approx(limit, abs=5e-5)


def test_the_gain_of_a_vit_is_the_sequence_of_the_formula() -> None:
    found = gains(0.005 * 38_400 / TOY_VALUES, 10)
    assert found[:2] == pytest.approx([0.9950, 0.9902], abs=5e-5)
    assert found[9] == pytest.approx(0.9608, abs=5e-5)


def test_the_gain_is_clipped_below_and_one_when_nearly_so() -> None:
    assert gains(0.5 * 38_400 / TOY_VALUES, 2) == [0.89, 0.89]
    assert gains(5e-5 * 38_400 / TOY_VALUES, 1) == [1.0]


def test_the_noise_grows_with_the_adapted_values_and_must_stay_below_one() -> None:
    assert build("cmf").noise == pytest.approx(0.005 * TOY_VALUES / 38_400)
    kind = METHODS.get("cmf")
    with pytest.raises(MethodError, match=r"process_noise 100 becomes 1\.12 for 432 adapted"):
        kind(SourceModel(toy.toy_vit(), name="toy_vit"), kind.Hyperparameters(process_noise=100.0))


def test_without_noise_it_is_roid() -> None:
    cmf = build("cmf", lr=0.01, process_noise=0.0, **DOUBLE)
    roid = build("roid", lr=0.01, **DOUBLE)
    for images in pictures(40).double().split(8):
        torch.testing.assert_close(cmf(images), roid(images), atol=1e-12, rtol=0)


def test_a_step_moves_filter_and_weights_in_their_order() -> None:
    settings = {"lr": 0.01, "process_noise": 0.1 * 38_400 / TOY_VALUES, **DOUBLE}
    method = build("cmf", source_momentum=0.9, filter_momentum=0.8, **settings)
    free = build("cmf", filter_momentum=1.0, **settings)
    source = snapshot(method)
    with torch.no_grad():
        for hidden in method.hidden:
            hidden += 0.5
    for each in (method, free):
        each(pictures(8).double())
    beta = 0.9 / (0.9 + 0.1)
    for (name, parameter), hidden in zip(method.trainable.items(), method.hidden, strict=True):
        learnt = free.trainable[name].detach()
        h = beta * (source[name] + 0.9 * 0.5) + (1 - beta) * learnt
        torch.testing.assert_close(hidden, h, atol=1e-12, rtol=0)
        torch.testing.assert_close(parameter.detach(), 0.8 * learnt + 0.2 * h, atol=1e-12, rtol=0)


def test_a_rate_of_zero_leaves_all_three_sets_of_weights_at_the_source() -> None:
    method = build("cmf", lr=0.0)
    source = snapshot(method)
    for images in pictures(24).split(8):
        method(images)
    for name, hidden in zip(method.trainable, method.hidden, strict=True):
        torch.testing.assert_close(hidden, source[name], atol=1e-7, rtol=0)
        torch.testing.assert_close(method.trainable[name].detach(), source[name], atol=1e-7, rtol=0)


def test_only_a_faithful_reset_keeps_the_variance() -> None:
    for faithful in (False, True):
        method = build("cmf", lr=0.01, faithful=faithful)
        source = plain(snapshot(method))
        method(pictures(8))
        assert method.variance > 0
        method.reset()
        assert (method.variance > 0) == faithful
        assert plain(snapshot(method)) == source
        assert plain(dict(zip(method.trainable, method.hidden, strict=True))) == source


def test_a_batch_that_moves_nothing_leaves_the_filter() -> None:
    method = build("cmf")
    method(pictures(1))
    assert method.variance == 0
    assert method.counters["skipped_updates"] == 1
