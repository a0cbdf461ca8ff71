"""Streams: which image comes when. Orders are arrays of indices, tested without a single image.

A benchmark hands out image sets by domain; the stream walks through them in the order that the
setting and the seed define. The file system's listing never matters: image sets are sorted, and
the order's hash is stored with each result.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ctta_bench.errors import ConfigError, DataError


class ImageSet(Protocol):
    """Labelled images by number: labels int64 [n], images uint8 or float [k, 3, H, W]."""

    @property
    def labels(self) -> np.ndarray:
        """Class numbers int64 [n]."""
        ...

    def load(self, index: np.ndarray) -> Tensor:
        """The images of these numbers: uint8, or float in [0, 1]."""
        ...


@dataclass(frozen=True)
class ArrayImages:
    """Images held in memory or memory-mapped: uint8 [n, 3, H, W] or grey [n, H, W]."""

    images: np.ndarray
    labels: np.ndarray

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, H, W]; grey images are repeated to three channels without a copy."""
        chosen = torch.from_numpy(np.ascontiguousarray(self.images[index]))
        return chosen.unsqueeze(1).expand(-1, 3, -1, -1) if chosen.ndim == 3 else chosen


@dataclass(frozen=True)
class Domain:
    """One domain of a stream."""

    name: str
    images: ImageSet

    def __len__(self) -> int:
        return len(self.images.labels)


@dataclass(frozen=True)
class Batch:
    """What one step sees. The engine gives `images` to the method, `labels` to the metrics."""

    images: Tensor  # float [n, 3, H, W] in [0, 1]
    labels: Tensor  # int64 [n]
    domain: np.ndarray  # int16 [n], position in the stream's domains
    index: np.ndarray  # int64 [n], number of each image inside its domain
    round: int
    starts_domain: bool


class StreamSettings(BaseModel):
    """What a user may choose about a benchmark's stream; benchmarks set their own defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    setting: Literal["continual", "reset", "mixed"] = Field(
        "continual", description="reset: start anew at each domain; mixed: all domains shuffled"
    )
    domains: tuple[str, ...] = Field((), description="domains in stream order; all if empty")
    rounds: int = Field(1, ge=1, description="times the whole sequence is seen")
    batch_size: int = Field(64, ge=1, description="images a batch")
    examples: int | None = Field(None, ge=1, description="images a domain, the first ones; all")
    order: Literal["file", "shuffled"] = Field(
        "file", description="inside a domain: stored order, or shuffled by the seed"
    )


class CorruptionSettings(StreamSettings):
    """Settings of the `-C` benchmarks."""

    severity: int = Field(5, ge=1, le=5, description="severity of the corruptions")


class Benchmark(ABC):
    """Base of all benchmarks: domains of labelled images and, if there is one, a source set.

    Subclasses define `Settings`, the class attributes and `domain`; `source` where there is one.
    """

    Settings: ClassVar[type[StreamSettings]] = StreamSettings
    num_classes: int = 0
    default_model: ClassVar[str] = ""
    version: ClassVar[int] = 1  # raised when the images change under the same name
    provenance: ClassVar[str | None] = None  # set if the images are self-made, for footnotes
    name: str = ""

    def __init__(self, settings: StreamSettings | None = None, root: Path | None = None) -> None:
        self.settings: Any = settings or self.Settings()
        self.root = root

    @abstractmethod
    def domain_names(self) -> tuple[str, ...]:
        """All domains of the benchmark in canonical order."""

    @abstractmethod
    def domain(self, name: str) -> ImageSet:
        """The images of one domain. Raises DataError if they are missing or damaged."""

    def source(self) -> ImageSet | None:
        """Labelled images of the source domain, or None if the benchmark has none at hand."""
        return None

    def extra_domains(self) -> tuple[str, ...]:
        """Domains that a user can name but that belong to no mean (hold-out sets, clean images)."""
        return ()

    def make_ready(self, report: Callable[[str, int, int], None], workers: int) -> None:
        """Make what can be made of the data that the stream needs; `report(what, done, total)`."""

    def problems(self) -> list[str]:
        """What is missing or wrong with the data, a sentence each; [] if all is there."""
        return []

    def chosen_domains(self) -> tuple[str, ...]:
        """The domains of the stream. Raises ConfigError for one that the benchmark lacks."""
        known = self.domain_names()
        for name in self.settings.domains:
            if name not in (*known, *self.extra_domains()):
                raise ConfigError(
                    f"benchmark.domains: {self.name} has no domain {name!r}; it has "
                    f"{', '.join((*known, *self.extra_domains()))}."
                )
        return self.settings.domains or known


def batch_domains(benchmark: Benchmark) -> list[Domain]:
    """The chosen domains with their images, cut to `examples`.

    Raises DataError if a domain has fewer images than asked for.
    """
    wanted = benchmark.settings.examples
    domains = []
    for name in benchmark.chosen_domains():
        images = benchmark.domain(name)
        if wanted is not None and wanted > len(images.labels):
            raise DataError(
                f"benchmark.examples: {wanted} images asked for, but domain {name} of "
                f"{benchmark.name} has {len(images.labels)}."
            )
        domains.append(Domain(name, images if wanted is None else _First(images, wanted)))
    return domains


class _First:
    """The first `count` images of a set."""

    def __init__(self, images: ImageSet, count: int) -> None:
        self.images, self.labels = images, images.labels[:count]

    def load(self, index: np.ndarray) -> Tensor:
        return self.images.load(index)


@dataclass(frozen=True)
class Order:
    """The order of a stream: one row an image, cut into batches.

    `domain` int16 [N], `index` int64 [N], `round` int16 [N]; batch b is rows cuts[b]:cuts[b+1].
    """

    domain: np.ndarray
    index: np.ndarray
    round: np.ndarray
    cuts: np.ndarray

    def sha256(self) -> str:
        """Hash of the whole order: equal streams have equal ones."""
        digest = hashlib.sha256()
        for part, kind in ((self.domain, "<i2"), (self.index, "<i8"), (self.round, "<i2")):
            digest.update(np.ascontiguousarray(part, dtype=kind).tobytes())
        digest.update(self.cuts.astype("<i8").tobytes())
        return digest.hexdigest()


def make_order(sizes: Sequence[int], settings: StreamSettings, seed: int) -> Order:
    """The order over domains of these sizes.

    Batches never cross a domain, except in setting "mixed". Each (seed, round, domain) has its own
    permutation, so that a shorter stream is a prefix of a longer one.
    """
    segments = []
    for round_number in range(settings.rounds):
        parts = [
            np.stack([np.full(n, d), _inside(n, settings.order, (seed, round_number, d))], 1)
            for d, n in enumerate(sizes)
        ]
        if settings.setting == "mixed":
            everything = np.concatenate(parts)
            parts = [everything[_rng(seed, round_number, -1).permutation(len(everything))]]
        segments += [(round_number, part) for part in parts]
    cuts, position = [0], 0
    for _, rows in segments:
        cuts += [position + i for i in range(settings.batch_size, len(rows), settings.batch_size)]
        position += len(rows)
        cuts.append(position)
    table = np.concatenate([r for _, r in segments])
    rounds = np.concatenate([np.full(len(r), n) for n, r in segments])
    return Order(
        table[:, 0].astype(np.int16),
        table[:, 1].astype(np.int64),
        rounds.astype(np.int16),
        np.asarray(cuts, np.int64),
    )


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng([k % 2**32 for k in key])


def _inside(n: int, order: str, key: tuple[int, ...]) -> np.ndarray:
    return np.arange(n) if order == "file" else _rng(*key).permutation(n)


class Stream:
    """The batches of one cell, from any batch on."""

    def __init__(self, domains: Sequence[Domain], settings: StreamSettings, seed: int) -> None:
        self.domains = list(domains)
        self.settings = settings
        self.order = make_order([len(d) for d in self.domains], settings, seed)

    @property
    def domain_names(self) -> list[str]:
        """Names of the domains, in the order that `Batch.domain` counts."""
        return [d.name for d in self.domains]

    def __len__(self) -> int:
        return len(self.order.cuts) - 1

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The batches from number `start` on."""
        order = self.order
        for b in range(start, len(self)):
            rows = slice(order.cuts[b], order.cuts[b + 1])
            domain, index = order.domain[rows], order.index[rows]
            first = order.cuts[b]
            before = order.domain[first - 1] if first else -1
            yield Batch(
                images=self._images(domain, index),
                labels=torch.from_numpy(self._labels(domain, index)),
                domain=domain,
                index=index,
                round=int(order.round[first]),
                # With one domain only, a new round is what starts it anew.
                starts_domain=bool(
                    first == 0
                    or domain[0] != before
                    or order.round[first - 1] != order.round[first]
                ),
            )

    def _images(self, domain: np.ndarray, index: np.ndarray) -> Tensor:
        if (domain == domain[0]).all():
            return as_input(self.domains[domain[0]].images.load(index))
        parts: list[Tensor] = [torch.empty(0)] * len(index)
        for d in np.unique(domain):
            where = np.flatnonzero(domain == d)
            loaded = as_input(self.domains[d].images.load(index[where]))
            for i, image in zip(where, loaded, strict=True):
                parts[i] = image
        return torch.stack(parts)

    def _labels(self, domain: np.ndarray, index: np.ndarray) -> np.ndarray:
        labels = [self.domains[d].images.labels[i] for d, i in zip(domain, index, strict=True)]
        return np.asarray(labels, dtype=np.int64)


def as_input(images: Tensor) -> Tensor:
    """uint8 [n, 3, H, W] to float32 in [0, 1]; float images pass."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images.clone()


class SourceData:
    """The source set as a method may see it before the stream, moved to its device and dtype.

    Labels are handed out only where the method declared "labelled" access.
    """

    def __init__(
        self,
        images: ImageSet,
        *,
        labelled: bool,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._set = images
        self._labelled = labelled
        self._order = _rng(seed, 2**31).permutation(len(images.labels))
        self._device, self._dtype = device, dtype

    def __len__(self) -> int:
        return len(self._order)

    def batches(self, batch_size: int = 64) -> Iterator[Tensor]:
        """Images [n, 3, H, W] in [0, 1] in a shuffled order that the seed fixes."""
        for start in range(0, len(self._order), batch_size):
            yield self._load(self._order[start : start + batch_size])

    def labelled_batches(self, batch_size: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels int64 [n]. Raises DataError for a method of unlabelled access."""
        if not self._labelled:
            raise DataError(
                "this method declares unlabelled source access and gets no labels; set "
                'source_access = "labelled" in its class.'
            )
        for start in range(0, len(self._order), batch_size):
            chosen = self._order[start : start + batch_size]
            labels = torch.from_numpy(np.asarray(self._set.labels)[chosen].astype(np.int64))
            yield self._load(chosen), labels.to(self._device)

    def _load(self, index: np.ndarray) -> Tensor:
        return as_input(self._set.load(index)).to(self._device, self._dtype)
