"""The invariants of ROID. w weights, m average prediction, π prior, SLR and SCE the two losses."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.parts.families.weighted import likelihood_ratio_loss, smoothed_prior, within_range
from tests.methods import build, changed, pictures, plain, snapshot, tensors

DOUBLE = {"dtype": torch.float64, "precision": "float64"}


def as_they_are(images: Tensor, *settings: Any) -> Tensor:
    return images


# -- losses and weights


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        # -0.99 ln 99, and the other nine at 0 contribute nothing.
        ([1.0] + [0.0] * 9, -0.99 * math.log(99 + 1e-5)),
        ([0.1] * 10, -math.log(1 / 9 + 1e-5)),  # 2.197
        ([0.5, 0.5], -math.log(1 + 1e-5)),
    ],
)
def test_the_likelihood_ratio_loss_has_its_closed_form(p: list[float], expected: float) -> None:
    logits = torch.tensor([p], dtype=torch.float64).clamp_min(1e-30).log()
    assert float(likelihood_ratio_loss(logits)) == pytest.approx(expected, abs=1e-6)


def test_the_likelihood_ratio_of_a_sure_class_has_no_gradient() -> None:
    logits = torch.tensor([[8.0, 0.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(likelihood_ratio_loss(logits).sum(), logits)
    sure, q = logits.detach().softmax(-1)[0].tolist()
    assert sure > 0.99
    # What is left is that of the other class.
    slope = -(math.log(q / (1 - q) + 1e-5) + q / (1 - q) ** 2 / (q / (1 - q) + 1e-5))
    expected = slope * q * (1 - q)
    assert gradient.tolist()[0] == pytest.approx([-expected, expected], rel=1e-9)


def test_weights_are_those_of_the_formula_and_half_of_the_images_is_left_out() -> None:
    method = build("roid")
    p = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    p = torch.cat([p, torch.zeros(3, 8)], -1)
    method.average = torch.tensor([1.0] + [0.0] * 9)
    entropy = torch.tensor([0.325, 0.673, 0.5])
    cosines = [0.9 / math.hypot(0.9, 0.1), 0.6 / math.hypot(0.6, 0.4), 0.2 / math.hypot(0.2, 0.8)]
    d = [(cosines[0] - c) / (cosines[0] - cosines[2]) for c in cosines]
    assert d[1] < sum(d) / 3 < d[2] == 1
    expected = [0, 0, math.exp(3 * (0.673 - 0.5) / (0.673 - 0.325))]
    assert method.sample_weights(p, entropy).tolist() == pytest.approx(expected, rel=1e-5)


def test_weights_are_zero_or_between_one_and_the_cube_of_e() -> None:
    method, images = build("roid"), pictures(32)
    with torch.no_grad():
        p = method.model(images).softmax(-1)
    weights = method.sample_weights(p, -(p * p.log()).sum(-1))
    kept = weights[weights > 0]
    assert 1 <= len(kept) <= 31
    assert 1 <= float(kept.min()) <= float(kept.max()) <= math.e**3 + 1e-4


def test_of_two_images_one_is_kept() -> None:
    assert within_range(torch.tensor([3.0, 7.0])).tolist() == [0, 1]
    method = build("roid")
    method(pictures(2))
    assert method.passes.forward_images == 3
    assert method.counters["skipped_updates"] == 0


# -- the step


def objective(method: Any, images: Tensor, divisor: int) -> Tensor:
    """The loss on the images kept, by its parts; the view is the image."""
    logits = method.model(images)
    p = logits.detach().softmax(-1)
    d = 1 - torch.cosine_similarity(method.average[None], p)
    d = (d - d.min()) / (d.max() - d.min())
    c = (p * p.log()).sum(-1)
    c = (c - c.min()) / (c.max() - c.min())
    kept = d >= d.mean()
    w, z = (3 * d * c).exp()[kept], logits[kept]
    x = method.model(images[kept])
    q = z.softmax(-1).clamp(0, 0.99)
    likelihood = -(q * (q / (1 - q) + 1e-5).log()).sum(-1)
    forth = -(z.softmax(-1) * x.log_softmax(-1)).sum(-1)
    back = -(x.softmax(-1) * z.log_softmax(-1)).sum(-1)
    return (w * (likelihood + (forth + back) / 2)).sum() / divisor


@pytest.mark.parametrize("sizes", [(12,), (12, 5), (4, 12)])
def test_the_loss_is_divided_by_the_size_of_a_full_batch_and_its_gradient_goes_both_ways(
    sizes: tuple[int, ...],
) -> None:
    method = build("roid", lr=0.1, momentum=0.0, nesterov=False, source_momentum=1.0, **DOUBLE)
    method.augment = as_they_are
    for seed, size in enumerate(sizes):
        images, start = pictures(size, seed=seed).double(), snapshot(method)
        loss = objective(method, images, max(sizes[: seed + 1]))
        gradients = torch.autograd.grad(loss, list(method.trainable.values()))
        method(images)
        torch.testing.assert_close(method.loss, loss.detach())
    for (name, parameter), gradient in zip(method.trainable.items(), gradients, strict=True):
        expected = start[name] - 0.1 * gradient
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-12, rtol=0)


def test_the_average_follows_all_images_by_a_tenth() -> None:
    method, images = build("roid"), pictures(8)
    with torch.no_grad():
        p = method.model(images).softmax(-1)
    method(images)
    torch.testing.assert_close(method.average, 0.09 + 0.1 * p.mean(0))


def test_the_share_of_a_batch_in_the_average_is_a_hyperparameter() -> None:
    method = build("roid", lr=0.0, prediction_rate=0.25, prior="off")
    images = pictures(8)
    p = method(images).softmax(1).mean(0)
    torch.testing.assert_close(method.average, 0.75 / len(p) + 0.25 * p)
    assert "prediction_rate" not in build("roid").hp.record()


@pytest.mark.parametrize("momentum", [1.0, 0.99, 0.0])
def test_weights_come_back_to_the_source_by_the_momentum(momentum: float) -> None:
    method, free = (build("roid", lr=0.01, source_momentum=m, **DOUBLE) for m in (momentum, 1.0))
    source = snapshot(method)
    for each in (method, free):
        each.augment = as_they_are
        each(pictures(8).double())
    for name, parameter in method.trainable.items():
        expected = momentum * free.trainable[name] + (1 - momentum) * source[name]
        torch.testing.assert_close(parameter, expected, atol=1e-14, rtol=0)


def test_without_a_gradient_the_way_from_the_source_shrinks_by_a_hundredth() -> None:
    method = build("roid", lr=0.0, **DOUBLE)
    source = snapshot(method)
    with torch.no_grad():
        for parameter in method.trainable.values():
            parameter += 1
    method(pictures(8).double())
    for name, parameter in method.trainable.items():
        torch.testing.assert_close(parameter.detach(), source[name] + 0.99)


def test_a_rate_of_zero_leaves_the_source() -> None:
    method = build("roid", lr=0.0)
    before = tensors(method.model)
    for images in pictures(24).split(8):
        method(images)
    assert changed(before, method.model) == set()


# -- what is scored


def test_the_prior_sums_to_one_and_is_flatter_for_few_images() -> None:
    one = torch.tensor([[0.7, 0.2, 0.1]])
    for count, share in ((1, 1.0), (2, 1 / 2), (3, 1 / 3), (50, 1 / 3)):
        prior = smoothed_prior(one.expand(count, -1))
        smoothing = share / 0.7
        expected = [(p + smoothing) / (1 + 3 * smoothing) for p in (0.7, 0.2, 0.1)]
        assert prior.tolist() == pytest.approx(expected)
        assert float(prior.sum()) == pytest.approx(1)
    assert smoothed_prior(torch.eye(3)).tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("prior", ["logits", "probabilities", "off"])
def test_scores_are_those_from_before_the_step_under_the_prior(prior: Any) -> None:
    method, images = build("roid", lr=0.1, prior=prior), pictures(8)
    with torch.no_grad():
        z = method.model(images)
    weights = smoothed_prior(z.softmax(-1))
    scored = method(images)
    if prior == "logits":
        torch.testing.assert_close(scored, z * weights)
    elif prior == "off":
        assert torch.equal(scored, z)
    else:
        expected = z.softmax(-1) * weights
        expected = expected / expected.sum(-1, keepdim=True)
        torch.testing.assert_close(scored.softmax(-1), expected)


def test_a_single_image_is_scored_without_a_prior_and_moves_nothing() -> None:
    method, source, images = build("roid"), build("source"), pictures(1)
    before = tensors(method.model)
    assert torch.equal(method(images), source(images))
    assert changed(before, method.model) == set()
    assert method.counters["skipped_updates"] == 1


def test_a_batch_of_one_image_repeated_moves_nothing() -> None:
    method = build("roid", **DOUBLE)
    method.model.forward = lambda images: torch.ones(len(images), 10).double().cumsum(-1)
    before, average = tensors(method.model), method.average
    scored = method(pictures(1).double().expand(6, -1, -1, -1))
    assert changed(before, method.model) == set()
    assert method.average is average
    assert bool(scored.isfinite().all())


def test_an_image_that_is_not_finite_neither_moves_anything_nor_spoils_other_scores() -> None:
    method, images = build("roid"), pictures(8)
    images[3] = torch.nan
    others = [number for number in range(8) if number != 3]
    expected = build("roid", lr=0.0)(images[others])
    before, average = tensors(method.model), method.average
    torch.testing.assert_close(method(images)[others], expected, atol=1e-5, rtol=0)
    assert changed(before, method.model) == set()
    assert method.average is average


def test_passes_are_one_and_those_of_the_kept_images() -> None:
    method, images = build("roid"), pictures(16)
    with torch.no_grad():
        p = method.model(images).softmax(-1)
    d = 1 - torch.cosine_similarity(torch.full((1, 10), 0.1), p)
    kept = int((d >= d.mean()).sum())
    method.passes.forward_images = 0
    method(images)
    assert (method.passes.forward_images, method.passes.backward_images) == (16 + kept, 16 + kept)


def test_without_weights_all_are_kept_and_without_consistency_seen_once() -> None:
    method = build("roid", weighting=False, consistency=False)
    method(pictures(8))
    assert (method.passes.forward_images, method.passes.backward_images) == (8, 8)


def test_reset_forgets_the_average_and_the_size_of_a_batch() -> None:
    method = build("roid")
    source = plain(snapshot(method))
    method(pictures(8))
    assert plain(snapshot(method)) != source
    method.reset()
    assert plain(snapshot(method)) == source
    assert method.average.tolist() == pytest.approx([0.1] * 10)
    assert method.full_batch == 0
