"""Models, benchmarks and methods by name, or from what a user has."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ctta_bench.config.presets import preset_values
from ctta_bench.config.validation import validate
from ctta_bench.method import Method, Precision
from ctta_bench.model import Regime, SourceModel
from ctta_bench.registry import BENCHMARKS, METHODS
from ctta_bench.source_models.pretrained import load_source_model
from ctta_bench.stream import Benchmark
from ctta_bench.stream.settings import SETTINGS


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


def load_benchmark(benchmark: Any, *, root: Path | str | None = None, **settings: Any) -> Benchmark:
    """Build a benchmark by its name, or from your own data.

        load_benchmark("imagenet_c", root="/data", batch_size=64)
        load_benchmark((images, labels), batch_size=20)  # one domain; arrays, a Dataset, ...
        load_benchmark({"fog": dataset, "night": loader}, setting="mixed")
        load_benchmark(Path("photos"))  # a folder DOMAIN/CLASS/IMAGE

    Args:
        benchmark: a registered name (`list_benchmarks()`), a Benchmark, a folder as a Path, or data
            in a form that `Benchmark.from_domains` takes: by domain in a mapping, or those of one
            domain, which is called `data`.
        root: the folder of the data, if a benchmark by name needs one.
        settings: its settings, such as batch_size, examples, domains, severity. Those of a
            Benchmark are kept where they are not given.

    Raises ConfigError for an unknown name, setting or domain, or a value that is out of range, and
    DataError, with what is taken, for anything else.
    """
    if isinstance(benchmark, Benchmark):
        return _with(benchmark, settings) if settings else benchmark
    if isinstance(benchmark, Path):
        benchmark, root = "image_folder", benchmark
    if not isinstance(benchmark, str):
        domains = benchmark if isinstance(benchmark, Mapping) else {"data": benchmark}
        return load_benchmark(Benchmark.from_domains(domains), **settings)
    entry = BENCHMARKS.get(benchmark)
    chosen = validate(entry.Settings, settings, f"benchmark {benchmark}")
    built: Benchmark = entry(chosen, Path(root) if root is not None else None)
    if chosen.domains:
        built.chosen_domains()  # a misspelt one fails now
    return built


def _with(benchmark: Benchmark, changed: Mapping[str, Any]) -> Benchmark:
    """A benchmark with some settings changed, without parameters of a setting that it leaves."""
    kept = benchmark.settings.model_dump(exclude_unset=True)
    if "setting" in changed:
        kept = {
            k: v
            for k, v in kept.items()
            if k not in SETTINGS[kept.get("setting", "continual")].parameters
        }
    chosen = validate(benchmark.Settings, kept | dict(changed), f"benchmark {benchmark.name}")
    other = benchmark.with_settings(chosen)
    other.chosen_domains()
    return other


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
