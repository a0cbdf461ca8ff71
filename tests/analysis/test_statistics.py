import numpy as np
import pytest

from ctta_bench.analysis.read.statistics import holm, paired_bootstrap
from ctta_bench.errors import RunError

RATES = {"gaussian_noise": 0.5, "fog": 0.3}


def test_identical_runs_do_not_differ(cell):
    a = cell("tent", RATES, shuffle_errors=True)
    b = cell("sar", RATES, shuffle_errors=True)
    result = paired_bootstrap([a], [b])
    assert (result.difference, result.low, result.high, result.p) == (0.0, 0.0, 0.0, 1.0)


def test_chance_differences_have_an_interval_around_zero(cell):
    a = cell("tent", RATES, seed=0, n=400, shuffle_errors=True)
    b = cell("sar", RATES, seed=1, n=400, shuffle_errors=True)
    result = paired_bootstrap([a], [b])
    assert result.difference == pytest.approx(0.0, abs=1e-12)
    assert result.low < 0 < result.high
    assert result.p > 0.5


def test_a_clear_difference_excludes_zero_and_has_the_smallest_p(cell):
    a = cell("tent", {"gaussian_noise": 0.2, "fog": 0.2})
    b = cell("source", RATES)  # 50 and 30 %: 20 points in the mean
    result = paired_bootstrap([a], [b], resamples=999)
    assert result.difference == pytest.approx(-20.0)
    assert result.low < -20.0 < result.high < 0
    assert result.p == pytest.approx(2 / 1000)


def test_the_interval_is_that_of_the_normal_approximation(cell):
    # Errors of a hold those of b: d = 1 for 20 % of 2,500 images in the one domain.
    a, b = cell("tent", {"fog": 0.5}, n=2500), cell("sar", {"fog": 0.3}, n=2500)
    result = paired_bootstrap([a], [b], resamples=20000)
    half_width = 100 * 1.96 * np.sqrt(0.2 * 0.8 / 2500)
    assert result.high - result.difference == pytest.approx(half_width, rel=0.05)
    assert result.difference - result.low == pytest.approx(half_width, rel=0.05)


def test_seeds_of_one_image_are_kept_together(cell):
    # The same errors in four seeds: no more images than one seed has, so no narrower interval.
    a = [cell("tent", {"fog": 0.5}, n=400, seed=seed) for seed in range(4)]
    b = [cell("sar", {"fog": 0.3}, n=400, seed=seed) for seed in range(4)]
    assert paired_bootstrap(a, b) == paired_bootstrap(a[:1], b[:1])


def test_domains_weigh_equally_and_rounds_are_averaged(cell):
    a = cell("tent", [{"x": 0.5, "y": 0.1}, {"x": 0.3, "y": 0.1}])
    b = cell("sar", [{"x": 0.2, "y": 0.1}, {"x": 0.2, "y": 0.1}])
    assert paired_bootstrap([a], [b]).difference == pytest.approx(10.0)


def test_runs_on_other_images_cannot_be_paired(cell):
    a, b = cell("tent", RATES, n=100), cell("sar", RATES, n=120)
    with pytest.raises(RunError, match="did not see the same images"):
        paired_bootstrap([a], [b])


def test_holm_multiplies_by_the_number_of_hypotheses_left_and_stays_monotone():
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.04 -> 0.06.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
