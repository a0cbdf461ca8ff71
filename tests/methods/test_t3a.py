"""The invariants of T3A. K supports of a class."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ctta_bench.method import softmax_entropy
from ctta_bench.methods.t3a import surest
from tests.methods import build, changed, pictures, tensors

DOUBLE = {"dtype": torch.float64, "precision": "float64"}


def double(**arguments: Any) -> Any:
    return build("t3a", **DOUBLE, **arguments)


def seen(method: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return method.model.features_and_logits(images)


def test_the_surest_of_each_class_are_kept_class_by_class() -> None:
    labels = torch.tensor([2, 0, 2, 0, 2, 0])
    entropies = torch.tensor([0.5, 0.3, 0.1, 0.2, 0.4, 0.9])
    assert surest(labels, entropies, 2).tolist() == [3, 1, 2, 4]
    assert surest(labels, entropies, 9).tolist() == [3, 1, 5, 2, 4, 0]


def test_a_limit_of_zero_keeps_every_support() -> None:
    kept, images = double(supports=0), pictures(24).double()
    at_most = double(supports=10_000)
    for batch in images.split(8):
        torch.testing.assert_close(kept(batch), at_most(batch), atol=0, rtol=0)
    assert len(kept.supports) == kept.model.num_classes + 24


def test_the_first_supports_are_the_rows_of_the_last_layer_by_their_predicted_class() -> None:
    method = double()
    layer = method.model.classifier
    with torch.no_grad():
        logits = layer(layer.weight)
    order = method.labels.argsort(stable=True)
    assert torch.equal(method.labels, method.labels[order])
    found = {
        tuple(row.tolist()): int(n) for row, n in zip(method.supports, method.labels, strict=True)
    }
    expected = {
        tuple(row.tolist()): int(z.argmax()) for row, z in zip(layer.weight, logits, strict=True)
    }
    assert found == expected


def test_scores_are_products_with_unit_class_vectors_of_all_supports_the_batch_included() -> None:
    method, images = double(supports=100), pictures(8).double()
    layer = method.model.classifier
    features, logits = seen(method, images)
    with torch.no_grad():
        supports = torch.cat([layer.weight, features])
        labels = torch.cat([layer(layer.weight), logits]).argmax(1)
    vectors = torch.stack([normalize(supports[labels == c]).sum(0) for c in range(10)])
    expected = features @ normalize(vectors).T
    torch.testing.assert_close(method(images), expected)
    assert len(method.supports) == 18
    torch.testing.assert_close(method.predict(images), expected)


def test_a_class_keeps_its_surest_supports_for_good() -> None:
    method = double(supports=1)
    for images in pictures(24).double().split(8):
        before = dict(zip(method.labels.tolist(), method.entropies.tolist(), strict=True))
        _, logits = seen(method, images)
        classes, entropies = logits.argmax(1), softmax_entropy(logits)
        method(images)
        after = dict(zip(method.labels.tolist(), method.entropies.tolist(), strict=True))
        assert after.keys() == before.keys() | set(classes.tolist())
        for label, value in after.items():
            found = [*entropies[classes == label].tolist(), before.get(label, torch.inf)]
            assert value == pytest.approx(min(found))


def test_a_class_without_support_scores_zero() -> None:
    method = double()
    kept = method.labels != 3
    assert 0 < kept.sum() < 10
    method.supports, method.labels = method.supports[kept], method.labels[kept]
    scores = method.predict(pictures(4).double())
    assert torch.equal((scores == 0).all(0), torch.arange(10) == 3)


@pytest.mark.parametrize("network", ["toy_vit", "toy_cnn"])
def test_the_network_stays(network: str) -> None:
    method = build("t3a", network)
    before = tensors(method.model)
    for images in pictures(12).split(4):
        method(images)
    assert changed(before, method.model) == set() and not method.trainable


def test_features_that_are_not_finite_do_not_join() -> None:
    method = double()
    count, images = len(method.supports), pictures(4).double()
    images[1:] = torch.nan
    method(images)
    assert len(method.supports) == count + 1
    assert bool(method.supports.isfinite().all())


def test_a_reset_leaves_the_rows_of_the_last_layer() -> None:
    method = double()
    start = method.supports
    first = method(pictures(8).double())
    method.reset()
    assert torch.equal(method.supports, start)
    assert torch.equal(method(pictures(8).double()), first)
