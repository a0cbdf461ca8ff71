"""The cell of what a user gives to `evaluate`: names, objects, or both."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from ctta_bench.api.loading import load_benchmark, load_model
from ctta_bench.config.cell import (
    Cell,
    Given,
    model_options,
    needs_its_classes,
    resolve,
    resolved_cell,
)
from ctta_bench.config.presets import (
    preset_note,
    preset_with_search,
    search_behind,
    without_search,
)
from ctta_bench.config.request import CellRequest
from ctta_bench.config.validation import route_overrides, unknown_key, validate
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.registry import BENCHMARKS, METHODS, canonical
from ctta_bench.source_models.shared import Models
from ctta_bench.stream import Benchmark

MethodLike = str | Method | type[Method]


def cell_of(
    method: MethodLike,
    benchmark: Any,
    model: str | nn.Module | None,
    request: dict[str, Any],
    settings: Mapping[str, Any],
    models: Models,
) -> Cell:
    """The cell of names and objects."""
    if isinstance(method, str) and isinstance(benchmark, str) and isinstance(model, str | None):
        names = {"method": method, "benchmark": benchmark, "model": model, "set": dict(settings)}
        return resolve(validate(CellRequest, request | names, "evaluate"), models)
    built = load_benchmark(benchmark, root=request["data_root"])
    if isinstance(method, Method):
        return _cell_of_built(method, built, model, request, settings)
    entry = class_of(method)
    name = METHODS.find(method).name if isinstance(method, str) else method_name(entry)
    routed = route_overrides(dict(settings), entry.Hyperparameters, built.Settings)
    if routed["benchmark"]:
        built = load_benchmark(built, **routed["benchmark"])
    chosen = model or built.default_model
    if not chosen:
        raise ConfigError(f"{built.name} has no default model; give model=.")
    given_model = None if isinstance(chosen, str) else load_model(chosen)
    model_name = str(chosen) if given_model is None else given_model.name
    of_benchmark = BENCHMARKS.name_of(type(built)) or "any"
    asked_preset = (name, request["preset"], of_benchmark, model_name)
    of_preset = preset_with_search(*asked_preset) if METHODS.name_of(entry) is not None else {}
    hyperparameters = validate(
        entry.Hyperparameters, without_search(of_preset) | routed["method"], f"method {name}"
    )
    asked = validate(
        CellRequest,
        request
        | routed["cell"]
        | {
            "method": name,
            "benchmark": built.name,
            "model": model_name,
        },
        "evaluate",
    )
    if given_model is None:
        options = model_options(asked, built, entry)
        facts, note = models.facts(model_name, options), models.note(model_name, options)
    else:
        check_classes(given_model, built, entry)
        facts = given_model.sha256(), given_model.preprocessing.record()
        note = given_model.weights_note
    tells = bool(entry.Hyperparameters.model_fields) and of_benchmark != "any"
    of_model = preset_note(*asked_preset, built.default_model) if tells else ""
    return resolved_cell(
        asked,
        entry,
        hyperparameters,
        built,
        facts,
        notes=(of_model, note),
        tuned=search_behind(of_preset, hyperparameters.model_dump(mode="json")),
        given=Given(built, given_model, entry),
    )


def _cell_of_built(
    method: Method,
    benchmark: Benchmark,
    model: str | nn.Module | None,
    request: dict[str, Any],
    settings: Mapping[str, Any],
) -> Cell:
    """The cell of a method that is built on its model."""
    if method.started:
        raise ConfigError(
            f"{method.title}: has been run already; build it again with load_method(...)."
        )
    if model is not None and model is not method.model:
        raise ConfigError("model=: this method is built on its model already; leave it out.")
    wrong = [key for key in settings if key not in benchmark.Settings.model_fields]
    if wrong:
        known = benchmark.Settings.model_fields
        own = wrong[0] in type(method).Hyperparameters.model_fields
        raise ConfigError(
            f"{wrong[0]}: this method is built; give its hyper-parameters to load_method(...)."
            if own
            else f"evaluate: {unknown_key(wrong[0], known)}"
        )
    if settings:
        benchmark = load_benchmark(benchmark, **settings)
    check_classes(method.model, benchmark, type(method), built=True)
    asked = validate(
        CellRequest,
        request
        | {
            "method": method_name(type(method)),
            "benchmark": benchmark.name,
            "model": method.model.name,
            "precision": method.precision,
            "window": method.window,
            "adapt": method.adapts,
        },
        "evaluate",
    )
    facts = method.model.sha256(), method.model.preprocessing.record()
    notes = [method.model.weights_note]
    given = Given(benchmark, method.model, method)
    return resolved_cell(asked, type(method), method.hp, benchmark, facts, notes=notes, given=given)


def method_name(entry: type[Method]) -> str:
    """The registry name of a method's class, or the name of the class if it has none."""
    return METHODS.name_of(entry) or canonical(entry.__name__)


def check_classes(
    model: SourceModel, benchmark: Benchmark, method: type[Method], *, built: bool = False
) -> None:
    """Raise DataError if a model does not have the task or the classes of a benchmark.

    built: a method has been built on the model, so that its logits are not cut any more.
    """
    if {model.task, benchmark.task} == {"classification", "segmentation"}:
        raise DataError(
            f"{model.name} is for {model.task}, but {benchmark.name} for {benchmark.task}: give "
            "another model or benchmark."
        )
    chosen, logits = benchmark.model_classes(), model.known_classes
    if logits is None:
        return
    if built and chosen is not None and logits != len(chosen):
        raise DataError(
            f"{benchmark.name} has {len(chosen)} classes and {model.name} {logits} "
            "logits: call model.keep_classes(benchmark.model_classes()) before building the method."
        )
    needed = needs_its_classes(benchmark, method) and logits != benchmark.num_classes
    if needed or (not benchmark.fixed_classes and logits < benchmark.num_classes):
        raise DataError(
            f"{benchmark.name} has {benchmark.num_classes} classes and {model.name} {logits} "
            "logits: give the model that was trained on these classes."
        )


def class_of(method: MethodLike) -> type[Method]:
    """The class of a method by its name. Raises ConfigError for what is no method."""
    if not isinstance(method, str | type):
        raise ConfigError(
            f"evaluate: {type(method).__name__} is no method; give its name (list_methods()), its "
            "class, or what load_method(...) returns, and a network as model=."
        )
    found: type[Method] = METHODS.get(method) if isinstance(method, str) else method
    return found
