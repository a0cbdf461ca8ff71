"""Benchmarks, which provide domains of labelled images, and streams, which yield their batches.

A benchmark returns an image set for each domain and severity. The stream reads them in the order
that setting and seed define (`orders.py`). The order of the file system's listing never matters:
image sets are sorted, and the hash of the order is stored with each result.
"""

import contextlib
import html
import importlib
import os
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

from ctta_bench.errors import ConfigError, DataError, did_you_mean, expanded
from ctta_bench.names import OldNames
from ctta_bench.stream.image_sets import ArrayImages as ArrayImages  # for benchmarks
from ctta_bench.stream.image_sets import ArrayMaps as ArrayMaps
from ctta_bench.stream.image_sets import ImageSet as ImageSet
from ctta_bench.stream.image_sets import MapSet as MapSet
from ctta_bench.stream.image_sets import chosen_images, first_images
from ctta_bench.stream.image_sets import labels_of as labels_of
from ctta_bench.stream.loading import load_ahead
from ctta_bench.stream.orders import domain_sequence, make_order
from ctta_bench.stream.settings import CorruptionSettings as CorruptionSettings
from ctta_bench.stream.settings import ImageOrder as ImageOrder
from ctta_bench.stream.settings import SegmentationSettings as SegmentationSettings
from ctta_bench.stream.settings import SettingName as SettingName
from ctta_bench.stream.settings import StreamSettings as StreamSettings
from ctta_bench.stream.settings import numbers_of


@dataclass(frozen=True)
class Domain:
    """One domain of a stream; `at_severity`: its images at each severity of a severity schedule."""

    name: str
    images: ImageSet
    at_severity: Mapping[int, ImageSet] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.images.labels)


@dataclass(frozen=True)
class Batch:
    """One batch. The engine passes `images` to the method and `labels` to the metrics."""

    images: Tensor  # float [n, 3, H, W] in [0, 1]
    labels: Tensor  # int64 [n]; for segmentation maps uint8 [n, H_l, W_l], 255 = ignored
    domain: np.ndarray  # int16 [n], position in `Stream.domains`
    index: np.ndarray  # int64 [n], number of each image within its domain
    severity: np.ndarray  # int8 [n], 0: the severity of the benchmark's settings
    round: int
    starts_domain: bool
    reset: bool  # the method is reset before this batch

    def pin_memory(self) -> "Batch":
        """The same batch with images in page-locked memory; called by torch's DataLoader."""
        return replace(self, images=self.images.pin_memory())


Task = str  # an entry of METRICS: "classification", "segmentation", or a plug-in's
CLEAN = "clean"  # name of the domain of uncorrupted images, in benchmarks that have one


class Benchmark(OldNames, ABC):
    """Base of all benchmarks: domains of labelled images and, optionally, source data.

    Subclasses define `Settings`, the class attributes, `domain_names` and `domain`, and `source` if
    they have source data. CONTRIBUTING.md shows a whole benchmark in twenty lines.
    """

    Settings: ClassVar[type[StreamSettings]] = StreamSettings
    num_classes: int = 0
    task: ClassVar[Task] = "classification"  # "segmentation": domains are MapSets
    class_names: ClassVar[tuple[str, ...]] = ()  # in the order of class numbers, if known
    default_model: ClassVar[str] = ""
    severities: ClassVar[tuple[int, ...]] = ()  # that `domain` can read; () if there is one only
    version: ClassVar[int] = 1  # increase it when images change under the same name
    provenance: ClassVar[str | None] = None  # footnote of self-made images, else None
    published: ClassVar[bool] = True  # False: its presets are choices of this suite
    fixed_classes: ClassVar[bool] = True  # False: a model may have more classes than the labels
    different_label_set: ClassVar[bool] = False  # True: not the classes of the source model
    # Another label set to fine-tune the source model on: {"benchmark": NAME, "labels": NUMBER},
    # with "domains" if only some are meant. A literal, so that it can be read without an import.
    semantic_shift: ClassVar[Mapping[str, Any]] = {}
    # Whether an index is the same photograph in every domain, as where one set is corrupted in
    # several ways. Recorded with a result: intervals count such an image once.
    same_images: ClassVar[bool] = True
    # Whether the hold-out domains show other images than the test domains. `tune` says if not.
    separate_hold_out: ClassVar[bool] = False
    decodes: ClassVar[bool] = False  # True: images are decoded from files, by worker processes
    name: str = ""
    # For lists and reports, read as source text: literals.
    display_name: ClassVar[str] = ""  # the registry name if it is empty
    year: ClassVar[int] = 0
    citation: ClassVar[str] = ""  # a key of datasets/references.bib or methods/references.bib
    # Display names by domain, or the name of a benchmark that has the same domains.
    domain_display_names: ClassVar[Mapping[str, str] | str] = {}

    def __init__(self, settings: StreamSettings | None = None, root: Path | None = None) -> None:
        self.settings: Any = settings or self.Settings()
        self.root = None if root is None else expanded(root)
        self.decoded_cache: Path | None = None  # folder to store decoded images in

    @staticmethod
    def from_domains(
        domains: Mapping[str, Any],
        *,
        source: Any = None,
        classes: Sequence[str] | int | None = None,
        name: str = "own_data",
        columns: tuple[Any, Any] | None = None,
        size: int | None = None,
        same_images: bool = False,
        model: str = "",
        **settings: Any,
    ) -> "Benchmark":
        """A benchmark of your own data: domains of labelled images, in the order of the stream.

            Benchmark.from_domains(
                {"fog": dataset, "night": (images, labels)}, source=source_set, batch_size=20
            )

        Images are uint8, or floats in [0, 1] without normalisation, which is part of the source
        model; [n, 3, H, W], [n, H, W, 3], or grey [n, H, W]. Labels are class numbers [n] or, for
        segmentation, maps [n, H, W] with 255 for ignored pixels.

        Args:
            domains: data by domain, each a pair (images, labels) of arrays or tensors, a torch
                Dataset (also torchvision's ImageFolder) or DataLoader, a Hugging Face data set, or
                an iterable of pairs (image, label). Of a DataLoader the Dataset is used, in stored
                order: the stream has its own batches and order. Arrays, generators and loaders of
                iterables are held in memory.
            source: labelled images of the source domain, for methods that read them and for the
                check that the model fits; any of the same forms.
            classes: the names of the classes in the order of the model's logits, or their number.
                Data that know names of their classes (ImageFolder, Hugging Face) are matched by
                name. By default the names that the data have, or one more than the highest label.
            name: the name in records and tables.
            columns: the names of image and label, if items have names and it is not clear.
            size: resize images to this square, in pixels.
            same_images: whether an index is the same photograph in every domain, so that an
                interval counts it once.
            model: the source model that is used if none is given.
            settings: settings of the stream, e.g. batch_size=20, setting="mixed", rounds=2.

        Raises DataError for data of another form, with what is taken, and ConfigError for an
        unknown setting.
        """
        own: Benchmark = _own_data().from_domains(
            domains,
            source=source,
            classes=classes,
            name=name,
            columns=columns,
            size=size,
            same_images=same_images,
            model=model,
            **settings,
        )
        return own

    @staticmethod
    def from_clean(
        images: Any,
        *,
        corruptions: Sequence[str] | Mapping[str, Callable[..., Any] | None] = (),
        severity: int = 5,
        source: Any = None,
        classes: Sequence[str] | int | None = None,
        name: str = "own_corruptions",
        columns: tuple[Any, Any] | None = None,
        size: int | None = None,
        model: str = "",
        **settings: Any,
    ) -> "Benchmark":
        """A benchmark of your own clean images, with corruptions of the suite or of your own.

            def darker(image, severity):  # uint8 [H, W, 3], 1 to 5
                return image // (1 + severity)

            Benchmark.from_clean(dataset, corruptions={"fog": None, "darker": darker})

        Args:
            images: labelled images in a form that `from_domains` takes. They are the extra domain
                `clean`. Label maps stay as they are.
            corruptions: names of built-in ones, or a mapping of names to your own functions (None:
                the built-in one). A function takes an image uint8 [H, W, 3] and, if it has further
                parameters, the severity and a numpy Generator with the image's own seed; it returns
                an image of the same kind. By default the fifteen of CIFAR-C and ImageNet-C, with
                the parameters of CIFAR-C below 100 pixels, else of ImageNet-C; with label maps all
                of them but `elastic_transform`, which moves pixels.
            severity: from 1 to 5. If every own function takes it, the settings with a schedule of
                severities (`gradual`, ...) work.
            source, classes, name, columns, size, model, settings: as in `from_domains`.

        Raises what `from_domains` raises, and ConfigError for an unknown corruption.
        """
        own: Benchmark = _own_data().from_clean(
            images,
            corruptions=corruptions,
            severity=severity,
            source=source,
            classes=classes,
            name=name,
            columns=columns,
            size=size,
            model=model,
            **settings,
        )
        return own

    def with_settings(self, settings: StreamSettings) -> "Benchmark":
        """The same benchmark with other settings of the stream."""
        other = type(self)(settings, self.root)
        other.decoded_cache = self.decoded_cache
        return other

    def _shown_domains(self) -> tuple[str, ...]:
        with contextlib.suppress(DataError):
            return self.settings.domains or self.domain_names()
        return ()

    def _repr_html_(self) -> str:
        facts = self.settings.record() | {
            "domains": ", ".join(self._shown_domains()) or "no data",
            "task": self.task,
            "classes": ", ".join(self.class_names) or self.num_classes,
            "source model": self.default_model or "none",
        }
        rows = "".join(
            f"<tr><th>{html.escape(key)}</th><td>{html.escape(str(value))}</td></tr>"
            for key, value in facts.items()
            if value is not None
        )
        return f"<h4>{html.escape(self.display_name or self.name)}</h4><table>{rows}</table>"

    def __repr__(self) -> str:
        names = self._shown_domains()
        shown = ", ".join(names[:4]) + (f", ... ({len(names)})" if len(names) > 4 else "")
        return (
            f"<Benchmark {self.name}: {shown or 'no data'}; {self.settings.setting}, batches of "
            f"{self.settings.batch_size}, {self.num_classes} classes>"
        )

    @classmethod
    def model_classes(cls) -> tuple[int, ...] | None:
        """Positions of this benchmark's classes among a larger model's logits; None: all logits."""
        return None

    @abstractmethod
    def domain_names(self) -> tuple[str, ...]:
        """All domains of the benchmark in canonical order."""

    @abstractmethod
    def domain(self, name: str, severity: int | None = None) -> ImageSet:
        """The labelled images of one domain; every call returns the same images.

        severity: 1 to 5 for corruptions; None: the severity of the settings. Raises DataError if
        images are missing or damaged.
        """

    def source(self) -> ImageSet | None:
        """Labelled images of the source domain; None if they are not available."""
        return None

    def held_out_source(self) -> ImageSet | None:
        """Labelled images of the source domain that are neither trained on nor in the stream.

        They measure the source model and what it forgets. By default the clean images, if they are
        an extra domain that is there and not in the stream; None if there are none.
        """
        if CLEAN not in self.extra_domains() or CLEAN in self.chosen_domains():
            return None
        apart = type(self)(self.settings, self.root)  # what it notes is not of the stream
        apart.decoded_cache = self.decoded_cache
        try:
            return apart.domain(CLEAN)
        except DataError:
            return None

    def training_sets(self, folder: Path | None) -> tuple[ImageSet, ImageSet | None]:
        """Labelled images to train a source model on, and clean test images if there are any.

        `folder`: where they are, if not under the data root. Raises DataError if they are missing.
        """
        images = self.source()
        if images is None or folder is not None:
            known = "no training images" if images is None else "only its own training images"
            raise DataError(f"{self.name}: has {known}; train on another benchmark.")
        return images, None

    def source_settings(self) -> dict[str, Any]:
        """The settings that determine the source data, as plain values.

        By default those that are in neither StreamSettings nor CorruptionSettings. Override it if
        the source data depend on other settings.
        """
        own: dict[str, Any] = self.settings.own()
        return own

    def facts(self) -> dict[str, Any]:
        """What a cell's record states about the benchmark in addition to its settings."""
        if self.task == "segmentation":
            # Whole images; logits are resized to the size of the labels before the argmax.
            return {"task": self.task, "inference": "whole"}
        return {} if self.task == "classification" else {"task": self.task}

    def cache_folder(self) -> Path:
        """Folder for files made from the data: the data root, or else the user's cache folder."""
        root = self.root or os.environ.get("CTTA_BENCH_DATA") or user_cache_path("ctta-bench")
        return expanded(root)

    def source_location(self) -> str:
        """Where source images are expected, for messages about missing ones; "" if nowhere."""
        return ""

    def extra_domains(self) -> tuple[str, ...]:
        """Domains that a user can select but no mean includes (hold-out sets, clean images)."""
        return ()

    def hold_out_domains(self) -> tuple[str, ...]:
        """The extra domains to choose hyper-parameters on: all except the clean images."""
        return tuple(name for name in self.extra_domains() if name != CLEAN)

    def unknown_folders(self) -> list[str]:
        """Folders in the data's folder that are no domain of the benchmark; they are never read."""
        return []

    def prepare_data(self, report: Callable[[str, int, int], None], workers: int) -> None:
        """Make or check the files that the stream needs, before the first batch.

        `report(what, done, total)` shows the progress. By default there is nothing to do.
        """

    def problems(self) -> list[str]:
        """What is missing or wrong in the data, one sentence each; [] if nothing is.

        A sentence names the file or folder and says what to do.
        """
        return []

    def needed(self) -> list[tuple[str, int]]:
        """The domains and severities that the stream reads; severity 0: there are no severities."""
        own = getattr(self.settings, "severity", 0)
        severities = sorted(
            {severity or own for v in (0, 1) for severity in self.settings.severities_at(v)}
        )
        return [(name, severity) for name in self.chosen_domains() for severity in severities]

    def chosen_domains(self) -> tuple[str, ...]:
        """The domains of the stream, in order. Raises ConfigError for an unknown domain."""
        named = tuple(map(self._domain_called, self.settings.domains))
        chosen = named or self.domain_names()
        domain_sequence(chosen, self.settings, 0)  # raises if a published order lacks one of them
        return chosen

    def _domain_called(self, name: str) -> str:
        """A domain by its name, or by the first word of it (`gaussian`) if only one begins so."""
        known = self.domain_names()
        everything = (*known, *self.extra_domains())
        if name in everything:
            return name
        for names in (known, everything):
            begun = [domain for domain in names if domain.startswith(f"{name}_")]
            if len(begun) == 1:
                return begun[0]
        hint = did_you_mean(name, everything) or f"; it has {', '.join(everything)}."
        raise ConfigError(f"benchmark.domains: {self.name} has no domain {name!r}{hint}")


def _own_data() -> Any:
    """The module that makes benchmarks of a user's data; it imports this one."""
    return importlib.import_module("ctta_bench.stream.own_data")


def batch_domains(benchmark: Benchmark) -> list[Domain]:
    """The chosen domains with their images: the `part` of the first `examples` of each.

    Example: `Stream(batch_domains(benchmark), benchmark.settings, seed=0)`

    Raises DataError if a domain has fewer images than requested, ConfigError if the setting needs
    severities that the benchmark does not have.
    """
    settings = benchmark.settings
    severities = sorted({*settings.severities_at(0), *settings.severities_at(1)} - {0})
    lacking = [str(severity) for severity in severities if severity not in benchmark.severities]
    if lacking:
        raise ConfigError(
            f"benchmark.setting: {settings.setting} needs the severities {', '.join(lacking)}, "
            f"which {benchmark.name} does not have; choose another setting."
        )
    return [_batch_domain(benchmark, name, severities) for name in benchmark.chosen_domains()]


def _batch_domain(benchmark: Benchmark, name: str, severities: Sequence[int]) -> Domain:
    if not severities:
        return Domain(name, _chosen(benchmark, name, benchmark.domain(name)))
    sets = {s: _chosen(benchmark, name, benchmark.domain(name, s)) for s in severities}
    images = sets[severities[-1]]
    for severity, others in sets.items():
        if not np.array_equal(others.labels, images.labels):
            raise DataError(
                f"domain {name} of {benchmark.name}: the labels at severity {severity} differ from "
                f"those at {severities[-1]}; all severities must show the same images."
            )
    return Domain(name, images, sets)


def _chosen(benchmark: Benchmark, name: str, images: ImageSet) -> ImageSet:
    """The first `examples` images, and the `part` of these."""
    wanted, part = benchmark.settings.examples, benchmark.settings.part
    if wanted is not None and wanted > len(images.labels):
        raise DataError(
            f"benchmark.examples: {wanted} images requested, but domain {name} of "
            f"{benchmark.name} has {len(images.labels)}."
        )
    first = images if wanted is None else first_images(images, wanted)
    if part is None:
        return first
    numbers = numbers_of(part, len(first.labels))
    if not numbers:
        raise DataError(
            f"benchmark.part: of {len(first.labels)} images of domain {name} of {benchmark.name} "
            f"none is for {part}; take more with benchmark.examples."
        )
    return chosen_images(first, numbers)


class Stream:
    """The batches of one cell; reading can start at any batch.

    Example: `for batch in Stream(batch_domains(benchmark), benchmark.settings, 0).batches(): ...`
    """

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
        """Names of the domains; `Batch.domain` holds positions in this list."""
        return [d.name for d in self.domains]

    def __len__(self) -> int:
        return len(self.order.cuts) - 1

    def batches(
        self, start: int = 0, *, workers: int = 0, device: torch.device | str = "cpu"
    ) -> Iterator[Batch]:
        """The batches from number `start` on, with images on `device`.

        `workers` processes read ahead (0: this process reads); the batches are bit-identical.
        """
        pin = torch.device(device).type == "cuda"
        for batch in load_ahead(self.stored, range(start, len(self)), workers, pin=pin):
            # Images move as uint8, a quarter of the size of the floats made on the device.
            images = as_input(batch.images.to(device, non_blocking=True))
            yield replace(batch, images=images)

    def batch(self, number: int) -> Batch:
        """One batch by its number; calls do not depend on each other."""
        batch = self.stored(number)
        return replace(batch, images=as_input(batch.images))

    def stored(self, number: int) -> Batch:
        """As `batch`, but with images as they are stored: uint8, or float in [0, 1]."""
        order = self.order
        rows = slice(order.cuts[number], order.cuts[number + 1])
        domain, index, severity = order.domain[rows], order.index[rows], order.severity[rows]
        groups = self._groups(domain, index, severity)
        return Batch(
            images=_gathered(groups, _load),
            labels=_gathered(groups, labels_of),
            domain=domain,
            index=index,
            severity=severity,
            round=int(order.round[order.cuts[number]]),
            starts_domain=bool(self._starts_domain[number]),
            reset=bool(self._resets[number]),
        )

    def _groups(
        self, domain: np.ndarray, index: np.ndarray, severity: np.ndarray
    ) -> list[tuple[ImageSet, np.ndarray, np.ndarray]]:
        """For each image set of a batch: the set, the batch rows, the image numbers in the set."""
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
    groups: Sequence[tuple[ImageSet, np.ndarray, np.ndarray]],
    load: Callable[[ImageSet, np.ndarray], Tensor],
) -> Tensor:
    """The result of `load` for every group, in the order of the batch's rows."""
    loaded = [load(images, numbers) for images, _, numbers in groups]
    if len({some.dtype for some in loaded}) > 1:
        loaded = [as_input(some) for some in loaded]
    if len(loaded) == 1:
        return loaded[0]
    count = sum(map(len, loaded))
    together = torch.empty(count, *loaded[0].shape[1:], dtype=loaded[0].dtype)
    for (_, rows, _), some in zip(groups, loaded, strict=True):
        together[torch.from_numpy(rows)] = some
    return together


def as_input(images: Tensor) -> Tensor:
    """uint8 images [n, 3, H, W] as float32 in [0, 1], bit-identical on every device.

    Float images are copied unchanged.
    """
    if images.dtype != torch.uint8:
        return images.clone()
    # Given a Python number, an accelerator multiplies by its reciprocal; by a tensor it divides.
    return images.float().div_(torch.full((), 255.0, device=images.device))


class SourceData:
    """The source data as a method sees them before the stream, on its device and in its dtype.

    Labels are available only if the method declares `source_access = "labelled"`. `keep(what,
    facts, make)`, if set, returns stored tensors instead of calling `make`.

    Example: `for images in source.batches(64): self.model(images)`
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
        """Image numbers int64 [n], shuffled by the seed and the epoch."""
        key = [self._seed, 2**31, epoch] if epoch else [self._seed, 2**31]
        return np.random.default_rng(key).permutation(len(self))

    def batches(self, batch_size: int = 64, *, epoch: int = 0, first: int = 0) -> Iterator[Tensor]:
        """Images [n, 3, H, W] in [0, 1] in the order of one epoch, from batch number `first` on."""
        for images, _ in self._read(batch_size, epoch, first):
            yield images

    def labelled_batches(
        self, batch_size: int = 64, *, epoch: int = 0, first: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels: int64 [n], for segmentation maps uint8 [n, H_l, W_l].

        Raises DataError if the method declares unlabelled access.
        """
        if not self._labelled:
            raise DataError(
                "this method declares unlabelled source access, so it gets no labels; set "
                'source_access = "labelled" in its class.'
            )
        for images, chosen in self._read(batch_size, epoch, first):
            yield images, labels_of(self._set, chosen).to(self._device)

    def once(
        self, what: str, facts: dict[str, Any], make: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The tensors that `make()` returns, or stored ones of an earlier cell.

        `what` names them. `facts` (plain values) must hold everything that determines them, apart
        from source model, source images and precision.
        """
        return make() if self.keep is None else self.keep(what, facts, make)

    def _read(self, batch_size: int, epoch: int, first: int) -> Iterator[tuple[Tensor, np.ndarray]]:
        """Images and their numbers, batch by batch."""
        order = self.order(epoch)
        starts = range(first * batch_size, len(order), batch_size)
        batches = [order[start : start + batch_size] for start in starts]
        load = partial(_load_batch, self._set, batches)
        stored = load_ahead(load, range(len(batches)), self._workers)
        for images, numbers in zip(stored, batches, strict=True):
            yield as_input(images).to(self._device, self._dtype), numbers


def _load_batch(images: ImageSet, batches: Sequence[np.ndarray], number: int) -> Tensor:
    return images.load(batches[number])
