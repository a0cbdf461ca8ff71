"""The evolution strategy against arithmetic (tests/parity compares it with pycma)."""

import math

import pytest
import torch

from ctta_bench.parts.evolution import EvolutionStrategy


def test_weights_fall_with_the_rank_and_sum_to_one() -> None:
    weights = EvolutionStrategy(10, 4, 1.0).weights
    first, second = math.log(2.5), math.log(2.5) - math.log(2)
    assert weights.tolist() == pytest.approx([first / (first + second), second / (first + second)])
    assert len(EvolutionStrategy(2304, 27, 1.0).weights) == 13


def test_the_mean_moves_to_the_weighted_best_points_and_no_others() -> None:
    search = EvolutionStrategy(3, 4, 1.0)
    asked = torch.tensor([[9.0, 0, 0], [1, 0, 0], [0, 1, 0], [9, 9, 9]], dtype=torch.float64)
    assert search.tell(asked, torch.zeros(0, 3), torch.tensor([5.0, 1.0, 2.0, 7.0]))
    assert search.mean.tolist() == pytest.approx([*search.weights.tolist(), 0.0])


def test_steps_in_one_direction_enlarge_the_step_size_and_standing_still_lowers_it() -> None:
    there, still = EvolutionStrategy(5, 6, 1.0), EvolutionStrategy(5, 6, 1.0)
    for _ in range(5):
        there.tell(there.mean + 3 * torch.ones(6, 5), torch.zeros(0, 5), torch.arange(6.0))
        still.tell(still.mean.expand(6, 5), torch.zeros(0, 5), torch.arange(6.0))
    assert there.step_size > 1 > still.step_size
    # Without any way, each step multiplies by exp(-rate / damping).
    assert still.step_size == pytest.approx(math.exp(-5 * still.rate / still.damping))


def test_injected_points_are_pulled_to_a_likely_distance() -> None:
    search = EvolutionStrategy(4, 4, 0.5)
    (far, near) = search.pulled_closer(torch.eye(4)[:2].double() * torch.tensor([[100.0], [0.1]]))
    assert float(far.norm()) == pytest.approx(0.5 * (2 + 8 / 6))
    assert near.tolist() == pytest.approx([0, 0.1, 0, 0])


def test_what_is_not_finite_ranks_last_and_too_little_of_it_moves_nothing() -> None:
    search = EvolutionStrategy(3, 4, 1.0)
    asked = torch.tensor([[9.0, 0, 0], [1, 0, 0], [0, 1, 0], [9, 9, 9]], dtype=torch.float64)
    nan = torch.nan
    assert not search.tell(asked, torch.zeros(0, 3), torch.tensor([nan, 1.0, nan, nan]))
    assert search.mean.tolist() == [0, 0, 0] and search.step_size == 1
    assert search.tell(asked, torch.zeros(0, 3), torch.tensor([nan, 1.0, 2.0, torch.inf]))
    assert search.mean.tolist() == pytest.approx([*search.weights.tolist(), 0.0])


def test_a_quadratic_is_minimised() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        search, goal = EvolutionStrategy(8, 10, 1.0), torch.arange(8.0, dtype=torch.float64) / 4
        for _ in range(150):
            asked = search.ask()
            search.tell(asked, torch.zeros(0, 8), (asked - goal).square().sum(1))
    assert float((search.mean - goal).norm()) < 1e-3
