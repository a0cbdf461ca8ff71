import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ctta_bench.method import softmax_entropy
from tests.methods import build, changed, pictures, plain, snapshot, tensors


def logits_of_source(images: Tensor) -> Tensor:
    return build("source")(images)


def test_the_loss_is_the_cross_entropy_with_the_own_labels() -> None:
    method, logits = build("pseudo_label"), logits_of_source(pictures(8))
    method(pictures(8))
    torch.testing.assert_close(method.loss, cross_entropy(logits, logits.argmax(1)))


def test_the_loss_is_at_most_the_entropy() -> None:
    for seed in range(5):
        method = build("pseudo_label")
        entropy = softmax_entropy(method(pictures(8, seed))).mean()
        assert method.loss <= entropy


def test_the_gradient_of_the_logits_is_softmax_minus_one_hot() -> None:
    method, seen = build("pseudo_label"), []
    method.model.classifier.register_full_backward_hook(lambda _, __, out: seen.append(out[0]))
    logits = method(pictures(8))
    one_hot = torch.nn.functional.one_hot(logits.argmax(1), 10)
    torch.testing.assert_close(seen[0], (logits.softmax(1) - one_hot) / 8)


@pytest.mark.parametrize(("threshold", "kept"), [(0.0, 8), (0.27, 4)])
def test_only_images_above_the_threshold_take_part(threshold: float, kept: int) -> None:
    images = pictures(8)
    confident = logits_of_source(images).softmax(1).max(1).values > threshold
    assert confident.sum() == kept
    some, chosen = build("pseudo_label", threshold=threshold), build("pseudo_label")
    some(images)
    chosen(images[confident])
    torch.testing.assert_close(some.loss, chosen.loss)
    for name, parameter in some.trainable.items():
        torch.testing.assert_close(parameter, chosen.trainable[name], atol=1e-6, rtol=0)


def test_a_threshold_of_one_never_updates() -> None:
    method = build("pseudo_label", threshold=1.0)
    before = tensors(method.model)
    method(pictures(8))
    assert changed(before, method.model) == set()
    assert method.counters["skipped_updates"] == 1


def test_only_norm_layers_change_unless_all_parameters_are_asked_for() -> None:
    norms, everything = build("pseudo_label"), build("pseudo_label", parameters="all", lr=0.01)
    assert set(norms.trainable) == set(build("tent").trainable)
    before = tensors(everything.model.network)
    everything(pictures(8))
    assert changed(before, everything.model.network) == set(before)


def test_it_differs_from_tent_by_the_loss_alone() -> None:
    images = pictures(1)
    method, tent = build("pseudo_label", lr=0.0), build("tent", lr=0.0)
    assert torch.equal(method(images), tent(images))
    assert plain(snapshot(method)) == plain(snapshot(tent))
    assert method.hp.model_dump(exclude={"threshold", "parameters"}) == tent.hp.model_dump(
        exclude={"steps", "episodic", "loss"}
    )
