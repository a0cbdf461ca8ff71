"""Orders that labels decide: sorted or in Dirichlet chunks, in slots, or a shift of their shares.

Each function takes labels [n] of images in their plain order and returns positions [m] in it. Parts
keep the plain order of their images, so a seed that shuffles the images shuffles the parts as well.
"""

from collections.abc import Callable, Mapping

import numpy as np

from ctta_bench.errors import ConfigError
from ctta_bench.stream.settings import StreamSettings

SMALLEST_CHUNK = 10
ATTEMPTS = 1000
MOST_SLOTS = 100


def chunks(labels: np.ndarray, settings: StreamSettings, rng: np.random.Generator) -> np.ndarray:
    """As many chunks as classes; chunk by chunk, and in each the parts of the classes at random.

    A class is split by p ~ Dirichlet(delta), rescaled over the chunks that hold less than an even
    share yet. Drawn anew until each chunk has 10 images; where an even share is below 20, that is
    out of reach and not asked for. delta 0: one chunk a class, sorted by class.

    Raises ConfigError if no attempt fills every chunk.
    """
    assert settings.delta is not None
    if settings.delta == 0:
        return np.argsort(labels, kind="stable")
    sizes = np.unique(labels, return_counts=True)[1]
    smallest = SMALLEST_CHUNK if len(labels) >= 2 * SMALLEST_CHUNK * len(sizes) else 0
    for _ in range(ATTEMPTS):
        counts = _balanced_counts(sizes, settings.delta, rng)
        if counts.sum(0).min() >= smallest:
            return _part_by_part(labels, counts, rng)
    raise ConfigError(
        f"benchmark.delta: with {settings.delta:g}, {ATTEMPTS} draws split {len(labels)} images of "
        f"{len(sizes)} classes into no chunks of {SMALLEST_CHUNK}; take more images or another "
        "delta."
    )


def _balanced_counts(sizes: np.ndarray, delta: float, rng: np.random.Generator) -> np.ndarray:
    """Images of each class in each chunk, int64 [classes, classes]."""
    share = sizes.sum() / len(sizes)
    held = np.zeros(len(sizes), np.int64)
    draws = rng.dirichlet(np.full(len(sizes), delta), len(sizes))
    counts = np.empty((len(sizes), len(sizes)), np.int64)
    for row, size in enumerate(sizes.tolist()):
        open_chunks = held < share
        p = draws[row] * open_chunks
        if p.sum() == 0:  # a small delta gave all of the class to chunks that are full
            p[open_chunks] = rng.dirichlet(np.full(int(open_chunks.sum()), delta))
        counts[row] = _split(p, size)
        held += counts[row]
    return counts


def slots(labels: np.ndarray, settings: StreamSettings, rng: np.random.Generator) -> np.ndarray:
    """Slot by slot, and in each the parts of the classes at random.

    Each class is split by its own p ~ Dirichlet(delta) over all slots, with no balancing. `slots`
    is the number of classes by default, at most 100.
    """
    assert settings.delta is not None
    sizes = np.unique(labels, return_counts=True)[1]
    number = settings.slots or min(len(sizes), MOST_SLOTS)
    shares = rng.dirichlet(np.full(number, settings.delta), len(sizes))
    counts = np.stack([_split(p, size) for p, size in zip(shares, sizes, strict=True)])
    return _part_by_part(labels, counts, rng)


def shift(labels: np.ndarray, settings: StreamSettings, rng: np.random.Generator) -> np.ndarray:
    """A step for each class, in random order; all steps are equally long.

    In its step a class is drawn `imbalance_ratio` times as often as each other one; the image is
    any of the class, with replacement.
    """
    assert settings.imbalance_ratio is not None and settings.draws is not None
    by_class = np.argsort(labels, kind="stable")
    sizes = np.unique(labels, return_counts=True)[1]
    num_classes = len(sizes)
    length = max(1, int(settings.draws * len(labels)) // num_classes)
    chosen = np.repeat(rng.permutation(num_classes), length)
    if num_classes > 1:
        major = settings.imbalance_ratio / (settings.imbalance_ratio + num_classes - 1)
        others = rng.random(len(chosen)) >= major
        away = rng.integers(1, num_classes, int(others.sum()))
        chosen[others] = (chosen[others] + away) % num_classes
    first = np.cumsum(sizes) - sizes
    return by_class[first[chosen] + (rng.random(len(chosen)) * sizes[chosen]).astype(np.int64)]


LABEL_ORDERS: Mapping[
    str, Callable[[np.ndarray, StreamSettings, np.random.Generator], np.ndarray]
] = {"chunks": chunks, "slots": slots, "shift": shift}


def _split(p: np.ndarray, size: int) -> np.ndarray:
    """`size` in proportion to p [k], cut at the whole parts of size * cumsum(p): int64 [k]."""
    cumulative = np.cumsum(p)
    cuts = (size * (cumulative / cumulative[-1])).astype(np.int64)
    return np.diff(cuts, prepend=0)


def _part_by_part(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Positions chunk by chunk, given counts [classes, chunks]; classes at random in each chunk."""
    by_class = np.argsort(labels, kind="stable")
    number = counts.shape[1]
    part = np.repeat(np.arange(counts.size), counts.ravel())  # class * number + chunk
    rank = rng.random(counts.size)
    chunk = part % number
    return by_class[np.lexsort((part, rank[part], chunk))]
