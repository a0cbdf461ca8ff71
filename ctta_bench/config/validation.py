"""What users give, as `KEY=VALUE` or as mappings, against the models that say what may be given."""

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ctta_bench.config.options import cell_options
from ctta_bench.config.yaml import parse_yaml
from ctta_bench.errors import ConfigError

Validated = TypeVar("Validated", bound=BaseModel)


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
