"""The pieces of SVDP, which no registered method uses yet."""

import math
from pathlib import Path

import pytest
import torch

from ctta_bench.methods.official.svdp import (
    dropout_uncertainty,
    most_uncertain,
    prompt_count,
    prompt_image,
    prompt_momentum,
)
from ctta_bench.parity import collect

GOLDEN = collect([Path(__file__).parents[1] / "parity"])["svdp_prompt"]


@pytest.mark.parametrize(("rate", "count"), [(0.001, 518), (0.0001, 51), (0.25, 129_600)])
def test_the_prompted_pixels_of_the_published_rates_are_counted(rate: float, count: int) -> None:
    assert prompt_count(540, 960, rate) == count


@pytest.mark.parametrize(("height", "width"), [(6, 8), (12, 16), (9, 12)])
def test_exactly_k_pixels_are_prompted_at_every_scale(height: int, width: int) -> None:
    uncertainty = torch.rand(12, 16, generator=torch.Generator().manual_seed(0))
    positions = most_uncertain(uncertainty, height, width, 7)
    image = prompt_image(torch.ones(7, 3), positions, height, width)
    assert image.sum((1, 2)).tolist() == [7.0, 7.0, 7.0]


def test_vectors_go_to_the_largest_uncertainties_in_ascending_order() -> None:
    uncertainty = torch.tensor([[0.1, 0.9, 0.2], [0.8, 0.0, 0.7]])
    assert most_uncertain(uncertainty, 2, 3, 3).tolist() == [[1, 2], [1, 0], [0, 1]]
    assert most_uncertain(uncertainty, 2, 3, 0).tolist() == []


def test_passes_that_agree_are_certain_and_leave_the_momentum() -> None:
    agreed = torch.full((10, 19, 4, 4), 1 / 19)
    assert not dropout_uncertainty(agreed).any()
    assert prompt_momentum(dropout_uncertainty(agreed), 0.1) == 0.999


def test_the_uncertainty_is_a_population_variance_summed_over_the_classes() -> None:
    two = torch.tensor([[0.2, 0.8], [0.4, 0.6]]).view(2, 2, 1, 1)
    assert dropout_uncertainty(two).item() == pytest.approx(2 * 0.1**2)


def test_the_rate_of_the_prompts_average_equals_the_official_one() -> None:
    uncertainty = GOLDEN.recorded()["in/uncertainty64"]
    expected = GOLDEN.read()["figures"]["prompt_ema_rate"]
    assert math.isclose(prompt_momentum(uncertainty, 0.1), expected, abs_tol=1e-8)
