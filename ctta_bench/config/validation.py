"""Checks of what users write, as `KEY=VALUE` or as mappings, against models of the allowed keys."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ctta_bench.config.options import cell_options
from ctta_bench.config.yaml import line_of, parse_yaml
from ctta_bench.errors import ConfigError, did_you_mean

# Names of options in other suites, for suggestions.
ELSEWHERE = {
    "learning_rate": "lr",
    "wd": "weight_decay",
    "optim": "optimizer",
    "bs": "batch_size",
    "num_examples": "examples",
    "n_examples": "examples",
    "corruptions": "domains",
    "corruption": "domains",
    "protocol": "setting",
}
Validated = TypeVar("Validated", bound=BaseModel)


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse `["lr=1e-3", "benchmark.examples=50"]` into a mapping; values are read as YAML.

    Raises ConfigError for an assignment without `=`, and for a key with two different values.
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
    """Sort overrides by owner: `method`, `benchmark` or `cell`.

    A key without the prefix `method.` or `benchmark.` must belong to exactly one owner. Raises
    ConfigError for unknown keys (with a similar one) and for keys of two owners.
    """
    owners: dict[str, Any] = {
        "method": method.model_fields,
        "benchmark": benchmark.model_fields,
        "cell": cell_options("set"),
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
    """The message for an unknown key, with a similar one or all known keys."""
    known, bare = sorted(set(known)), key.rpartition(".")[2]
    name = ELSEWHERE.get(bare, bare)
    hint = did_you_mean(name if name in known else bare, known)
    return f"unknown key {key!r}" + (hint or f"; known keys: {', '.join(known)}.")


def validate(
    model: type[Validated], values: dict[str, Any], where: str, file: Path | None = None
) -> Validated:
    """`model(**values)`; raises one ConfigError with all of pydantic's errors, naming `where`.

    file: the YAML file of the values; then an error names it with the line instead. A field with
    several values may be written as one value, or as text with commas.
    """
    fields = model.model_fields
    try:
        return model(**{k: _as_list(fields[k], v) if k in fields else v for k, v in values.items()})
    except ValidationError as error:
        problems = [_sentence(p, model, _place(p, where, file)) for p in error.errors()]
        raise ConfigError(" ".join(problems)) from None


def _as_list(field: FieldInfo, value: Any) -> Any:
    """`fog,contrast` as a list, if the field is a tuple whose option has no `read`."""
    kinds = (field.annotation, *get_args(field.annotation))
    if (
        value is None
        or isinstance(value, list | tuple)
        or all(get_origin(kind) is not tuple for kind in kinds)
        or any(getattr(option, "read", None) for option in field.metadata)
    ):
        return value
    return parse_yaml(f"value: [{value}]", "a list")["value"] if isinstance(value, str) else [value]


def _place(problem: Any, where: str, file: Path | None) -> str:
    """`where`, or the file and line of a problem."""
    found = line_of(file, problem["loc"]) if file is not None else None
    return where if found is None else f"{found[0]}:{found[1]}"


def _sentence(problem: Any, model: type[BaseModel], where: str) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = _inner_model(model, problem["loc"][:-1]).model_fields
        return f"{where}: {unknown_key(key, known)}"
    message = problem["msg"].removeprefix("Value error, ")
    if not key:  # a rule between keys
        return f"{where}: {message[:1].lower()}{message[1:]}."
    path = f"{where}: {key}" if ":" in where else f"{where}.{key}"
    return f"{path}: {problem['input']!r}: {message[:1].lower()}{message[1:]}."


def _inner_model(model: type[BaseModel], keys: Sequence[str | int]) -> type[BaseModel]:
    """The model of the values at `keys`: of a field, or of the entries of its list."""
    for key in keys:
        if key in model.model_fields:
            kinds: Any = model.model_fields[str(key)].annotation
            inner = [kind for kind in get_args(kinds) if hasattr(kind, "model_fields")]
            model = inner[0] if inner else model
    return model
