"""From a user's request to a cell with every value resolved, and the identity of the cell.

The identity of a cell is the hash of everything that decides its numbers: hyper-parameters, stream,
weights, normalisation, precision and seed. Paths, device, the location of plug-ins and the executor
are not included.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from ctta_bench.config.presets import (
    preset_name,
    preset_note,
    preset_with_search,
    search_behind,
    without_search,
)
from ctta_bench.config.request import CellRequest, recorded_options
from ctta_bench.config.validation import route_overrides, validate
from ctta_bench.errors import ConfigError
from ctta_bench.method.hyperparameters import OptimizerHyperparameters
from ctta_bench.record.schema import (
    HELD_OUT,
    NOT_IN_PAPER,
    SCHEMA_VERSION,
    SCORED,
    WARM_UP,
    BenchmarkRecord,
    CellRecord,
    cell_id,
    identity,
    slug_of,
)
from ctta_bench.registry import BENCHMARKS, METHODS

if TYPE_CHECKING:  # at run time they would load torch
    from ctta_bench.method import Method
    from ctta_bench.model import SourceModel
    from ctta_bench.source_models.shared import Models
    from ctta_bench.stream import Benchmark, StreamSettings


@dataclass(frozen=True)
class Given:
    """Objects from Python that a cell uses in place of the entries that its names stand for.

    method: a class, or an object that is built and not started. None: the entry of that name.
    """

    benchmark: "Benchmark | None" = None
    model: "SourceModel | None" = None
    method: "type[Method] | Method | None" = None


@dataclass(frozen=True)
class Cell:
    """A resolved cell. `hyperparameters` and `settings` are validated models.

    `notes`: sentences that a reader of the results should know; not included in the identity.
    `tuned`: how its hyper-parameters were tuned (`config.presets.TUNED`), None if they were not.
    `warmup`: the record of the warm-up that the cell starts from, None without one.
    `asked`: the request before names and presets were filled in. Another process can make the same
    cell from it. `given`: objects that its names stand for.
    """

    request: CellRequest
    hyperparameters: BaseModel
    settings: "StreamSettings"
    record: CellRecord = field(repr=False)
    notes: tuple[str, ...] = ()
    tuned: Mapping[str, Any] | None = field(default=None, repr=False)
    warmup: CellRecord | None = field(default=None, repr=False)
    asked: CellRequest | None = field(default=None, repr=False)
    given: Given = field(default=Given(), repr=False)

    @property
    def method_class(self) -> "type[Method]":
        """The class of the method: that of the given one, or the entry."""
        given = self.given.method
        found: type[Method]
        if given is None:
            found = METHODS.get(self.request.method)
        else:
            found = given if isinstance(given, type) else type(given)
        return found

    def benchmark(self) -> "Benchmark":
        """The given benchmark, or a new one of the entry with the settings of the cell."""
        if self.given.benchmark is not None:
            return self.given.benchmark
        entry = BENCHMARKS.get(self.request.benchmark)
        built: Benchmark = entry(self.settings, self.request.data_root)
        return built

    @property
    def id(self) -> str:
        """Readable slug, then 8 hex digits of the identity; at most 120 characters."""
        return str(self.record["id"])


# -- cells


def model_options(request: CellRequest, benchmark: Any, method: Any) -> dict[str, Any]:
    """Arguments of `load_source_model`, besides the model's name; method: its class."""
    return {
        "weights": request.weights,
        "preprocessing": request.preprocessing,
        "input_size": request.input_size,
        # None: any model that has the classes. The benchmark selects its classes from the logits.
        "num_classes": benchmark.num_classes if needs_its_classes(benchmark, method) else None,
        "root": request.data_root,
        "task": benchmark.task,
    }


def needs_its_classes(benchmark: Any, method: Any) -> bool:
    """Whether a source model must have exactly the classes of the benchmark."""
    return bool(
        benchmark.fixed_classes
        and not benchmark.model_classes()
        and not benchmark.different_label_set
        and not method.learns_labels
    )


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
    preset = preset_with_search(
        method, request.preset, benchmark, request.model or benchmark_class.default_model
    )
    hyperparameters = validate(
        method_class.Hyperparameters,
        without_search(preset) | routed["method"],
        f"method {method}",
    )
    settings = validate(benchmark_class.Settings, routed["benchmark"], f"benchmark {benchmark}")
    model = request.model or benchmark_class.default_model
    if not model:
        raise ConfigError(f"benchmark {benchmark!r} has no default model: choose one with --model.")
    request = request_with(request, model=model)
    built = benchmark_class(settings, request.data_root)
    built.chosen_domains()  # a misspelt one fails before the model is read
    from ctta_bench.source_models.shared import Models

    models, options = models or Models(), model_options(request, built, method_class)
    note = preset_note(method, request.preset, benchmark, model, benchmark_class.default_model)
    # A method without hyper-parameters needs no note about its preset.
    of_preset = note if method_class.Hyperparameters.model_fields else ""
    chosen = request.not_in_paper and f"{NOT_IN_PAPER}: {request.not_in_paper}"
    return resolved_cell(
        request,
        method_class,
        hyperparameters,
        built,
        models.facts(model, options),
        notes=(of_preset, models.note(model, options), chosen),
        tuned=_seen_by(search_behind(preset, hyperparameters.model_dump(mode="json")), built),
        asked=asked,
    )


def _seen_by(search: dict[str, Any] | None, benchmark: "Benchmark") -> dict[str, Any] | None:
    """A search with what its images are to a benchmark: SCORED or HELD_OUT.

    A search on a part of the photographs states which: they are others than those of the part
    `scoring`, if the same settings select the photographs.
    """
    if search is None or not isinstance(search.get("images"), Mapping):
        return search
    apart = {"part": "tuning", **benchmark.settings.own()}
    is_apart = search["images"] == apart and benchmark.settings.part == "scoring"
    return search | {"images": HELD_OUT if is_apart else SCORED}


def resolved_cell(
    request: CellRequest,
    method: Any,
    hyperparameters: Any,
    benchmark: "Benchmark",
    model: tuple[str, dict[str, Any]],
    *,
    notes: Iterable[str] = (),
    tuned: Mapping[str, Any] | None = None,
    asked: CellRequest | None = None,
    given: Given | None = None,
) -> Cell:
    """The cell of a request whose parts are resolved: class of the method, benchmark, model.

    model: SHA-256 of its weights, and the record of its pre-processing.
    """
    settings, domains = benchmark.settings, benchmark.chosen_domains()
    sha256, preprocessing = model
    facts = {
        "schema_version": SCHEMA_VERSION,
        "id": "",
        "experiment": request.experiment,
        "method": {
            "name": request.method,
            "preset": preset_name(request.preset),
            "hyperparameters": hyperparameters.record(),
            "window": request.window,
        },
        "benchmark": {
            "name": request.benchmark,
            "version": benchmark.version,
            **settings.record(),
            **benchmark.facts(),
            "domains": list(domains),
        },
        "model": {"name": request.model, "sha256": sha256, **_point(given)},
        "preprocessing": preprocessing,
        **recorded_options(request, "always"),
    }
    record = cast(CellRecord, facts)
    of_start = hyperparameters_of_start(method, hyperparameters)
    warmup = None
    if hyperparameters.warms_up:
        warmup = warmup_record(record, of_start, benchmark.source_settings())
        record["warmup"] = warmup["id"]
    record |= cast(CellRecord, recorded_options(request, "changed"))
    if not request.adapt:
        record["method"]["hyperparameters"] = of_start  # the others have no effect
    record["id"] = cell_id(record)
    told = tuple(filter(None, notes))
    return Cell(
        request, hyperparameters, settings, record, told, tuned, warmup, asked, given or Given()
    )


def _point(given: Given | None) -> dict[str, Any]:
    """Where a given model has its features, if it was chosen."""
    point = given.model.point if given is not None and given.model is not None else None
    return {} if point is None else point.record()


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
