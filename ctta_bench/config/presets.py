"""Presets: the hyper-parameters of a method for a benchmark, and their sources."""

import functools
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ctta_bench.config.fields import range_text, type_text
from ctta_bench.config.yaml import merge, parse_yaml, read_yaml
from ctta_bench.errors import ConfigError, did_you_mean
from ctta_bench.registry import METHODS

# Under a benchmark's values in a preset file, not a hyper-parameter: how these values were chosen,
# {command: ..., domains: ...}. The results of `ctta-bench tune` have it, too.
TUNED = "tuned"


@functools.cache
def presets_of(method: str) -> dict[str, Any]:
    """The presets of a method: {preset: {benchmark or `any`: values}}; {} if it has none.

    They are in `presets/METHOD.yaml`, next to the file of the method, also of a plug-in. In
    `default`, values that `ctta-bench tune` found (`presets/tuned/`) take precedence over those in
    the method's file. Raises ConfigError for an unknown method, or a file that is not of this form.
    """
    name, folder = METHODS.find(method).name, METHODS.folder(method)
    if folder is None:
        return {}
    file = folder / "presets" / f"{name}.yaml"
    where = f"presets/{name}.yaml" if METHODS.is_of_package(name) else str(file)
    written = parse_yaml(file.read_text(encoding="utf-8"), where) if file.is_file() else {}
    _check_sections(written, where)
    tuned = _tuned_here() if METHODS.is_of_package(name) else _tuned(folder / "presets" / "tuned")
    found = _sections(tuned, name)
    default = merge(written.get("default") or {}, found.get("tuned", {}))
    return written | found | ({"default": default} if default else {})


@functools.cache
def _tuned_here() -> dict[str, Any]:
    """The results of `ctta-bench tune` for the package's own benchmarks, as it wrote them."""
    return _tuned(Path(str(resources.files("ctta_bench.methods"))) / "presets" / "tuned")


def _tuned(folder: Path) -> dict[str, Any]:
    """All files of `ctta-bench tune` in a folder, merged."""
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.yaml")):
        found = merge(found, read_tuned(file))
    return found


def _check_sections(written: dict[str, Any], where: str) -> None:
    """Raise ConfigError unless each preset has benchmarks, and each of these has values."""
    for preset, section in written.items():
        if not isinstance(section, dict | None):
            raise ConfigError(f"{where}: {preset}: write {{BENCHMARK or any: {{KEY: VALUE}}}}.")
        for benchmark, values in (section or {}).items():
            if not isinstance(values, dict | None):
                raise ConfigError(f"{where}: {preset}.{benchmark}: write {{KEY: VALUE}}.")


def _sections(tuned: dict[str, Any], method: str) -> dict[str, Any]:
    """Presets from a file of `tune`: `tuned`, the best trial, and `published`, trial 0."""
    entries = tuned.get(method) or {}
    if not entries:
        return {}
    return {
        "tuned": {
            key: entry["values"] | {TUNED: _search(entry.get("record") or {})}
            for key, entry in entries.items()
        },
        "published": {key: entry["published"] for key, entry in entries.items()},
    }


def _search(record: dict[str, Any]) -> dict[str, Any]:
    """What a cell records about a search: its command, domains, images and number of trials."""
    kept = {key: record[key] for key in ("command", "domains", "images") if key in record}
    whole = record.get("earlier", record)  # else `record` is of its best trials, run again
    return kept | ({"trials": len(whole["trials"])} if "trials" in whole else {})


def read_tuned(file: Path) -> dict[str, Any]:
    """Read a file of `ctta-bench tune`: {method: {benchmark: its results}}. Raises ConfigError."""
    found = read_yaml(file)
    for method, entries in found.items():
        whole = isinstance(entries, dict) and all(
            isinstance(entry, dict)
            and isinstance(entry.get("values"), dict)
            and isinstance(entry.get("published"), dict)
            for entry in entries.values()
        )
        if not whole:
            raise ConfigError(
                f"{file}: {method}: is not an entry of `ctta-bench tune` (each BENCHMARK needs "
                "`values` and `published`)."
            )
    return found


def preset_name(preset: str) -> str:
    """The name of a preset in records and tables; of a file, its name without the suffix."""
    return Path(preset).stem if _is_file(preset) else preset


def _is_file(preset: str) -> bool:
    return preset.endswith((".yaml", ".yml"))


def preset_values(
    method: str, preset: str, benchmark: str, model: str | None = None
) -> dict[str, Any]:
    """The values of a preset for a benchmark.

    Values under `any` come first, those of the benchmark override them, and those under
    `BENCHMARK@MODEL`, for one model only, override both. Without a preset `default` the defaults
    of the hyper-parameters are used. A preset that ends in .yaml is a file of `ctta-bench tune`.
    Raises ConfigError if the method has no such preset, or none for this benchmark.
    """
    return without_search(preset_with_search(method, preset, benchmark, model))


def without_search(of_preset: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of what `preset_with_search` returns."""
    return {k: v for k, v in of_preset.items() if k != TUNED}


def search_behind(of_preset: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any] | None:
    """How the values of a cell were tuned, by what `preset_with_search` returns; else None.

    None too if one of them is not the preset's, so that a searched value which was set by hand is
    not called tuned.
    """
    search: dict[str, Any] | None = of_preset.get(TUNED)
    preset = without_search(of_preset)
    same = all(json.dumps(values.get(k)) == json.dumps(v) for k, v in preset.items())
    return search if same else None


def _presets_with(method: str, preset: str) -> dict[str, Any]:
    """The presets of a method; of a file of `ctta-bench tune`, what it has for the method."""
    if not _is_file(preset):
        return presets_of(method)
    found = _sections(read_tuned(Path(preset)), method)
    # A method without hyper-parameters cannot be tuned.
    nothing = not METHODS.get(method).Hyperparameters.model_fields
    return {preset: found.get("tuned", {"any": {}} if nothing else {})}


def preset_with_search(
    method: str, preset: str, benchmark: str, model: str | None = None
) -> dict[str, Any]:
    """`preset_values`, and under TUNED how they were chosen, if they were tuned."""
    sections = _presets_with(method, preset)
    if preset not in sections:
        if preset == "default":
            return {}
        known = dict.fromkeys([*sections, "default"])
        hint = did_you_mean(preset, known) or "."
        raise ConfigError(
            f"method {method!r} has no preset {preset!r}{hint} It has: {', '.join(known)}."
        )
    section = sections[preset] or {}
    keys = ("any", benchmark, f"{benchmark}@{model}")
    if not any(key in section for key in keys) and preset != "default":
        raise ConfigError(
            f"preset {preset!r} of {method!r} has no values for {benchmark!r}; it has values for "
            f"{', '.join(section) or 'none'}."
        )
    return {k: v for key in keys for k, v in (section.get(key) or {}).items()}


def preset_note(method: str, preset: str, benchmark: str, model: str, made_for: str) -> str:
    """A note that hyper-parameters were chosen for another model; "" if they were not.

    made_for: the benchmark's default model, for which its presets were chosen.
    """
    section = _presets_with(method, preset).get(preset) or {}
    if model == made_for or f"{benchmark}@{model}" in section:
        return ""
    if benchmark in section:
        return f"no preset for {model}, using {preset} of {benchmark} (made for {made_for})"
    whose = "any benchmark" if "any" in section else "the method"
    return f"no preset for {model}, using {preset} of {whose}"


def _searched(options: Any) -> str:
    """A range or a list of values as text: `1e-05 to 0.1`, `1, 5, 20`."""
    return (" to " if isinstance(options, tuple) else ", ").join(map(str, options))


def describe(method: str) -> dict[str, Any]:
    """A method's hyper-parameters (type, range, default, search space, description) and presets."""
    fields = METHODS.get(method).Hyperparameters.model_fields
    searched = METHODS.get(method).search_space
    return {
        "hyperparameters": [
            {
                "name": name,
                "type": type_text(field.annotation),
                "range": range_text(field.metadata),
                "default": field.default,
                "searched": _searched(searched.get(name, [])),
                "description": field.description or "",
            }
            for name, field in fields.items()
        ],
        "presets": presets_of(METHODS.find(method).name),
    }
