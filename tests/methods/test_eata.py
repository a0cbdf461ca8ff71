"""The invariants of ETA and EATA. E0 margin, m average prediction, F Fisher information."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ctta_bench.errors import DataError, MethodError
from ctta_bench.method import Method, softmax_entropy
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from tests.methods import (
    build,
    changed,
    make,
    pictures,
    plain,
    snapshot,
    source_images,
    tensors,
    toy,
)

ETA, EATA = METHODS.get("eta"), METHODS.get("eata")
DOUBLE = {"dtype": torch.float64, "precision": "float64"}
OPEN = {"lr": 0.01, "margin": 1.0, "max_similarity": 2.0}  # selects every image
PLAIN = {"momentum": 0.0, **DOUBLE}


class Unweighted(ETA):
    """The objective without its weights."""

    def total_loss(self, entropy: Tensor) -> Tensor:
        return entropy.mean()


def predictions(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    """Entropies and probabilities without an update."""
    with torch.no_grad():
        logits = method.model(images)
    return softmax_entropy(logits), logits.softmax(-1)


@pytest.mark.parametrize("network", ["toy_vit", "toy_cnn"])
def test_without_weights_and_filters_it_is_tent_to_the_bit(network: str) -> None:
    eta = make(Unweighted, network, lr=0.01, margin=1e6, max_similarity=2.0)
    tent = build("tent", network, lr=0.01)
    for images in pictures(40).split(8):
        assert torch.equal(eta(images), tent(images))
    assert plain(snapshot(eta)) == plain(snapshot(tent))


def test_the_margin_is_a_share_of_the_largest_entropy() -> None:
    assert build("eta").selection.margin == pytest.approx(0.9210, abs=5e-5)  # 0.4 ln 10


def test_reliable_images_are_weighted_by_how_sure_they_are() -> None:
    method = build("eta", lr=1.0, margin=0.8, **PLAIN)
    images, limit = pictures(16).double(), 0.8 * math.log(10)
    start = snapshot(method)
    entropy = softmax_entropy(method.model(images))
    kept = entropy < limit
    assert 0 < kept.sum() < 16
    weight = (limit - entropy[kept].detach()).exp()
    assert weight.min() >= 1
    loss = (weight * entropy[kept]).sum() / kept.sum()
    gradients = torch.autograd.grad(loss, list(method.trainable.values()))
    method(images)
    torch.testing.assert_close(method.loss, loss.detach())
    for (name, parameter), gradient in zip(method.trainable.items(), gradients, strict=True):
        torch.testing.assert_close(parameter.detach(), start[name] - gradient, atol=1e-12, rtol=0)


def test_the_first_batch_is_not_filtered_and_starts_the_average() -> None:
    method = build("eta", margin=0.8, max_similarity=0.0)
    entropy, probabilities = predictions(method, pictures(16))
    reliable = entropy < method.selection.margin
    method(pictures(16))
    assert (
        method.selection.reliable_images == method.selection.selected_images == int(reliable.sum())
    )
    torch.testing.assert_close(method.selection.average, probabilities[reliable].mean(0))


def test_the_average_follows_the_kept_images_by_a_tenth() -> None:
    method = build("eta", lr=0.0, margin=1.0, max_similarity=0.6)
    method(pictures(8))
    first = method.selection.average
    _, probabilities = predictions(method, pictures(16, seed=1))
    lengths = probabilities.norm(dim=1) * first.norm()
    kept = (probabilities @ first) / lengths < 0.6
    assert 0 < kept.sum() < 16
    method(pictures(16, seed=1))
    expected = 0.9 * first + 0.1 * probabilities[kept].mean(0)
    torch.testing.assert_close(method.selection.average, expected)
    assert method.selection.selected_images == 8 + int(kept.sum())
    assert method.selection.reliable_images == 24
    assert float(method.selection.average.sum()) == pytest.approx(1)
    assert method.selection.average.min() >= 0


@pytest.mark.parametrize("name", ["eta", "eata"])
def test_nothing_selected_changes_nothing_and_is_counted(name: str) -> None:
    method = build(name, **OPEN)
    for images in pictures(16).split(8):
        method(images)
    before, average = tensors(method.model), method.selection.average
    moments = plain(method.optimizer.state_dict())
    method.selection.margin = 0.0
    method(pictures(8, seed=1))
    assert changed(before, method.model) == set()
    assert plain(method.optimizer.state_dict()) == moments
    assert method.selection.average is average
    assert method.counters["skipped_updates"] == 1
    assert method.selection.selected_images == 16


def test_a_skipped_update_does_not_move_the_average() -> None:
    method = build("eta", **OPEN)
    method(pictures(8))
    average = method.selection.average
    images = pictures(8, seed=1)
    images[3] = torch.nan
    method(images)
    assert method.counters["skipped_updates"] == 1
    assert method.selection.average is average


def test_before_any_reliable_image_there_is_no_average() -> None:
    method = build("eta", margin=0.0)
    method(pictures(8))
    assert method.selection.average is None


def test_only_a_faithful_reset_keeps_the_average() -> None:
    for faithful in (False, True):
        method = build("eta", faithful=faithful, **OPEN)
        source = snapshot(method)
        method(pictures(8))
        method.reset()
        assert (method.selection.average is not None) == faithful
        assert plain(snapshot(method)) == plain(source)
        assert method.counters["resets"] == 1


# -- Fisher information ----------------------------------------------------------------------------


def squared_gradients(method: Method, images: Tensor) -> list[Tensor]:
    """Of the batch's mean cross-entropy with the model's own classes."""
    logits = method.model(images)
    loss = cross_entropy(logits, logits.argmax(-1))
    return [g**2 for g in torch.autograd.grad(loss, list(method.trainable.values()))]


def test_the_information_is_the_mean_over_batches_of_squared_batch_gradients() -> None:
    method = build("eata", source_samples=20, fisher_batch_size=16, **DOUBLE)
    images = torch.cat(list(source_images(torch.float64).batches()))
    batches = [squared_gradients(method, images[:16]), squared_gradients(method, images[16:20])]
    for ours, first, last in zip(method.fisher, *batches, strict=True):
        torch.testing.assert_close(ours, (first + last) / 2, atol=1e-14, rtol=1e-10)
        assert ours.min() >= 0


def test_the_pull_to_the_source_is_twice_beta_times_the_information_and_the_way() -> None:
    settings = {"lr": 1.0, "margin": 1.0, "max_similarity": 2.0, **PLAIN}
    without, with_it = (build("eata", fisher_weight=w, **settings) for w in (0.0, 3.0))
    way = {}
    with torch.no_grad():
        for method in (without, with_it):
            for number, (name, parameter) in enumerate(method.trainable.items()):
                way[name] = 0.01 * (number + 1)
                parameter += way[name]
    for method in (without, with_it):
        method(pictures(8).double())
    for (name, moved), held, fisher in zip(
        without.trainable.items(), with_it.trainable.values(), with_it.fisher, strict=True
    ):
        expected = moved - 2 * 3.0 * fisher * way[name]
        torch.testing.assert_close(held.detach(), expected.detach(), atol=1e-10, rtol=0)


@pytest.mark.parametrize("settings", [{"fisher_weight": 0.0}, {"fisher_weight": 1e9}])
def test_the_first_step_is_that_of_eta(settings: dict[str, Any]) -> None:
    # At the source there is nothing to pull back.
    eta, eata = build("eta", **OPEN, **DOUBLE), build("eata", **OPEN, **DOUBLE, **settings)
    for method in (eta, eata):
        method(pictures(8).double())
    for name, parameter in eta.trainable.items():
        torch.testing.assert_close(parameter, eata.trainable[name], atol=1e-14, rtol=0)


def test_without_its_weight_it_stays_eta() -> None:
    eta, eata = build("eta", **OPEN), build("eata", fisher_weight=0.0, **OPEN)
    for images in pictures(40).split(8):
        torch.testing.assert_close(eta(images), eata(images), atol=1e-6, rtol=0)


def test_preparation_changes_nothing_and_works_inside_no_grad() -> None:
    model = SourceModel(toy.toy_vit())
    before = tensors(model)
    with torch.no_grad():
        method = EATA(model)
        method.start(source_images())
    assert changed(before, model) == set()
    assert sum(float(f.sum()) for f in method.fisher) > 0
    assert all(p.grad is None for p in method.trainable.values())


def test_missing_source_images_are_an_error() -> None:
    with pytest.raises(MethodError, match=r"EATA reads unlabelled .* start\(\) got none"):
        EATA(SourceModel(toy.toy_vit()))(pictures(2))

    class Nothing:
        def batches(self, size: int) -> list[Tensor]:
            return []

    with pytest.raises(DataError, match="EATA needs source images for its Fisher information"):
        EATA(SourceModel(toy.toy_vit())).start(Nothing())


def test_eta_reads_no_source_data_and_eata_no_labels() -> None:
    assert ETA.source_access == "none"
    assert EATA.source_access == "unlabelled"
