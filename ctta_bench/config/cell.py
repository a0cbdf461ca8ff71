"""From a user's request to a cell with every value resolved, and the identity of the cell.

The identity of a cell is the hash of everything that decides its numbers: hyper-parameters, stream,
weights, normalisation, precision and seed. Paths, device, the location of plug-ins and the executor
are not included.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from ctta_bench.config.presets import preset_name, preset_note, preset_values, search_behind
from ctta_bench.config.request import CellRequest, recorded_options
from ctta_bench.config.validation import route_overrides, validate
from ctta_bench.errors import ConfigError
from ctta_bench.method.hyperparameters import OptimizerHyperparameters
from ctta_bench.record.schema import (
    SCHEMA_VERSION,
    WARM_UP,
    BenchmarkRecord,
    CellRecord,
    cell_id,
    identity,
    slug_of,
)
from ctta_bench.registry import BENCHMARKS, METHODS

if TYPE_CHECKING:  # at run time they would load torch
    from ctta_bench.source_models.shared import Models
    from ctta_bench.stream import StreamSettings


@dataclass(frozen=True)
class Cell:
    """A resolved cell. `hyperparameters` and `settings` are validated models.

    `notes`: sentences that a reader of the results should know; not included in the identity.
    `tuned`: how its hyper-parameters were tuned (`config.presets.TUNED`), None if they were not.
    `warmup`: the record of the warm-up that the cell starts from, None without one.
    `asked`: the request before names and presets were filled in. Another process can make the same
    cell from it.
    """

    request: CellRequest
    hyperparameters: BaseModel
    settings: "StreamSettings"
    record: CellRecord = field(repr=False)
    notes: tuple[str, ...] = ()
    tuned: Mapping[str, Any] | None = field(default=None, repr=False)
    warmup: CellRecord | None = field(default=None, repr=False)
    asked: CellRequest | None = field(default=None, repr=False)

    @property
    def id(self) -> str:
        """Readable slug, then 8 hex digits of the identity; at most 120 characters."""
        return str(self.record["id"])


# -- cells


def model_options(request: CellRequest, benchmark: Any) -> dict[str, Any]:
    """Arguments of `load_source_model`, besides the model's name, for a benchmark."""
    return {
        "weights": request.weights,
        "preprocessing": request.preprocessing,
        "input_size": request.input_size,
        # None: any model that has the classes. The benchmark selects its classes from the logits.
        "num_classes": None
        if benchmark.model_classes()
        or benchmark.different_label_set
        or METHODS.get(request.method).learns_labels
        else benchmark.num_classes,
        "root": request.data_root,
        "task": benchmark.task,
    }


def resolve(request: CellRequest, models: "Models | None" = None) -> Cell:
    """Fill in presets and overrides, validate them, and hash the model. Raises ConfigError.

    models: cache with the last model that this process read; used for this cell and the next.
    """
    asked = request
    method, benchmark = METHODS.find(request.method).name, BENCHMARKS.find(request.benchmark).name
    method_class, benchmark_class = METHODS.get(method), BENCHMARKS.get(benchmark)
    if benchmark_class.task not in method_class.tasks:
        raise ConfigError(
            f"method {method!r} supports {' and '.join(sorted(method_class.tasks))}, but benchmark "
            f"{benchmark!r} is {benchmark_class.task}; choose another method or benchmark."
        )
    routed = route_overrides(request.set, method_class.Hyperparameters, benchmark_class.Settings)
    request = request_with(request, method=method, benchmark=benchmark, set={}, **routed["cell"])
    hyperparameters = validate(
        method_class.Hyperparameters,
        preset_values(
            method, request.preset, benchmark, request.model or benchmark_class.default_model
        )
        | routed["method"],
        f"method {method}",
    )
    settings = validate(benchmark_class.Settings, routed["benchmark"], f"benchmark {benchmark}")
    model = request.model or benchmark_class.default_model
    if not model:
        raise ConfigError(f"benchmark {benchmark!r} has no default model: choose one with --model.")
    request = request_with(request, model=model)
    built = benchmark_class(settings, request.data_root)
    domains = built.chosen_domains()
    from ctta_bench.source_models.shared import Models

    models, options = models or Models(), model_options(request, built)
    sha256, preprocessing = models.facts(model, options)
    facts = {
        "schema_version": SCHEMA_VERSION,
        "id": "",
        "experiment": request.experiment,
        "method": {
            "name": method,
            "preset": preset_name(request.preset),
            "hyperparameters": hyperparameters.record(),
            "window": request.window,
        },
        "benchmark": {
            "name": benchmark,
            "version": benchmark_class.version,
            **settings.record(),
            **built.facts(),
            "domains": list(domains),
        },
        "model": {"name": model, "sha256": sha256},
        "preprocessing": preprocessing,
        **recorded_options(request, "always"),
    }
    record = cast(CellRecord, facts)
    of_start = hyperparameters_of_start(method_class, hyperparameters)
    warmup = None
    if hyperparameters.warms_up:
        warmup = warmup_record(record, of_start, built.source_settings())
        record["warmup"] = warmup["id"]
    record |= cast(CellRecord, recorded_options(request, "changed"))
    if not request.adapt:
        record["method"]["hyperparameters"] = of_start  # the others have no effect
    record["id"] = cell_id(record)
    note = preset_note(method, request.preset, benchmark, model, benchmark_class.default_model)
    # A method without hyper-parameters needs no note about its preset.
    of_preset = note if method_class.Hyperparameters.model_fields else ""
    notes = tuple(filter(None, (of_preset, models.note(model, options))))
    values = hyperparameters.model_dump(mode="json")
    tuned = search_behind(method, values, request.preset, benchmark, model)
    return Cell(request, hyperparameters, settings, record, notes, tuned, warmup, asked)


def hyperparameters_of_start(method: Any, hyperparameters: Any) -> dict[str, Any]:
    """The hyper-parameters that decide the warm-up and the model before the stream."""
    others = {*OptimizerHyperparameters.model_fields, *method.stream_only}
    return {k: v for k, v in hyperparameters.record().items() if k not in others}


def warmup_record(
    record: CellRecord, of_start: dict[str, Any], source: dict[str, Any]
) -> CellRecord:
    """The record of a cell's warm-up: everything that decides it. Cells may share a warm-up.

    source: settings of the source data, as the benchmark records them.
    """
    method, benchmark = record["method"]["name"], record["benchmark"]
    found: CellRecord = {
        "schema_version": SCHEMA_VERSION,
        "id": "",
        "kind": WARM_UP,
        "experiment": record["experiment"],
        "method": {"name": method, "hyperparameters": of_start},
        "benchmark": cast(
            BenchmarkRecord,
            {"name": benchmark["name"], "version": benchmark["version"], **source},
        ),
        "model": record["model"],
        "preprocessing": record["preprocessing"],
        "precision": record["precision"],
        "seed": record["seed"],
    }
    slug = slug_of("warmup", method, benchmark["name"], f"seed{record['seed']}")
    found["id"] = f"{slug}-{identity(found)[:8]}"
    return found


def request_with(request: CellRequest, **changes: Any) -> CellRequest:
    """A validated copy of a request with some values changed."""
    merged = {k: getattr(request, k) for k in CellRequest.model_fields} | changes
    return validate(CellRequest, merged, "cell")
