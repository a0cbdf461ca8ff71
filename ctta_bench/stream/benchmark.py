"""Streams: domains of labelled images, and their batches in the order of `orders.py`.

A benchmark hands out image sets by domain and severity; the stream walks through them in the order
that the setting and the seed define. The file system's listing never matters: image sets are
sorted, and the order's hash is stored with each result.
"""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from platformdirs import user_cache_path
from torch import Tensor

from ctta_bench.errors import ConfigError, DataError
from ctta_bench.names import RENAMED_IN
from ctta_bench.stream.image_sets import ArrayImages as ArrayImages  # for benchmarks
from ctta_bench.stream.image_sets import ArrayMaps as ArrayMaps
from ctta_bench.stream.image_sets import ImageSet as ImageSet
from ctta_bench.stream.image_sets import MapSet as MapSet
from ctta_bench.stream.image_sets import first_images
from ctta_bench.stream.image_sets import labels_of as labels_of
from ctta_bench.stream.loading import load_ahead
from ctta_bench.stream.orders import domain_sequence, make_order
from ctta_bench.stream.settings import CorruptionSettings as CorruptionSettings
from ctta_bench.stream.settings import ImageOrder as ImageOrder
from ctta_bench.stream.settings import SegmentationSettings as SegmentationSettings
from ctta_bench.stream.settings import SettingName as SettingName
from ctta_bench.stream.settings import StreamSettings as StreamSettings


@dataclass(frozen=True)
class Domain:
    """One domain of a stream; `at_severity` holds its images at the severities of a walk."""

    name: str
    images: ImageSet
    at_severity: Mapping[int, ImageSet] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.images.labels)


@dataclass(frozen=True)
class Batch:
    """What one step sees. The engine gives `images` to the method, `labels` to the metrics."""

    images: Tensor  # float [n, 3, H, W] in [0, 1]
    labels: Tensor  # int64 [n]; of segmentation: maps uint8 [n, H_l, W_l], 255 = ignored
    domain: np.ndarray  # int16 [n], position in the stream's domains
    index: np.ndarray  # int64 [n], number of each image inside its domain
    severity: np.ndarray  # int8 [n], 0 for the benchmark's own
    round: int
    starts_domain: bool
    reset: bool  # the method is reset before this batch

    def pin_memory(self) -> "Batch":
        """The same with images in page-locked memory; torch's loader calls it."""
        return replace(self, images=self.images.pin_memory())


Task = str  # an entry of METRICS: "classification", "segmentation", or a plug-in's
CLEAN = "clean"  # the domain of uncorrupted images, where there is one


class Benchmark(ABC):
    """Base of all benchmarks: domains of labelled images and, if there is one, a source set.

    Subclasses define `Settings`, the class attributes and `domain`; `source` where there is one.
    """

    Settings: ClassVar[type[StreamSettings]] = StreamSettings
    num_classes: int = 0
    task: ClassVar[Task] = "classification"  # "segmentation": domains are MapSets
    class_names: ClassVar[tuple[str, ...]] = ()  # in their numbers' order, where they are known
    default_model: ClassVar[str] = ""
    severities: ClassVar[tuple[int, ...]] = ()  # that `domain` can read, if there are several
    version: ClassVar[int] = 1  # raised when the images change under the same name
    provenance: ClassVar[str | None] = None  # set if the images are self-made, for footnotes
    published: ClassVar[bool] = True  # False: presets for it are choices of this suite
    different_label_set: ClassVar[bool] = False  # True: not the classes of the source model
    # Another label set for its model, to fine-tune on: {"benchmark": NAME, "labels": NUMBER}, and
    # "domains" where not all are meant. A literal, so that it is known before an import.
    semantic_shift: ClassVar[Mapping[str, Any]] = {}
    decodes: ClassVar[bool] = False  # from files: other processes can do that ahead of the device
    name: str = ""
    # For lists and reports, read as source text: literals.
    display_name: ClassVar[str] = ""  # the registry name if it is empty
    year: ClassVar[int] = 0
    citation: ClassVar[str] = ""  # a key of datasets/references.bib or methods/references.bib
    # Display names by domain, or the name of a benchmark that has the same domains.
    domain_display_names: ClassVar[Mapping[str, str] | str] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "other_labels" in vars(cls):
            warnings.warn(
                f"{cls.__name__}.other_labels is different_label_set since ctta-bench "
                f"{RENAMED_IN}; the old name goes with the next release.",
                FutureWarning,
                stacklevel=2,
            )
            cls.different_label_set = vars(cls)["other_labels"]

    def __init__(self, settings: StreamSettings | None = None, root: Path | None = None) -> None:
        self.settings: Any = settings or self.Settings()
        self.root = root
        self.decoded_cache: Path | None = None  # folder for decoded images, if they shall be kept

    @classmethod
    def model_classes(cls) -> tuple[int, ...] | None:
        """Which logits of a model of more classes are this benchmark's classes; None: all."""
        return None

    @abstractmethod
    def domain_names(self) -> tuple[str, ...]:
        """All domains of the benchmark in canonical order."""

    @abstractmethod
    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """The images of one domain, at the settings' severity or the one given.

        Raises DataError if they are missing or damaged.
        """

    def source(self) -> ImageSet | None:
        """Labelled images of the source domain, or None if the benchmark has none at hand."""
        return None

    def training_sets(self, folder: Path | None) -> tuple[ImageSet, ImageSet | None]:
        """Labelled images to train a source model on, and clean ones to test it on, if there are.

        `folder` holds them where the data root does not. Raises DataError if they are missing.
        """
        images = self.source()
        if images is None or folder is not None:
            known = "no training images" if images is None else "no training images but its own"
            raise DataError(f"{self.name}: knows {known}; train on another benchmark.")
        return images, None

    def source_settings(self) -> dict[str, Any]:
        """Settings that decide the source set: those that are not every stream's, as plain values.

        A benchmark whose source set depends on other ones adds them.
        """
        of_streams = (*StreamSettings.model_fields, *CorruptionSettings.model_fields)
        values = self.settings.model_dump(mode="json")
        return {key: value for key, value in values.items() if key not in of_streams}

    def facts(self) -> dict[str, Any]:
        """What a cell's record tells of the benchmark beside its settings."""
        if self.task == "segmentation":
            # Whole images, and logits that are brought to the labels' size before the argmax.
            return {"task": self.task, "inference": "whole"}
        return {} if self.task == "classification" else {"task": self.task}

    def cache_folder(self) -> Path:
        """Where what was made from the data is kept: the data's root, or the user's cache."""
        root = self.root or os.environ.get("CTTA_BENCH_DATA") or user_cache_path("ctta-bench")
        return Path(root)

    def source_place(self) -> str:
        """Where source images are looked for, to be named where they are missing; "" if nowhere."""
        return ""

    def extra_domains(self) -> tuple[str, ...]:
        """Domains that a user can name but that belong to no mean (hold-out sets, clean images)."""
        return ()

    def hold_out_domains(self) -> tuple[str, ...]:
        """Those of them to choose hyper-parameters on: all but the clean images."""
        return tuple(name for name in self.extra_domains() if name != CLEAN)

    def strangers(self) -> list[str]:
        """Folders among the data that are no domain of it; they are never read."""
        return []

    def make_ready(self, report: Callable[[str, int, int], None], workers: int) -> None:
        """Make what can be made of the data that the stream needs; `report(what, done, total)`."""

    def problems(self) -> list[str]:
        """What is missing or wrong with the data, a sentence each; [] if all is there."""
        return []

    def needed(self) -> list[tuple[str, int]]:
        """Domains and severities that the stream reads; severity 0 where there are none."""
        own = getattr(self.settings, "severity", 0)
        severities = sorted(
            {severity or own for v in (0, 1) for severity in self.settings.severities_at(v)}
        )
        return [(name, severity) for name in self.chosen_domains() for severity in severities]

    def chosen_domains(self) -> tuple[str, ...]:
        """The domains of the stream. Raises ConfigError for one that the benchmark lacks."""
        known = self.domain_names()
        for name in self.settings.domains:
            if name not in (*known, *self.extra_domains()):
                raise ConfigError(
                    f"benchmark.domains: {self.name} has no domain {name!r}; it has "
                    f"{', '.join((*known, *self.extra_domains()))}."
                )
        chosen: tuple[str, ...] = self.settings.domains or known
        domain_sequence(chosen, self.settings, 0)  # a published order must know them
        return chosen


def batch_domains(benchmark: Benchmark) -> list[Domain]:
    """The chosen domains with their images, cut to `examples`.

    Raises DataError if a domain has fewer images than asked for, ConfigError if the setting walks
    through severities that the benchmark lacks.
    """
    settings = benchmark.settings
    severities = sorted({*settings.severities_at(0), *settings.severities_at(1)} - {0})
    lacking = [str(severity) for severity in severities if severity not in benchmark.severities]
    if lacking:
        raise ConfigError(
            f"benchmark.setting: {settings.setting} needs the severities {', '.join(lacking)}, "
            f"which {benchmark.name} lacks."
        )
    return [_batch_domain(benchmark, name, severities) for name in benchmark.chosen_domains()]


def _batch_domain(benchmark: Benchmark, name: str, severities: Sequence[int]) -> Domain:
    if not severities:
        return Domain(name, _first(benchmark, name, benchmark.domain(name)))
    sets = {s: _first(benchmark, name, benchmark.domain(name, s)) for s in severities}
    images = sets[severities[-1]]
    for severity, others in sets.items():
        if not np.array_equal(others.labels, images.labels):
            raise DataError(
                f"domain {name} of {benchmark.name}: the labels at severity {severity} are not "
                f"those at {severities[-1]}; all severities must show the same images."
            )
    return Domain(name, images, sets)


def _first(benchmark: Benchmark, name: str, images: ImageSet) -> ImageSet:
    wanted = benchmark.settings.examples
    if wanted is not None and wanted > len(images.labels):
        raise DataError(
            f"benchmark.examples: {wanted} images asked for, but domain {name} of "
            f"{benchmark.name} has {len(images.labels)}."
        )
    return images if wanted is None else first_images(images, wanted)


class Stream:
    """The batches of one cell, from any batch on."""

    def __init__(self, domains: Sequence[Domain], settings: StreamSettings, seed: int) -> None:
        self.domains = list(domains)
        self.settings = settings
        labels = [np.asarray(d.images.labels, np.int64) for d in self.domains]
        self.order = make_order(
            [len(d) for d in self.domains],
            settings,
            seed,
            labels=labels,
            sequence=domain_sequence(self.domain_names, settings, seed),
        )
        self._starts_domain = self.order.starts_domain()
        self._resets = self.order.resets(settings)

    @property
    def domain_names(self) -> list[str]:
        """Names of the domains, in the order that `Batch.domain` counts."""
        return [d.name for d in self.domains]

    def __len__(self) -> int:
        return len(self.order.cuts) - 1

    def batches(
        self, start: int = 0, *, workers: int = 0, device: torch.device | str = "cpu"
    ) -> Iterator[Batch]:
        """The batches from number `start` on, with images on `device`.

        They are read ahead by `workers` processes (0: by this one), which changes no bit of them.
        """
        pin = torch.device(device).type == "cuda"
        for batch in load_ahead(self.stored, range(start, len(self)), workers, pin=pin):
            # Bytes are moved, a quarter of the floats that they become on the device.
            images = as_input(batch.images.to(device, non_blocking=True))
            yield replace(batch, images=images)

    def batch(self, number: int) -> Batch:
        """One batch, by its number; nothing is kept between calls."""
        batch = self.stored(number)
        return replace(batch, images=as_input(batch.images))

    def stored(self, number: int) -> Batch:
        """As `batch`, but with the images as they are stored: uint8, or float in [0, 1]."""
        order = self.order
        rows = slice(order.cuts[number], order.cuts[number + 1])
        domain, index, severity = order.domain[rows], order.index[rows], order.severity[rows]
        parts = self._parts(domain, index, severity)
        return Batch(
            images=_gathered(parts, _load),
            labels=_gathered(parts, labels_of),
            domain=domain,
            index=index,
            severity=severity,
            round=int(order.round[order.cuts[number]]),
            starts_domain=bool(self._starts_domain[number]),
            reset=bool(self._resets[number]),
        )

    def _parts(
        self, domain: np.ndarray, index: np.ndarray, severity: np.ndarray
    ) -> list[tuple[ImageSet, np.ndarray, np.ndarray]]:
        """The sets that a batch is taken from, its rows of each, and their numbers in the set."""
        sets, which = np.unique(np.stack([domain, severity], 1), axis=0, return_inverse=True)
        rows = [np.flatnonzero(which.ravel() == number) for number in range(len(sets))]
        return [
            (self._set(d, s), of_set, index[of_set])
            for (d, s), of_set in zip(sets.tolist(), rows, strict=True)
        ]

    def _set(self, domain: int, severity: int) -> ImageSet:
        found = self.domains[domain]
        return found.at_severity[severity] if severity else found.images


def _load(images: ImageSet, index: np.ndarray) -> Tensor:
    return images.load(index)


def _gathered(
    parts: Sequence[tuple[ImageSet, np.ndarray, np.ndarray]],
    load: Callable[[ImageSet, np.ndarray], Tensor],
) -> Tensor:
    """What `load` gives of each part, row by row as the batch has them."""
    loaded = [load(images, numbers) for images, _, numbers in parts]
    if len({some.dtype for some in loaded}) > 1:
        loaded = [as_input(some) for some in loaded]
    if len(loaded) == 1:
        return loaded[0]
    count = sum(map(len, loaded))
    together = torch.empty(count, *loaded[0].shape[1:], dtype=loaded[0].dtype)
    for (_, rows, _), some in zip(parts, loaded, strict=True):
        together[torch.from_numpy(rows)] = some
    return together


def as_input(images: Tensor) -> Tensor:
    """uint8 [n, 3, H, W] to float32 in [0, 1], the same bits on every device; float images pass."""
    if images.dtype != torch.uint8:
        return images.clone()
    # An accelerator multiplies by the reciprocal of a number, but divides by a tensor.
    return images.float().div_(torch.full((), 255.0, device=images.device))


class SourceData:
    """The source set as a method may see it before the stream, moved to its device and dtype.

    Labels are handed out only where the method declared "labelled" access. `keep(what, facts,
    make)`, if set, answers for `make` where what it makes is at hand already.
    """

    def __init__(
        self,
        images: ImageSet,
        *,
        labelled: bool,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        workers: int = 0,
    ) -> None:
        self._set = images
        self._workers = workers
        self._labelled = labelled
        self._seed = seed
        self._device, self._dtype = device, dtype
        self.keep: Callable[..., dict[str, Tensor]] | None = None

    def __len__(self) -> int:
        return len(self._set.labels)

    def order(self, epoch: int = 0) -> np.ndarray:
        """Numbers of the images in the shuffled order that seed and epoch fix, int64 [n]."""
        key = [self._seed, 2**31, epoch] if epoch else [self._seed, 2**31]
        return np.random.default_rng(key).permutation(len(self))

    def batches(self, batch_size: int = 64, *, epoch: int = 0, first: int = 0) -> Iterator[Tensor]:
        """Images [n, 3, H, W] in [0, 1] in the order of an epoch, from batch number `first` on."""
        for images, _ in self._read(batch_size, epoch, first):
            yield images

    def labelled_batches(
        self, batch_size: int = 64, *, epoch: int = 0, first: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels: int64 [n], of segmentation maps uint8 [n, H_l, W_l].

        Raises DataError for a method of unlabelled access.
        """
        if not self._labelled:
            raise DataError(
                "this method declares unlabelled source access and gets no labels; set "
                'source_access = "labelled" in its class.'
            )
        for images, chosen in self._read(batch_size, epoch, first):
            yield images, labels_of(self._set, chosen).to(self._device)

    def once(
        self, what: str, facts: dict[str, Any], make: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The tensors of `make()`, which a like cell may have made before.

        `what` names them, `facts` (plain values) are all that decides them beside source model,
        source images and precision.
        """
        return make() if self.keep is None else self.keep(what, facts, make)

    def _read(self, batch_size: int, epoch: int, first: int) -> Iterator[tuple[Tensor, np.ndarray]]:
        """Images and their numbers, batch by batch."""
        order = self.order(epoch)
        starts = range(first * batch_size, len(order), batch_size)
        parts = [order[start : start + batch_size] for start in starts]
        stored = load_ahead(partial(_load_part, self._set, parts), range(len(parts)), self._workers)
        for images, part in zip(stored, parts, strict=True):
            yield as_input(images).to(self._device, self._dtype), part


def _load_part(images: ImageSet, parts: Sequence[np.ndarray], number: int) -> Tensor:
    return images.load(parts[number])
