"""The invariants of PALM. g gradient of the selection, s = |θ g|, ŝ its average, η max_gradient."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ctta_bench.authoring.parity import collect, largest_difference, replay_case, repository_cases
from ctta_bench.method import Method
from ctta_bench.registry import METHODS
from tests.methods import build, changed, pictures, plain, snapshot, tensors, toy

DOUBLE: dict[str, Any] = {"dtype": torch.float64, "precision": "float64"}
OPEN: dict[str, Any] = {"lr": 0.01, "max_gradient": 1e6}  # selects every tensor
SMALL = OPEN | {"lr": 1e-3}


def flipped(images: Tensor, size: Any = None) -> Tensor:
    return images.flip(-1)


def rates(method: Method) -> list[float]:
    return [group["lr"] for group in method.optimizer.param_groups]


def gradients(method: Method, images: Tensor) -> list[Tensor]:
    """Of C times the cross-entropy to uniform labels at temperature T."""
    logits = method.model(images) / method.hp.temperature
    uniform = torch.full_like(logits, 1 / toy.CLASSES)
    loss = toy.CLASSES * cross_entropy(logits, uniform)
    return list(torch.autograd.grad(loss, list(method.trainable.values())))


# -- selection and rates


def test_the_selection_s_gradient_is_that_of_uniform_labels_summed_over_classes() -> None:
    method, images = build("palm", temperature=50.0, **DOUBLE), pictures(8).double()
    found = method.gradients_of_uncertainty(method.model(images))
    for ours, theirs in zip(found, gradients(method, images), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("momentum", [0.5, 0.1, 0.9])
def test_constant_sensitivities_make_the_rates_vanish_geometrically(momentum: float) -> None:
    method = build("palm", sensitivity_momentum=momentum, **OPEN, **DOUBLE)
    constant = [torch.ones_like(p) for p in method.trainable.values()]
    with torch.no_grad():
        for parameter in method.trainable.values():
            parameter.fill_(2.0)
    for count in range(1, 6):
        method.set_rates(constant)
        remaining = momentum**count  # of ŝ = (1 - β^n) s; at first, the rate is lr β / (1 - β)
        expected = 0.01 * remaining / (1 - remaining)
        assert rates(method) == pytest.approx([expected] * len(constant), rel=1e-6, abs=1e-10)


def test_rates_are_never_negative_and_a_zero_gradient_has_the_full_rate() -> None:
    method = build("palm", **OPEN)
    for images in pictures(40).split(8):
        method(images)
        assert min(rates(method)) >= 0
    fresh = build("palm", **OPEN)
    fresh.set_rates([torch.zeros_like(p) for p in fresh.trainable.values()])
    assert rates(fresh) == pytest.approx([0.01] * len(rates(fresh)))


def test_only_tensors_up_to_the_largest_gradient_are_selected_and_move() -> None:
    images = pictures(8)
    sizes = [float(g.abs().sum()) for g in gradients(build("palm"), images)]
    limit = sorted(sizes)[len(sizes) // 2]
    method = build("palm", lr=0.01, max_gradient=limit * 1.0001)
    before = tensors(method.model)
    method(images)
    selected = {
        n for n, size in zip(method.trainable, sizes, strict=True) if size <= limit * 1.0001
    }
    assert 0 < len(selected) < len(sizes)
    assert {n.removeprefix("network.") for n in changed(before, method.model)} == selected
    for (name, _), average in zip(method.trainable.items(), method.sensitivities, strict=True):
        assert bool(average.any()) == (name in selected)


def test_without_selection_nothing_ever_moves() -> None:
    method = build("palm", lr=0.01, max_gradient=0.0)
    before = tensors(method.model)
    for images in pictures(24).split(8):
        method(images)
    assert changed(before, method.model) == set()


@pytest.mark.parametrize("faithful", [False, True])
def test_a_tensor_that_was_selected_once_stops_unless_the_code_is_reproduced(
    faithful: bool,
) -> None:
    method = build("palm", faithful=faithful, **OPEN)
    method(pictures(8))
    first, averages = rates(method), plain(method.sensitivities)
    large = [torch.full_like(p, 1e9) for p in method.trainable.values()]
    method.set_rates(large)
    assert rates(method) == (first if faithful else [0.0] * len(first))
    assert plain(method.sensitivities) == averages


# -- the step


def test_the_step_is_adam_s_first_with_these_rates_on_both_terms() -> None:
    method = build(
        "palm", temperature=50.0, consistency_weight=0.02, entropy_limit=1.8, **SMALL, **DOUBLE
    )
    method.augment = flipped
    for images in pictures(16).double().split(8):  # the moments of the first have no effect
        start, before = snapshot(method), [s.clone() for s in method.sensitivities]
        expected_rates = []
        for parameter, g, old in zip(
            method.trainable.values(), gradients(method, images), before, strict=True
        ):
            s = (parameter.detach() * g).abs()
            average = 0.5 * s + 0.5 * old
            expected_rates.append(
                1e-3 * float((((s - average).abs() + 1e-8) / (average + 1e-8)).mean())
            )
        logits, view = method.model(images), method.model(images.flip(-1))
        p, log_p = logits.softmax(-1), logits.log_softmax(-1)
        entropy = -(p * log_p).sum(-1)
        kept = entropy < 1.8
        assert 0 < kept.sum() < 8
        consistency = -(p * view.log_softmax(-1)).sum(-1).mean()
        loss = entropy[kept].mean() + 0.02 * 10 * consistency
        descent = torch.autograd.grad(loss, list(method.trainable.values()))
        method(images)
        torch.testing.assert_close(method.loss, loss.detach())
        assert rates(method) == pytest.approx(expected_rates, rel=1e-9)
        for (name, parameter), g, rate in zip(
            method.trainable.items(), descent, expected_rates, strict=True
        ):
            moved = start[name] - rate * g / (g.abs() + 1e-8)
            torch.testing.assert_close(parameter.detach(), moved, atol=1e-7, rtol=0)
        assert len(method.optimizer.state) == 0


def test_without_certain_images_the_consistency_alone_is_minimised() -> None:
    method = build("palm", entropy_limit=0.0, **OPEN)
    before = tensors(method.model)
    method(pictures(8))
    assert bool(method.loss.isfinite()) and method.counters["skipped_updates"] == 0
    assert changed(before, method.model)


def test_a_batch_that_is_not_finite_moves_neither_weights_nor_sensitivities() -> None:
    method = build("palm", **OPEN)
    method(pictures(8))
    before, averages = tensors(method.model), plain(method.sensitivities)
    images = pictures(8, seed=1)
    images[2] = torch.nan
    method(images)
    assert method.counters["skipped_updates"] == 1
    assert changed(before, method.model) == set()
    assert plain(method.sensitivities) == averages


def test_a_reset_clears_sensitivities_and_rates() -> None:
    method = build("palm", faithful=True, **OPEN)
    method(pictures(8))
    method.reset()
    assert not any(bool(s.any()) for s in method.sensitivities)
    assert rates(method) == [0.0] * len(rates(method))


# -- which layers, and the code


def test_norms_and_convolutions_adapt_in_the_order_of_the_network() -> None:
    timm = pytest.importorskip("timm")
    from ctta_bench.model import SourceModel

    with torch.device("meta"):
        network = timm.create_model("vit_base_patch16_224")
    method = METHODS.get("palm")(SourceModel(network))
    assert next(iter(method.trainable)) == "patch_embed.proj.weight"
    assert sum(p.numel() for p in method.trainable.values()) == 38_400 + 590_592
    cnn = build("palm", "toy_cnn")
    convolutions = [n for n, p in cnn.trainable.items() if p.dim() == 4]
    assert len(convolutions) == 2 and cnn.batch_dependent


@pytest.mark.parametrize(
    ("name", "equal"), [("palm", False), ("palm_threshold", True), ("palm_cnn", True)]
)
def test_the_default_equals_the_code_until_a_rate_is_stale(name: str, equal: bool) -> None:
    file = collect([repository_cases()])[name]
    found = file.hyperparameters() | {"faithful": False}
    object.__setattr__(file, "hyperparameters", lambda: found)
    replayed = replay_case(file, torch.float64)
    assert (largest_difference(replayed, "logits64_") <= 1e-9) == equal
