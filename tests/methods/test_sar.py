import copy
import math
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from ctta_bench.config.validation import validate
from ctta_bench.errors import ConfigError
from ctta_bench.method import Method, softmax_entropy
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from tests.methods import build, changed, make, pictures, plain, snapshot, tensors, toy

SAR = METHODS.get("sar")
# Entropies of the toy model are about 1: these thresholds select all, and never reset.
OPEN = {"lr": 0.01, "margin": 1e6, "recovery_threshold": 0.0}
PEAKED = 1000.0
DOUBLE = {"dtype": torch.float64, "precision": "float64"}


def entropies(method: Method, images: Tensor) -> Tensor:
    with torch.no_grad():
        return softmax_entropy(method.model(images))


def peaked(**arguments: Any) -> Method:
    """SAR on a model whose logits are so far apart that all entropies are next to 0."""
    model = SourceModel(toy.toy_vit())
    model.network.head.weight.data *= PEAKED
    model.network.head.bias.data *= PEAKED
    return SAR(model, SAR.Hyperparameters(lr=0.01, margin=1e6, **arguments))


class Watched(SAR):
    """Notes the weights before the ascent, after it, and before the optimiser's step."""

    def ascend(self) -> None:
        self.before = snapshot(self)
        super().ascend()
        self.raised = snapshot(self)

    def optimizer_step(self, **options: Any) -> bool:
        self.restored = snapshot(self)
        return super().optimizer_step(**options)


@pytest.mark.parametrize("network", ["toy_vit", "toy_cnn"])
def test_without_radius_and_margin_it_is_tent_to_the_bit(network: str) -> None:
    sar, tent = build("sar", network, rho=0.0, **OPEN), build("tent", network, lr=0.01)
    tent.adapt_only({name: tent.model.norm_parameters()[name] for name in sar.trainable})
    tent.optimizer = tent.build_optimizer()
    for images in pictures(40).split(8):
        assert torch.equal(sar(images), tent(images))
    assert plain(snapshot(sar)) == plain(snapshot(tent))


@pytest.mark.parametrize("rho", [0.05, 0.2])
def test_the_ascent_has_the_length_of_the_radius(rho: float) -> None:
    method = make(Watched, rho=rho, **OPEN)
    method(pictures(8))
    steps = [(method.raised[n] - method.before[n]).flatten() for n in method.trainable]
    assert torch.cat(steps).norm().item() == pytest.approx(rho, abs=1e-6)


def test_the_weights_are_restored_to_the_bit_before_the_step() -> None:
    method = make(Watched, **OPEN)
    start = snapshot(method)
    method(pictures(8))
    assert plain(method.before) == plain(method.restored) == plain(start)
    assert plain(snapshot(method)) != plain(start)


def test_an_update_follows_the_algorithm() -> None:
    """Algorithm 1 written out, in float64: select, ascend, select again, descend from the start."""
    images = pictures(16).double()
    method = build("sar", lr=0.1, momentum=0.0, margin=0.8, **DOUBLE)
    model, limit = copy.deepcopy(method.model), 0.8 * math.log(10)
    parameters = [dict(model.network.named_parameters())[name] for name in method.trainable]
    start = [p.detach().clone() for p in parameters]

    entropy = softmax_entropy(model(images))
    first = entropy < limit
    assert 0 < first.sum() < 16
    gradient = torch.autograd.grad(entropy[first].mean(), parameters)
    length = torch.cat([g.flatten() for g in gradient]).norm()
    with torch.no_grad():
        for p, g in zip(parameters, gradient, strict=True):
            p += 0.05 * g / length
    entropy = softmax_entropy(model(images))
    second = first & (entropy < limit)
    loss = entropy[second].mean()
    gradient = torch.autograd.grad(loss, parameters)

    method(images)
    torch.testing.assert_close(method.loss, loss.detach())
    for ours, s, g in zip(method.trainable.values(), start, gradient, strict=True):
        torch.testing.assert_close(ours.detach(), s - 0.1 * g, atol=1e-12, rtol=0)
    assert 0 <= method.average < limit


def test_images_that_the_ascent_makes_unreliable_drop_out_and_none_comes_in() -> None:
    """Of images on both sides of the margin, only those below it twice make the loss."""
    method = make(Watched, lr=0.0, margin=0.8, rho=2.0)
    images, limit = pictures(64), 0.8 * math.log(10)
    first = entropies(method, images) < limit
    method(images)
    with torch.no_grad():
        for name, parameter in method.trainable.items():
            parameter.copy_(method.raised[name])
    second = entropies(method, images)
    both = first & (second < limit)
    assert both.sum() < first.sum()
    assert both.sum() < (second < limit).sum()
    torch.testing.assert_close(method.loss, second[both].mean())


def test_a_margin_of_zero_never_moves_the_weights() -> None:
    method = build("sar", lr=0.01, margin=0.0)
    before = tensors(method.model)
    for images in pictures(12).split(4):
        method(images)
    assert changed(before, method.model) == set()
    assert method.counters["skipped_updates"] == 3


def test_the_margin_is_a_share_of_the_largest_entropy() -> None:
    assert build("sar").margin == pytest.approx(0.9210, abs=5e-5)  # 0.4 ln 10


@pytest.mark.parametrize(("faithful", "moves"), [(False, 0.0), (True, 0.9), ("mariodoebler", 0.9)])
def test_an_empty_selection_moves_only_the_momentum_of_faithful(
    faithful: Any, moves: float
) -> None:
    method = build("sar", faithful=faithful, **OPEN, **DOUBLE)
    start = snapshot(method)
    method(pictures(8).double())
    step = {name: p.detach() - start[name] for name, p in method.trainable.items()}
    middle, average = snapshot(method), method.average
    method.margin = 0.0
    method(pictures(8, seed=1).double())
    for name, parameter in method.trainable.items():
        # v = 0.9 v + 0: the step before, times the momentum.
        expected = middle[name] + moves * step[name]
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-14, rtol=0)
    assert method.average == average
    assert method.counters["skipped_updates"] == (not faithful)


# -- recovery --------------------------------------------------------------------------------------


def test_the_average_starts_with_the_first_loss_and_follows_by_a_tenth() -> None:
    method = build("sar", **OPEN)
    averages = []
    for loss in (1.0, 2.0, math.nan):
        method.recover(loss)
        averages.append(method.average)
    assert averages == pytest.approx([1.0, 0.9 * 1.0 + 0.1 * 2.0, 1.1])


def test_a_recovery_forgets_average_and_momentum_and_is_counted() -> None:
    method = peaked()
    source = snapshot(method)
    method(pictures(8))
    assert plain(snapshot(method)) == plain(source)
    assert method.average is None
    assert method.optimizer.state_dict()["state"] == {}
    assert method.counters["resets"] == 1


@pytest.mark.parametrize("faithful", [True, "mariodoebler"])
def test_a_faithful_recovery_keeps_the_momentum(faithful: Any) -> None:
    method = peaked(faithful=faithful)
    source = snapshot(method)
    method(pictures(8))
    assert plain(snapshot(method)) == plain(source)
    assert len(method.optimizer.state_dict()["state"]) == len(source)
    assert method.counters["resets"] == 1


def test_only_the_official_recovery_keeps_the_average_and_so_goes_on_resetting() -> None:
    official, second, ours = peaked(faithful=True), peaked(faithful="mariodoebler"), peaked()
    for method in (official, second, ours):
        method(pictures(8))
        # From now on every loss is far above the threshold.
        method.model.network.head.weight.data /= PEAKED
        method.model.network.head.bias.data /= PEAKED
    assert official.average == official.loss.item() < 0.2
    assert second.average is None
    assert ours.average is None
    for method in (official, second, ours):
        method(pictures(8))
    assert [m.counters["resets"] for m in (official, second, ours)] == [2, 1, 1]


@pytest.mark.parametrize(("faithful", "resets"), [(False, 0), (True, 1), ("mariodoebler", 0)])
def test_only_the_official_code_ignores_the_configured_threshold(
    faithful: Any, resets: int
) -> None:
    method = peaked(faithful=faithful, recovery_threshold=0.0)
    method(pictures(8))
    assert method.counters["resets"] == resets


# -- which parameters ------------------------------------------------------------------------------


class Wrapped(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.vit = network

    def forward(self, images: Tensor) -> Tensor:
        return self.vit(images)


@pytest.mark.parametrize("wrap", [lambda network: network, Wrapped])
def test_vit_base_adapts_36_tensors_under_any_wrapper(wrap: Any) -> None:
    with torch.device("meta"):
        method = SAR(SourceModel(wrap(timm.create_model("vit_base_patch16_224"))))
    assert len(method.trainable) == 36
    assert sum(p.numel() for p in method.trainable.values()) == 27_648
    found = {name.removeprefix("vit.").split(".")[1] for name in method.trainable}
    assert found == set("012345678")


def test_a_quarter_of_the_blocks_is_left_out_unless_said_otherwise() -> None:
    assert len(build("sar").trainable) == 2 * 2 * 3
    assert len(build("sar", skip_last_blocks=0).trainable) == 2 * 2 * 4


class Unused(nn.Module):
    """A network with a norm layer that the forward pass leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.used = nn.LayerNorm(3), nn.LayerNorm(3)
        self.head = nn.Linear(3, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.used(images.mean((2, 3))))


def test_a_norm_layer_without_gradient_does_no_harm() -> None:
    method = SAR(SourceModel(Unused()), SAR.Hyperparameters(**OPEN))
    before = tensors(method.model)
    method(pictures(8))
    assert changed(before, method.model) == {"network.used.weight", "network.used.bias"}


def test_the_last_stage_of_a_resnet_is_left_out_and_its_stem_is_not() -> None:

    network = timm.create_model("resnet10t", pretrained=False, num_classes=10)
    adapted = set(METHODS.get("sar")(SourceModel(network)).trainable)
    assert adapted
    assert not any(name.startswith("layer4") for name in adapted)
    assert any(name.startswith("layer3") for name in adapted)
    assert any(not name.startswith("layer") for name in adapted)


@pytest.mark.parametrize(
    ("typed", "name", "recorded"),
    [
        (False, "none", False),
        (True, "official", True),
        ("true", "official", True),
        ("none", "none", False),
        ("official", "official", True),
        ("mariodoebler", "mariodoebler", "mariodoebler"),
    ],
)
def test_whose_faults_are_reproduced_has_a_name_and_is_recorded_as_ever(
    typed: Any, name: str, recorded: Any
) -> None:
    kind = METHODS.get("sar").Hyperparameters
    hp = kind(faithful=typed)
    assert hp.faithful == name
    assert hp.record()["faithful"] == recorded
    assert type(hp.record()["faithful"]) is type(recorded)
    assert kind(**hp.record()) == hp


def test_other_faults_are_refused_in_a_sentence() -> None:
    wrong = {"faithful": "theirs"}
    with pytest.raises(ConfigError, match="'theirs': input should be 'none', 'official' or"):
        validate(METHODS.get("sar").Hyperparameters, wrong, "method sar")
