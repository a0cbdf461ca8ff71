"""Do two methods differ, and how sure is an error? The error model on finished cells; Holm.

The model is in `error_model`: test images and seeds are samples, domains are fixed.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ctta_bench.analysis.read.error_model import Estimate, combined, estimate, image_scores
from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.analysis.read.predictions import read_predictions, read_segmented
from ctta_bench.errors import RunError
from ctta_bench.record.schema import PREDICTIONS_FILE
from ctta_bench.scoring.confusion import SegmentedImages
from ctta_bench.scoring.metric import Metric

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer]
Folders = Sequence[Path | str]
RESAMPLES = 2000


class Values(NamedTuple):
    """A cell's value of each image, averaged over rounds: [n] each, by domain, then image."""

    domain: Integers
    image: Integers
    value: Floats


def paired_difference(
    runs_a: Folders, runs_b: Folders, *, metric: str = "error", same_images: bool = True
) -> Estimate:
    """Mean of a minus mean of b, in points, with its error over test images and seeds.

    runs_a, runs_b: the finished cell folders of two methods, one per seed, in the same order of
    seeds. same_images: whether an index is the same photograph in every domain. An image's value
    is averaged over rounds; domains weigh equally. Raises RunError if the two did not see the same
    images.

    Example: `paired_difference(["runs/tent-0"], ["runs/source-0"]).high < 0` if TENT's error is
    lower beyond doubt.
    """
    of = metric_named(metric)
    if of.from_sums:
        return _sums_difference(runs_a, runs_b, same_images)
    a, b = ([_values(of, run) for run in runs] for runs in (runs_a, runs_b))
    for ours, theirs in zip(a, b, strict=True):
        if not _same_keys(ours, theirs):
            _refuse(runs_a, runs_b)
    pairs = zip(a, b, strict=True)
    differences = [Values(x.domain, x.image, x.value - y.value) for x, y in pairs]
    return _mean(differences, same_images).scaled(of.factor)


def paired_by_domain(
    runs_a: Folders, runs_b: Folders, *, metric: str = "error", same_images: bool = True
) -> list[Estimate]:
    """The same for each domain by itself, in the order of the stream; NaN without a score."""
    of = metric_named(metric)
    if of.from_sums:
        return _sums_by_domain(runs_a, runs_b, same_images)
    a, b = ([_values(of, run) for run in runs] for runs in (runs_a, runs_b))
    pairs = [*zip(a, b, strict=True)]
    if not all(_same_keys(ours, theirs) for ours, theirs in pairs):
        _refuse(runs_a, runs_b)
    found = []
    for domain in np.unique(np.concatenate([ours.domain for ours in a])).tolist():
        here = [(x.domain == domain, x, y) for x, y in pairs]
        seeds = [
            Values(x.domain[mask], x.image[mask], (x.value - y.value)[mask]) for mask, x, y in here
        ]
        found.append(_mean(seeds, same_images).scaled(of.factor))
    return found


def mean_estimate(runs: Folders, *, metric: str = "error", same_images: bool = True) -> Estimate:
    """The mean of a method over domains, in %, with its error over test images and seeds.

    runs: its finished cell folders, one per seed.
    """
    of = metric_named(metric)
    if of.from_sums:
        return _sums_difference(runs, None, same_images)
    return _mean([_values(of, run) for run in runs], same_images).scaled(of.factor)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values that bound the chance of a single false alarm."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in corrected]


# -- means over images


def _mean(seeds: Sequence[Values], same_images: bool) -> Estimate:
    first = seeds[0]
    if all(_same_keys(first, seed) for seed in seeds):
        values = np.stack([seed.value for seed in seeds], axis=1)
        scores = image_scores(first.domain, first.image, values, same_images=same_images)
        return estimate(*scores)
    # Seeds that drew different images (label_shift): the image term of a seed counts in full.
    each = [
        estimate(*image_scores(s.domain, s.image, s.value[:, None], same_images=same_images))
        for s in seeds
    ]
    return combined(
        float(np.mean([e.mean for e in each])),
        float(np.mean([e.standard_error**2 for e in each])),
        min(e.images for e in each),
        [e.mean for e in each],
    )


def _values(metric: Metric, run: Path | str) -> Values:
    return _read_values(metric.name, Path(run), _written(run))


def _written(run: Path | str) -> int:
    """When the predictions of a cell were written; 0 if there are none."""
    file = Path(run) / PREDICTIONS_FILE
    return file.stat().st_mtime_ns if file.exists() else 0


@functools.lru_cache(maxsize=128)  # a method is compared with many others
def _read_values(metric: str, run: Path, _changed: int) -> Values:
    of = metric_named(metric)
    arrays = read_predictions(run, {**of.arrays, "index": 1})
    found = np.asarray(of.image_values(arrays), np.float64)
    index = arrays["index"].astype(np.int64)
    count = int(index.max(initial=0)) + 1
    keys = arrays["domain"].astype(np.int64) * count + index
    images, place, times = np.unique(keys, return_inverse=True, return_counts=True)
    means = np.bincount(place, weights=found, minlength=len(times)) / times
    return Values(images // count, images % count, means)


def _same_keys(a: Values, b: Values) -> bool:
    return np.array_equal(a.domain, b.domain) and np.array_equal(a.image, b.image)


def _refuse(runs_a: Folders, runs_b: Folders) -> None:
    raise RunError(
        f"{runs_a[0]} and {runs_b[0]} did not see the same images, so they cannot be paired; "
        "compare runs of one benchmark, subset and seed."
    )


# -- metrics of sums over images


def _sums_difference(runs_a: Folders, runs_b: Folders | None, same_images: bool) -> Estimate:
    """The same for mIoU: images are drawn, their confusion matrices summed, the mIoU recomputed."""
    cells_a = [read_segmented(Path(run)) for run in runs_a]
    cells_b = [read_segmented(Path(run)) for run in runs_b or ()]
    images = _images(cells_a)
    others = _images(cells_b) if runs_b else images
    if images.keys() != others.keys() or any(
        not np.array_equal(images[domain], others[domain]) for domain in images
    ):
        _refuse(runs_a, runs_b or ())
    weights = _draws(images, same_images)
    by_seed = np.array([_mean_mious(cell, images, weights) for cell in cells_a])
    if cells_b:
        by_seed = by_seed - np.array([_mean_mious(cell, images, weights) for cell in cells_b])
    means = by_seed.mean(0)  # the first draw counts each image once: the difference itself
    count = len(np.unique(np.concatenate(list(images.values()))))
    if not same_images:
        count = sum(map(len, images.values()))
    image_variance = float(np.nanvar(means[1:])) * count / max(count - 1, 1)
    return combined(float(means[0]), image_variance, count, by_seed[:, 0].tolist())


def _sums_by_domain(runs_a: Folders, runs_b: Folders, same_images: bool) -> list[Estimate]:
    cells_a = [read_segmented(Path(run)) for run in runs_a]
    images = _images(cells_a)
    for domain, numbers in _images([read_segmented(Path(run)) for run in runs_b]).items():
        if domain not in images or not np.array_equal(images[domain], numbers):
            _refuse(runs_a, runs_b)
    found = []
    for domain, numbers in images.items():
        ours, theirs = (
            np.array([_domain_mious(Path(run), domain, same_images, _written(run)) for run in runs])
            for runs in (runs_a, runs_b)
        )
        by_seed = ours - theirs
        means, count = by_seed.mean(0), len(numbers)
        drawn = means[1:][np.isfinite(means[1:])]
        variance = float(drawn.var()) * count / max(count - 1, 1) if len(drawn) else float("nan")
        found.append(combined(float(means[0]), variance, count, by_seed[:, 0].tolist()))
    return found


@functools.lru_cache(maxsize=1024)  # a method is compared with many others
def _domain_mious(run: Path, domain: int, same_images: bool, _changed: int) -> Floats:
    """[draws] mIoU of a cell in one domain, mean over rounds."""
    cell = read_segmented(run)
    images = {domain: _images([cell])[domain]}
    return _mean_mious(cell, images, _draws(images, same_images))


def _draws(images: Mapping[int, Integers], same_images: bool) -> dict[int, Floats]:
    """[1 + RESAMPLES, n] how often each image of a domain counts; jointly if they are the same."""
    generator = np.random.default_rng(0)

    def draw(count: int) -> Floats:
        shares = np.full(count, 1 / count)
        return np.vstack([np.ones(count), generator.multinomial(count, shares, size=RESAMPLES)])

    if not same_images:
        return {domain: draw(len(numbers)) for domain, numbers in sorted(images.items())}
    union = np.unique(np.concatenate(list(images.values())))
    drawn = draw(len(union))
    return {domain: drawn[:, np.searchsorted(union, numbers)] for domain, numbers in images.items()}


def _images(cells: Sequence[SegmentedImages]) -> dict[int, Integers]:
    domains = sorted({int(domain) for cell in cells for domain in np.unique(cell.domain)})
    return {
        domain: np.unique(np.concatenate([cell.index[cell.domain == domain] for cell in cells]))
        for domain in domains
    }


def _mean_mious(
    cell: SegmentedImages, images: Mapping[int, Integers], weights: Mapping[int, Floats]
) -> Floats:
    """[draws] mean mIoU of a cell over domains, then rounds, its images weighted [draws, n]."""
    rounds = []
    for step in np.unique(cell.round).tolist():
        mious = []
        for domain, numbers in images.items():
            here = np.flatnonzero(cell.of(step, domain))
            if len(here):
                columns = np.searchsorted(numbers, cell.index[here])
                mious.append(cell.tallies.at(here).weighted(weights[domain][:, columns]).miou())
        rounds.append(_mean_of_present(mious))
    return _mean_of_present(rounds)


def _mean_of_present(values: Sequence[Floats]) -> Floats:
    """Mean over the first axis, without what has nothing to score (NaN)."""
    stacked = np.asarray(values)
    present = np.isfinite(stacked)
    counts = present.sum(0)
    sums = np.where(present, stacked, 0).sum(0)
    means: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means
