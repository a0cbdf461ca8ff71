"""YAML files as plain mappings: strict, safe, and merged over the files in `_base_`."""

import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from ctta_bench.errors import ConfigError
from ctta_bench.record.read import YAML_LOADER


def read_yaml(file: Path, *, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A YAML mapping over its `_base_` files: paths relative to it, or names of experiments.

    Raises ConfigError for a file that is missing, unreadable, larger than 1 MB or invalid, and for
    one that includes itself.
    """
    file = file.resolve()
    if file in seen:
        raise ConfigError(f"{file}: `_base_` includes the file itself.")
    try:
        if file.stat().st_size > 1_000_000:
            raise ConfigError(f"{file}: is larger than 1 MB, so it is not a configuration file.")
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not UTF-8 text.") from None
    values = parse_yaml(text, str(file))
    bases = values.pop("_base_", [])
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        merged = merge(merged, read_yaml(_base_file(file, base), seen=(*seen, file)))
    return merge(merged, values)


def _base_file(file: Path, base: str) -> Path:
    """The file of a `_base_`: a path relative to `file`, or an experiment of the package."""
    if Path(base).suffix in (".yaml", ".yml"):
        return file.parent / base
    found = Path(str(resources.files("ctta_bench.experiments"))) / f"{base}.yaml"
    if not found.is_file():
        raise ConfigError(
            f"{file}: _base_: {base!r} is no experiment of the package (`ctta-bench list "
            "experiments`); for a file, write its ending .yaml as well."
        )
    return found


class _Strict(Composer, SafeConstructor, Resolver):
    """Rejects repeated keys, and aliases (a few bytes of them can fill a disk)."""

    check_event: Callable[..., bool]  # of the parser of a loader
    peek_event: Callable[[], Any]

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


def _plain_number(loader: _Strict, node: yaml.ScalarNode) -> int | float:
    """A number as it is read everywhere. YAML 1.1 takes 010 for 8, 1:30 for 90, 1_0 for 10."""
    if re.match(r"[-+]?0[0-9box]|.*[:_]", node.value):
        raise yaml.MarkedYAMLError(
            problem=f"{node.value!r} is no plain decimal number; write it as one, or in quotes",
            problem_mark=node.start_mark,
        )
    is_int = node.tag.endswith("int")
    return loader.construct_yaml_int(node) if is_int else loader.construct_yaml_float(node)


_Strict.yaml_constructors = SafeConstructor.yaml_constructors | dict.fromkeys(
    ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"), _plain_number
)


# Both loaders are SafeLoaders: they make plain types only.
class _StrictLoader(_Strict, yaml.SafeLoader):
    """SafeLoader that is strict."""


class _FastLoader(_Strict, YAML_LOADER):  # type: ignore[misc]
    """The same in a quarter of the time, where there is libyaml; its messages are others."""

    def __init__(self, text: str) -> None:
        YAML_LOADER.__init__(self, text)
        Composer.__init__(self)


def _load(text: str) -> Any:
    try:
        return _FastLoader(text).get_single_data()
    except yaml.YAMLError:
        return yaml.load(text, _StrictLoader)


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """Parse YAML text into a mapping; messages contain `name`. Raises ConfigError."""
    try:
        values = _load(text)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError(f"{name}{where}: is not valid YAML: {problem}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: must be a mapping of keys and values.")
    return values


def line_of(file: Path, keys: Sequence[str | int]) -> tuple[Path, int] | None:
    """The file and line, from 1, where the value at `keys` is written; None if it is not found.

    The file must be one that `read_yaml` reads; of its `_base_` files the last one that has the
    keys is given. Keys that are not written (e.g. a missing one) give the line of their mapping.
    """
    node = yaml.compose(file.read_text(encoding="utf-8"), _StrictLoader)
    found, line = node, None
    for key in keys:
        inner = _inner(found, key)
        if inner is None:
            break
        line, found = inner
    if line is not None:
        return file, line
    base = _inner(node, "_base_")
    values = [] if base is None else getattr(base[1], "value", [])
    names = [values] if isinstance(values, str) else [each.value for each in values]
    places = (line_of(_base_file(file, name).resolve(), keys) for name in reversed(names))
    return next((place for place in places if place is not None), None)


def _inner(node: Any, key: str | int) -> tuple[int, Any] | None:
    """Line and node of a key of a mapping, or of a number of a list; None if there is none."""
    if isinstance(node, yaml.MappingNode):
        for written, value in node.value:
            if written.value == str(key):
                return written.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key].start_mark.line + 1, node.value[key]
    return None


def merge(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`base` with `overrides`, key by key through nested mappings; lists are replaced."""
    merged = dict(base)
    for key, value in overrides.items():
        old = merged.get(key)
        both = isinstance(value, dict) and isinstance(old, dict)
        merged[key] = merge(old or {}, value) if both else value
    return merged
