"""Do two methods differ? A paired bootstrap over test images, and Holm's correction."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ctta_bench.analysis.recount import read_predictions
from ctta_bench.errors import RunError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PairedDifference:
    """Mean error of a minus that of b, in points; low and high bound its 95 % interval."""

    difference: float
    low: float
    high: float
    p: float


def paired_bootstrap(
    runs_a: Sequence[Path | str],
    runs_b: Sequence[Path | str],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> PairedDifference:
    """Difference in mean error of two methods, resampling the images within each domain.

    runs_a, runs_b: the finished cell folders of a method, one per seed. An image is an index
    within a domain; its correctness is averaged over rounds and seeds before it is drawn, so that
    its repetitions stay together. Domains weigh equally. p is two-sided: twice the share of
    resamples on the wrong side of zero, with one added to both counts. It says how sure the
    difference is for other images of the same kind, not for other seeds.

    Raises RunError if the two did not see the same images.
    """
    errors_a, errors_b = _image_errors(runs_a), _image_errors(runs_b)
    if errors_a.keys() != errors_b.keys() or any(
        not np.array_equal(errors_a[domain][0], errors_b[domain][0]) for domain in errors_a
    ):
        raise RunError(
            f"{runs_a[0]} and {runs_b[0]} did not see the same images, so they cannot be paired; "
            "compare runs of one benchmark, subset and seed."
        )
    generator = np.random.default_rng(seed)
    differences = [errors_a[domain][1] - errors_b[domain][1] for domain in sorted(errors_a)]
    means = np.mean([_resampled_means(d, resamples, generator) for d in differences], axis=0)
    low, high = np.percentile(means, [2.5, 97.5])
    wrong_side = min(np.count_nonzero(means <= 0), np.count_nonzero(means >= 0))
    return PairedDifference(
        difference=100 * float(np.mean([d.mean() for d in differences])),
        low=100 * float(low),
        high=100 * float(high),
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


def _resampled_means(difference: Floats, resamples: int, generator: np.random.Generator) -> Floats:
    """[resamples] means of n images drawn with replacement from n.

    A difference takes few values, so a draw is how often each value comes: one multinomial.
    """
    values, counts = np.unique(difference, return_counts=True)
    draws = generator.multinomial(len(difference), counts / len(difference), size=resamples)
    means: Floats = draws @ values / len(difference)
    return means


def _image_errors(runs: Sequence[Path | str]) -> dict[int, tuple[npt.NDArray[Any], Floats]]:
    """Per domain: the image numbers, sorted, and the share of wrong answers to each image."""
    parts: dict[int, list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]] = {}
    for run in runs:
        for domain, index, wrong in _wrong_answers(Path(run)):
            parts.setdefault(domain, []).append((index, wrong))
    return {domain: _share(part) for domain, part in parts.items()}


def _wrong_answers(run: Path) -> Iterator[tuple[int, npt.NDArray[Any], npt.NDArray[Any]]]:
    prediction, label, domain, index = read_predictions(
        run, "prediction", "label", "domain", "index"
    )
    for position in np.unique(domain).tolist():
        here = domain == position
        yield position, index[here], prediction[here] != label[here]


def _share(
    parts: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]],
) -> tuple[npt.NDArray[Any], Floats]:
    index = np.concatenate([part[0] for part in parts])
    wrong = np.concatenate([part[1] for part in parts])
    images, place, times = np.unique(index, return_inverse=True, return_counts=True)
    # counts, not a running mean: equal shares must be equal bits for _resampled_means
    return images, np.bincount(place, weights=wrong, minlength=len(images)) / times
