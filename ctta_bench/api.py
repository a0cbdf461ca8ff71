"""The suite from Python: build a model, a benchmark and a method, and run one on the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ctta_bench.config.presets import preset_values
from ctta_bench.config.validation import validate
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.method import Method, Precision
from ctta_bench.model import Regime, SourceModel
from ctta_bench.record.schema import ResultRecord
from ctta_bench.registry import BENCHMARKS, METHODS, loaded_plugins
from ctta_bench.run.checkpoint import Progress
from ctta_bench.run.engine import make_result, run_stream
from ctta_bench.run.loggers import Logger
from ctta_bench.run.open import OpenBenchmark, source_accuracy, source_data
from ctta_bench.scoring.classification import Scores
from ctta_bench.scoring.segmentation import MapScores
from ctta_bench.source_models.pretrained import load_source_model
from ctta_bench.stream import Benchmark
from ctta_bench.stream.loading import named_failures


@dataclass(frozen=True)
class Result:
    """What `evaluate` returns: scores per image, and the same record that a run leaves on disk."""

    record: ResultRecord
    scores: Scores | MapScores

    @property
    def error(self) -> float:
        """Mean error in %: over domains, then over rounds. For classification."""
        return self._mean("error")

    @property
    def miou(self) -> float:
        """Mean mIoU in %: over domains, then over rounds. For segmentation; nan: nothing scored."""
        return self._mean("miou")

    def _mean(self, metric: str) -> float:
        if self.record["metric"] != metric:
            raise ConfigError(f"this result has no {metric}, but {self.record['metric']}.")
        return float("nan") if self.record["mean"] is None else float(self.record["mean"])

    @property
    def by_domain(self) -> dict[str, float | None]:
        """Error or mIoU in % of each domain in the last round; None: nothing to score."""
        metric, last = self.record["metric"], self.record["rounds"][-1]
        return {domain["domain"]: domain[metric] for domain in last["domains"]}


def load_model(
    model: str | nn.Module, *, weights: Path | str | None = None, preprocessing: Regime = "true"
) -> SourceModel:
    """A SourceModel from a registered name, `timm:MODEL.TAG`, or any module of images to logits.

    A module brings its own weights; its `pretrained_cfg`, if any, says how images are normalised.
    """
    if isinstance(model, SourceModel):
        return model
    if isinstance(model, nn.Module):
        return SourceModel(model, preprocessing=preprocessing)
    file = Path(weights) if weights is not None else None
    return load_source_model(model, weights=file, preprocessing=preprocessing)


def load_benchmark(name: str, *, root: Path | str | None = None, **settings: Any) -> Benchmark:
    """A benchmark by name; keyword arguments are its settings (batch_size, examples, ...)."""
    entry = BENCHMARKS.get(name)
    chosen = validate(entry.Settings, settings, f"benchmark {name}")
    benchmark: Benchmark = entry(chosen, Path(root) if root is not None else None)
    return benchmark


def load_method(
    name: str,
    model: SourceModel | nn.Module,
    *,
    preset: str | None = None,
    benchmark: str = "any",
    seed: int = 0,
    precision: Precision = "float32",
    window: int = 0,
    **overrides: Any,
) -> Method:
    """A method by name on a model, which it changes; overrides are hyper-parameters.

    `preset` and `benchmark` choose the values beneath the overrides (see `ctta-bench list`).
    """
    entry = METHODS.get(name)
    values = preset_values(name, preset or "default", benchmark) | overrides
    hyperparameters = validate(entry.Hyperparameters, values, f"method {name}")
    method: Method = entry(
        load_model(model), hyperparameters, seed=seed, precision=precision, window=window
    )
    return method


def evaluate(
    method: Method,
    benchmark: Benchmark,
    *,
    seed: int = 0,
    workers: int = 0,
    loggers: Sequence[Logger] = (),
) -> Result:
    """Run a method over a benchmark's stream, in memory; nothing is written.

    `workers` processes load images ahead. Raises DataError if data is missing, the model is near
    chance on source images, or it has other classes than the benchmark.
    """
    opened = OpenBenchmark(benchmark=benchmark, seed=seed, workers=workers)
    _check_classes(method.model, benchmark)
    stream = opened.stream()
    accuracy = source_accuracy(benchmark, method.model)
    method.start(source_data(benchmark, method, seed, workers))
    progress = Progress(opened.scorer())
    with named_failures(workers):
        run_stream(method, stream, progress, workers=workers, loggers=loggers)
    record = make_result("", method, stream, progress)
    record |= {"source_accuracy": accuracy, "plugins": sorted(loaded_plugins())}
    return Result(record, progress.scorer.named(progress.concatenated()))


def _check_classes(model: SourceModel, benchmark: Benchmark) -> None:
    classes = benchmark.model_classes()
    if classes is not None and model.num_classes != len(classes):
        raise DataError(
            f"{benchmark.name} has {len(classes)} classes and {model.name} {model.num_classes} "
            "logits: call model.keep_classes(benchmark.model_classes()) before building the method."
        )
