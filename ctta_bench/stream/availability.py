"""What there is of a benchmark's data, and how fast it is read."""

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
    """A part of a benchmark's data: a domain of the stream, an extra one, the source, a stranger.

    images: how many there are, None if they are not there; problem: what is wrong, "" if nothing.
    """

    name: str
    role: Literal["stream", "extra", "source", "unknown"]
    images: int | None
    problem: str = ""


def data_availability(
    benchmark: Benchmark, *, decode: bool = False, workers: int = 0, report: Report | None = None
) -> list[Availability]:
    """All parts of a benchmark's data; with `decode`, each image of the stream is read once.

    Label maps are read in any case: what is wrong with them shows in their values alone.
    What the stream does not need is no problem if it is absent.
    """
    report = report or (lambda what, done, total: None)
    parts = []
    needed = benchmark.needed()
    several = len({severity for _, severity in needed}) > 1
    for name, severity in needed:
        label = f"{name} severity {severity}" if several else name
        part, images = _part(label, "stream", partial(benchmark.domain, name, severity))
        if isinstance(images, MapSet):
            part = _check_maps(part, images, workers, report)
        if decode and images is not None and not part.problem:
            part = _check_images(part, images, workers, report)
        parts.append(part)
    for name in benchmark.extra_domains():
        if name not in benchmark.chosen_domains():
            parts.append(_part(name, "extra", partial(benchmark.domain, name))[0])
    parts.append(_part("source", "source", benchmark.source)[0])
    return [*parts, *(Availability(name, "unknown", None) for name in benchmark.strangers())]


def _part(
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
    part: Availability, images: ImageSet, workers: int, report: Report
) -> Availability:
    with named_failures(workers):
        bad = find_damaged(images, lambda d, t: report(f"reading {part.name}", d, t), workers)
    if not bad:
        return part
    problem = f"{len(bad)} images do not decode: " + " ".join(bad.values())
    return Availability(part.name, part.role, part.images, problem)


@dataclass(frozen=True)
class _LabelMaps:
    """The label maps of a set in the place of its images."""

    images: MapSet

    @property
    def labels(self) -> np.ndarray:
        return self.images.labels

    def load(self, index: np.ndarray) -> torch.Tensor:
        return self.images.maps(index)


def _check_maps(part: Availability, images: MapSet, workers: int, report: Report) -> Availability:
    said = f"reading label maps of {part.name}"
    with named_failures(workers):
        bad = find_damaged(_LabelMaps(images), lambda d, t: report(said, d, t), workers)
    if not bad:
        return part
    more = f" (and {len(bad) - 1} more are wrong)" if len(bad) > 1 else ""
    return Availability(part.name, part.role, part.images, bad[min(bad)] + more)


@dataclass(frozen=True)
class ReadingSpeed:
    """How fast a stream is read, by this many workers.

    start_seconds: until the first batch is there; images_per_second: after the workers are busy.
    """

    workers: int
    images: int
    start_seconds: float
    images_per_second: float


def reading_speed(
    stream: Stream, workers: int, *, batches: int, seconds: float, device: torch.device
) -> ReadingSpeed:
    """Read up to `batches` batches for up to `seconds`, over and over if the stream is shorter.

    No model: a batch counts when it is on the device as floats. What the workers have loaded ahead
    when the first batch arrives is not counted.
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
    """Images in each batch, once it is on the device."""
    pin = device.type == "cuda"
    for batch in load_ahead(stream.stored, numbers, workers, pin=pin):
        as_input(batch.images.to(device, non_blocking=True))
        if pin:
            torch.cuda.synchronize(device)
        yield len(batch.labels)
