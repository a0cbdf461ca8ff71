"""The invariants of DPCore. ρ similarity, w weights of cores, L distance from the source."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.methods.dpcore import PromptCores
from ctta_bench.parts.prompts.class_token import prompted
from ctta_bench.parts.source.moments import batch_moments
from tests.methods import build, changed, pictures, source_images, tensors

DOUBLE = {"dtype": torch.float64, "precision": "float64"}
ALWAYS_NEW = {"prompts": 2, "similarity": 0.0, "steps": 2}
ONE_CORE = {"prompts": 2, "similarity": 1e9, "steps": 2}


def double(**arguments: Any) -> Any:
    return build("dpcore", **DOUBLE, **arguments)


def batches(count: int = 3, size: int = 8) -> list[Tensor]:
    return list(pictures(count * size).double().split(size))


def distance(method: Any, features: Tensor) -> Tensor:
    """‖μ - μ_s‖ + ‖σ - σ_s‖."""
    mean, std = features.mean(0) - method.source.mean, features.std(0) - method.source.std
    return mean.square().sum().sqrt() + std.square().sum().sqrt()


def under(method: Any, prompts: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad(), prompted(method.model, prompts):
        return method.model.features_and_logits(images)


@pytest.fixture
def cores() -> PromptCores:
    """Two cores a distance of ln 3 · τ apart from each other, seen from the first."""
    made = PromptCores(torch.zeros(1, 2), 1.0, 2.0)
    made.add(torch.zeros(2), torch.ones(2), torch.zeros(1, 2))
    away = 2 * torch.log(torch.tensor(3.0))
    made.add(torch.tensor([0.0, away]), torch.ones(2), torch.tensor([[4.0, 8.0]]))
    return made


def test_cores_weigh_by_distance_over_temperature_and_mix_their_prompts(cores: PromptCores) -> None:
    weights = cores.weights(torch.zeros(2), torch.ones(2))
    torch.testing.assert_close(weights, torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(cores.mixture(weights), torch.tensor([[1.0, 2.0]]))


def test_the_deviation_counts_in_distances_where_there_is_one(cores: PromptCores) -> None:
    cores.stds[1] = torch.tensor([1.0, 11.0])
    assert cores.weights(torch.zeros(2), torch.ones(2))[1] < 0.01
    torch.testing.assert_close(cores.weights(torch.zeros(2), None), torch.tensor([0.75, 0.25]))


def test_cores_move_by_their_rates_and_deviations_only_grow(cores: PromptCores) -> None:
    cores.move(torch.tensor([0.5, 0.0]), torch.ones(2), torch.tensor([3.0, 0.0]), torch.ones(1, 2))
    assert cores.means[0].tolist() == [0.5, 0.5] and cores.means[1, 0] == 0
    assert cores.stds.tolist() == [[2.0, 1.0], [1.0, 1.0]]
    assert cores.prompts[:, 0].tolist() == [[0.5, 0.5], [4.0, 8.0]]


def test_without_similarity_every_batch_makes_a_core_and_with_enough_only_the_first() -> None:
    many, one = double(**ALWAYS_NEW), double(**ONE_CORE)
    for number, images in enumerate(batches(), start=1):
        many(images)
        one(images)
        assert (len(many.cores), len(one.cores)) == (number, 1)
    assert (many.passes.forward_images, many.passes.backward_images) == (8 * 11, 8 * 6)
    assert (one.passes.forward_images, one.passes.backward_images) == (8 * 7, 8 * 4)


def test_a_core_holds_the_moments_without_prompts_and_the_prompts_made() -> None:
    method, (images, *_) = double(**ALWAYS_NEW), batches()
    method(images)
    with torch.no_grad():
        features = method.model.features(images)
    torch.testing.assert_close(method.cores.means[0], features.mean(0))
    torch.testing.assert_close(method.cores.stds[0], features.std(0))
    assert torch.equal(method.cores.prompts[0], method.prompts)


def test_new_prompts_begin_at_the_same_random_ones_and_are_scored_before_their_last_step() -> None:
    for number in (0, 2):  # of the first batch and of a later one
        method = double(**ALWAYS_NEW | {"steps": 1})
        *before, images = batches()[: number + 1]
        for earlier in before:
            method(earlier)
        features, logits = under(method, method.start_prompts, images)
        torch.testing.assert_close(method(images), logits)
        torch.testing.assert_close(method.loss, distance(method, features))
        # AdamW's first step: the rate against the sign of the gradient, and the decay.
        decayed = method.start_prompts * (1 - 0.1 * 0.01)
        steps = (method.prompts.detach() - decayed).abs()
        torch.testing.assert_close(steps, torch.full_like(steps, 0.1), atol=1e-4, rtol=0)


def test_a_like_batch_is_scored_under_the_mixture_and_improves_it_by_a_step() -> None:
    method, (first, second, _) = double(**ONE_CORE), batches()
    method(first)
    prompts, mean = method.cores.prompts[0].clone(), method.cores.means[0].clone()
    features, logits = under(method, prompts, second)
    torch.testing.assert_close(method.predict(second), logits)
    torch.testing.assert_close(method(second), logits)
    torch.testing.assert_close(method.loss, distance(method, features))
    step = method.prompts.detach() - prompts * (1 - 0.1 * 0.01)
    torch.testing.assert_close(step.abs(), torch.full_like(step, 0.1), atol=1e-4, rtol=0)
    # A single core weighs 1 and goes 0.999 of the way: to the moments under the mixture.
    torch.testing.assert_close(method.cores.means[0], mean + 0.999 * (features.mean(0) - mean))
    torch.testing.assert_close(
        method.cores.prompts[0], prompts + 0.999 * (method.prompts.detach() - prompts)
    )


def test_only_a_distance_clearly_below_that_without_prompts_counts_as_like() -> None:
    method, (first, second, _) = double(prompts=2, steps=3), batches()
    method(first)
    features, _ = under(method, method.cores.prompts[0], second)
    with torch.no_grad():
        ratio = distance(method, features) / distance(method, method.model.features(second))
    for factor, cores in ((1.01, 1), (0.99, 2)):
        again = double(prompts=2, steps=3, similarity=float(ratio) * factor)
        again(first)
        again(second)
        assert len(again.cores) == cores


def test_the_network_stays_and_needs_no_gradient() -> None:
    method = build("dpcore", **ALWAYS_NEW)
    before = tensors(method.model)
    method(pictures(8))
    assert changed(before, method.model) == set()
    assert not any(p.requires_grad or p.grad is not None for p in method.model.parameters())
    assert sum(p.numel() for p in method.trainable.values()) == 2 * 24


def test_source_images_that_are_not_sure_are_left_out() -> None:
    method = double(prompts=2, max_entropy=0.8)
    images = torch.cat(list(source_images(torch.float64).batches()))
    with torch.no_grad():
        features, logits = method.model.features_and_logits(images)
    p = logits.softmax(1)
    kept = -(p * p.log()).sum(1) < 0.8 * torch.tensor(10.0).log()
    assert 2 < kept.sum() < 40
    torch.testing.assert_close(method.source.mean, features[kept].mean(0))
    assert method.source_used == int(kept.sum())


def test_short_batches_make_no_core_unless_faithful() -> None:
    for faithful, cores in ((False, [1, 1, 2]), (True, [1, 2, 3])):
        method, found = double(**ALWAYS_NEW, faithful=faithful), []
        for images in pictures(15).double().split([8, 3, 4]):
            method(images)
            found.append(len(method.cores))
        assert found == cores


def test_a_single_image_is_held_against_means_alone() -> None:
    method = double(**ONE_CORE)
    for images in pictures(3).double().split(1):
        assert bool(method(images).isfinite().all())
    assert torch.equal(method.cores.stds[0], method.source.std)
    assert batch_moments(torch.ones(1, 4))[1] is None


def test_a_batch_that_is_not_finite_makes_no_core_and_is_counted() -> None:
    method = double(**ALWAYS_NEW)
    first, second, _ = batches()
    method(first)
    method(torch.full_like(second, torch.nan))
    assert (len(method.cores), method.counters["skipped_updates"]) == (1, 1)
    assert bool(method(second).isfinite().all())


def test_a_reset_forgets_all_cores() -> None:
    method = double(**ALWAYS_NEW)
    first = method(batches()[0])
    method.reset()
    assert len(method.cores) == 0
    assert torch.equal(method(batches()[0]), first)


def test_a_network_without_a_class_token_is_refused() -> None:
    with pytest.raises(MethodError, match=r"DPCore does not support toy_cnn: .* class token"):
        build("dpcore", "toy_cnn")
