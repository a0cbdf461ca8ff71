"""From what a user writes to a cell: YAML with `_base_`, presets, overrides, validation, identity.

A request names things; a cell has every value resolved. The identity of a cell is the hash of what
decides its numbers: hyper-parameters, stream, weights, pre-processing, precision and seed. Paths,
device, plug-ins' places and the executor are not part of it.
"""

import difflib
import functools
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ctta_bench.errors import ConfigError
from ctta_bench.hyperparameters import OptimizerHyperparameters
from ctta_bench.record import SCHEMA_VERSION
from ctta_bench.registry import BENCHMARKS, METHODS

if TYPE_CHECKING:
    from ctta_bench.stream import StreamSettings  # at run time it would load torch

Validated = TypeVar("Validated", bound=BaseModel)


class CellRequest(BaseModel):
    """One cell as a user asks for it; `set` overrides any resolved key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    benchmark: str
    preset: str = "default"
    model: str | None = None
    weights: Path | None = None
    preprocessing: Literal["true", "lineage"] = "true"
    input_size: tuple[int, int] | None = Field(
        None, description="the network's input in pixels, PIXELS or HEIGHTxWIDTH; as recorded"
    )
    precision: Literal["float64", "float32", "bfloat16", "float16"] = "float32"
    seed: int = Field(0, ge=0, lt=2**31)
    window: int = Field(0, ge=0, description="images a window of single-sample streams; 0: off")
    adapt: bool = Field(True, description="false: score the model as it is before the stream")
    data_root: Path | None = None
    workers: int | None = Field(None, ge=0, le=256, description="processes that load images ahead")
    cache_decoded: Path | None = Field(None, description="folder to keep decoded images in")
    experiment: str = "runs"
    keep_models: Literal["none", "last", "domains"] = Field(
        "none", description="adapted networks to leave in the run folder; not part of the identity"
    )
    set: dict[str, Any] = {}

    @field_validator("preprocessing", mode="before")
    @classmethod
    def _yaml_true(cls, value: Any) -> Any:
        return "true" if value is True else value  # YAML reads the bare word as a boolean

    @field_validator("input_size", mode="before")
    @classmethod
    def _pixels(cls, value: Any) -> Any:
        found = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", str(value).strip())
        if value is None or isinstance(value, tuple):
            return value
        if found is None:
            raise ValueError("write PIXELS or HEIGHTxWIDTH, e.g. 160 or 128x256")
        return int(found[1]), int(found[2] or found[1])


@dataclass(frozen=True)
class Cell:
    """A resolved cell. `hyperparameters` and `settings` are validated models.

    `notes`: what a reader of its numbers should know, as sentences; no part of the identity.
    `warmup`: the record of the warm-up that the cell starts from, None without one.
    `asked`: the request before names and presets were filled in, from which another process makes
    the same cell.
    """

    request: CellRequest
    hyperparameters: BaseModel
    settings: "StreamSettings"
    record: dict[str, Any] = field(repr=False)
    notes: tuple[str, ...] = ()
    warmup: dict[str, Any] | None = field(default=None, repr=False)
    asked: CellRequest | None = field(default=None, repr=False)

    @property
    def id(self) -> str:
        """Readable slug and 8 hex digits of the identity; at most 120 characters."""
        return str(self.record["id"])


# -- YAML


def read_yaml(file: Path, *, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A YAML mapping with its `_base_` files (relative to it) merged beneath.

    Raises ConfigError for a file that is missing, unreadable, hostile or includes itself.
    """
    file = file.resolve()
    if file in seen:
        raise ConfigError(f"{file}: `_base_` includes the file itself.")
    try:
        if file.stat().st_size > 1_000_000:
            raise ConfigError(f"{file}: is larger than 1 MB; this is no configuration file.")
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not UTF-8 text.") from None
    values = parse_yaml(text, str(file))
    bases = values.pop("_base_", [])
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        merged = merge(merged, read_yaml(file.parent / base, seen=(*seen, file)))
    return merge(merged, values)


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice and aliases (a few bytes of which fill a disk)."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} is given twice", problem_mark=node.start_mark
                )
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """A mapping from YAML text; `name` is used in messages. Raises ConfigError."""
    try:
        # _StrictLoader is a SafeLoader: plain types alone.
        values = yaml.load(text, _StrictLoader)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError(f"{name}{where}: is not valid YAML: {problem}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: holds no keys and values.")
    return values


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`, key by key through nested mappings; lists are replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(value, dict) and isinstance(old, dict)
        merged[key] = merge(old or {}, value) if both else value
    return merged


# -- overrides


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`["lr=1e-3", "benchmark.examples=50"]` to a mapping; values are read as YAML.

    Raises ConfigError for a word without `=`, and for a key given twice with different values.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {assignment!r}: write KEY=VALUE, for example --set lr=1e-3.")
        value = parse_yaml(f"value: {text}", f"--set {assignment}")["value"] if text else ""
        key = key.strip()
        if key in values and values[key] != value:
            raise ConfigError(f"--set {key} is given twice: {values[key]!r} and {value!r}.")
        values[key] = value
    return values


def route_overrides(
    overrides: dict[str, Any], method: type[BaseModel], benchmark: type[BaseModel]
) -> dict[str, dict[str, Any]]:
    """Sort overrides by owner: `method`, `benchmark` or `cell`; a bare key must have one owner.

    Raises ConfigError for unknown keys (with close ones) and for bare keys with two owners.
    """
    top: dict[str, Any] = dict.fromkeys(
        ("preprocessing", "input_size", "precision", "window", "adapt", "seed", "model", "weights")
    )
    owners: dict[str, Any] = {
        "method": method.model_fields,
        "benchmark": benchmark.model_fields,
        "cell": top,
    }
    routed: dict[str, dict[str, Any]] = {owner: {} for owner in owners}
    for key, value in overrides.items():
        prefix, dot, rest = key.partition(".")
        if dot and prefix in ("method", "benchmark"):
            candidates, bare = [prefix], rest
        else:
            candidates, bare = [o for o in owners if key in owners[o]], key
        if len(candidates) > 1:
            raise ConfigError(
                f"key {key!r} belongs to both {' and '.join(candidates)}; write "
                f"{candidates[0]}.{key} or {candidates[1]}.{key}."
            )
        if not candidates or bare not in owners[candidates[0]]:
            raise ConfigError(unknown_key(key, [k for o in owners.values() for k in o]))
        routed[candidates[0]][bare] = value
    return routed


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The sentence for an unknown key."""
    known = sorted(set(known))
    close = difflib.get_close_matches(key.rpartition(".")[2], known, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else f"; known keys: {', '.join(known)}."
    return f"unknown key {key!r}{hint}"


def validate(model: type[Validated], values: dict[str, Any], where: str) -> Validated:
    """`model(**values)`, with pydantic's complaint as one sentence in a ConfigError."""
    try:
        return model(**values)
    except ValidationError as error:
        problems = [_sentence(p, model, where) for p in error.errors()]
        raise ConfigError(" ".join(problems)) from None


def _sentence(problem: Any, model: type[BaseModel], where: str) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{where}: {unknown_key(key, model.model_fields)}"
    message = problem["msg"].removeprefix("Value error, ")
    if not key:  # a rule between keys
        return f"{where}: {message[:1].lower()}{message[1:]}."
    path = f"{where}.{key}"
    return f"{path}: {problem['input']!r}: {message[:1].lower()}{message[1:]}."


# -- presets


@functools.cache
def presets_of(method: str) -> dict[str, Any]:
    """The presets of a method: section, benchmark (or `any`), values; {} if it has none."""
    file = resources.files("ctta_bench.methods") / "presets" / f"{method}.yaml"
    if not file.is_file():
        return {}
    return parse_yaml(file.read_text(encoding="utf-8"), f"presets/{method}.yaml")


def preset_values(
    method: str, preset: str, benchmark: str, model: str | None = None
) -> dict[str, Any]:
    """The values of a preset for a benchmark; `any` lies beneath the benchmark's own.

    Over both lie those of one model alone, under `BENCHMARK@MODEL`. The preset `default` may be
    absent: then the defaults of the hyper-parameters hold. Raises ConfigError for a preset that the
    method lacks, or lacks for this benchmark.
    """
    sections = presets_of(method)
    if preset not in sections:
        if preset == "default":
            return {}
        known = ", ".join(dict.fromkeys([*sections, "default"]))
        raise ConfigError(f"method {method!r} has no preset {preset!r}; it has: {known}.")
    section = sections[preset] or {}
    if benchmark not in section and "any" not in section and preset != "default":
        raise ConfigError(
            f"preset {preset!r} of {method!r} has no values for {benchmark!r}; it has values for "
            f"{', '.join(section)}."
        )
    keys = ("any", benchmark, f"{benchmark}@{model}")
    return {k: v for key in keys for k, v in (section.get(key) or {}).items()}


def preset_note(method: str, preset: str, benchmark: str, model: str, made_for: str) -> str:
    """The sentence that hyper-parameters were chosen with another model; "" if they were not.

    `made_for` is the benchmark's own model, for which its presets are.
    """
    section = presets_of(method).get(preset) or {}
    if model == made_for or f"{benchmark}@{model}" in section:
        return ""
    if benchmark in section:
        return f"no preset for {model}, using {preset} of {benchmark} (made for {made_for})"
    whose = "any benchmark" if "any" in section else "the method"
    return f"no preset for {model}, using {preset} of {whose}"


def _type(annotation: Any) -> str:
    """A field's type in words: `float`, `sgd | adam | adamw`, `int | None`."""
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    if get_origin(annotation) is tuple:
        return f"({', '.join(map(_type, get_args(annotation)))})"
    if isinstance(annotation, type):
        return annotation.__name__.removesuffix("Type").replace("None", "none")
    return " | ".join(map(_type, get_args(annotation))) or str(annotation)


def _bound(constraint: Any) -> str:
    """A constraint of a field in signs: `>= 0`, `matches ^(a|b)$`."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "pattern": "matches"}
    for key, sign in signs.items():
        if getattr(constraint, key, None) is not None:
            return f"{sign} {getattr(constraint, key)}"
    return ""


def describe(method: str) -> dict[str, Any]:
    """Hyper-parameters of a method (type, range, default, meaning) and what its presets set."""
    fields = METHODS.get(method).Hyperparameters.model_fields
    return {
        "hyperparameters": [
            {
                "name": name,
                "type": _type(field.annotation),
                "range": ", ".join(filter(None, map(_bound, field.metadata))),
                "default": field.default,
                "description": field.description or "",
            }
            for name, field in fields.items()
        ],
        "presets": presets_of(METHODS.find(method).name),
    }


# -- cells


def model_options(request: CellRequest, benchmark: Any) -> dict[str, Any]:
    """What `load_source_model` is asked for, besides the model's name, to serve a benchmark."""
    return {
        "weights": request.weights,
        "preprocessing": request.preprocessing,
        "input_size": request.input_size,
        # A benchmark that keeps a part of the logits takes any model that has them.
        "num_classes": None
        if benchmark.model_classes()
        or benchmark.other_labels
        or METHODS.get(request.method).learns_labels
        else benchmark.num_classes,
        "root": request.data_root,
        "task": benchmark.task,
    }


def _model_facts(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Fingerprint and pre-processing of a model."""
    from ctta_bench.source_models.pretrained import stored_weights
    from ctta_bench.source_models.weights import weight_file

    path = options["weights"] or stored_weights(name, options["root"])
    stamp: tuple[int, ...] = ()
    if path is not None and path.exists():
        stat = weight_file(path).stat()
        stamp = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return _read_facts(name, path, stamp, tuple(options.items()))


@functools.lru_cache(maxsize=4)
def _read_facts(
    name: str, path: Path | None, stamp: tuple[int, ...], options: tuple[tuple[str, Any], ...]
) -> tuple[str, dict[str, Any]]:
    """`_model_facts`, remembered; `path` and `stamp` make a rewritten file a new model."""
    from ctta_bench.source_models.pretrained import load_source_model

    model = load_source_model(name, **dict(options))
    return model.sha256(), model.preprocessing.record()


def resolve(request: CellRequest) -> Cell:
    """Fill in presets and overrides, validate, and fingerprint the model. Raises ConfigError."""
    asked = request
    method, benchmark = METHODS.find(request.method).name, BENCHMARKS.find(request.benchmark).name
    method_class, benchmark_class = METHODS.get(method), BENCHMARKS.get(benchmark)
    if benchmark_class.task not in method_class.tasks:
        raise ConfigError(
            f"method {method!r} is for {' and '.join(sorted(method_class.tasks))}, and benchmark "
            f"{benchmark!r} for {benchmark_class.task}; choose another of the two."
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
        raise ConfigError(
            f"benchmark {benchmark!r} has no model of its own: give one with --model."
        )
    request = request_with(request, model=model)
    built = benchmark_class(settings, request.data_root)
    domains = built.chosen_domains()
    sha256, preprocessing = _model_facts(model, model_options(request, built))
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "id": "",
        "experiment": request.experiment,
        "method": {
            "name": method,
            "preset": request.preset,
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
        "precision": request.precision,
        "seed": request.seed,
    }
    of_start = hyperparameters_of_start(method_class, hyperparameters)
    warmup = None
    if hyperparameters.warms_up:
        warmup = warmup_record(record, of_start, built.source_settings())
        record["warmup"] = warmup["id"]
    if not request.adapt:
        record["adapt"] = False
        record["method"]["hyperparameters"] = of_start  # no other plays a part
    record["id"] = cell_id(record)
    note = preset_note(method, request.preset, benchmark, model, benchmark_class.default_model)
    # A method without hyper-parameters has none that another model might ask for.
    notes = (note,) if note and method_class.Hyperparameters.model_fields else ()
    return Cell(request, hyperparameters, settings, record, notes, warmup, asked)


def hyperparameters_of_start(method: Any, hyperparameters: Any) -> dict[str, Any]:
    """Those that decide the model before the stream, and its warm-up: all but the stream's own."""
    others = {*OptimizerHyperparameters.model_fields, *method.stream_only}
    return {k: v for k, v in hyperparameters.record().items() if k not in others}


def warmup_record(
    record: dict[str, Any], of_start: dict[str, Any], source: dict[str, Any]
) -> dict[str, Any]:
    """The record of the warm-up of a cell: all that decides it, and so whatever cells share it."""
    method, benchmark = record["method"]["name"], record["benchmark"]
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "id": "",
        "kind": "warm-up",
        "experiment": record["experiment"],
        "method": {"name": method, "hyperparameters": of_start},
        "benchmark": {"name": benchmark["name"], "version": benchmark["version"], **source},
    }
    found |= {key: record[key] for key in ("model", "preprocessing", "precision", "seed")}
    hashed = identity(found)[:8]
    slug = slug_of("warmup", method, benchmark["name"], f"seed{record['seed']}")
    return found | {"id": f"{slug}-{hashed}"}


def request_with(request: CellRequest, **changes: Any) -> CellRequest:
    """A validated copy of a request with some values changed."""
    merged = {k: getattr(request, k) for k in CellRequest.model_fields} | changes
    return validate(CellRequest, merged, "cell")


def identity(record: dict[str, Any]) -> str:
    """SHA-256 of everything in a cell's record that decides its numbers."""
    indifferent = ("id", "experiment", "num_batches", "notes")
    decisive = {k: v for k, v in record.items() if k not in indifferent}
    decisive["method"] = {k: v for k, v in record["method"].items() if k != "preset"}
    text = json.dumps(decisive, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def cell_id(record: dict[str, Any]) -> str:
    """Method, preset, benchmark, setting, model and seed in words, then the hash of all."""
    method, benchmark = record["method"], record["benchmark"]
    words = [method["name"]]
    if method["preset"] != "default":
        words.append(method["preset"])
    words.append(benchmark["name"])
    if benchmark.get("setting", "continual") != "continual":
        words.append(benchmark["setting"])
    words += [record["model"]["name"], f"seed{record['seed']}"]
    if not record.get("adapt", True):
        words.append("noadapt")
    return f"{slug_of(*words)}-{identity(record)[:8]}"


def slug_of(*words: str) -> str:
    """Words as the readable part of a folder's name, at most 111 characters."""
    return "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", word)[:32] for word in words)[:111]
