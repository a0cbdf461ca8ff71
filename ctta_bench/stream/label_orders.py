"""Orders that depend on labels: sorted or in Dirichlet chunks, in slots, or with a label shift.

Each function takes the labels [n] of images in their plain order and returns positions [m] in that
order. Images of one class keep their plain order within a chunk, so a seed that shuffles the plain
order shuffles them too.
"""

from collections.abc import Callable, Mapping

import numpy as np

from ctta_bench.errors import ConfigError
from ctta_bench.stream.settings import StreamSettings

SMALLEST_CHUNK = 10
ATTEMPTS = 1000
MOST_SLOTS = 100


def chunks(labels: np.ndarray, settings: StreamSettings, rng: np.random.Generator) -> np.ndarray:
    """As many chunks as classes, one after another; classes are in random order within a chunk.

    The images of a class are split over the chunks by p ~ Dirichlet(delta), rescaled to the chunks
    that do not yet hold an even share. The draw is repeated until each chunk has 10 images, which
    is not required if an even share is below 20. delta 0: one chunk per class, sorted by class.

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
            return _chunk_by_chunk(labels, counts, rng)
    raise ConfigError(
        f"benchmark.delta: with {settings.delta:g}, none of {ATTEMPTS} draws split {len(labels)} "
        f"images of {len(sizes)} classes into chunks of at least {SMALLEST_CHUNK}; use more images "
        "or another delta."
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
        if p.sum() == 0:  # a small delta assigned the whole class to full chunks
            p[open_chunks] = rng.dirichlet(np.full(int(open_chunks.sum()), delta))
        counts[row] = _split(p, size)
        held += counts[row]
    return counts


def slots(labels: np.ndarray, settings: StreamSettings, rng: np.random.Generator) -> np.ndarray:
    """One slot after another; classes are in random order within a slot.

    The images of each class are split over all slots by its own p ~ Dirichlet(delta), without
    balancing. `slots` defaults to the number of classes, at most 100.
    """
    assert settings.delta is not None
    sizes = np.unique(labels, return_counts=True)[1]
    number = settings.slots or min(len(sizes), MOST_SLOTS)
    shares = rng.dirichlet(np.full(number, settings.delta), len(sizes))
    counts = np.stack([_split(p, size) for p, size in zip(shares, sizes, strict=True)])
    return _chunk_by_chunk(labels, counts, rng)


def shift(labels: np.ndarray, settings: StreamSettings, rng: np.random.Generator) -> np.ndarray:
    """One step per class, in random order; all steps are equally long.

    In its step, a class is drawn `imbalance_ratio` times as often as each other class. Its image is
    drawn from all images of the class, with replacement.
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
    """Split `size` in proportion to p [k], at the integer parts of size * cumsum(p): int64 [k]."""
    cumulative = np.cumsum(p)
    cuts = (size * (cumulative / cumulative[-1])).astype(np.int64)
    return np.diff(cuts, prepend=0)


def _chunk_by_chunk(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Positions, chunk by chunk, for counts [classes, chunks]; classes in random order."""
    by_class = np.argsort(labels, kind="stable")
    number = counts.shape[1]
    segment = np.repeat(np.arange(counts.size), counts.ravel())  # class * number + chunk
    rank = rng.random(counts.size)
    chunk = segment % number
    return by_class[np.lexsort((segment, rank[segment], chunk))]
