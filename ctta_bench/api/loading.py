"""Models, benchmarks and methods by name, or from what a user has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ctta_bench.config.presets import preset_values
from ctta_bench.config.validation import validate
from ctta_bench.errors import ConfigError
from ctta_bench.method import Method, Precision
from ctta_bench.model import Regime, SourceModel
from ctta_bench.model.preprocessing import (
    Preprocessing,
    input_size,
    own_preprocessing,
    recorded_preprocessing,
)
from ctta_bench.model.source_model import UNKNOWN_SIZE
from ctta_bench.names import renamed_value
from ctta_bench.registry import BENCHMARKS, METHODS
from ctta_bench.source_models.pretrained import load_source_model
from ctta_bench.stream import Benchmark
from ctta_bench.stream.settings import SETTINGS


def load_model(
    model: str | nn.Module,
    *,
    weights: Path | str | None = None,
    preprocessing: Regime | Callable[[Tensor], Tensor] = "true",
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    size: int | tuple[int, int] | None = None,
    features: str = "",
    head: str | nn.Module = "",
    name: str = "",
) -> SourceModel:
    """Build the source model that methods adapt.

        load_model("scenes_vit")  # a registered name
        load_model(network, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), size=224)
        load_model(network, features="norm", head="head")
        load_model(encoder, head=zero_shot_head)  # a backbone, and a head on its features

    Args:
        model: a registered name (`list_models()`), `timm:MODEL.TAG`, or a module with its weights
            that maps images to logits [n, classes], or with `head=` to features [n, d].
        weights: a file of weights, for a name.
        preprocessing: "true" normalises as the checkpoint was trained; "lineage" gives the network
            raw images in [0, 1], as earlier papers did; or a function or module of your own from
            images [n, 3, H, W] in [0, 1] to the network's input.
        mean, std: normalisation of a module, for images in [0, 1]; by default that of its
            `pretrained_cfg` (timm), or none.
        size: pixels to which images are resized for a module, or (height, width). With an own
            preprocessing nothing is resized: the size of its output, if it is not recorded.
        features: the name of the module whose output are the features, for methods that use any; by
            default the inputs of the last linear layer. It is checked that head and features give
            the network's own logits.
        head: the name of the module that gives the logits of these features, or a module of its own
            for a backbone without one.
        name: the name of a module in records and tables; by default that of its class.

    Raises ConfigError for an unknown name or an argument that does not fit, DataError for missing
    or damaged weights, MethodError if features and head do not give the logits.
    """
    given = {"mean": mean, "std": std, "size": size, "features": features, "head": head}
    of_module = [key for key, value in given.items() if value not in (None, "")]
    if not isinstance(model, str | nn.Module):
        raise ConfigError(
            f"load_model: {model!r:.80}: give a name (list_models()) or a module from normalised "
            "images to logits."
        )
    if isinstance(model, SourceModel) or not isinstance(model, nn.Module):
        if of_module:
            raise ConfigError(f"load_model: {of_module[0]}= is for a module of your own.")
        if isinstance(model, SourceModel):
            return model
        if not isinstance(preprocessing, str):
            raise ConfigError("load_model: an own preprocessing is for a module of your own.")
        file = Path(weights) if weights is not None else None
        return load_source_model(model, weights=file, preprocessing=preprocessing)
    if weights is not None:
        raise ConfigError("load_model: a module has its weights; weights= is for names.")
    network: nn.Module = model
    if isinstance(head, nn.Module):
        network, features, head = Headed(model, head), features or "backbone", "head"
    sides = (size, size) if isinstance(size, int) else size
    if not callable(preprocessing):
        chosen = _preprocessing(model, preprocessing, mean, std, sides)
    elif {"mean", "std"} & set(of_module):
        raise ConfigError("load_model: give a function as preprocessing, or mean and std.")
    else:
        chosen = own_preprocessing(preprocessing, sides or input_size(model))
    title = name or type(model).__name__
    built = SourceModel(network, name=title, preprocessing=chosen, features=features, head=head)
    _check_output(built)
    return built


class Headed(nn.Module):
    """A backbone that gives features [n, d], and a head that gives their logits."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, classes] of normalised images."""
        logits: Tensor = self.head(self.backbone(images))
        return logits


def _preprocessing(
    model: nn.Module,
    regime: Regime,
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    size: tuple[int, int] | None,
) -> Preprocessing:
    """The pre-processing that is given for a module, and for the rest that of its record."""
    recorded = recorded_preprocessing(model, regime, size)
    if mean is None and std is None:
        return recorded
    if mean is None or std is None:
        raise ConfigError("load_model: give mean and std together.")
    if regime == "lineage":
        raise ConfigError(
            'load_model: preprocessing="lineage" has no mean and std; leave them out.'
        )
    return replace(recorded, mean=_channels("mean", mean), std=_channels("std", std))


def _channels(key: str, value: float | Sequence[float]) -> tuple[float, float, float]:
    numbers = [value] * 3 if isinstance(value, int | float) else [*value]
    if len(numbers) != 3 or not all(0 <= float(number) <= 1 for number in numbers):
        raise ConfigError(
            f"load_model: {key}={value}: give one number or three, for images in [0, 1] (divide "
            "numbers for 0 to 255 by 255)."
        )
    red, green, blue = map(float, numbers)
    return red, green, blue


@torch.no_grad()
def _check_output(model: SourceModel) -> None:
    """Raise ConfigError if a classifier returns no tensor of logits, as with several heads."""
    first = next(model.parameters(), None)
    if first is None or model.task != "classification":
        return
    training = model.network.training
    shown = torch.rand(1, 3, *(model.preprocessing.size or UNKNOWN_SIZE)).to(first)
    try:
        output = model.network.eval()(model.preprocess(shown))
    except (RuntimeError, ValueError, AssertionError):
        return  # of another size: reported where it is used
    finally:
        model.network.train(training)
    if not isinstance(output, Tensor) or output.ndim != 2:
        shape = (
            f"shape {list(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        )
        raise ConfigError(
            f"{model.name} returns {shape}, not logits [n, classes]: wrap it in a module whose "
            "forward returns the logits to score, or give head= for a backbone."
        )


def load_benchmark(
    benchmark: Any = None, *, root: Path | str | None = None, **settings: Any
) -> Benchmark:
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
        settings: of the stream: setting, domains, rounds, batch_size, examples, part, order,
            domain_order, reset_every, and where they apply severity, severities, delta, slots,
            imbalance_ratio, draws, overlap (`describe(NAME).settings` explains those of a
            benchmark). Those of a Benchmark are kept where they are not given.

    Raises ConfigError for an unknown name, setting or domain, or a value that is out of range, and
    DataError, with what is taken, for anything else.
    """
    if benchmark is None and "name" in settings:
        renamed_value("load_benchmark argument", "name")
        benchmark = settings.pop("name")
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
        preset: "default", "paper", "code", or another that `describe(NAME).presets` has; the values
            that `overrides` do not set.
        benchmark: whose preset values are used; "any" takes those that hold for all benchmarks.
        seed: seeds the method's own random stream.
        precision: "float64", "float32", "bfloat16" or "float16".
        window: images that are gathered before an update (single-image streams); 0 for none.
        overrides: hyper-parameters.

    Raises ConfigError for an unknown name, preset or hyper-parameter, MethodError if the method
    does not support the model.
    """
    entry, source_model = METHODS.get(name), load_model(model)
    values = preset_values(name, preset or "default", benchmark, source_model.name) | overrides
    hyperparameters = validate(entry.Hyperparameters, values, f"method {name}")
    method: Method = entry(
        source_model, hyperparameters, seed=seed, precision=precision, window=window
    )
    return method
