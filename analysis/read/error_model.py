"""The uncertainty of a mean over images and seeds: both are samples, domains are fixed.

A table of values [images, seeds] (of one method, or the paired difference of two) has two crossed
random factors. With n images, S seeds and the mean squares MS_i (images), MS_s (seeds) and MS_is
(residual) of the two-way layout,

    variance of the mean = (MS_i + MS_s - MS_is) / (n S), at least max(MS_i, MS_s) / (n S),

with degrees of freedom after Satterthwaite (1946). The interval is mean ± t(0.975, df) times the
standard error, p is two-sided of the same t. docs/analysis.md has the model and a simulation of
its coverage.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer]
LEVEL = 0.05
POWER = 0.80


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and degrees of freedom; all in the units of the values.

    images, seeds: how many were sampled. One seed: the error is for other images, not other seeds.
    """

    mean: float
    standard_error: float
    degrees: float
    images: int
    seeds: int

    @property
    def half_width(self) -> float:
        """Half the 95 % interval; infinite for a single image."""
        if self.standard_error == 0:
            return 0.0
        return float(stats.t.ppf(1 - LEVEL / 2, self.degrees)) * self.standard_error

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.mean + self.half_width

    @property
    def p(self) -> float:
        """Two-sided p that the true mean is 0; 1 where all values are 0."""
        if self.standard_error == 0:
            return float(self.mean == 0)
        return float(2 * stats.t.sf(abs(self.mean) / self.standard_error, self.degrees))

    @property
    def detectable(self) -> float:
        """The least true difference from 0 that these data show with 80 % power at level 0.05."""
        if self.standard_error == 0:
            return 0.0
        quantiles = stats.t.ppf([1 - LEVEL / 2, POWER], self.degrees)
        return float(quantiles.sum()) * self.standard_error

    def scaled(self, factor: float) -> "Estimate":
        """The same in other units, e.g. times 100 for points."""
        return replace(
            self, mean=factor * self.mean, standard_error=abs(factor) * self.standard_error
        )


def image_scores(
    domain: Integers, index: Integers, values: Floats, *, same_images: bool
) -> tuple[Floats, Integers]:
    """Values [observations, seeds] as scores [images, seeds] whose mean weighs domains equally.

    domain, index: [observations], each pair once. same_images: whether an index is the same
    photograph in every domain; otherwise an image is a pair (domain, index). Also returns the
    stratum [images] of each image: the domains in which it stands. Domains are fixed, so that
    images vary within a stratum, not between strata.

    Example: two domains of two images, `image_scores([0, 0, 1, 1], [0, 1, 0, 1], [[0.], [1.],
    [1.], [1.]], same_images=True)` gives the scores [[0.5], [1.]].
    """
    of_domain, of_index = (np.asarray(of, np.int64).tobytes() for of in (domain, index))
    place, weights, strata = _design(of_domain, of_index, same_images)
    scores = [np.bincount(place, weights * column, len(strata)) for column in values.T]
    return np.stack(scores, axis=1), strata


@functools.lru_cache(maxsize=64)  # the methods of a table have seen the same images
def _design(
    of_domain: bytes, of_index: bytes, same_images: bool
) -> tuple[Integers, Floats, Integers]:
    """Image and weight of each observation, and stratum of each image; int64 as bytes."""
    domain, index = np.frombuffer(of_domain, np.int64), np.frombuffer(of_index, np.int64)
    domains, at = np.unique(domain, return_inverse=True)
    per_domain = np.bincount(at)
    keys = index if same_images else np.arange(len(index))
    images, place = np.unique(keys, return_inverse=True)
    weights = len(images) / (len(domains) * per_domain[at])
    present = np.zeros((len(images), len(domains)), bool)
    present[place, at] = True
    strata = np.unique(present, axis=0, return_inverse=True)[1].reshape(-1)
    return place, weights, strata


def estimate(scores: Floats, strata: Integers | None = None) -> Estimate:
    """The mean of scores [images, seeds] with its error, both factors crossed.

    Values that no seed changes keep the image term alone, and so does a single seed.
    """
    images, seeds = scores.shape
    strata = np.zeros(images, int) if strata is None else strata
    counts = np.bincount(strata)
    cell_means = np.stack([np.bincount(strata, column) for column in scores.T], 1) / counts[:, None]
    of_images = scores.mean(1)
    mean, seed_means = float(scores.mean()), scores.mean(0)
    free = images - len(counts)  # degrees of freedom of images, within strata
    if free < 1:
        return Estimate(mean, float("inf"), 1.0, images, seeds)
    within = of_images - cell_means.mean(1)[strata]
    ms_images = seeds * float(within @ within) / free
    if seeds == 1:
        return Estimate(mean, float(np.sqrt(ms_images / images)), free, images, seeds)
    residual = scores - cell_means[strata] - within[:, None]
    ms_seeds = images * float(seed_means.var(ddof=1))
    ms_residual = float(np.square(residual).sum()) / (free * (seeds - 1))
    total = max(ms_images + ms_seeds - ms_residual, ms_images, ms_seeds)
    degrees = _satterthwaite(
        total, [(ms_images, free), (ms_seeds, seeds - 1), (ms_residual, free * (seeds - 1))]
    )
    return Estimate(mean, float(np.sqrt(total / (images * seeds))), degrees, images, seeds)


def combined(
    mean: float, image_variance: float, images: int, seed_values: Sequence[float]
) -> Estimate:
    """A value that is no mean over images (mIoU), from the variance of its resampled images.

    image_variance: of the value's mean over seeds, images drawn jointly over the domains.
    seed_values: the value of each seed; their variance / S is added.
    """
    seeds = len(seed_values)
    if images < 2:
        return Estimate(mean, float("inf"), 1.0, images, seeds)
    of_seeds = float(np.var(seed_values, ddof=1)) / seeds if seeds > 1 else 0.0
    total = image_variance + of_seeds
    degrees = _satterthwaite(total, [(image_variance, images - 1), (of_seeds, seeds - 1)])
    return Estimate(mean, float(np.sqrt(total)), degrees, images, seeds)


def _satterthwaite(total: float, terms: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of mean squares, each with its own."""
    spread = sum(square**2 / free for square, free in terms if square > 0)
    return total**2 / spread if spread > 0 else float("inf")
