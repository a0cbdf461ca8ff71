"""The conformance checks of benchmarks: whether the stream, workers and reports can rely on one.

`ctta-bench check NAME` prints them. They read some images of each domain, no model.
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ctta_bench.config.validation import validate
from ctta_bench.registry import BENCHMARKS, canonical
from ctta_bench.stream import (
    Benchmark,
    ImageSet,
    MapSet,
    Stream,
    as_input,
    batch_domains,
    labels_of,
)
from ctta_bench.stream.fingerprint import digest

SOME = 8  # images of a domain that a check reads
Check = Callable[[Benchmark], None]
CHECKS: dict[str, Check] = {}


@dataclass(frozen=True)
class BenchmarkOutcome:
    """The outcome of a check of a benchmark: "passed", or "failed" with the finding."""

    benchmark: str
    check: str
    state: str
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the check passed."""
        return self.state != "failed"


class Wrong(AssertionError):
    """A check failed; the message says what was found."""


def check(function: Check) -> Check:
    """Register a check under its function's name."""
    CHECKS[function.__name__] = function
    return function


def check_benchmark(
    benchmark: str | Benchmark, *, root: Path | str | None = None, **settings: Any
) -> Iterator[BenchmarkOutcome]:
    """Run all conformance checks on a benchmark, or on a registered one by its name.

        for outcome in check_benchmark("scenes_c", examples=20):
            print(outcome.check, outcome.state, outcome.detail)

    root: the folder of its data. settings: of its stream. Raises ConfigError for an unknown name.
    """
    built = (
        benchmark if isinstance(benchmark, Benchmark) else _registered(benchmark, root, settings)
    )
    built.prepare_data(lambda what, done, total: None, 1)
    for name, function in CHECKS.items():
        wrong = _fault(function, built)
        state = "failed" if wrong else "passed"
        yield BenchmarkOutcome(built.name, name, state, wrong)


def _registered(name: str, root: Path | str | None, settings: dict[str, Any]) -> Benchmark:
    entry = BENCHMARKS.get(name)
    chosen = validate(entry.Settings, settings, f"benchmark {name}")
    built: Benchmark = entry(chosen, None if root is None else Path(root))
    return built


def _fault(function: Check, benchmark: Benchmark) -> str:
    try:
        function(benchmark)
    except Exception as error:  # whatever the benchmark's code raises is reported
        first = str(error).strip().partition("\n")[0]
        return first if isinstance(error, Wrong) else f"{type(error).__name__}: {first}"
    return ""


def _sets(benchmark: Benchmark) -> Iterator[tuple[str, ImageSet]]:
    for name in benchmark.chosen_domains():
        yield name, benchmark.domain(name)


def _some(images: ImageSet) -> np.ndarray:
    count = len(images.labels)
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, SOME)).astype(np.int64))


@check
def data_are_there(benchmark: Benchmark) -> None:
    """Nothing is missing, and every domain has images."""
    problems = benchmark.problems()
    if problems:
        raise Wrong(problems[0])
    for name, images in _sets(benchmark):
        if not len(images.labels):
            raise Wrong(f"domain {name} has no images")


@check
def names(benchmark: Benchmark) -> None:
    """Domains have different names, which a folder can have."""
    everything = [*benchmark.domain_names(), *benchmark.extra_domains()]
    if len(set(everything)) != len(everything):
        raise Wrong(f"a domain is named twice: {', '.join(everything)}")
    wrong = [name for name in everything if not name or "/" in name or name != name.strip()]
    if wrong:
        raise Wrong(f"{wrong[0]!r} is no name of a domain: it is empty, or has / or outer spaces")
    if not benchmark.name or canonical(benchmark.name) != benchmark.name:
        raise Wrong(f"name = {benchmark.name!r}: set the name under which it is registered")


@check
def images(benchmark: Benchmark) -> None:
    """uint8 or float in [0, 1], [k, 3, H, W], in the order of the numbers, of one size."""
    sizes: dict[tuple[int, ...], str] = {}
    for name, found in _sets(benchmark):
        index = _some(found)
        loaded = found.load(index)
        if loaded.ndim != 4 or loaded.shape[:2] != (len(index), 3):
            raise Wrong(f"domain {name}: load({len(index)} numbers) gives {list(loaded.shape)}")
        if loaded.dtype != torch.uint8 and not loaded.is_floating_point():
            raise Wrong(f"domain {name}: images of {loaded.dtype}; give uint8, or floats in [0, 1]")
        shown = as_input(loaded)
        if not 0 <= float(shown.min()) <= float(shown.max()) <= 1:
            raise Wrong(f"domain {name}: values from {shown.min():.3g} to {shown.max():.3g}")
        if not torch.equal(found.load(index[::-1].copy()), loaded.flip(0)):
            raise Wrong(f"domain {name}: load does not return images in the order of the numbers")
        sizes[tuple(loaded.shape[2:])] = name
    if len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        raise Wrong(f"{first} has images of {list(one)} and {second} of {list(other)}")


@check
def labels(benchmark: Benchmark) -> None:
    """Class numbers from 0 to num_classes - 1, or maps of them with 255 for ignored pixels."""
    count = benchmark.num_classes
    if count < 1:
        raise Wrong(f"num_classes is {count}")
    if benchmark.class_names and len(benchmark.class_names) != count:
        raise Wrong(f"{len(benchmark.class_names)} class_names, but num_classes is {count}")
    for name, found in _sets(benchmark):
        if isinstance(found, MapSet) != (benchmark.task == "segmentation"):
            raise Wrong(f"domain {name} does not fit task = {benchmark.task!r}")
        values = labels_of(found, _some(found)) if isinstance(found, MapSet) else found.labels
        numbers = np.asarray(values)
        numbers = numbers[numbers != 255] if isinstance(found, MapSet) else numbers
        if numbers.dtype.kind not in "iu":
            raise Wrong(f"domain {name}: labels of {numbers.dtype}; give whole numbers")
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
            raise Wrong(f"domain {name}: labels from {numbers.min()} to {numbers.max()}")


@check
def every_call_gives_the_same(benchmark: Benchmark) -> None:
    """`domain` returns the same images and labels whenever it is called."""
    for name, found in _sets(benchmark):
        again, index = benchmark.domain(name), _some(found)
        if not np.array_equal(found.labels, again.labels):
            raise Wrong(f"domain {name}: other labels at the second call")
        if not torch.equal(found.load(index), again.load(index)):
            raise Wrong(f"domain {name}: other images at the second call; seed what is random")


@check
def severities(benchmark: Benchmark) -> None:
    """Every severity has the same labels."""
    for name in benchmark.chosen_domains():
        for severity in benchmark.severities:
            at = benchmark.domain(name, severity)
            if not np.array_equal(at.labels, benchmark.domain(name).labels):
                raise Wrong(f"domain {name}: other labels at severity {severity}")


@check
def same_images(benchmark: Benchmark) -> None:
    """If it says that domains show the same photographs, they have the same labels."""
    found = dict(_sets(benchmark)) if benchmark.same_images else {}
    first = next(iter(found), "")
    for name, images in found.items():
        if not np.array_equal(images.labels, found[first].labels):
            raise Wrong(
                f"{name} and {first} have different labels, but same_images is true: declare "
                "same_images = False"
            )


@check
def source_is_apart(benchmark: Benchmark) -> None:
    """No image of the stream is a source image; looked at are some of each."""
    source = benchmark.source()
    if source is None:
        return
    known = _hashes(source, np.arange(len(source.labels))[:512])
    for name, found in _sets(benchmark):
        if known & _hashes(found, np.arange(len(found.labels))[:64]):
            raise Wrong(f"an image of domain {name} is a source image, too")


def _hashes(images: ImageSet, index: np.ndarray) -> set[str]:
    return {digest(one.numpy().tobytes()) for one in as_input(images.load(index))}


@check
def workers(benchmark: Benchmark) -> None:
    """Image sets can be sent to the processes that load images in advance."""
    for name, found in _sets(benchmark):
        try:
            pickle.dumps(found)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise Wrong(f"domain {name} cannot be sent to loading processes: {error}") from None


@check
def stream(benchmark: Benchmark) -> None:
    """The first and the last batch of the stream are read."""
    made = Stream(batch_domains(benchmark), benchmark.settings, seed=0)
    for number in (0, len(made) - 1):
        made.batch(number)
