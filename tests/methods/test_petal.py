"""PETAL. θ the student, θ' the teacher, μ and σ² the prior, δ and p of its restores."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.authoring.parity import replay_case, tensor_mismatches
from ctta_bench.errors import MethodError
from ctta_bench.method.warmup import Warmup, warmup_rate
from ctta_bench.methods import petal as module
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from tests.methods import build, pictures, plain, snapshot, source_images, tensors, toy
from tests.parity.test_parity import CASES
from tests.parity.test_teachers import noting, per_batch

PETAL = METHODS.get("petal")
L2 = {"prior": "l2"}
SGD = {"optimizer": "sgd", "lr": 0.01, "momentum": 0.0}
DOUBLE = {"dtype": torch.float64, "precision": "float64"}
NEVER, ALWAYS = {"confidence_threshold": 0.0}, {"confidence_threshold": 2.0}
# A gradient without a view.
MOVING = {"loss": "symmetric", **L2, **NEVER, **SGD}
NOTHING = {"restore": "sres", "restore_probability": 0.0}
# 40 source images: 5 updates an epoch.
POSTERIOR = {"prior": "posterior", "warmup_epochs": 5}
WARM = {**POSTERIOR, "warmup_batch_size": 8, "warmup_lr": 0.05}


taken: list[int] = []  # snapshots of warm-ups


def warmed(**values: Any) -> tuple[Any, list[dict[str, Tensor]]]:
    """A method after its warm-up, and the weights after each update of it."""
    method = PETAL(SourceModel(toy.toy_vit()).double(), PETAL.Hyperparameters(**WARM | values))
    warmup = Warmup(method, source_images(torch.float64, labelled=True))
    weights = [snapshot(method) for _ in warmup.updates()]
    taken.append(method.snapshots)
    warmup.finish()
    method.warmed_up()
    return method, weights


# -- the posterior


def test_mean_and_variance_are_those_of_the_weights_after_each_epoch_but_the_first() -> None:
    method, weights = warmed()
    assert len(weights) == 25 and taken[-1] == 4
    for place, name in enumerate(method.trainable):
        seen = torch.stack([weights[update][name] for update in (9, 14, 19, 24)])
        torch.testing.assert_close(method.prior_mean[place], seen.mean(0))
        variance = seen.var(0, unbiased=False)
        torch.testing.assert_close(method.prior_precision[place], 1 / (variance + 1e-6))


def test_student_and_teacher_and_anchor_start_from_the_mean() -> None:
    method, weights = warmed()
    student = snapshot(method)
    assert plain(student) != plain(weights[-1])
    for place, (name, value) in enumerate(student.items()):
        assert torch.equal(value, method.prior_mean[place])
        for other in (method.teacher, method.anchor):
            assert torch.equal(dict(other.network.named_parameters())[name], value)
    assert float(method.penalty().detach()) == 0


@pytest.mark.parametrize(("epochs", "snapshots", "updates"), [(1, 4, 4), (5, 9, 9), (2, 1, 1)])
def test_snapshots_are_at_equal_intervals_and_one_at_the_end(
    epochs: int, snapshots: int, updates: int
) -> None:
    method, weights = warmed(warmup_epochs=epochs, snapshots=snapshots)
    assert taken[-1] == updates
    if snapshots == 1:
        torch.testing.assert_close(snapshot(method), weights[-1])


@pytest.mark.parametrize("faithful", [False, True])
def test_a_negative_variance_is_rounding_and_only_faithful_keeps_it(faithful: bool) -> None:
    method = PETAL(
        SourceModel(toy.toy_vit()), PETAL.Hyperparameters(**POSTERIOR, faithful=faithful)
    )
    mean, square = method.prior_mean[0], method.prior_precision[0]
    mean.fill_(1.0)
    square.fill_(1 - 2.0**-20)  # as E[θ²] of float32 may be
    method.warmed_up()
    variance = -(2.0**-20) if faithful else 0.0
    assert float(method.prior_precision[0].max()) == pytest.approx(1 / (variance + 1e-6), rel=1e-4)


def test_the_warm_up_has_the_rates_and_the_weight_decay_of_the_official_code() -> None:
    rates = [warmup_rate("swag", 0.01, update, 10, total=50) for update in range(50)]
    assert (rates[0], rates[30], rates[-1]) == pytest.approx((8e-4, 0.01, 0.01))
    assert rates[15] == pytest.approx((8e-4 + 0.01) / 2)
    decayed, plainly = (warmed(warmup_weight_decay=w, warmup_epochs=1)[0] for w in (0.5, 0.0))
    norms = [
        sum(float(p.detach().norm()) for p in m.trainable.values()) for m in (decayed, plainly)
    ]
    assert norms[0] < norms[1]


def test_without_a_posterior_the_plain_pull_has_to_be_asked_for() -> None:
    model = SourceModel(toy.toy_vit())
    with pytest.raises(MethodError, match=r"set warmup_epochs \(5 on CIFAR, .*\), or prior: l2"):
        PETAL(model, PETAL.Hyperparameters(prior="posterior"))
    for values, access in (({}, "none"), (L2 | {"warmup_epochs": 5}, "none"), (WARM, "labelled")):
        assert PETAL(model, PETAL.Hyperparameters(**values)).source_access == access


# -- the loss


def test_the_gradient_of_the_prior_is_the_distance_from_its_mean_over_its_variance() -> None:
    method = build("petal", **L2, **DOUBLE)
    method.prior_precision = [torch.full_like(p, 1 / 0.7) for p in method.prior_precision]
    method.prior_mean = [0.9 * m for m in method.prior_mean]
    weights = list(method.trainable.values())
    found = torch.autograd.grad(method.penalty(), weights)
    for gradient, weight, mean in zip(found, weights, method.prior_mean, strict=True):
        torch.testing.assert_close(gradient, (weight.detach() - mean) / 0.7)


def test_without_prior_and_with_random_restore_it_is_cotta() -> None:
    shared = {**SGD, **ALWAYS, "views": 2, "restore_probability": 0.1, "seed": 3}
    ours = build("petal", restore="sres", prior_weight=0.0, **L2, **shared)
    theirs = build("cotta", **shared)
    for images in pictures(24).split(8):
        assert torch.equal(ours(images), theirs(images))
    assert plain(tensors(ours.model)) == plain(tensors(theirs.model))
    assert plain(tensors(ours.teacher)) == plain(tensors(theirs.teacher))


# -- the restore


@pytest.mark.parametrize("share", [0.0, 0.003, 0.03, 0.5, 0.999])
def test_the_quantile_is_interpolated_as_that_of_torch(share: float) -> None:
    values = torch.rand(1001, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(module.quantile(values, share), torch.quantile(values, share))
    assert module.quantile(torch.ones(1), share) == 1


@pytest.mark.parametrize("share", [0.0, 0.003, 0.03, 0.5, 0.999])
@pytest.mark.parametrize("mixed", [True, False])
def test_the_quantile_of_many_values_is_exact_too(share: float, mixed: bool) -> None:
    values = torch.rand(300_000, generator=torch.Generator().manual_seed(0)).double()
    values = values if mixed else torch.cat([values[::2].sort().values, values[1::2] * 9])
    torch.testing.assert_close(module.quantile(values, share), torch.quantile(values, share))
    values[::7] = 0  # equal values
    torch.testing.assert_close(module.quantile(values, share), torch.quantile(values, share))


def test_the_penalty_has_the_derivatives_of_its_value() -> None:
    drawn = torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(0)).double()
    means, precisions, weights = (list(x) for x in drawn)
    weights = [w.requires_grad_() for w in weights]
    found = module.Quadratic.apply(means, precisions, *weights)
    torch.testing.assert_close(found, (drawn[1] * (drawn[2] - drawn[0]).square()).sum())
    assert torch.autograd.gradcheck(
        lambda *w: module.Quadratic.apply(means, precisions, *w), weights
    )


def squares_and_restored(**values: Any) -> tuple[Any, list[Tensor], list[Tensor]]:
    """A method after a batch; its squared gradients; which weights are at their start."""
    method = build("petal", **MOVING | {"lr": 0.5}, **DOUBLE, **values)
    seen: list[Tensor] = []
    restore = method.restore_least

    def noted(squares: list[Tensor]) -> None:
        seen.extend(squares)
        restore(squares)

    method.restore_least = noted
    method(pictures(8).double())
    del method.restore_least
    back = [
        parameter.detach() == start
        for parameter, start in zip(method.trainable.values(), method.source, strict=True)
    ]
    return method, seen, back


def test_the_weights_with_the_smallest_squared_gradients_of_all_go_back() -> None:
    _, squares, back = squares_and_restored(restore_share=0.3)
    together, restored = (torch.cat([x.flatten() for x in xs]) for xs in (squares, back))
    expected = together < torch.quantile(together, 0.3)
    assert int(expected.sum()) == int(0.3 * (len(together) - 1)) + 1
    moving = together > 1e-20  # weights without a gradient have not moved at all
    assert torch.equal(restored[moving], expected[moving])


def test_a_share_of_zero_restores_nothing() -> None:
    method, squares, back = squares_and_restored(restore_share=0.0)
    for square, stays in zip(squares, back, strict=True):
        assert not bool((stays & (square > 1e-20)).any())
    with pytest.raises(ValueError, match="less than 1"):
        PETAL.Hyperparameters(restore_share=1.0)
    assert method.counters["skipped_updates"] == 0


def test_the_teacher_follows_before_the_restore() -> None:
    values = {**MOVING, "restore_share": 0.5, "teacher_momentum": 0.0}
    method = build("petal", **values)
    before: list[dict[str, Tensor]] = []
    restore = method.restore_least

    def noted(squares: list[Tensor]) -> None:
        before.append(snapshot(method))
        restore(squares)

    method.restore_least = noted
    method(pictures(8))
    del method.restore_least
    teacher = dict(method.teacher.network.named_parameters())
    assert plain({name: teacher[name] for name in before[0]}) == plain(before[0])
    assert plain(snapshot(method)) != plain(before[0])


# -- a batch


@pytest.mark.parametrize("restore", ["fim", "sres"])
def test_a_gradient_that_is_noise_and_nan_images_change_nothing(restore: str) -> None:
    # Without a view the first teacher is the student: the cross-entropy has no gradient.
    method = build("petal", restore=restore, **L2, **NEVER)
    start = tensors(method.model)
    method(pictures(8))
    assert method.counters["skipped_updates"] == 0
    method(torch.full((4, 3, 16, 16), torch.nan))
    assert method.counters["skipped_updates"] == 1
    assert plain(tensors(method.model)) == plain(start)
    assert bool(method(pictures(1)).isfinite().all())


def test_only_faithful_makes_every_forward_pass() -> None:
    counted = []
    for faithful in (False, True):
        method = build("petal", views=2, faithful=faithful, **L2, **NEVER)
        method(pictures(8))
        counted.append(method.passes.forward_images // 8)
    assert counted == [3, 5]


# -- the official code


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("petal_")])
def test_restores_views_and_teacher_are_the_official_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored: list[int] = []
    thresholds: list[float] = []
    quantile = module.quantile

    def noted(values: Tensor, share: float) -> Tensor:
        found = quantile(values, share)
        thresholds.append(float(found))
        restored.append(int((values < found).sum()))
        return found

    monkeypatch.setattr(module, "quantile", noted)
    calls = noting(monkeypatch, "petal", lambda method: method.augment.calls)
    replayed = replay_case(CASES[name], torch.float64)
    assert calls == per_batch(replayed, "augmentation_calls_so_far")
    if "fim" in name:
        assert restored == per_batch(replayed, "restored")
        assert thresholds == pytest.approx(per_batch(replayed, "threshold"), rel=1e-2)
    method: Any = replayed.method
    teacher = dict(method.teacher.network.named_parameters())
    case = {"final": {"student": replayed.case["final"]["teacher"]}}
    compared = dataclasses.replace(replayed, case=case, recorded={}, tensors=teacher)
    assert tensor_mismatches(compared) == []
