"""Data availability: which data of a benchmark are present and intact, and how fast they load."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch

from ctta_bench.errors import DataError
from ctta_bench.stream.benchmark import Benchmark, ImageSet, MapSet, Stream, as_input
from ctta_bench.stream.loading import find_damaged, load_ahead, named_failures

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Availability:
    """Whether one component of a benchmark's data is available.

    role: "stream" (a domain of the stream), "extra" (a domain outside the mean), "source" (the
    source data) or "unknown" (a folder that is no domain and is never read). images: their number,
    None if they are missing. problem: what is wrong, "" if nothing is.
    """

    name: str
    role: Literal["stream", "extra", "source", "unknown"]
    images: int | None
    problem: str = ""


def data_availability(
    benchmark: Benchmark, *, decode: bool = False, workers: int = 0, report: Report | None = None
) -> list[Availability]:
    """Availability of each domain, of the source data and of unknown folders.

    With `decode`, each image of the stream is read once. Label maps are always read, since only
    their values show whether they are correct. Missing data that the stream does not need are no
    problem. `report(what, done, total)` is called while data are read.

    Example: `[entry.name for entry in data_availability(benchmark) if entry.problem]`
    """
    report = report or (lambda what, done, total: None)
    found = []
    needed = benchmark.needed()
    several = len({severity for _, severity in needed}) > 1
    for name, severity in needed:
        label = f"{name} severity {severity}" if several else name
        entry, images = _entry(label, "stream", partial(benchmark.domain, name, severity))
        if isinstance(images, MapSet):
            entry = _check_maps(entry, images, workers, report)
        if decode and images is not None and not entry.problem:
            entry = _check_images(entry, images, workers, report)
        found.append(entry)
    for name in benchmark.extra_domains():
        if name not in benchmark.chosen_domains():
            found.append(_entry(name, "extra", partial(benchmark.domain, name))[0])
    found.append(_entry("source", "source", benchmark.source)[0])
    return [*found, *(Availability(name, "unknown", None) for name in benchmark.unknown_folders())]


def _entry(
    name: str,
    role: Literal["stream", "extra", "source"],
    get: Callable[[], ImageSet | None],
) -> tuple[Availability, ImageSet | None]:
    try:
        images = get()
    except DataError as error:
        return Availability(name, role, None, str(error) if role == "stream" else ""), None
    return Availability(name, role, None if images is None else len(images.labels)), images


def _check_images(
    entry: Availability, images: ImageSet, workers: int, report: Report
) -> Availability:
    with named_failures(workers):
        bad = find_damaged(images, lambda d, t: report(f"reading {entry.name}", d, t), workers)
    if not bad:
        return entry
    problem = f"{len(bad)} images cannot be decoded: " + " ".join(bad.values())
    return Availability(entry.name, entry.role, entry.images, problem)


@dataclass(frozen=True)
class _LabelMaps:
    """The label maps of a set, presented as images so that `find_damaged` reads them."""

    images: MapSet

    @property
    def labels(self) -> np.ndarray:
        return self.images.labels

    def load(self, index: np.ndarray) -> torch.Tensor:
        return self.images.maps(index)


def _check_maps(entry: Availability, images: MapSet, workers: int, report: Report) -> Availability:
    activity = f"reading label maps of {entry.name}"
    with named_failures(workers):
        bad = find_damaged(_LabelMaps(images), lambda d, t: report(activity, d, t), workers)
    if not bad:
        return entry
    more = f" (and {len(bad) - 1} more are wrong)" if len(bad) > 1 else ""
    return Availability(entry.name, entry.role, entry.images, bad[min(bad)] + more)


@dataclass(frozen=True)
class ReadingSpeed:
    """How fast a stream is read by this many workers.

    start_seconds: time until the first batch has arrived. images_per_second: the rate once all
    workers are busy.
    """

    workers: int
    images: int
    start_seconds: float
    images_per_second: float


def reading_speed(
    stream: Stream, workers: int, *, batches: int, seconds: float, device: torch.device
) -> ReadingSpeed:
    """Read up to `batches` batches for at most `seconds`, repeating a stream that is shorter.

    No model runs: a batch counts once it is on the device as floats. Batches that the workers had
    loaded ahead when the first one arrived are not counted.
    """
    began = time.perf_counter()
    ahead = 2 * workers + 1
    numbers = list(itertools.islice(itertools.cycle(range(len(stream))), batches + ahead))
    with named_failures(workers):
        loaded = _on_device(stream, numbers, workers, device)
        next(loaded)
        start = time.perf_counter() - began
        for _ in range(ahead - 1):
            next(loaded)
        counted, images, spent = time.perf_counter(), 0, 0.0
        for number in loaded:
            images += number
            spent = time.perf_counter() - counted
            if spent > seconds:
                break
    return ReadingSpeed(workers, images, round(start, 3), round(images / spent, 1))


def _on_device(
    stream: Stream, numbers: list[int], workers: int, device: torch.device
) -> Iterator[int]:
    """The number of images of each batch, once it is on the device."""
    pin = device.type == "cuda"
    for batch in load_ahead(stream.stored, numbers, workers, pin=pin):
        as_input(batch.images.to(device, non_blocking=True))
        if pin:
            torch.cuda.synchronize(device)
        yield len(batch.labels)
