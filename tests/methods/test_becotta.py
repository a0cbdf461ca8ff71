"""BECoTTA. E experts, k of them act; domains are the renderings of the warm-up."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.method.warmup import Warmup
from ctta_bench.methods.becotta import (
    DOMAINS,
    Styles,
    channel_moments,
    mutual_information,
    rendered,
)
from ctta_bench.model import SourceModel
from ctta_bench.parts.adapters.mixture import Mixture, Routing
from ctta_bench.registry import METHODS
from ctta_bench.source_models.tiny import CLASSES, tiny_segmentor
from tests.methods import build, changed, plain, scenes, segmentor, snapshot, tensors

BECoTTA = METHODS.get("becotta")
SMALL: dict[str, Any] = {"views": 3, "experts": 4, "ranks": (0, 2, 2, 2), "lr": 1e-3}
WARM = {**SMALL, "warmup_iterations": 12, "warmup_batch_size": 8, "warmup_lr": 0.02}


class Labelled:
    """Source scenes, labelled by the model itself where it is sure."""

    def __init__(self, model: SourceModel) -> None:
        self.images = scenes(16)
        with torch.no_grad():
            logits = model(self.images)
        sure = logits.softmax(1).amax(1) > logits.softmax(1).amax(1).median()
        self.maps = torch.where(sure, logits.argmax(1), 255).byte()

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, size: int = 8, *, epoch: int = 0, first: int = 0) -> Iterator[Tensor]:
        yield from self.images.split(size)[first:]

    def labelled_batches(
        self, size: int = 8, *, epoch: int = 0, first: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        pairs = list(zip(self.images.split(size), self.maps.split(size), strict=True))
        yield from pairs[first:]


def warmed(**values: Any) -> tuple[Any, list[dict[str, Any]]]:
    """A method after its warm-up, and the lines of it."""
    model = SourceModel(tiny_segmentor(), name="tiny_segmentor")
    source = Labelled(model)
    method = BECoTTA(model, BECoTTA.Hyperparameters(**WARM | values))
    warmup = Warmup(method, source)
    lines = list(warmup.updates())
    learnt = warmup.finish()
    fresh = BECoTTA(SourceModel(tiny_segmentor()), BECoTTA.Hyperparameters(**WARM | values))
    fresh.start(source, learnt)
    return fresh, lines


def mixture(**values: Any) -> Mixture:
    """A mixture of four experts, two of which act, with random up-projections."""
    shape = {"experts": 4, "chosen": 2, "domains": 3, "routing": Routing()} | values
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = Mixture(6, 2, **shape).double()
        torch.nn.init.normal_(layer.up)
        torch.nn.init.normal_(layer.up_bias)
    return layer


def tokens(count: int = 3) -> Tensor:
    return torch.randn(count, 5, 6, generator=torch.Generator().manual_seed(1)).double()


def by_hand(layer: Mixture, x: Tensor, numbers: list[int], weights: Tensor) -> Tensor:
    """The tokens [T, d] of one image plus the weighted output of these experts."""
    total = x.clone()
    for number, weight in zip(numbers, weights, strict=True):
        hidden = torch.nn.functional.gelu(x @ layer.down[number].T + layer.down_bias[number])
        total = total + weight * (hidden @ layer.up[number].T + layer.up_bias[number])
    return total


# -- the mixture


def test_the_experts_with_the_best_scores_of_each_image_act_by_their_softmax() -> None:
    layer, x = mixture(), tokens()
    layer.routing.domains = torch.tensor([0, 2, 1])
    found, acting = layer(x), set()
    for image, domain in enumerate((0, 2, 1)):
        scores = (x[image] @ layer.routers[domain, :4].T).mean(0)
        best = scores.topk(2)
        acting |= {*best.indices.tolist()}
        expected = by_hand(layer, x[image], best.indices.tolist(), best.values.softmax(0))
        torch.testing.assert_close(found[image], expected)
    assert not acting <= {0, 1}


def test_released_is_the_first_experts_by_the_first_image_s_weights_without_gradient() -> None:
    layer, x = mixture(routing=Routing(faithful=True)), tokens()
    layer.routing.draw = torch.zeros_like
    sums = (x @ layer.routers[0, :4].T).sum(1).topk(2).values
    weights = ((sums - sums.min()) / (sums.max() - sums.min()))[0].softmax(0)
    found = layer(x)
    for image in range(3):
        torch.testing.assert_close(found[image], by_hand(layer, x[image], [0, 1], weights))
    found.sum().backward()
    assert layer.routers.grad is None
    ours = mixture()
    ours(x).square().sum().backward()
    assert float(ours.routers.grad[0, :4].abs().sum()) > 0


def test_ours_does_not_depend_on_the_batch_and_the_released_one_does() -> None:
    x = tokens()
    for faithful in (False, True):
        layer = mixture(routing=Routing(faithful=faithful))
        layer.routing.draw = torch.zeros_like
        alone = torch.cat([layer(image[None]) for image in x])
        assert torch.allclose(layer(x), alone) == (not faithful)


def test_noise_is_added_to_scores_by_the_routers_deviation() -> None:
    layer, x = mixture(), tokens()
    layer.routing.noisy, layer.routing.draw = True, torch.ones_like
    scores = x @ layer.routers[0, :4].T
    deviation = torch.nn.functional.softplus(x @ layer.routers[0, 4:].T) + 0.01
    torch.testing.assert_close(layer.scores(x), (scores + deviation).mean(1))


def test_a_new_mixture_changes_nothing() -> None:
    layer = Mixture(6, 2, experts=4, chosen=1, domains=1, routing=Routing()).double()
    assert torch.equal(layer(tokens()), tokens())


def test_mutual_information_is_nothing_for_equal_experts_and_all_for_own_ones() -> None:
    domains = torch.arange(8) % len(DOMAINS)
    assert float(mutual_information(domains, torch.zeros(8, 4))) == pytest.approx(0, abs=1e-6)
    own = 100 * torch.eye(4)[domains]
    assert float(mutual_information(domains, own)) == pytest.approx(math.log(4), abs=1e-5)


# -- the network


def test_experts_follow_every_block_of_the_stages_with_a_rank() -> None:
    method = segmentor("becotta", **SMALL)
    owners = {name.rpartition(".mixture")[0] for name in method.trainable}
    assert owners == {f"stages.{stage}.blocks.0" for stage in (1, 2, 3)}
    before = tensors(method.model)
    for images in scenes(6).split(2):
        method(images)
    assert {name.removeprefix("network.") for name in changed(before, method.model)} == set(
        method.trainable
    )


def test_a_copy_of_the_model_has_experts_of_its_own() -> None:
    method = segmentor("becotta", **SMALL)
    method(scenes(2))
    other = copy.deepcopy(method.model)
    with torch.no_grad():
        expected = other(scenes(2))
        for parameter in method.experts.values():
            parameter.add_(1.0)
        assert torch.equal(other(scenes(2)), expected)
        assert not torch.equal(method.model(scenes(2)), expected)


# -- the labels


def test_labels_are_plain_where_the_model_is_surer_than_the_source_else_over_views(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = segmentor("becotta", **SMALL | {"views": 1, "confidence_threshold": 0.2})
    with torch.no_grad():
        for parameter in method.experts.values():
            parameter.add_(0.3 * torch.randn_like(parameter))
        images = scenes(2)
        own, theirs = method.model(images).softmax(1), method.anchor(images).softmax(1)
    sure = (own.amax(1) > 0.2) & (own.amax(1) >= theirs.amax(1))
    assert bool(sure.any()) and not bool(sure.all())
    from ctta_bench.methods import becotta as module

    real = module.averaged
    monkeypatch.setattr(
        module, "averaged", lambda seen: real(seen)._replace(mean=torch.full_like(own, 0.125))
    )
    found = method.predict(images).exp()
    torch.testing.assert_close(found, torch.where(sure[:, None], own, 0.125))


def test_the_loss_is_the_soft_cross_entropy_to_the_labels() -> None:
    method, images = segmentor("becotta", **SMALL), scenes(2)
    target = method.predict(images)
    with torch.no_grad():
        logits = method.model(images)
    method(images)
    expected = -(target.exp() * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(method.loss, expected)


def test_a_random_share_of_the_experts_is_restored_and_nan_images_change_nothing() -> None:
    method = segmentor("becotta", **SMALL, restore_probability=1.0)
    start = snapshot(method)
    method(scenes(2))
    assert plain(snapshot(method)) == plain(start)
    method = segmentor("becotta", **SMALL)
    method(torch.full((2, 3, 32, 32), torch.nan))
    assert plain(snapshot(method)) == plain(start)
    assert method.counters["skipped_updates"] == 1
    assert bool(method(scenes(1)).isfinite().all())


# -- the warm-up


def test_renderings_are_images_and_each_is_another_one() -> None:
    images = scenes(2)
    shown = [rendered(images, domain) for domain in DOMAINS]
    assert torch.equal(shown[0], images)
    for one in shown:
        assert one.shape == images.shape and float(one.min()) >= 0 and float(one.max()) <= 1
    brightness = [float(one.mean()) for one in shown]
    assert brightness[2] < brightness[0] < brightness[3]
    assert len(set(brightness)) == 4


def test_the_warm_up_teaches_labels_and_to_tell_the_renderings() -> None:
    method, lines = warmed(warmup_iterations=30)
    assert lines[-1]["loss"] < lines[0]["loss"]
    images = scenes(8)
    right = 0
    for number, domain in enumerate(DOMAINS):
        with torch.no_grad():
            method.predict(rendered(images, domain))
        assert method.routing.domains is not None
        right += int((method.routing.domains == number).sum())
    assert right >= 24  # of 32
    assert not method.routing.noisy and method.routing.seen is None
    routers = next(p for n, p in method.experts.items() if n.endswith("routers"))
    assert routers.shape[0] == len(DOMAINS)


def test_a_warm_up_is_resumed_to_the_bit_and_the_restore_returns_to_it() -> None:
    (one, _), (other, _) = warmed(), warmed()
    assert plain(one.state_dict()) == plain(other.state_dict())
    for value, start in zip(one.experts.values(), one.start_values, strict=True):
        assert torch.equal(value, start)
    cold = segmentor("becotta", **SMALL)
    assert cold.routing.domains is None and cold.source_access == "none"
    assert one.source_access == "labelled"


def test_styles_are_running_means_and_the_spread_around_them() -> None:
    styles = Styles(2, torch.zeros(1).double())
    drawn, domains = torch.rand(9, 2).double(), torch.arange(9) % 3
    styles.learn(drawn[:4], domains[:4])
    styles.learn(drawn[4:], domains[4:])
    means = torch.stack([drawn[domains == d].mean(0) for d in range(3)])
    torch.testing.assert_close(styles.means[:3], means)
    torch.testing.assert_close(styles.spread, (drawn - means[domains]).square().mean(0))
    styles.means[3] = 9.0
    near = torch.stack([means[2], means[0], torch.full((2,), 8.0).double()])
    assert styles.nearest(near).tolist() == [2, 0, 3]


def test_moments_of_a_map_are_means_and_deviations_of_channels() -> None:
    features = torch.randn(2, 3, 4, 5)
    found = channel_moments(features)
    torch.testing.assert_close(found[:, :3], features.mean((2, 3)))
    torch.testing.assert_close(found[:, 3:], features.flatten(2).std(2))


# -- what is refused


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"chosen_experts": 5}, "at most 4 chosen experts, not 5"),
        ({"ranks": (0, 0, 0, 0)}, "needs a rank above 0"),
        ({"views": 15}, "supports 1 to 14 views"),
    ],
)
def test_values_that_cannot_be_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(MethodError, match=said):
        segmentor("becotta", **SMALL | values)


def test_classifiers_and_exports_are_refused() -> None:
    with pytest.raises(MethodError, match="does not support toy_vit, a model for classification"):
        build("becotta")
    with pytest.raises(MethodError, match="no plain network to store or export"):
        _ = segmentor("becotta", **SMALL).scored_model
    assert CLASSES > 1
