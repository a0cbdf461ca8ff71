"""The suite from Python: build a model, a benchmark and a method, and run the method.

model = ctta_bench.load_model("fashion_vit")
benchmark = ctta_bench.load_benchmark("fashion_c", examples=200)
method = ctta_bench.load_method("tent", model, benchmark="fashion_c", lr=1e-3)
result = ctta_bench.evaluate(method, benchmark)
print(result.error, result.by_domain)
"""

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
    """The result of `evaluate`: scores per image, and the record that a run writes to disk.

    `record` has the keys of result.json; `scores` has arrays over the images of the stream.
    """

    record: ResultRecord
    scores: Scores | MapScores

    @property
    def error(self) -> float:
        """Mean error in % (0 to 100): over domains, then over rounds. For classification.

        Raises ConfigError for another metric.
        """
        return self._mean("error")

    @property
    def miou(self) -> float:
        """Mean mIoU in % (0 to 100): over domains, then over rounds. For segmentation.

        It is nan if no pixel was scored. Raises ConfigError for another metric.
        """
        return self._mean("miou")

    def _mean(self, metric: str) -> float:
        if self.record["metric"] != metric:
            raise ConfigError(
                f"this result has no {metric}: its metric is {self.record['metric']}."
            )
        return float("nan") if self.record["mean"] is None else float(self.record["mean"])

    @property
    def by_domain(self) -> dict[str, float | None]:
        """Error or mIoU in % of each domain in the last round; None if nothing was scored."""
        metric, last = self.record["metric"], self.record["rounds"][-1]
        return {domain["domain"]: domain[metric] for domain in last["domains"]}


def load_model(
    model: str | nn.Module, *, weights: Path | str | None = None, preprocessing: Regime = "true"
) -> SourceModel:
    """Build the source model that methods adapt.

        load_model("fashion_vit")  # a registered name
        load_model("timm:vit_base_patch16_224.augreg_in21k_ft_in1k")
        load_model(my_network)  # any module from normalised images to logits

    Args:
        model: a registered name (`ctta-bench list models`), `timm:MODEL.TAG`, or a module with its
            weights. The `pretrained_cfg` of a module, if any, has mean, std and input size.
        weights: a file of weights, for a name.
        preprocessing: "true" normalises as the checkpoint was trained; "lineage" gives the network
            raw images in [0, 1], as earlier papers did.

    Raises ConfigError for an unknown name, DataError for missing or damaged weights.
    """
    if isinstance(model, SourceModel):
        return model
    if isinstance(model, nn.Module):
        return SourceModel(model, preprocessing=preprocessing)
    file = Path(weights) if weights is not None else None
    return load_source_model(model, weights=file, preprocessing=preprocessing)


def load_benchmark(name: str, *, root: Path | str | None = None, **settings: Any) -> Benchmark:
    """Build a benchmark: `load_benchmark("imagenet_c", root="/data", batch_size=64)`.

    Args:
        name: a registered name (`ctta-bench list benchmarks`).
        root: the folder of the data, if the benchmark needs one.
        settings: its settings, such as batch_size, examples, domains, severity.

    Raises ConfigError for an unknown name or setting, or a value that is out of range.
    """
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
    """Build a method on a model, which the method changes: `load_method("tent", model, lr=1e-4)`.

    Args:
        name: a registered name (`ctta-bench list methods`).
        model: the source model, or a module from normalised images to logits.
        preset: "default", "paper", "code", ...; the values that `overrides` do not set.
        benchmark: whose preset values are used; "any" takes those that hold for all benchmarks.
        seed: seeds the method's own random stream.
        precision: "float64", "float32", "bfloat16" or "float16".
        window: images that are gathered before an update (single-image streams); 0 for none.
        overrides: hyper-parameters.

    Raises ConfigError for an unknown name, preset or hyper-parameter, MethodError if the method
    does not support the model.
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
    """Run a method on the stream of a benchmark, in memory: no files are written.

    Args:
        method: a method that has not been run.
        benchmark: the benchmark.
        seed: chooses the order of the images.
        workers: processes that load images in advance; 0 loads in this process.
        loggers: receive every batch.

    Raises DataError if data is missing, if the model is near chance on source images, or if model
    and benchmark have different classes.
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
    if note := method.model.weights_note:
        record["notes"] = [note]
    return Result(record, progress.scorer.named(progress.concatenated()))


def _check_classes(model: SourceModel, benchmark: Benchmark) -> None:
    classes = benchmark.model_classes()
    if classes is not None and model.num_classes != len(classes):
        raise DataError(
            f"{benchmark.name} has {len(classes)} classes and {model.name} {model.num_classes} "
            "logits: call model.keep_classes(benchmark.model_classes()) before building the method."
        )
