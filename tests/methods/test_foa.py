"""The invariants of FOA and its parts. m mean of the stream's features, d shift."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.method import Method, softmax_entropy
from ctta_bench.parts.prompts.class_token import class_tokens, prompted
from tests.methods import build, changed, pictures, source_images, tensors

DOUBLE = {"dtype": torch.float64, "precision": "float64"}
FEW = {"candidates": 5}


def double(name: str, **arguments: Any) -> Any:
    return build(name, **DOUBLE, **arguments)


def features(method: Method, images: Tensor) -> Tensor:
    with torch.no_grad():
        return method.model.features(images)


# -- the shift


@pytest.mark.parametrize("network", ["toy_vit", "toy_cnn"])
def test_the_first_batch_is_not_shifted(network: str) -> None:
    shift, source = build("foa_shift", network), build("source", network)
    assert torch.equal(shift(pictures(8)), source(pictures(8)))


def test_later_ones_are_shifted_to_the_sources_mean_by_what_came_before() -> None:
    method = double("foa_shift", shift_weight=0.5)
    first, second, third = pictures(24).double().split(8)
    method(first)
    method(second)
    mean = 0.9 * features(method, first).mean(0) + 0.1 * features(method, second).mean(0)
    seen = features(method, third) + 0.5 * (method.source.mean - mean)
    torch.testing.assert_close(method(third), method.model.head(seen).detach())


def test_the_sources_mean_and_deviation_are_those_of_the_images_asked_for() -> None:
    method = double("foa_shift", source_samples=10)
    images = torch.cat(list(source_images(torch.float64).batches()))[:10]
    torch.testing.assert_close(method.source.mean, features(method, images).mean(0))
    torch.testing.assert_close(method.source.std, features(method, images).std(0))
    assert method.source_used == 10


def test_images_that_are_not_finite_do_not_reach_the_mean() -> None:
    method = build("foa_shift")
    method(pictures(4))
    average = method.average
    method(torch.full((4, 3, 16, 16), torch.nan))
    assert method.average is average


# -- with gradients


def test_the_form_with_gradients_lowers_mean_squares_and_mean_entropy() -> None:
    method = double("foa_bp", distance_weight=3.0, lr=0.1, momentum=0.0)
    images = pictures(8).double()
    tokens = class_tokens(method.model, images)
    assert tokens.shape == (8, 4, 24)
    mean, std = (m.view(4, 24) for m in (method.source.mean, method.source.std))
    squares = (tokens.mean(0) - mean) ** 2 + (tokens.std(0) - std) ** 2
    loss = softmax_entropy(method.model(images)).mean() + 3 * squares.sum() / 96
    gradients = torch.autograd.grad(loss, list(method.trainable.values()))
    start = [p.detach().clone() for p in method.trainable.values()]
    method(images)
    torch.testing.assert_close(method.loss, loss.detach())
    for before, after, gradient in zip(start, method.trainable.values(), gradients, strict=True):
        torch.testing.assert_close(after.detach(), before - 0.1 * gradient)


# -- the search


def test_the_class_token_is_taken_behind_each_block_as_what_follows_sees_it() -> None:
    method = double("foa", **FEW)
    images, network = pictures(4).double(), method.model.network
    with torch.no_grad():
        tokens = network.patch_embed(method.model.preprocess(images))
        tokens = torch.cat([network.cls_token.expand(4, -1, -1), tokens], 1) + network.pos_embed
        tokens = torch.cat([tokens[:, :1], method.prompts.expand(4, -1, -1), tokens[:, 1:]], 1)
        expected = []
        for block, norm in zip(
            network.blocks, [*(b.norm1 for b in network.blocks[1:]), network.norm], strict=True
        ):
            tokens = block(tokens)
            expected.append(norm(tokens)[:, 0])
        with prompted(method.model, method.prompts):
            torch.testing.assert_close(
                class_tokens(method.model, images), torch.stack(expected, dim=1)
            )
    assert tokens.shape == (4, 1 + 3 + 4, 24)


def test_the_fitness_is_the_weighted_squared_distance_and_the_sum_of_entropies() -> None:
    method = double("foa", **FEW)
    with torch.no_grad():
        tokens = class_tokens(method.model, pictures(8).double())
        logits = method.model(pictures(8).double())
    mean, std = (m.view(4, 24) for m in (method.source.mean, method.source.std))
    squares = ((tokens.mean(0) - mean) ** 2).sum() + ((tokens.std(0) - std) ** 2).sum()
    expected = 0.4 * 8 / 64 * squares + softmax_entropy(logits).sum()
    torch.testing.assert_close(method.fitness(tokens), expected)


def test_the_best_candidate_is_scored_kept_and_no_worse_than_the_best_of_before() -> None:
    method = double("foa", **FEW)
    for images in pictures(32).double().split(8):
        before, shift = method.prompts.detach().clone(), method.shift()
        logits = method(images)
        with torch.no_grad(), prompted(method.model, before):
            of_before = method.fitness(method.forward_features(images))
        with torch.no_grad(), prompted(method.model, method.prompts):
            tokens = method.forward_features(images)
        torch.testing.assert_close(method.fitness(tokens), method.loss)
        assert method.loss <= of_before + 1e-9
        torch.testing.assert_close(logits, method.model.head(tokens[:, -1] + shift).detach())


def test_the_stream_mean_is_over_all_candidates() -> None:
    method = double("foa", **FEW)
    images, state = pictures(8).double(), method._rng.clone()
    candidates = torch.Generator()
    candidates.set_state(state)
    drawn = torch.randn(5, 72, dtype=torch.float64, generator=candidates).view(5, 3, 24)
    means = []
    with torch.no_grad():
        for prompts in [*drawn, method.prompts.clone()]:
            with prompted(method.model, prompts):
                means.append(features(method, images).mean(0))
    method(images)
    torch.testing.assert_close(method.average, torch.stack(means).mean(0))


def test_the_network_stays_and_no_gradient_is_made() -> None:
    method = build("foa", **FEW)
    before = tensors(method.model)
    for images in pictures(12).split(4):
        method(images)
    assert changed(before, method.model) == set()
    assert method.passes.backward_images == 0
    assert method.passes.forward_images == 12 * 6
    assert sum(p.numel() for p in method.trainable.values()) == 3 * 24


def test_a_single_image_is_judged_by_its_entropy() -> None:
    method = build("foa", **FEW)
    method(pictures(1))
    with torch.no_grad(), prompted(method.model, method.prompts):
        torch.testing.assert_close(method.loss, softmax_entropy(method.model(pictures(1)))[0])


def test_a_batch_without_a_finite_candidate_moves_nothing_and_is_counted() -> None:
    method = build("foa", **FEW)
    method(pictures(4))
    before, mean = method.prompts.detach().clone(), method.search.mean.clone()
    images = pictures(4, seed=1)
    images[2] = torch.nan
    logits = method(images)
    assert method.counters["skipped_updates"] == 1
    assert torch.equal(method.prompts, before) and torch.equal(method.search.mean, mean)
    assert bool(logits[[0, 1, 3]].isfinite().all())


@pytest.mark.parametrize(("name", "called"), [("foa", "FOA"), ("foa_bp", "FOA-BP")])
def test_a_network_without_a_class_token_is_refused(name: str, called: str) -> None:
    with pytest.raises(MethodError, match=f"{called} does not support toy_cnn: .* class token"):
        build(name, "toy_cnn")
