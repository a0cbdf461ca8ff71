"""The invariants of SANTA; its contrast is tested with that of RMT. p, q predictions."""

import pytest
import torch
from torch import Tensor

from tests.methods import build, changed, declared, pictures, snapshot, tensors

DOUBLE = {"dtype": torch.float64, "precision": "float64"}


def mirrored(images: Tensor, size: tuple[int, int] | None) -> Tensor:
    return images.flip(-1)


@pytest.mark.parametrize("network", ["toy_vit", "toy_cnn"])
def test_the_anchor_never_changes(network: str) -> None:
    method = build("santa", network, lr=0.01)
    before = tensors(method.anchor)
    for images in pictures(40).split(8):
        method(images)
    assert changed(before, method.anchor) == set()


def test_both_predictions_weigh_the_anchors_surprise() -> None:
    method = build("santa", contrast_weight=0.0, anchor_weight=3.0, **DOUBLE)
    method.augment = mirrored
    images = pictures(8).double()
    with torch.no_grad():
        p, q = (method.model(x).softmax(1) for x in (images, images.flip(-1)))
        surprise = -method.anchor(images).softmax(1).log()
    method(images)
    expected = 3 * ((p + q) * surprise).sum(1).mean() / 2
    torch.testing.assert_close(method.loss, expected)


def test_the_gradient_goes_through_the_weights_and_sharpens_them() -> None:
    # Where anchor and model agree, d/dz of sum p a with a = -log p is -p (log p - sum p log p).
    method = build("santa", contrast_weight=0.0, lr=1.0, momentum=0.0, nesterov=False, **DOUBLE)
    method.augment = lambda images, size: images
    start, images = snapshot(method), pictures(8).double()
    logits = method.model(images)
    log_p = logits.log_softmax(1).detach()
    p = log_p.exp()
    upstream = -p * (log_p - (p * log_p).sum(1, keepdim=True)) / len(images)
    names = [name for name in method.trainable if not name.startswith("projector")]
    gradients = torch.autograd.grad((logits * upstream).sum(), [method.trainable[n] for n in names])
    method(images)
    for name, gradient in zip(names, gradients, strict=True):
        expected = start[name] - gradient
        torch.testing.assert_close(method.trainable[name].detach(), expected)


def test_norm_layers_and_projector_learn_and_nothing_else() -> None:
    method = build("santa", lr=0.01, projection=16)
    sizes = {n: p.numel() for n, p in method.trainable.items()}
    of_projector = sum(s for n, s in sizes.items() if n.startswith("projector"))
    assert of_projector == 24 * 16 + 16 + 16 * 16 + 16
    assert sum(sizes.values()) - of_projector == 9 * 2 * 24
    before, start = tensors(method.model), snapshot(method)
    method(pictures(8))
    assert changed(before, method.model) == declared(method)
    assert all(not torch.equal(start[n], p) for n, p in method.trainable.items())


def test_images_and_views_are_scored_and_learnt_from_in_three_passes() -> None:
    method, source = build("santa", lr=0.01), build("source")
    torch.testing.assert_close(method(pictures(8)), source(pictures(8)))
    assert (method.passes.forward_images, method.passes.backward_images) == (24, 16)


def test_a_reset_brings_the_projector_back() -> None:
    method = build("santa", lr=0.01)
    start = {n: p.clone() for n, p in method.projector.state_dict().items()}
    method(pictures(8))
    method.reset()
    for name, value in method.projector.state_dict().items():
        assert torch.equal(value, start[name])
