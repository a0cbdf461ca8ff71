"""What the published rows were run with, as the packaged experiments `paper/*` and presets say."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ctta_bench.analysis.read import experiments
from ctta_bench.registry import METHODS

_MAIN = {  # the experiment of the main table of each benchmark
    "imagenet_c": "main_imagenet_c",
    "cifar100_c": "main_cifar100_c",
    "cifar10_c": "main_cifar10_c",
    "cityscapes_acdc": "main_acdc",
}
_CONTROLS = "component"  # LoRA and DoRA
_DEFAULT_BATCH = {"cityscapes_acdc": 1}
# Of the text, where the preset leaves it to the default of a base class; and as a cell records it.
_TEXT: dict[str, dict[str, Any]] = {
    "paid": {"layers": "qkvom", "entropy_filter": False},
    "sar": {"faithful": False},
}
_LENGTHS = ("warmup_epochs", "warmup_iterations")


@dataclass(frozen=True)
class AsRun:
    """What a published row was run with.

    preprocessing: `lineage` or `true`. preset: of the values, over the defaults of the method.
    values: those of the preset and the experiment. defaults: the others.
    """

    preprocessing: str
    batch_size: int
    preset: str
    values: Mapping[str, Any]
    defaults: Mapping[str, Any]

    @property
    def has_warmup(self) -> bool:
        """Whether it starts from a warm-up."""
        return any(self.values.get(key) for key in _LENGTHS)

    def differing(self, hyperparameters: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """The hyper-parameters with another value: of the row, and as published.

        Those whose published value is not known are left out.
        """
        known = {**self.defaults, **self.values}
        return {
            key: (value, known[key])
            for key, value in sorted(hyperparameters.items())
            if key in known and not _same(value, known[key])
        }


@functools.cache
def as_run(benchmark: str, method: str) -> AsRun | None:
    """What the row of a method was run with; None if the experiments do not have it."""
    for name in filter(None, (_MAIN.get(benchmark), _CONTROLS)):
        content = _content(name)
        for entry in content["methods"]:
            entry = {"name": entry} if isinstance(entry, str) else entry
            if entry["name"] == method and benchmark in _benchmarks(content):
                return _of(entry, content, benchmark)
    return None


def _of(entry: Mapping[str, Any], content: Mapping[str, Any], benchmark: str) -> AsRun:
    method, preset = str(entry["name"]), str(entry.get("preset", "default"))
    given = {**content.get("set", {}), **entry.get("set", {})}
    sizes = entry.get("sweep", {}).get("benchmark.batch_size") or [
        given.get("benchmark.batch_size", _DEFAULT_BATCH.get(benchmark, 64))
    ]
    return AsRun(
        str((content.get("preprocessing") or ["true"])[0]),
        int(sizes[0]),
        preset,
        _preset(method, preset, benchmark),
        {**METHODS.find(method).defaults, **_TEXT.get(method, {})},
    )


def _preset(method: str, preset: str, benchmark: str) -> dict[str, Any]:
    """The values of a packaged preset for a benchmark."""
    file = Path(str(resources.files("ctta_bench.methods"))) / "presets" / f"{method}.yaml"
    section = (yaml.safe_load(file.read_text("utf-8")) or {}).get(preset) or {}
    values = {**(section.get("any") or {}), **(section.get(benchmark) or {})}
    return {key: value for key, value in values.items() if key != "tuned"}


@functools.cache
def _content(experiment: str) -> dict[str, Any]:
    """The content of a packaged experiment, with its base."""
    file = experiments.packaged(experiment)
    found: dict[str, Any] = yaml.safe_load(file.read_text("utf-8")) if file else {}
    base = found.pop("_base_", "")
    return (_content(Path(base).stem) if base else {}) | found


def _benchmarks(content: Mapping[str, Any]) -> list[str]:
    return [str(name) for name in content["benchmarks"]]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return list(a) == list(b)
    return bool(a == b)
