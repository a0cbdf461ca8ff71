"""Opening a cell: its benchmark, copies of its model, its method and its source data.

Used by the engine, warm-ups, forgetting probes and the Python API.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctta_bench.config.cell import Cell, model_options
from ctta_bench.errors import DataError
from ctta_bench.method import Method, MethodHyperparameters
from ctta_bench.model import BATCH_NORMS, PassCounts, SourceModel
from ctta_bench.registry import METRICS
from ctta_bench.run.environment import usable_cores
from ctta_bench.run.source_cache import SourceCache, fingerprint_of
from ctta_bench.scoring.base import Scorer, SourceCheck
from ctta_bench.scoring.metric import Metric
from ctta_bench.source_models.shared import Models
from ctta_bench.stream import (
    Benchmark,
    ImageSet,
    MapSet,
    SourceData,
    Stream,
    StreamSettings,
    as_input,
    batch_domains,
    labels_of,
)
from ctta_bench.stream.loading import default_workers

# Held-out images, which are checked once per model, as a multiple of those of the training set,
# which are checked for every cell.
HELD_OUT_TIMES = 8


@dataclass(frozen=True, kw_only=True)
class OpenBenchmark:
    """A benchmark with its data and the seed of its stream.

    workers: processes that load images in advance. makers: processes that make data; None: one per
    core. Raises DataError if data is missing.
    """

    benchmark: Benchmark
    seed: int = 0
    workers: int = 0
    makers: int | None = None

    def __post_init__(self) -> None:
        problems = self.benchmark.problems()
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise DataError(f"{self.benchmark.name}: {problems[0]}{more}")

    def stream(
        self, report: Callable[[str, int, int], None] = lambda what, done, total: None
    ) -> Stream:
        """The stream of batches; makes missing data and calls `report(what, done, total)`."""
        makers = usable_cores() if self.makers is None else self.makers
        self.benchmark.prepare_data(report, makers)
        return Stream(batch_domains(self.benchmark), self.benchmark.settings, self.seed)

    def scorer(self) -> Scorer:
        """The scorer of the metric of the benchmark's task."""
        return scorer_of(self.benchmark)


@dataclass(frozen=True, kw_only=True)
class OpenCell(OpenBenchmark):
    """Everything that a cell needs. models: cache with the last model that this process read."""

    cell: Cell
    device: torch.device
    models: Models = field(default_factory=Models)

    def model(self, *, last: bool = False) -> SourceModel:
        """A new, unadapted source model on the device, in evaluation mode.

        last: the cell needs no further model, so that this one need not be a copy.
        """
        request = self.cell.request
        if self.cell.given.model is not None:
            model = copy.deepcopy(self.cell.given.model)
            model.passes = PassCounts()
        else:
            options = model_options(request, self.benchmark, self.cell.method_class)
            model = self.models.fresh(request.model or "", options, last=last)
        dtype = torch.float64 if request.precision == "float64" else torch.float32
        model = model.to(self.device, dtype)
        classes = self.benchmark.model_classes()
        if classes is not None and model.known_classes != len(classes):
            model.keep_classes(classes)
        return model.eval()

    def method(self) -> Method:
        """The method on a new copy of the source model, before `start`."""
        request = self.cell.request
        if isinstance(self.cell.given.method, Method):
            return self.cell.given.method
        method: Method = self.cell.method_class(
            self.model(),
            cast(MethodHyperparameters, self.cell.hyperparameters),
            seed=request.seed,
            precision=request.precision,
            window=request.window,
            adapts=request.adapt,
        )
        return method

    def source(
        self, method: Method, say: Callable[[str], None] = lambda text: None
    ) -> SourceData | None:
        """The source data that the method may read; results from it are cached for other cells.

        say: called with a message if caching fails. Raises DataError if the benchmark has no such
        source data.
        """
        sha256 = self.cell.record["model"]["sha256"]
        return source_data(
            self.benchmark, method, self.seed, self.workers, model_sha256=sha256, say=say
        )

    def held_out_accuracy(
        self, model: SourceModel, say: Callable[[str], None] = lambda text: None
    ) -> float | None:
        """Accuracy in % of the source model on held-out source images, cached for other cells.

        None if there are none. say: called with a message if caching fails.
        """
        images = _source_images_to_check(self.benchmark, held_out=True)
        if images is None:
            return None

        def make() -> dict[str, Tensor]:
            found = source_accuracy(self.benchmark, model, held_out=True)
            return {} if found is None else {"accuracy": torch.tensor(found, dtype=torch.float64)}

        index = _checked_index(images, scorer_of(self.benchmark), HELD_OUT_TIMES)
        cache = _source_cache(
            self.benchmark,
            {
                "model": self.cell.record["model"]["sha256"],
                "preprocessing": model.preprocessing.record(),
                "precision": self.cell.request.precision,
                "source_images": fingerprint_of(images, index),
            },
            self.device,
            say,
        )
        stored = cache("held-out-accuracy", {"task": self.benchmark.task}, make).get("accuracy")
        return None if stored is None else float(stored)


def open_cell(
    cell: Cell, device: torch.device | str = "cpu", models: Models | None = None
) -> OpenCell:
    """Open everything that a cell needs; the model is read when it is first used.

    models: cache of source models that cells of one process, and `resolve`, share. Raises DataError
    if data is missing.
    """
    request = cell.request
    benchmark = cell.benchmark()
    benchmark.decoded_cache = request.cache_decoded or benchmark.decoded_cache
    ahead = default_workers(benchmark.decodes, usable_cores())
    return OpenCell(
        cell=cell,
        benchmark=benchmark,
        seed=request.seed,
        workers=ahead if request.workers is None else request.workers,
        makers=request.workers,
        device=torch.device(device),
        models=models or Models(),
    )


def scorer_of(benchmark: Benchmark) -> Scorer:
    """The scorer of a benchmark: that of the metric registered under the name of its task."""
    metric: Metric = METRICS.get(benchmark.task)()
    return metric.scorer(benchmark.num_classes, benchmark.class_names)


def notes(method: Method, settings: StreamSettings, source: SourceData | None = None) -> list[str]:
    """Sentences that readers of a cell's results should know about its method on this stream."""
    found = []
    if method.batch_dependent and settings.batch_size == 1 and method.window < 2:
        found.append(
            "batches of one image: the method computes statistics or neighbours from a single "
            "image; --window N collects N images"
        )
    asked, used = getattr(method.hp, "source_samples", None), method.source_used
    if source is not None and asked is not None and used is not None and used < asked:
        available = f"{len(source):,} available"
        passed = "" if used == len(source) else f", of which {used:,} passed the entropy filter"
        found.append(f"{asked:,} source images requested, {available}{passed}")
    return found


def norm_statistics(method: Method) -> str | None:
    """The statistics of a method's BatchNorm layers: "source", "batch", or the method's own text.

    None for a network without BatchNorm.
    """
    norms = [m for m in method.model.network.modules() if isinstance(m, BATCH_NORMS)]
    if method.norm_statistics or not norms:
        return method.norm_statistics or None
    of_batch = any(norm.running_mean is None or norm.training for norm in norms)
    return "batch" if of_batch else "source"


def source_data(
    benchmark: Benchmark,
    method: Method,
    seed: int,
    workers: int = 0,
    *,
    model_sha256: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> SourceData | None:
    """The source set as the method may read it: None, images, or images with labels.

    model_sha256: SHA-256 of the source model; with it, results from source images are cached for
    other cells, and `say` gets a message if that fails. Raises DataError if the method needs source
    data and the benchmark has none.
    """
    images = source_images(benchmark, method.source_access, type(method).__name__)
    if images is None:
        return None
    source = SourceData(
        images,
        labelled=method.source_access == "labelled",
        seed=seed,
        device=method.device,
        dtype=torch.float64 if method.precision == "float64" else torch.float32,
        workers=workers,
    )
    if model_sha256:
        facts = {
            "model": model_sha256,
            "preprocessing": method.model.preprocessing.record(),
            "precision": method.precision,
            "source_images": fingerprint_of(images, source.order()),
        }
        source.keep = _source_cache(benchmark, facts, method.device, say)
    return source


def _source_cache(
    benchmark: Benchmark, facts: dict[str, Any], device: torch.device, say: Callable[[str], None]
) -> SourceCache:
    # Elsewhere the last bits of the same sums differ.
    arithmetic = f"torch {torch.__version__}, {device.type}, {torch.get_num_threads()} threads"
    folder = benchmark.cache_folder() / "source"
    return SourceCache(folder, facts | {"arithmetic": arithmetic}, say)


def source_images(benchmark: Benchmark, access: str, reader: str) -> ImageSet | None:
    """The source images for a method called `reader`; None if its `access` is "none".

    Raises DataError if the benchmark has no source images, or no labels that the method reads.
    """
    if access == "none":
        return None
    images = benchmark.source()
    if images is None:
        place = benchmark.source_location()
        raise DataError(
            f"{reader} reads {access} source data, but {benchmark.name} has no source set"
            f"{f'; put it in {place}' if place else ''}."
        )
    if access == "labelled" and _lacks_labels(benchmark, images):
        raise DataError(
            f"{reader} reads labelled source data, but the source images of "
            f"{benchmark.name} have no label maps; put them in {benchmark.source_location()}."
        )
    return images


def source_accuracy(
    benchmark: Benchmark,
    model: SourceModel,
    *,
    held_out: bool = False,
    accepted: list[str] | None = None,
) -> float | None:
    """Accuracy in % of the unadapted model on some source images (segmentation: of pixels).

    The images are those of the source set, which the model was trained on; held_out: eight times
    as many that it was not trained on. None if there are none with labels. Raises DataError near
    chance on the source set: the weights then do not fit the benchmark, and all results would be
    meaningless. With a list `accepted`, a sentence on it is added there instead.
    """
    checked = _checked(benchmark, model, model, held_out, HELD_OUT_TIMES if held_out else 1)
    if checked is None:
        return None
    if checked.near_chance and not held_out:  # held-out images may be very few
        finding = (
            f"model {model.name} {checked.finding} of {benchmark.name}, near chance "
            f"({checked.chance:.1f} %)"
        )
        if accepted is None:
            raise DataError(
                f"{finding}: the weights belong to another data set, or the classes are in another "
                "order; check --model and --weights, or accept it with --near-chance accept."
            )
        accepted.append(f"{finding}, and was accepted")
    return checked.accuracy


def accuracy_on_source(
    benchmark: Benchmark, method: Method, *, held_out: bool = False
) -> float | None:
    """Accuracy in % of a method's current predictions on some source images, or held-out ones.

    None if there are none with labels.
    """
    checked = _checked(benchmark, method.model, method.predict, held_out)
    return None if checked is None else checked.accuracy


def _lacks_labels(benchmark: Benchmark, images: ImageSet) -> bool:
    """Whether source images of segmentation have no label maps."""
    return benchmark.task == "segmentation" and not isinstance(images, MapSet)


def _source_images_to_check(benchmark: Benchmark, held_out: bool) -> ImageSet | None:
    """Source images with labels of the model's classes; None if there are none."""
    if benchmark.different_label_set:
        return None
    images = benchmark.held_out_source() if held_out else benchmark.source()
    return None if images is None or _lacks_labels(benchmark, images) else images


def _checked_index(images: ImageSet, scorer: Scorer, times: int) -> NDArray[np.int64]:
    step = max(1, len(images.labels) // (times * scorer.num_check_images))
    return np.arange(0, len(images.labels), step)


@torch.no_grad()
def _checked(
    benchmark: Benchmark,
    model: SourceModel,
    predict: Callable[[Tensor], Tensor],
    held_out: bool,
    times: int = 1,
) -> SourceCheck | None:
    """Check predictions on evenly spaced source images; None without labels.

    times: how many times the usual number of images.
    """
    images = _source_images_to_check(benchmark, held_out)
    if images is None:
        return None
    scorer = scorer_of(benchmark)
    index = _checked_index(images, scorer, times)
    before = model.passes.forward_images

    def outputs() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(index), scorer.check_batch_size):
            chosen = index[start : start + scorer.check_batch_size]
            shown = as_input(images.load(chosen)).to(model.mean.device, model.mean.dtype)
            yield predict(shown), labels_of(images, chosen)

    checked = scorer.check(outputs(), benchmark.num_classes)
    model.passes.forward_images = before  # this check is not a cost of the method
    return checked
