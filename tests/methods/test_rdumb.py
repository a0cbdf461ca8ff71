from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods import build, pictures, plain, snapshot

# The toy model's entropies are about 1: every image is selected.
OPEN = {"lr": 0.01, "margin": 1.0, "max_similarity": 2.0}


def stream(count: int = 6, size: int = 8) -> list[Tensor]:
    return list(pictures(count * size).split(size))


@pytest.mark.parametrize("network", ["toy_vit", "toy_cnn"])
@pytest.mark.parametrize("selection", [OPEN, {"lr": 0.01, "margin": 0.6, "max_similarity": 0.3}])
def test_without_a_reset_it_is_eta_to_the_bit(network: str, selection: dict[str, Any]) -> None:
    rdumb, eta = build("rdumb", network, **selection), build("eta", network, **selection)
    for images in stream():
        assert torch.equal(rdumb(images), eta(images))
    assert plain(snapshot(rdumb)) == plain(snapshot(eta))
    assert rdumb.counters == eta.counters


def test_with_the_loss_of_tent_and_without_a_reset_it_is_tent_to_the_bit() -> None:
    rdumb, tent = build("rdumb", lr=0.01, loss="tent"), build("tent", lr=0.01)
    for images in stream():
        assert torch.equal(rdumb(images), tent(images))


def test_after_every_interval_the_state_is_that_before_the_stream() -> None:
    method = build("rdumb", reset_every=3, **OPEN)
    source = plain(snapshot(method))
    resets = []
    for images in stream(7):
        method(images)
        at_source = plain(snapshot(method)) == source
        assert (
            at_source
            == (method.selection.average is None)
            == (method.optimizer.state_dict()["state"] == {})
        )
        resets.append(at_source)
    assert resets == [False, False, True, False, False, True, False]
    assert method.counters["resets"] == 2


def test_a_batch_that_selects_nothing_counts_and_moves_nothing() -> None:
    method = build("rdumb", reset_every=3, lr=0.01, margin=0.0)
    source = plain(snapshot(method))
    for images in stream(3):
        method(images)
        assert plain(snapshot(method)) == source
    assert method.counters == {"skipped_updates": 3, "resets": 1}


def test_a_reset_after_every_batch_is_the_source_model() -> None:
    method, source = build("rdumb", reset_every=1, **OPEN), build("source")
    for images in stream():
        torch.testing.assert_close(method(images), source(images), atol=1e-5, rtol=0)


def test_the_interval_can_be_a_number_of_images() -> None:
    method = build("rdumb", reset_every=20, reset_unit="images", **OPEN)
    resets = []
    for size in (8, 8, 3, 1, 16, 4, 8):
        method(pictures(size))
        resets.append(method.counters["resets"])
    assert resets == [0, 0, 0, 1, 1, 2, 2]
