import numpy as np
import pytest
from scipy import stats

from ctta_bench.analysis.read.statistics import holm, mean_estimate, paired_difference
from ctta_bench.errors import RunError

RATES = {"gaussian_noise": 0.5, "fog": 0.3}


def test_identical_runs_do_not_differ(cell):
    a = cell("tent", RATES, shuffle_errors=True)
    b = cell("sar", RATES, shuffle_errors=True)
    result = paired_difference([a], [b])
    assert (result.mean, result.low, result.high, result.p) == (0.0, 0.0, 0.0, 1.0)


def test_chance_differences_have_an_interval_around_zero(cell):
    a = cell("tent", RATES, seed=0, n=400, shuffle_errors=True)
    b = cell("sar", RATES, seed=1, n=400, shuffle_errors=True)
    result = paired_difference([a], [b])
    assert result.mean == pytest.approx(0.0, abs=1e-12)
    assert result.low < 0 < result.high
    assert result.p > 0.5


def test_the_interval_of_one_seed_is_that_of_t_over_the_images(cell):
    # Errors of a hold those of b: d = 1 for 20 % of 2,500 images in the one domain.
    a, b = cell("tent", {"fog": 0.5}, n=2500), cell("sar", {"fog": 0.3}, n=2500)
    result = paired_difference([a], [b])
    differences = np.repeat([100.0, 0.0], [500, 2000])
    expected = stats.ttest_1samp(differences, 0)
    assert result.mean == pytest.approx(20)
    assert (result.low, result.high) == pytest.approx(tuple(expected.confidence_interval()))


def test_seeds_that_change_nothing_make_no_interval_narrower(cell):
    a = [cell("tent", {"fog": 0.5}, n=400, seed=seed) for seed in range(4)]
    b = [cell("sar", {"fog": 0.3}, n=400, seed=seed) for seed in range(4)]
    once, often = paired_difference(a[:1], b[:1]), paired_difference(a, b)
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


def test_seeds_that_differ_make_the_interval_wide(cell):
    # Four points to either side of 20: two seeds say little of a third (t of about 1 degree).
    a = [cell("tent", {"fog": rate}, n=1000, seed=s) for s, rate in enumerate((0.46, 0.54))]
    b = [cell("sar", {"fog": 0.3}, n=1000, seed=s) for s in range(2)]
    result = paired_difference(a, b)
    assert result.mean == pytest.approx(20)
    assert result.half_width > 30 > 5 > paired_difference(a[:1], b[:1]).half_width


def test_the_same_photographs_in_two_domains_are_not_twice_as_many(cell):
    a, b = cell("tent", {"x": 0.5, "y": 0.5}, n=400), cell("sar", {"x": 0.3, "y": 0.3}, n=400)
    joint = paired_difference([a], [b])
    apart = paired_difference([a], [b], same_images=False)
    assert joint.half_width == pytest.approx(np.sqrt(2) * apart.half_width, rel=0.01)


def test_domains_weigh_equally_and_rounds_are_averaged(cell):
    a = cell("tent", [{"x": 0.5, "y": 0.1}, {"x": 0.3, "y": 0.1}])
    b = cell("sar", [{"x": 0.2, "y": 0.1}, {"x": 0.2, "y": 0.1}])
    assert paired_difference([a], [b]).mean == pytest.approx(10.0)
    assert mean_estimate([a]).mean == pytest.approx(25.0)


def test_an_error_has_an_interval_of_its_own(cell):
    result = mean_estimate([cell("tent", {"fog": 0.5}, n=2500)])
    assert result.mean == pytest.approx(50)
    assert result.half_width == pytest.approx(1.961 * 50 / np.sqrt(2499), rel=1e-3)


def test_runs_on_other_images_cannot_be_paired(cell):
    a, b = cell("tent", RATES, n=100), cell("sar", RATES, n=120)
    with pytest.raises(RunError, match="did not see the same images"):
        paired_difference([a], [b])


def test_holm_multiplies_by_the_number_of_hypotheses_left_and_stays_monotone():
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.04 -> 0.06.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
