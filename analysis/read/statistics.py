"""Do two methods differ? A paired bootstrap over test images, and Holm's correction."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.analysis.read.predictions import read_predictions, read_segmented
from ctta_bench.errors import RunError
from ctta_bench.record.schema import PREDICTIONS_FILE
from ctta_bench.scoring.confusion import SegmentedImages
from ctta_bench.scoring.metric import Metric

Floats = npt.NDArray[np.float64]
RESAMPLES = 2000


@dataclass(frozen=True)
class PairedDifference:
    """The mean of a minus that of b in points, the bounds of its 95 % interval, and the p-value."""

    difference: float
    low: float
    high: float
    p: float


def paired_bootstrap(
    runs_a: Sequence[Path | str],
    runs_b: Sequence[Path | str],
    *,
    metric: str = "error",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PairedDifference:
    """Difference in the mean of a metric, resampling the images within each domain.

    Example: `paired_bootstrap([tent_folder], [source_folder]).p`

    runs_a, runs_b: the finished cell folders of a method, one per seed. An image is an index
    within a domain; its repetitions in rounds and seeds stay together. All domains have the same
    weight. For a mean over images (`error`), the value of an image is averaged over rounds and
    seeds before it is drawn. For sums (`miou`), the confusion matrices of the drawn images are
    summed, and the mIoU of each domain is computed again for each round and seed. p is two-sided:
    twice the share of resamples on the wrong side of zero, with one added to both counts. It is
    about other images of the same kind, not about other seeds.

    Raises RunError if the two did not see the same images.
    """
    generator = np.random.default_rng(seed)
    resampled = _resampled_sums if (of := metric_named(metric)).from_sums else _resampled_means
    difference, means = resampled(of, runs_a, runs_b, resamples, generator)
    low, high = np.percentile(means, [2.5, 97.5])
    wrong_side = min(np.count_nonzero(means <= 0), np.count_nonzero(means >= 0))
    return PairedDifference(
        difference=difference,
        low=float(low),
        high=float(high),
        p=min(1.0, 2 * (1 + int(wrong_side)) / (resamples + 1)),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values that bound the chance of a single false alarm."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in corrected]


def _check_same_images(
    runs_a: Sequence[Path | str],
    runs_b: Sequence[Path | str],
    images_a: Mapping[int, npt.NDArray[Any]],
    images_b: Mapping[int, npt.NDArray[Any]],
) -> None:
    """Raise RunError if the image numbers (per domain, sorted) differ."""
    if images_a.keys() != images_b.keys() or any(
        not np.array_equal(images_a[domain], images_b[domain]) for domain in images_a
    ):
        raise RunError(
            f"{runs_a[0]} and {runs_b[0]} did not see the same images, so there is no paired "
            "difference; compare runs of one benchmark, subset and seed."
        )


def _resampled_means(
    metric: Metric,
    runs_a: Sequence[Path | str],
    runs_b: Sequence[Path | str],
    resamples: int,
    generator: np.random.Generator,
) -> tuple[float, Floats]:
    """The difference in a mean over images, and of each resample, in points."""
    errors_a, errors_b = _image_means(metric, runs_a), _image_means(metric, runs_b)
    _check_same_images(
        runs_a,
        runs_b,
        {domain: images for domain, (images, _) in errors_a.items()},
        {domain: images for domain, (images, _) in errors_b.items()},
    )
    differences = [errors_a[domain][1] - errors_b[domain][1] for domain in sorted(errors_a)]
    means = np.mean([_drawn_means(d, resamples, generator) for d in differences], axis=0)
    difference = metric.factor * float(np.mean([d.mean() for d in differences]))
    return difference, metric.factor * means


def _drawn_means(difference: Floats, resamples: int, generator: np.random.Generator) -> Floats:
    """[resamples] means of n images drawn with replacement from n.

    A difference has few values, so a draw is the count of each value: one multinomial.
    """
    values, counts = np.unique(difference, return_counts=True)
    draws = generator.multinomial(len(difference), counts / len(difference), size=resamples)
    means: Floats = draws @ values / len(difference)
    return means


def _image_means(
    metric: Metric, runs: Sequence[Path | str]
) -> dict[int, tuple[npt.NDArray[Any], Floats]]:
    """Per domain: the image numbers, sorted, and the mean of each over rounds and runs.

    For the error this is the share of wrong answers.
    """
    files = [Path(run) / PREDICTIONS_FILE for run in runs]
    return _read_image_means(
        metric.name,
        tuple(map(Path, runs)),
        tuple(f.stat().st_mtime_ns for f in files if f.exists()),
    )


@functools.lru_cache(maxsize=32)  # a method is compared with many others
def _read_image_means(
    metric: str, runs: tuple[Path, ...], _changed: tuple[int, ...]
) -> dict[int, tuple[npt.NDArray[Any], Floats]]:
    parts: dict[int, list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]] = {}
    for run in runs:
        for domain, index, values in _image_values(metric_named(metric), run):
            parts.setdefault(domain, []).append((index, values))
    return {domain: _share(part) for domain, part in parts.items()}


def _image_values(
    metric: Metric, run: Path
) -> Iterator[tuple[int, npt.NDArray[Any], npt.NDArray[Any]]]:
    arrays = read_predictions(run, {**metric.arrays, "index": 1})
    values = metric.image_values(arrays)
    for position in np.unique(arrays["domain"]).tolist():
        here = arrays["domain"] == position
        yield position, arrays["index"][here], values[here]


def _share(
    parts: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]],
) -> tuple[npt.NDArray[Any], Floats]:
    index = np.concatenate([part[0] for part in parts])
    wrong = np.concatenate([part[1] for part in parts])
    images, place, times = np.unique(index, return_inverse=True, return_counts=True)
    # Counts, not a running mean: equal shares must be bit-identical for _drawn_means.
    return images, np.bincount(place, weights=wrong, minlength=len(images)) / times


def _resampled_sums(
    metric: Metric,
    runs_a: Sequence[Path | str],
    runs_b: Sequence[Path | str],
    resamples: int,
    generator: np.random.Generator,
) -> tuple[float, Floats]:
    """The difference in mIoU, and of each resample, in points."""
    cells_a, cells_b = ([read_segmented(Path(run)) for run in runs] for runs in (runs_a, runs_b))
    images, images_b = _segmented_images(cells_a), _segmented_images(cells_b)
    _check_same_images(runs_a, runs_b, images, images_b)
    # The first row counts each image once: it gives the difference itself.
    weights = {
        domain: np.vstack(
            [
                np.ones(len(of_domain)),
                generator.multinomial(
                    len(of_domain), np.full(len(of_domain), 1 / len(of_domain)), size=resamples
                ),
            ]
        )
        for domain, of_domain in sorted(images.items())
    }
    means = [
        np.mean([_mean_mious(cell, images, weights) for cell in cells], axis=0)
        for cells in (cells_a, cells_b)
    ]
    differences: Floats = means[0] - means[1]
    return float(differences[0]), differences[1:]


def _segmented_images(cells: Sequence[SegmentedImages]) -> dict[int, npt.NDArray[Any]]:
    domains = sorted({int(domain) for cell in cells for domain in np.unique(cell.domain)})
    return {
        domain: np.unique(np.concatenate([cell.index[cell.domain == domain] for cell in cells]))
        for domain in domains
    }


def _mean_mious(
    cell: SegmentedImages, images: Mapping[int, npt.NDArray[Any]], weights: Mapping[int, Floats]
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
    """Mean over the first axis, without values with nothing to score (NaN)."""
    stacked = np.asarray(values)
    present = np.isfinite(stacked)
    counts = present.sum(0)
    sums = np.where(present, stacked, 0).sum(0)
    means: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means
