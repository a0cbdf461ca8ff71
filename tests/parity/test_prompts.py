"""FOA, DPCore and T3A compared with the reference outputs beyond logits: what was chosen, the
search, the cores, the supports."""

import math

import pytest
import torch
from torch import Tensor

from ctta_bench.authoring.parity import replay_case
from tests.parity.test_parity import CASES
from tests.parity.test_teachers import noting, per_batch

DPCORE = [name for name in CASES if name.startswith("dpcore_")]
T3A = [name for name in CASES if name.startswith("t3a")]


def test_candidates_of_foa_have_the_official_fitness_and_the_best_of_them_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = noting(monkeypatch, "foa", lambda m: m.search.fitness)
    replayed = replay_case(CASES["foa"], torch.float64)
    for ours, theirs in zip(facts, per_batch(replayed, "fitness_of_candidates"), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    winners = [min(range(28), key=values.__getitem__) for values in facts]
    assert winners == per_batch(replayed, "winner")
    best = replayed.recorded["aux/final_best_prompts"][0]
    torch.testing.assert_close(replayed.method.prompts.detach(), best.double())


def test_the_search_of_foa_takes_the_path_of_pycma_whose_covariance_hardly_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = noting(monkeypatch, "foa", lambda m: (m.search.step_size, float(m.search.mean.norm())))
    replayed = replay_case(CASES["foa"], torch.float64)
    sizes, lengths = zip(*facts, strict=True)
    # Up to the covariance, which pycma adapts: the first step does not know of it.
    assert sizes[0] == pytest.approx(per_batch(replayed, "cma_sigma_after")[0], rel=1e-6)
    assert list(sizes) == pytest.approx(per_batch(replayed, "cma_sigma_after"), rel=1e-3)
    assert list(lengths) == pytest.approx(per_batch(replayed, "cma_mean_norm_after"), rel=1e-6)


@pytest.mark.parametrize("name", ["foa", "foa_shift", "foa_bp"])
def test_statistics_and_the_streams_mean_are_the_official_ones(name: str) -> None:
    replayed = replay_case(CASES[name], torch.float32)
    method, recorded = replayed.method, replayed.recorded
    places = method.source.mean.numel()
    for ours, theirs in ((method.source.mean, "mean"), (method.source.std, "std")):
        expected = recorded[f"aux/source_{theirs}"][-places:]
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    expected = recorded["aux/final_running_mean"]
    torch.testing.assert_close(method.average, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", DPCORE)
def test_cores_come_when_the_official_ones_come_and_end_as_they_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = noting(monkeypatch, "dpcore", lambda m: (len(m.cores), float(m.loss)))
    replayed = replay_case(CASES[name], torch.float64)
    counts, losses = zip(*facts, strict=True)
    assert list(counts) == per_batch(replayed, "cores")
    assert list(losses) == pytest.approx(per_batch(replayed, "last_distance"), abs=1e-3)
    cores = replayed.method.cores
    for number in range(counts[-1]):
        kinds: dict[str, Tensor] = {
            "mean": cores.means[number],
            "std": cores.stds[number],
            "prompt": cores.prompts[number][None],
        }
        for kind, ours in kinds.items():
            theirs = replayed.recorded[f"aux/core_{number}.{kind}"]
            torch.testing.assert_close(ours.float(), theirs, atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", DPCORE)
def test_the_source_images_of_dpcore_are_filtered_as_in_the_official_code(name: str) -> None:
    replayed = replay_case(CASES[name], torch.float32)
    for ours, theirs in (
        (replayed.method.source.mean, "mean"),
        (replayed.method.source.std, "std"),
    ):
        expected = replayed.recorded[f"aux/source_{theirs}"]
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    assert 2 < replayed.method.source.images < 64


@pytest.mark.parametrize("name", T3A)
def test_supports_are_the_official_ones_after_every_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = noting(monkeypatch, "t3a", lambda m: m.labels.bincount(minlength=10).tolist())
    replayed = replay_case(CASES[name], torch.float32)
    assert facts == per_batch(replayed, "supports_per_class")
    ours, recorded = replayed.method, replayed.recorded
    assert torch.equal(ours.labels, recorded["aux/final_labels"])
    torch.testing.assert_close(ours.supports, recorded["aux/final_supports"], atol=1e-5, rtol=0)
    entropies = recorded["aux/final_entropies"]
    torch.testing.assert_close(ours.entropies, entropies, atol=1e-5, rtol=0)
    assert math.isfinite(float(entropies.sum()))
