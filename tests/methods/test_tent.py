import math

import torch
from torch import Tensor

from ctta_bench.method import Method
from tests.methods import build, changed, declared, pictures, plain, snapshot, tensors, toy


def entropy(logits: Tensor) -> Tensor:
    """Mean Shannon entropy, written out."""
    p = logits.softmax(-1)
    return -(p * p.log()).sum(-1).mean()


def gradients(method: Method, images: Tensor) -> dict[str, Tensor]:
    """Gradient of the mean entropy by the adapted parameters."""
    loss = entropy(method.model(images))
    found = torch.autograd.grad(loss, list(method.trainable.values()))
    return dict(zip(method.trainable, found, strict=True))


def test_the_loss_is_the_mean_entropy_of_the_batch() -> None:
    method = build("tent")
    with torch.no_grad():
        expected = entropy(method.model(pictures(8)))
    method(pictures(8))
    torch.testing.assert_close(method.loss, expected)
    assert 0 <= method.loss <= math.log(toy.CLASSES)


def test_without_momentum_a_step_is_the_gradient_times_the_rate() -> None:
    method = build("tent", lr=0.1, momentum=0.0, dtype=torch.float64, precision="float64")
    images = pictures(8).double()
    before, gradient = snapshot(method), gradients(method, images)
    method(images)
    for name, parameter in method.trainable.items():
        expected = before[name] - 0.1 * gradient[name]
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-14, rtol=0)


def test_all_norm_layers_and_only_these_change() -> None:
    method = build("tent")
    before = tensors(method.model)
    method(pictures(8))
    blocks = {f"blocks.{b}.norm{n}.{k}" for b in range(4) for n in "12" for k in ("weight", "bias")}
    assert set(method.trainable) == blocks | {"norm.weight", "norm.bias"}
    assert changed(before, method.model) == {f"network.{name}" for name in method.trainable}


def test_the_order_inside_a_batch_does_not_matter() -> None:
    forward, backward = build("tent", lr=0.01), build("tent", lr=0.01)
    forward(pictures(8))
    backward(pictures(8).flip(0))
    for name, parameter in forward.trainable.items():
        torch.testing.assert_close(parameter, backward.trainable[name], atol=1e-6, rtol=0)


def test_of_several_steps_the_last_forward_pass_is_scored() -> None:
    once, twice = build("tent", lr=0.01), build("tent", lr=0.01, steps=2)
    once(pictures(8))
    with torch.no_grad():
        torch.testing.assert_close(twice(pictures(8)), once.model(pictures(8)))
    assert twice.passes.forward_images == twice.passes.backward_images == 16


def test_episodic_adaptation_starts_anew_with_each_batch() -> None:
    episodic = build("tent", lr=0.01, episodic=True)
    for seed in (1, 2):
        fresh = build("tent", lr=0.01)
        assert torch.equal(episodic(pictures(4, seed)), fresh(pictures(4, seed)))
        assert plain(snapshot(episodic)) == plain(snapshot(fresh))
    assert episodic.counters["resets"] == 2


def test_batch_normalisation_uses_the_batch_and_forgets_the_source() -> None:
    method, training = build("tent", "toy_cnn"), toy.toy_cnn().train()
    assert method.batch_dependent
    with torch.no_grad():
        torch.testing.assert_close(method(pictures(8)), training(pictures(8) * 2 - 1))
    assert declared(method) == {f"network.{i}.{k}" for i in (1, 4) for k in ("weight", "bias")}


def test_layer_normalisation_makes_no_image_depend_on_others() -> None:
    assert not build("tent").batch_dependent
