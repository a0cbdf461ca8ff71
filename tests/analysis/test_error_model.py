"""The error of a mean over images and seeds: against closed forms, and by simulation."""

import numpy as np
import pytest
from scipy import stats

from ctta_bench.analysis.read.error_model import Estimate, combined, estimate, image_scores


def test_one_seed_is_the_t_interval_of_the_images() -> None:
    values = np.random.default_rng(0).normal(size=(50, 1))
    found = estimate(values)
    expected = stats.ttest_1samp(values[:, 0], 0)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))


def test_two_factors_give_the_variance_of_the_two_way_layout() -> None:
    # Images 0, 2 and seeds ±1 without interaction: MS_i = 2 * 2, MS_s = 2 * 2, MS_is = 0.
    found = estimate(np.array([[-1.0, 1.0], [1.0, 3.0]]))
    assert found.mean == 1
    assert found.standard_error**2 == pytest.approx((4 + 4) / 4)
    assert found.degrees == pytest.approx(8**2 / (16 + 16))


def test_seeds_that_change_nothing_add_no_precision() -> None:
    values = np.random.default_rng(1).normal(size=(40, 1))
    once, often = estimate(values), estimate(np.repeat(values, 5, axis=1))
    assert often.half_width == pytest.approx(once.half_width)
    assert (often.images, often.seeds) == (40, 5)


def test_equal_methods_do_not_differ() -> None:
    found = estimate(np.zeros((30, 3)))
    assert (found.low, found.high, found.p, found.detectable) == (0, 0, 1, 0)


def test_a_single_image_says_nothing() -> None:
    for found in (estimate(np.ones((1, 3))), combined(1.0, 0.0, 1, [1.0])):
        assert (found.p, found.half_width) == (1, np.inf)


def test_the_same_photographs_are_drawn_jointly() -> None:
    # An image that is wrong in one domain is wrong in all: four domains are no more images.
    wrong = np.random.default_rng(2).integers(0, 2, 100).astype(float)
    domain, index = np.repeat(range(4), 100), np.tile(range(100), 4)
    values = np.tile(wrong, 4)[:, None]
    one = estimate(wrong[:, None])
    joint = estimate(*image_scores(domain, index, values, same_images=True))
    apart = estimate(*image_scores(domain, index, values, same_images=False))
    assert joint.half_width == pytest.approx(one.half_width)
    assert apart.standard_error == pytest.approx(one.standard_error / 2, rel=0.01)


def test_domains_of_unlike_size_weigh_the_same_and_do_not_vary() -> None:
    domain, index = np.repeat([0, 1], [10, 30]), np.arange(40)
    values = np.where(domain == 0, 0.0, 1.0)[:, None]  # no two images of a domain differ
    found = estimate(*image_scores(domain, index, values, same_images=False))
    assert (found.mean, found.standard_error) == (pytest.approx(0.5), pytest.approx(0, abs=1e-12))


def test_the_least_detectable_difference_is_found_in_four_of_five_draws() -> None:
    generator = np.random.default_rng(3)
    noise = generator.normal(size=(2000, 60))
    detectable = np.mean([estimate(row[:, None]).detectable for row in noise[:200]])
    found = [estimate(row[:, None] + detectable).p < 0.05 for row in noise]
    assert np.mean(found) == pytest.approx(0.8, abs=0.03)


def simulated(
    rho: float, seed_deviation: float, images: int, domains: int, seeds: int, draws: int
) -> tuple[float, list[Estimate]]:
    """Coverage of the 95 % interval where two methods of a probit model do not differ.

    Both share the difficulty of an image; each has an effect of its own on an image (deviation
    rho) and on a seed, so that the true difference is 0 by symmetry.
    """
    generator = np.random.default_rng(7)
    level = np.linspace(-1, 0.6, domains)[:, None]
    found = []
    for _ in range(draws):
        shared = generator.normal(size=(images, 1, 1)) + level
        shared = shared + generator.normal(0, 0.5, (images, domains, 1))

        def wrong(shared: np.ndarray = shared) -> np.ndarray:
            own = generator.normal(0, rho, (images, 1, 1))
            seed = generator.normal(0, seed_deviation, (1, 1, seeds))
            rest = generator.normal(0, 0.4, (images, domains, seeds))
            return shared + own + seed + rest > 0

        found.append(estimate((wrong().astype(float) - wrong()).mean(axis=1)))
    return float(np.mean([e.low <= 0 <= e.high for e in found])), found


@pytest.mark.parametrize("case", [(0.3, 0.03, 200, 15, 3), (0.6, 0.1, 200, 4, 3)])
def test_the_interval_covers_the_truth(case: tuple[float, float, int, int, int]) -> None:
    coverage, found = simulated(*case, draws=300)
    assert 0.90 <= coverage <= 0.99
    assert np.mean([e.p < 0.05 for e in found]) == pytest.approx(1 - coverage)


@pytest.mark.slow
def test_the_interval_covers_the_truth_in_all_cases() -> None:
    sizes = [(200, 4, 3), (200, 15, 3), (500, 15, 5), (2000, 4, 3), (500, 4, 10)]
    coverages = [
        simulated(rho, deviation, *size, draws=600)[0]
        for rho in (0.0, 0.3, 0.6)
        for deviation in (0.0, 0.03, 0.1)
        for size in sizes
    ]
    assert min(coverages) >= 0.90 and max(coverages) <= 0.99
    assert 0.93 <= np.mean(coverages) <= 0.98
    assert 1 - np.mean(coverages) <= 0.075  # of false alarms
