"""The invariants of Norm. Source statistics s, those of a batch b."""

import copy
from typing import Any

import pytest
import timm
import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from tests.methods import build, pictures, snapshot, tensors, toy

NORM = METHODS.get("norm")
DOUBLE = {"dtype": torch.float64, "precision": "float64"}
VARIANTS = ("batch", "alpha", "prior", "ema")


class One(nn.Module):
    """One BatchNorm layer, then a linear one on its means."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.head = norm, nn.Linear(3, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(images).mean((2, 3)))


def one(norm: nn.Module | None = None, **arguments: Any) -> Method:
    network = One(norm or nn.BatchNorm2d(3)).double().eval()
    return NORM(SourceModel(network), NORM.Hyperparameters(**arguments))


def normalised(method: Method, images: Tensor) -> Tensor:
    """What the layer of `one` gives for a batch."""
    seen: list[Tensor] = []
    handle = method.model.network.norm.register_forward_hook(lambda *args: seen.append(args[2]))
    method(images)
    handle.remove()
    return seen[-1]


@pytest.mark.parametrize("faithful", [False, True])
def test_batch_statistics_are_those_of_a_network_in_training(faithful: bool) -> None:
    method = build("norm", faithful=faithful, **DOUBLE)
    training = toy.toy_cnn().double().train()
    for images in pictures(24).double().split(8):
        with torch.no_grad():
            torch.testing.assert_close(method(images), training(images * 2 - 1), atol=1e-12, rtol=0)


def test_only_faithful_moves_statistics_that_no_prediction_uses() -> None:
    official = build("norm", faithful=True)
    before = official.model.network[1].running_mean.clone()
    batch = official.model.preprocess(pictures(8))
    mean = torch.nn.functional.conv2d(batch, official.model.network[0].weight, stride=2).mean(
        (0, 2, 3)
    )
    official(pictures(8))
    after = official.model.network[1].running_mean
    torch.testing.assert_close(after, 0.9 * before + 0.1 * mean)


def test_a_share_of_zero_is_the_source_to_the_bit() -> None:
    method, source = build("norm", statistics="alpha", alpha=0.0), build("source", "toy_cnn")
    for images in pictures(24).split(8):
        assert torch.equal(method(images), source(images))


def test_a_share_of_one_is_the_batch_but_for_its_unbiased_variance() -> None:
    images = pictures(1).double()  # 256 values a channel
    norm = nn.BatchNorm2d(3, eps=0.0)
    whole, batch = one(norm, statistics="alpha", alpha=1.0), one(copy.deepcopy(norm))
    expected = normalised(batch, images) * (255 / 256) ** 0.5
    torch.testing.assert_close(normalised(whole, images), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("settings", "n", "share"),
    [
        ({"statistics": "alpha", "alpha": 0.1}, 8, 0.1),
        ({"statistics": "prior", "prior": 16}, 8, 1 / 3),
        ({"statistics": "prior", "prior": 16}, 1, 1 / 17),
        ({"statistics": "prior", "prior": 0}, 2, 1.0),
    ],
)
def test_statistics_are_mixed_by_the_share_of_the_batch(
    settings: dict[str, Any], n: int, share: float
) -> None:
    method, images = one(**settings), pictures(n).double()
    x = images.transpose(0, 1).flatten(1)
    mean = share * x.mean(1)  # the source's are 0 and 1
    variance = (1 - share) + share * x.var(1)
    expected = (images - mean.view(3, 1, 1)) / (variance + 1e-5).sqrt().view(3, 1, 1)
    torch.testing.assert_close(normalised(method, images), expected, atol=1e-12, rtol=0)


def test_mixed_statistics_do_not_depend_on_the_batches_before() -> None:
    first, second = build("norm", statistics="alpha"), build("norm", statistics="alpha")
    first(pictures(8, seed=1) * 0.3)
    assert torch.equal(first(pictures(8)), second(pictures(8)))


def test_the_average_comes_nearer_to_a_repeated_batch_by_a_tenth() -> None:
    method, images = one(statistics="ema"), pictures(8).double()
    x = images.transpose(0, 1).flatten(1)
    for _ in range(5):
        method(images)
    norm = method.model.network.norm
    torch.testing.assert_close(norm.running_mean, x.mean(1) * (1 - 0.9**5))
    torch.testing.assert_close(norm.running_var, x.var(1) + (1 - x.var(1)) * 0.9**5)


def test_the_average_moves_before_the_batch_is_predicted() -> None:
    method, images = build("norm", statistics="ema"), pictures(8)
    logits = method(images)
    with torch.no_grad():
        assert torch.equal(method.model(images), logits)
    assert method.passes.forward_images == 24  # two passes, and one of this test


def test_a_momentum_of_the_network_does_not_count() -> None:
    method = one(nn.BatchNorm2d(3, momentum=None), statistics="ema", momentum=1.0)
    for seed in range(3):
        method(pictures(8, seed).double())
    mean = pictures(8, 2).double().mean((0, 2, 3))
    torch.testing.assert_close(method.model.network.norm.running_mean, mean)


def test_only_faithful_switches_dropout_on_in_the_pass_that_is_dropped() -> None:
    moved = []
    for faithful in (False, True):
        norm = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(3))
        method = one(norm, statistics="ema", faithful=faithful)
        method(torch.ones(8, 3, 4, 4, dtype=torch.float64))
        moved.append(float(norm[1].running_var.max()))
        assert not norm[0].training
    # The variance of equal pixels is 0: it falls to 0.9 without dropout.
    assert moved[0] == pytest.approx(0.9)
    assert moved[1] > 0.95


@pytest.mark.parametrize("statistics", VARIANTS)
def test_no_parameter_changes(statistics: Any) -> None:
    method = build("norm", statistics=statistics)
    before = {n: p.detach().clone() for n, p in method.model.named_parameters()}
    method(pictures(8))
    assert all(torch.equal(p, before[n]) for n, p in method.model.named_parameters())
    assert snapshot(method) == {}


@pytest.mark.parametrize("statistics", VARIANTS)
def test_images_that_are_not_finite_leave_no_trace(statistics: Any) -> None:
    method, clean = build("norm", statistics=statistics), build("norm", statistics=statistics)
    method(torch.full((8, 3, 16, 16), torch.nan))
    assert all(bool(t.isfinite().all()) for t in tensors(method.model).values())
    torch.testing.assert_close(method(pictures(8)), clean(pictures(8)), atol=0, rtol=0)
    assert method.counters["skipped_updates"] == (statistics == "ema")


@pytest.mark.parametrize("statistics", VARIANTS)
def test_a_layer_with_one_value_a_channel_keeps_the_sources_statistics(statistics: Any) -> None:
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3))
    pooled[1].running_mean.fill_(0.5)
    method, images = one(pooled, statistics=statistics), pictures(1).double()
    expected = (images.mean((2, 3), keepdim=True) - 0.5) / (1 + 1e-5) ** 0.5
    torch.testing.assert_close(normalised(method, images), expected, atol=1e-12, rtol=0)


def test_logits_depend_on_the_other_images_and_not_on_their_order() -> None:
    method, images = build("norm"), pictures(8)
    together, order = method(images), torch.randperm(8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(method(images[order]), together[order], atol=1e-5, rtol=0)
    assert (method(images[:4]) - together[:4]).abs().max() > 1e-2


def test_scale_and_shift_of_the_first_layers_input_do_not_matter_to_batch_statistics() -> None:
    images = pictures(8).double()
    factor = torch.tensor([2.0, 0.5, 3.0]).view(3, 1, 1)
    plain, changed = (
        normalised(one(nn.BatchNorm2d(3, eps=0.0)), x) for x in (images, factor * images + 1)
    )
    torch.testing.assert_close(plain, changed, atol=1e-10, rtol=0)


@pytest.mark.parametrize("statistics", VARIANTS)
def test_layers_that_end_in_an_activation_keep_it(statistics: Any) -> None:
    method = one(BatchNormAct2d(3), statistics=statistics)
    assert normalised(method, pictures(8).double()).min() == 0


def test_every_variant_serves_a_resnet() -> None:
    network = timm.create_model("resnet10t", num_classes=10).eval()
    logits = [
        NORM(SourceModel(copy.deepcopy(network)), NORM.Hyperparameters(statistics=s))(pictures(4))
        for s in VARIANTS
    ]
    assert all(bool(x.isfinite().all()) for x in logits)
    assert len({round(float(x.sum()), 4) for x in logits}) == len(VARIANTS)


def test_batchnorm_without_stored_statistics_is_named_as_such() -> None:
    model = SourceModel(toy.toy_cnn(), name="bare")
    assert model.use_batch_statistics()
    with pytest.raises(MethodError, match=r"BatchNorm layers, and the \d+ of bare store none"):
        NORM(model, NORM.Hyperparameters())
    NORM(model, NORM.Hyperparameters(allow_noop=True))


def test_a_model_without_batchnorm_is_refused_unless_it_may_stay_as_it_is() -> None:
    with pytest.raises(MethodError, match="BatchNorm layers, and toy_vit has none; choose a model"):
        build("norm", "toy_vit")
    for statistics in VARIANTS:
        method = build("norm", "toy_vit", statistics=statistics, allow_noop=True)
        assert torch.equal(method(pictures(4)), build("source")(pictures(4)))
