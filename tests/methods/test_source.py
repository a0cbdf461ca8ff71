import torch

from tests.methods import build, changed, pictures, tensors


def test_nothing_changes_and_nothing_is_declared() -> None:
    method = build("source")
    before = tensors(method.model)
    for images in pictures(12).split(4):
        method(images)
    assert changed(before, method.model) == set()
    assert method.trainable == {}


def test_logits_are_those_of_the_network_in_evaluation_mode() -> None:
    method = build("source", "toy_cnn")
    network = method.model.network
    with torch.no_grad():
        assert torch.equal(method(pictures(4)), network.eval()(pictures(4) * 2 - 1))


def test_order_and_batch_size_do_not_matter() -> None:
    method, images = build("source", "toy_cnn"), pictures(12)
    whole = method(images)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    for size in (1, 5, 12):
        parts = torch.cat([method(part) for part in images[order].split(size)])
        torch.testing.assert_close(parts, whole[order], atol=1e-5, rtol=0)
        assert torch.equal(parts.argmax(1), whole[order].argmax(1))


def test_rounds_repeat_to_the_bit() -> None:
    method = build("source")
    assert torch.equal(method(pictures(4)), method(pictures(4)))
