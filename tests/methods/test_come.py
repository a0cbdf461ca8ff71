"""The invariants of COME. K prior weight, S = Σ exp(z) + K, u = K / S uncertainty."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.authoring.parity import collect, largest_difference, replay_case, repository_cases
from ctta_bench.errors import DataError, MethodError
from ctta_bench.method import softmax_entropy
from ctta_bench.methods.come import MASS, opinion, opinion_entropy
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from ctta_bench.source_models.tiny import tiny_segmentor
from tests.methods import build, changed, pictures, plain, snapshot, tensors, toy

HOSTS = ["come_tent", "come_eata", "come_sar"]
OPEN: dict[str, dict[str, Any]] = {
    "come_tent": {"lr": 0.01},
    "come_eata": {"lr": 0.01, "margin": 1.0, "max_similarity": 2.0},
    "come_sar": {"lr": 0.01, "margin": 10.0, "recovery_threshold": 0.0},
}


def logits(rows: int = 5, classes: int = 10, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, classes, generator=generator, dtype=torch.float64) * scale


# -- the loss


def test_an_opinion_is_that_of_the_formula_and_sums_to_one() -> None:
    z = torch.tensor([[0.0, math.log(2.0), math.log(3.0)]], dtype=torch.float64)
    # S = 1 + 2 + 3 + 4
    torch.testing.assert_close(opinion(z, 4.0), torch.tensor([[0.1, 0.2, 0.3, 0.4]]).double())
    z = logits()
    torch.testing.assert_close(opinion(z, 10.0).sum(-1), torch.ones(5).double())
    masses = torch.tensor([0.1, 0.2, 0.3, 0.4]).double() + MASS
    expected = -(masses * masses.log()).sum()
    z = torch.tensor([[0.0, math.log(2.0), math.log(3.0)]], dtype=torch.float64)
    torch.testing.assert_close(opinion_entropy(z, 4.0), expected[None])


def test_the_gradient_is_orthogonal_to_the_logits() -> None:
    z = logits().requires_grad_()
    (gradient,) = torch.autograd.grad(opinion_entropy(z, 10.0).sum(), z)
    assert (gradient * z).sum(-1).abs().max() <= 1e-12
    assert gradient.norm(dim=-1).min() > 1e-3


def test_without_prior_weight_it_is_the_entropy_of_the_softmax_with_a_projected_gradient() -> None:
    z = logits(scale=1.0).requires_grad_()
    ours, theirs = opinion_entropy(z, 1e-12), softmax_entropy(z)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)  # the added masses
    (gradient,) = torch.autograd.grad(ours.sum(), z)
    (full,) = torch.autograd.grad(theirs.sum(), z)
    along = (full * z).sum(-1, keepdim=True) / z.square().sum(-1, keepdim=True) * z
    torch.testing.assert_close(gradient, (full - along).detach(), atol=1e-4, rtol=0)
    assert along.abs().max() > 0.01


def test_the_order_of_the_classes_does_not_matter() -> None:
    z, order = logits(), torch.randperm(10, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(opinion_entropy(z, 10.0), opinion_entropy(z[:, order], 10.0))


def test_the_uncertainty_falls_with_the_evidence_and_rises_with_the_prior_weight() -> None:
    z = logits(rows=1)
    by_evidence = torch.cat([opinion(z + shift, 10.0)[:, -1] for shift in (-1.0, 0.0, 1.0)])
    assert by_evidence.diff().max() < 0
    by_weight = torch.cat([opinion(z, weight)[:, -1] for weight in (1.0, 10.0, 1000.0)])
    assert by_weight.diff().min() > 0


def test_the_shift_changes_nothing_and_avoids_overflow() -> None:
    z = logits()
    ours, theirs = opinion_entropy(z, 10.0), opinion_entropy(z, 10.0, shifted=False)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    for size in (90.0, 200.0, 1e4):
        z = torch.tensor([[size, 0.0, -size], [-size, -size, -size]], requires_grad=True)
        entropy = opinion_entropy(z, 3.0)
        (gradient,) = torch.autograd.grad(entropy.sum(), z)
        assert bool(entropy.isfinite().all()) and bool(gradient.isfinite().all())
        assert 0 <= entropy.detach().abs().max() < 1e-3
    assert bool(opinion_entropy(torch.full((1, 3), 90.0), 3.0, shifted=False).isnan())


def test_logits_of_length_zero_have_the_largest_entropy_and_a_finite_gradient() -> None:
    z = torch.zeros(2, 10, dtype=torch.float64, requires_grad=True)
    entropy = opinion_entropy(z, 1.0)  # all C + 1 masses are equal
    assert entropy.tolist() == pytest.approx([math.log(11)] * 2, abs=1e-5)
    (gradient,) = torch.autograd.grad(entropy.sum(), z)
    assert bool(gradient.isfinite().all())
    assert bool(opinion_entropy(z, 1.0, shifted=False).isnan().all())


# -- the hosts


def softmax_of(self: Any, logits: Tensor) -> Tensor:
    return softmax_entropy(logits)


@pytest.mark.parametrize("network", ["toy_vit", "toy_cnn"])
@pytest.mark.parametrize("name", HOSTS)
def test_with_the_entropy_of_the_softmax_it_is_its_host_to_the_bit(
    name: str, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(METHODS.get(name), "entropy", softmax_of)
    filters = {"come_tent": {}, "come_eata": {"margin": 0.6}, "come_sar": {"margin": 0.6}}[name]
    settings = {"lr": 0.01} | filters
    ours = build(name, network, **settings)
    host = build(name.removeprefix("come_"), network, **settings)
    for images in [*pictures(40).split(8), pictures(5), pictures(1)]:
        assert torch.equal(ours(images), host(images))
    assert plain(snapshot(ours)) == plain(snapshot(host))
    assert ours.counters == host.counters


@pytest.mark.parametrize("name", HOSTS)
def test_its_hyperparameters_are_those_of_its_host_and_the_prior_weight(name: str) -> None:
    host = METHODS.get(name.removeprefix("come_")).Hyperparameters.model_fields
    of_tent = {"steps", "episodic", "loss", "output_scale"}
    ours = METHODS.get(name).Hyperparameters.model_fields
    shared = set(ours) - {"prior_weight", "faithful"}
    assert shared == set(host) - of_tent - {"faithful"}
    assert all(ours[key].default == host[key].default for key in shared)


def test_the_prior_weight_is_the_number_of_classes_or_1000_or_what_is_given() -> None:
    z = logits()
    for options, weight in (
        ({}, 10.0),
        ({"faithful": True}, 1000.0),
        ({"prior_weight": 4.0}, 4.0),
        ({"prior_weight": 4.0, "faithful": True}, 4.0),
    ):
        found = build("come_tent", **options).entropy(z)
        torch.testing.assert_close(found, opinion_entropy(z, weight))


@pytest.mark.parametrize("name", HOSTS)
def test_nothing_selected_or_not_finite_changes_nothing_and_is_counted(name: str) -> None:
    method = build(name, **OPEN[name])
    before = tensors(method.model)
    method(torch.full((4, 3, toy.SIDE, toy.SIDE), torch.nan))
    assert method.counters["skipped_updates"] == 1
    if name != "come_tent":
        none = build(name, **OPEN[name] | {"margin": 0.0})
        none(pictures(8))
        assert changed(before, none.model) == set()
        assert none.counters["skipped_updates"] == 1
    assert changed(before, method.model) == set()


@pytest.mark.parametrize("faithful", [False, True])
def test_only_a_faithful_reset_keeps_averages_and_momentum(faithful: bool) -> None:
    eata = build("come_eata", **OPEN["come_eata"], faithful=faithful)
    eata(pictures(8))
    eata.reset()
    assert (eata.selection.average is not None) == faithful
    # A prior weight next to 0 and scaled logits: the entropy is below the threshold of 0.2.
    sar = build("come_sar", lr=0.01, margin=10.0, prior_weight=1e-6, faithful=faithful)
    with torch.no_grad():
        sar.model.network.head.weight *= 25
    start = plain(snapshot(sar))
    sar(pictures(8))
    assert sar.counters["resets"] == 1
    assert plain(snapshot(sar)) == start
    assert (sar.average is not None) == faithful
    assert bool(sar.optimizer.state_dict()["state"]) == faithful


def test_a_faithful_threshold_is_that_of_the_code() -> None:
    assert build("come_sar", recovery_threshold=0.1).threshold == 0.1
    assert build("come_sar", recovery_threshold=0.1, faithful=True).threshold == 0.2


@pytest.mark.parametrize("name", ["come_tent_k10", "come_tent_bn", "come_eata_fisher", "come_sar"])
def test_where_k_is_the_number_of_classes_the_default_equals_the_code(name: str) -> None:
    replayed = replay_case(unfaithful(name), torch.float64)
    assert not replayed.method.hp.faithful
    assert largest_difference(replayed, "logits64_") <= 1e-9


@pytest.mark.parametrize("name", ["come_tent", "come_sar_reset"])
def test_where_the_code_has_its_fault_the_default_differs(name: str) -> None:
    replayed = replay_case(unfaithful(name), torch.float64)
    assert largest_difference(replayed, "logits64_") > 1e-6


def unfaithful(name: str) -> Any:
    """A case that is replayed with the defaults of the method, and the K of the case."""
    file = collect([repository_cases()])[name]
    found = file.hyperparameters() | {"faithful": False}
    object.__setattr__(file, "hyperparameters", lambda: found)
    return file


def test_without_source_images_or_with_pixels_it_stops_with_a_sentence() -> None:
    class Nothing:
        def batches(self, size: int) -> list[Tensor]:
            return []

    with pytest.raises(DataError, match=r"COME \(EATA\) needs source images .* `come_tent`"):
        METHODS.get("come_eata")(SourceModel(toy.toy_vit())).start(Nothing())
    with pytest.raises(MethodError, match=r"COME \(TENT\) does not support .* segmentation"):
        METHODS.get("come_tent")(SourceModel(tiny_segmentor()))
