"""The workload of measurements: a benchmark's images and source model, or random ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctta_bench.config.presets import preset_values
from ctta_bench.config.validation import unknown_key, validate
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.method import Method, Precision
from ctta_bench.method.warmup import RANDOM_STATE
from ctta_bench.model import SourceModel
from ctta_bench.model.preprocessing import recorded_preprocessing
from ctta_bench.registry import BENCHMARKS, METHODS
from ctta_bench.run.environment import usable_cores
from ctta_bench.run.open import source_data
from ctta_bench.source_models.pretrained import build, load_source_model, resize_input
from ctta_bench.stream import (
    ArrayImages,
    ArrayMaps,
    Benchmark,
    ImageSet,
    SourceData,
    Stream,
    as_input,
    batch_domains,
)

SOURCE_IMAGES = 16  # random source images; their number does not change the cost of a step
BATCHES = 4  # used again and again
# Values of a method's `checked_with` with which it uses every image, even with random logits.
SELECTING = {"margin", "max_similarity", "max_entropy", "min_drop", "similarity"}
SELECTING |= {"domain_distance", "source_max_entropy"}
# Of few random source images, without files.
SELECTING |= {"style_network", "style_batch_size", "source_styles"}


@dataclass
class Workload:
    """Batches of images float [n, 3, H, W], and equal models and methods for them.

    random: use random weights and images, so that no data is needed. overrides: hyper-parameters by
    method.
    """

    benchmark: Benchmark
    model_name: str
    device: torch.device
    precision: Precision
    random: bool = False
    weights: Path | None = None
    input_size: tuple[int, int] | None = None
    preset: str = "default"
    seed: int = 0
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    batches: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dtype = torch.float64 if self.precision == "float64" else torch.float32
        if not self.batches:
            self.batches = self._random_batches() if self.random else self._own_batches()

    @property
    def batch_size(self) -> int:
        """Number of images per batch."""
        return len(self.batches[0])

    def model(self) -> SourceModel:
        """A new source model; all have equal weights."""
        benchmark, classes = self.benchmark, self.benchmark.model_classes()
        if self.random:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                network = build(self.model_name, None if classes else benchmark.num_classes)
            if self.input_size is not None:
                resize_input(network, self.input_size, self.model_name)
            shown = recorded_preprocessing(network, "true", self.input_size)
            model = SourceModel(network, name=self.model_name, preprocessing=shown)
        else:
            model = load_source_model(
                self.model_name,
                weights=self.weights,
                input_size=self.input_size,
                num_classes=None
                if classes or benchmark.different_label_set
                else benchmark.num_classes,
                root=benchmark.root,
                task=benchmark.task,
            )
        model = model.to(self.device, self.dtype)
        if classes is not None and model.num_classes != len(classes):
            model.keep_classes(classes)
        return model.eval().requires_grad_(False)

    def method(self, name: str) -> Method:
        """A started method, ready for the stream.

        Its warm-up is skipped, because it does not change the cost of a step. Raises MethodError if
        the method does not support the model.
        """
        entry = METHODS.get(name)
        values = preset_values(name, self.preset, self.benchmark.name, self.model_name)
        if self.random:
            values |= {k: v for k, v in entry.checked_with.items() if k in SELECTING}
        values |= self.overrides.get(name, {})
        hyperparameters = validate(entry.Hyperparameters, values, f"method {name}")
        method: Method = entry(
            self.model(), hyperparameters, seed=self.seed, precision=self.precision
        )
        warmed = None
        if method.hp.warms_up:
            learnt = {key: value.detach() for key, value in method.warmup_result().items()}
            warmed = learnt | {RANDOM_STATE: torch.get_rng_state()}
        method.start(self._source(method), warmed)
        return method

    def _source(self, method: Method) -> SourceData | None:
        if not self.random:
            return source_data(self.benchmark, method, self.seed)
        if method.source_access == "none":
            return None
        return SourceData(
            self._random_source(),
            labelled=method.source_access == "labelled",
            seed=self.seed,
            device=self.device,
            dtype=self.dtype,
        )

    def _random_source(self) -> ImageSet:
        generator = np.random.default_rng(self.seed)
        shape = (SOURCE_IMAGES, 3, *self.batches[0].shape[-2:])
        images = generator.integers(0, 256, shape, dtype=np.uint8)
        classes = max(2, self.benchmark.num_classes)
        if self.benchmark.task == "segmentation":
            maps = generator.integers(0, classes, (len(images), *shape[-2:]), dtype=np.uint8)
            return ArrayMaps(images, maps)
        return ArrayImages(images, np.arange(len(images)) % classes)

    def _random_batches(self) -> list[Tensor]:
        size = self.model().preprocessing.size
        if size is None:
            raise ConfigError(
                f"cost --random: {self.model_name} has no recorded input size; set one with "
                "--input-size."
            )
        generator = torch.Generator().manual_seed(self.seed)
        count = self.benchmark.settings.batch_size
        return [
            torch.rand(count, 3, *size, generator=generator).to(self.device, self.dtype)
            for _ in range(BATCHES)
        ]

    def _own_batches(self) -> list[Tensor]:
        benchmark = self.benchmark
        problems = benchmark.problems()
        if problems:
            raise DataError(
                f"{benchmark.name}: {problems[0]} (or use --random: random images of the model's "
                "input size, and random weights)"
            )
        benchmark.prepare_data(lambda what, done, total: None, usable_cores())
        stream = Stream(batch_domains(benchmark), benchmark.settings, self.seed)
        chosen = _full_batches(stream, BATCHES)
        return [as_input(stream.stored(n).images.to(self.device)).to(self.dtype) for n in chosen]


def _full_batches(stream: Stream, count: int) -> list[int]:
    """Numbers of batches of the largest size, spread evenly over the stream."""
    sizes = np.diff(stream.order.cuts)
    full = np.flatnonzero(sizes == sizes.max())
    places = np.linspace(0, len(full) - 1, min(count, len(full))).round().astype(int)
    return [int(number) for number in full[places]]


def benchmark_of(name: str, settings: Mapping[str, Any], root: Path | None) -> Benchmark:
    """The benchmark `name` with some settings changed. Raises ConfigError."""
    entry = BENCHMARKS.get(name)
    chosen = validate(entry.Settings, dict(settings), f"benchmark {name}")
    benchmark: Benchmark = entry(chosen, root)
    return benchmark


def methods_for_task(task: str) -> list[str]:
    """Names of all methods that support a task."""
    return [n for n in METHODS.names() if task in METHODS.get(n).tasks]


def overrides_by_owner(
    assignments: Mapping[str, Any], methods: Sequence[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Sort values of `--set` by owner: settings of the benchmark, hyper-parameters by method.

    `benchmark.KEY` and `METHOD.KEY` name the owner; a key without prefix goes to every method that
    has it. Raises ConfigError for a key without owner.
    """
    settings: dict[str, Any] = {}
    by_method: dict[str, dict[str, Any]] = {name: {} for name in methods}
    for key, value in assignments.items():
        owner, dot, bare = key.partition(".")
        if owner == "benchmark" and dot:
            settings[bare] = value
            continue
        named = [METHODS.find(owner).name] if dot else list(methods)
        takers = [
            name
            for name in named
            if name in by_method and (dot or key in METHODS.get(name).Hyperparameters.model_fields)
        ]
        if not takers:
            known = [k for n in methods for k in METHODS.get(n).Hyperparameters.model_fields]
            raise ConfigError(
                f"--set {key}: no measured method has this hyper-parameter: "
                f"{unknown_key(key, known)} Write settings of the stream as benchmark.KEY."
            )
        for name in takers:
            by_method[name][bare if dot else key] = value
    return settings, by_method
