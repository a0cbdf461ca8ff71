"""Orders of images as arrays of indices; no image is needed to make or test them.

Each (seed, round, domain) has its own random numbers, so a stream with fewer rounds or domains is
the beginning of a longer one. docs/protocols.md defines the order of each setting.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctta_bench.errors import ConfigError
from ctta_bench.stream.label_orders import LABEL_ORDERS
from ctta_bench.stream.markov import markov
from ctta_bench.stream.settings import StreamSettings

HENDRYCKS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur",
    "zoom_blur", "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate",
    "jpeg_compression",
)  # fmt: skip
# Positions in HENDRYCKS, from 1: the ten orders of CoTTA's configurations for ImageNet-C, and the
# default order of RoTTA's.
PUBLISHED_ORDERS = {
    "cotta0": (11, 14, 1, 6, 7, 5, 3, 15, 4, 13, 2, 9, 8, 10, 12),
    "cotta1": (15, 2, 7, 9, 12, 10, 4, 13, 1, 11, 5, 3, 14, 8, 6),
    "cotta2": (12, 4, 1, 2, 8, 9, 5, 7, 13, 15, 14, 11, 3, 6, 10),
    "cotta3": (2, 10, 5, 14, 8, 13, 11, 3, 4, 9, 12, 1, 6, 15, 7),
    "cotta4": (14, 5, 7, 8, 10, 3, 11, 6, 9, 15, 1, 2, 12, 4, 13),
    "cotta5": (6, 8, 10, 2, 4, 12, 7, 11, 9, 13, 5, 1, 14, 15, 3),
    "cotta6": (9, 3, 15, 12, 7, 5, 14, 8, 4, 6, 11, 13, 2, 10, 1),
    "cotta7": (5, 7, 3, 10, 8, 15, 1, 9, 2, 11, 12, 6, 14, 4, 13),
    "cotta8": (4, 6, 7, 2, 1, 5, 15, 10, 12, 14, 9, 8, 11, 13, 3),
    "cotta9": (12, 1, 4, 7, 9, 5, 15, 10, 14, 13, 2, 3, 8, 6, 11),
    "rotta": (6, 8, 10, 2, 4, 12, 7, 11, 9, 13, 5, 1, 14, 15, 3),
}
# Keys of random draws for several domains together, in place of the domain's number.
_SHUFFLE, _CROSS_FADE, _INTERLEAVE, _SEQUENCE, _MARKOV = -1, -2, -3, -4, -5
_ALIKE = 2**20  # in place of the domain's number: all domains share their draws
_LABELS = 2**16  # keeps draws of label orders apart from those of the plain order


@dataclass(frozen=True)
class Order:
    """The order of a stream: one row per image, cut into batches.

    `domain` int16 [N], `index` int64 [N], `round` int16 [N]; batch b is rows cuts[b]:cuts[b+1].
    `severity` int8 [N]; 0: the benchmark's own severity.
    """

    domain: np.ndarray
    index: np.ndarray
    round: np.ndarray
    cuts: np.ndarray
    severity: np.ndarray

    def sha256(self) -> str:
        """Hash of the whole order: equal streams have equal hashes."""
        digest = hashlib.sha256()
        columns = [(self.domain, "<i2"), (self.index, "<i8"), (self.round, "<i2")]
        if self.severity.any():
            columns.append((self.severity, "i1"))
        for column, kind in columns:
            digest.update(np.ascontiguousarray(column, dtype=kind).tobytes())
        digest.update(self.cuts.astype("<i8").tobytes())
        return digest.hexdigest()

    def starts_domain(self) -> np.ndarray:
        """Whether each batch starts a domain or a round: bool [batches]."""
        first = self.cuts[:-1]
        starts = np.ones(len(first), bool)
        here, before = first[1:], first[1:] - 1
        starts[1:] = (self.domain[here] != self.domain[before]) | (
            self.round[here] != self.round[before]
        )
        return starts

    def resets(self, settings: StreamSettings) -> np.ndarray:
        """Whether the method is reset before each batch: bool [batches].

        With `reset_every` N: before the first batch that starts at or after each multiple of N
        images.
        """
        resets = np.zeros(len(self.cuts) - 1, bool)
        if settings.kind.resets:
            resets[1:] = self.starts_domain()[1:]
        elif settings.reset_every is not None:
            resets[1:] = np.diff(self.cuts[:-1] // settings.reset_every) > 0
        return resets


def domain_sequence(names: Sequence[str], settings: StreamSettings, seed: int) -> np.ndarray:
    """Positions of the domains in the order in which they are visited.

    Raises ConfigError if a published order does not contain one of the domains.
    """
    chosen = settings.domain_order
    if chosen is None:
        return np.arange(len(names))
    if chosen == "random":
        return _rng(seed, 0, _SEQUENCE).permutation(len(names))
    place = {HENDRYCKS[p - 1]: i for i, p in enumerate(PUBLISHED_ORDERS[chosen])}
    unknown = [name for name in names if name not in place]
    if unknown:
        raise ConfigError(
            f"benchmark.domain_order: {chosen} orders the 15 corruptions of Hendrycks and "
            f"Dietterich, without {', '.join(unknown)}; use random, or leave it out."
        )
    return np.argsort([place[name] for name in names])


def make_order(
    sizes: Sequence[int],
    settings: StreamSettings,
    seed: int,
    *,
    labels: Sequence[np.ndarray] = (),
    sequence: Sequence[int] | np.ndarray | None = None,
) -> Order:
    """The order of a stream over domains of these sizes.

    labels: int64 [n] per domain, for settings whose order depends on labels. sequence: positions of
    the domains in the order in which they are visited; by default 0, 1, 2, ...

    Example: `make_order([100, 100], StreamSettings(), seed=0).sha256()`
    """
    visited = range(len(sizes)) if sequence is None else [int(d) for d in sequence]
    plan = _Plan(settings, seed, sizes, labels)
    segments = [
        (round_number, rows)
        for round_number in range(settings.rounds)
        for rows in plan.segments(visited, round_number)
    ]
    cuts, position = [np.zeros(1, np.int64)], 0
    for _, rows in segments:
        inner = np.arange(settings.batch_size, len(rows), settings.batch_size)
        cuts += [position + inner, np.array([position + len(rows)])]
        position += len(rows)
    table = np.concatenate([rows for _, rows in segments])
    rounds = np.repeat([n for n, _ in segments], [len(rows) for _, rows in segments])
    return Order(
        table[:, 0].astype(np.int16),
        table[:, 1].astype(np.int64),
        rounds.astype(np.int16),
        np.concatenate(cuts),
        table[:, 2].astype(np.int8),
    )


@dataclass(frozen=True)
class _Plan:
    """Rows are int32 [n, 3]: domain, index, severity."""

    settings: StreamSettings
    seed: int
    sizes: Sequence[int]
    labels: Sequence[np.ndarray]

    def segments(self, visited: Sequence[int], round_number: int) -> list[np.ndarray]:
        """The rows of a round, in segments that no batch spans."""
        join = self.settings.kind.join
        visits = self._visits(visited, round_number)
        if join == "concatenate":
            return visits
        if join == "continuous":
            return [np.concatenate(visits)]
        if join == "shuffle":
            return [self._shuffled(visits, round_number)]
        if join == "interleave":
            return self._interleaved(visits, round_number)
        if join == "markov":
            return [self._markov(visits, round_number)]
        return [self._cross_faded(visits, round_number)]

    def _visits(self, visited: Sequence[int], round_number: int) -> list[np.ndarray]:
        visits = []
        for number, d in enumerate(visited):
            for step, severity in enumerate(self.settings.severities_at(number)):
                key = _ALIKE if self.settings.order == "alike" else d
                # The key has the step only with a severity schedule, as in earlier releases.
                keys = (self.seed, round_number, key, *([step] if severity else []))
                rows = np.empty((self.sizes[d], 3), np.int32)
                rows[:, 0], rows[:, 2] = d, severity
                rows[:, 1] = _inside(self.sizes[d], self.settings.order, keys)
                if self.settings.kind.join != "shuffle":
                    rows = self._by_label(rows, _rng(self.seed, round_number, key, _LABELS + step))
                visits.append(rows)
        return visits

    def _by_label(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        arrange = LABEL_ORDERS.get(self.settings.kind.labels)
        return rows if arrange is None else rows[arrange(self._labels(rows), self.settings, rng)]

    def _labels(self, rows: np.ndarray) -> np.ndarray:
        first = np.cumsum(self.sizes) - self.sizes
        labels: np.ndarray = self._all_labels[first[rows[:, 0]] + rows[:, 1]]
        return labels

    @functools.cached_property
    def _all_labels(self) -> np.ndarray:
        return np.concatenate(self.labels)

    def _shuffled(self, visits: list[np.ndarray], round_number: int) -> np.ndarray:
        rows = np.concatenate(visits)
        rows = rows[_rng(self.seed, round_number, _SHUFFLE).permutation(len(rows))]
        return self._by_label(rows, _rng(self.seed, round_number, _SHUFFLE, _LABELS))

    def _interleaved(self, visits: list[np.ndarray], round_number: int) -> list[np.ndarray]:
        """Runs of whole batches, slot by slot; domains are in random order within a slot."""
        rng = _rng(self.seed, round_number, _INTERLEAVE)
        size, slots = self.settings.batch_size, self.settings.slots
        assert slots is not None and self.settings.delta is not None
        runs: list[list[np.ndarray]] = [[] for _ in range(slots)]
        for rows in visits:
            p = rng.dirichlet(np.full(slots, self.settings.delta))
            batches = -(-len(rows) // size)
            cuts = (np.cumsum(p)[:-1] * batches).astype(np.int64) * size
            for slot, run in zip(runs, np.split(rows, cuts), strict=True):
                slot.append(run)
        ordered = [slot[d] for slot in runs for d in rng.permutation(len(slot))]
        return [run for run in ordered if len(run)]

    def _markov(self, visits: list[np.ndarray], round_number: int) -> np.ndarray:
        """Domain and class follow their chains; domains are numbered in the order of the visits."""
        rows = np.concatenate(visits)
        numbers = np.repeat(np.arange(len(visits)), [len(v) for v in visits])
        rng = _rng(self.seed, round_number, _MARKOV)
        order = markov(numbers, self._labels(rows), self.settings, rng)
        left_out = len(visits) - len(np.unique(numbers[order]))
        if left_out:
            raise ConfigError(
                f"benchmark.images_per_state: a stream of {len(order):,} images ends before it "
                f"comes to {left_out} of {len(visits)} domains; give a larger number, or a "
                "smaller domain_correlation."
            )
        return rows[order]

    def _cross_faded(self, visits: list[np.ndarray], round_number: int) -> np.ndarray:
        """Each image keeps its place along the domains, shifted at random within the overlap."""
        assert self.settings.overlap is not None
        place = np.concatenate(
            [d + (np.arange(len(v)) + 0.5) / len(v) for d, v in enumerate(visits)]
        )
        moved = _rng(self.seed, round_number, _CROSS_FADE).random(len(place)) - 0.5
        return np.concatenate(visits)[np.argsort(place + self.settings.overlap * moved)]


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng([k % 2**32 for k in key])


def _inside(n: int, order: str, key: tuple[int, ...]) -> np.ndarray:
    return np.arange(n) if order == "file" else _rng(*key).permutation(n)
