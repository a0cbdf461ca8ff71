"""Streams in which domain and class follow Markov chains: scenarios of UniTTA (Du et al., 2024).

A state is a domain and a class. Two transition matrices, one over domains and one over classes,
define the next state; both chains move independently. docs/protocols.md has the formulas.
"""

import bisect
import itertools

import numpy as np

from ctta_bench.stream.settings import StreamSettings

TRIES = 8  # draws of a state that still has images, before its distribution is computed


def transition_matrix(number: int, correlation: float, imbalance: float) -> np.ndarray:
    """Probabilities [number, number] of the next domain or class, given the present one (row).

    correlation: probability that the most frequent one, number 0, comes again; at least 1 / number.
    imbalance: how often number 0 comes for once the last one. The number k is left with
    probability (1 - correlation) · imbalance^(k / (number - 1)), to each other one equally likely;
    so it comes in the proportion imbalance^(-k / (number - 1)). Where this is impossible (see
    `reaches`), every number stays with probability `correlation`.

    Example: `transition_matrix(2, 0.9, 1.0)` is `[[0.9, 0.1], [0.1, 0.9]]`
    """
    if number == 1:
        return np.ones((1, 1))
    leave = np.full(number, 1 - max(correlation, 1 / number))
    if reaches(number, correlation, imbalance):
        leave = leave / proportions(number, imbalance)
    matrix: np.ndarray = np.repeat(leave[:, None] / (number - 1), number, axis=1)
    np.fill_diagonal(matrix, 1 - leave)
    return matrix


def proportions(number: int, imbalance: float) -> np.ndarray:
    """How often each domain or class comes, as a multiple of number 0: from 1 to 1 / imbalance."""
    exponents = np.arange(number) / max(number - 1, 1)
    result: np.ndarray = imbalance**-exponents
    return result


def reaches(number: int, correlation: float, imbalance: float) -> bool:
    """Whether a chain alone makes the imbalance: no number may be left more often than at random.

    If it does not, or if correlation is 1, each number has a quota instead.
    """
    stay = max(correlation, 1 / number)
    return number == 1 or (stay < 1 and (1 - stay) * imbalance <= 1 - 1 / number)


def markov(
    domains: np.ndarray, labels: np.ndarray, settings: StreamSettings, rng: np.random.Generator
) -> np.ndarray:
    """Positions [m] of a stream of images with these domains [n] and labels [n].

    Domains are numbered in the order of their visits, classes by their labels; the first state is
    the first of both. The images of a state come in their plain order, and again after the last.
    With chains that make the imbalance, the stream ends when a state has had `images_per_state`
    images. Otherwise domains, classes or states are closed when their quota is used up, and the
    stream ends with the last of them.
    """
    given = settings
    assert given.domain_correlation is not None and given.domain_imbalance is not None
    assert given.class_correlation is not None and given.class_imbalance is not None
    state_domain, state_class = (np.unique(x, return_inverse=True)[1] for x in (domains, labels))
    shape = int(state_domain.max()) + 1, int(state_class.max()) + 1
    factors = (
        (given.domain_correlation, given.domain_imbalance),
        (given.class_correlation, given.class_imbalance),
    )
    state = state_domain * shape[1] + state_class
    sizes = np.bincount(state, minlength=shape[0] * shape[1])
    head = given.images_per_state or max(1, round(float(sizes[sizes > 0].mean())))
    chains = [transition_matrix(n, *f) for n, f in zip(shape, factors, strict=True)]
    shares = [proportions(n, imbalance) for n, (_, imbalance) in zip(shape, factors, strict=True)]
    alone = [reaches(n, *f) for n, f in zip(shape, factors, strict=True)]
    if all(alone):
        quota, ends = np.full(shape, head), True
    else:
        quota, ends = np.maximum(1, np.round(head * np.outer(*shares))).astype(np.int64), False
    # States with the same number share a quota.
    numbers = np.arange(shape[0] * shape[1]).reshape(shape)
    if not ends and alone[1]:
        numbers = numbers // shape[1]
    elif not ends and alone[0]:
        numbers = numbers % shape[1]
    visited = _walk(chains, sizes.reshape(shape) > 0, quota, numbers, ends, rng)
    by_state, first = np.argsort(state, kind="stable"), np.cumsum(sizes) - sizes
    order = np.argsort(visited, kind="stable")
    counts = np.bincount(visited, minlength=len(sizes))
    rank = np.empty(len(visited), np.int64)
    rank[order] = np.arange(len(visited)) - np.repeat(np.cumsum(counts) - counts, counts)
    return by_state[first[visited] + rank % sizes[visited]]


def _walk(
    chains: list[np.ndarray],
    is_open: np.ndarray,
    quota: np.ndarray,
    groups: np.ndarray,
    ends: bool,
    rng: np.random.Generator,
) -> np.ndarray:
    """The states int64 [m] of a walk, as domain · classes + class.

    is_open: states with images. groups: states with equal numbers share the sum of their quotas.
    ends: the first quota that is used up ends the walk.
    """
    # Without the last sum, which is 1 up to rounding: a draw above the others is the last number.
    rows = [[np.cumsum(row)[:-1].tolist() for row in chain] for chain in chains]
    left = np.bincount(groups[is_open], weights=quota[is_open], minlength=groups.size).tolist()
    uniform = itertools.chain.from_iterable(iter(lambda: rng.random(4096).tolist(), None))
    states: list[tuple[int, int]] = []
    place = (0, 0)
    if not is_open[place]:
        place = _choose(is_open.astype(float), rng)
    while True:
        states.append(place)
        group = groups[place]
        left[group] -= 1
        if left[group] <= 0:
            is_open[groups == group] = False
            if ends or not is_open.any():
                break
        for _ in range(TRIES):
            domain = bisect.bisect(rows[0][place[0]], next(uniform))
            label = bisect.bisect(rows[1][place[1]], next(uniform))
            if is_open[domain, label]:
                place = domain, label
                break
        else:
            allowed = np.outer(chains[0][place[0]], chains[1][place[1]]) * is_open
            place = _choose(allowed if allowed.any() else is_open.astype(float), rng)
    result: np.ndarray = np.array(states) @ np.array([is_open.shape[1], 1])
    return result


def _choose(weights: np.ndarray, rng: np.random.Generator) -> tuple[int, int]:
    """A state drawn in proportion to weights [domains, classes]."""
    flat = int(rng.choice(weights.size, p=weights.ravel() / weights.sum()))
    return flat // weights.shape[1], flat % weights.shape[1]
