"""Expected cost of an experiment: passes that its methods declare, and hours from earlier runs.

`cost_of` needs only requests of cells; `plan.py` has the steps of a grid. Both use the same runs.
Nothing slow is imported: methods are read as text (registry.py), benchmarks from
datasets/streams.yaml, and of earlier runs only the folder's name and result.json.
"""

import functools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from ctta_bench.config.experiment import Experiment, requested
from ctta_bench.config.presets import preset_values
from ctta_bench.config.yaml import parse_yaml
from ctta_bench.errors import ConfigError
from ctta_bench.method.hyperparameters import OptimizerHyperparameters, WarmupHyperparameters
from ctta_bench.record.schema import RESULT_FILE, WARM_UP, slug_of
from ctta_bench.registry import BENCHMARKS, METHODS, Entry, canonical
from ctta_bench.stream.settings import SETTINGS, numbers_of

MOST_RUNS = 5000  # they are read in a fraction of a second
Kind = tuple[str, str, str]  # method, benchmark, and model as in names of folders
Rates = Mapping[Kind, Sequence[float]]  # images per second


@dataclass(frozen=True)
class Cost:
    """Expected cost of an experiment.

    passes: images x (forward + backward passes) of the `counted` cells. warmup_passes: those of the
    warm-ups, each once; one forward and one backward pass for each source image and epoch. hours:
    of the `timed` cells, from earlier runs of the same method, benchmark and model.
    """

    cells: int
    passes: float
    counted: int
    hours: float
    timed: int
    warmup_passes: float = 0.0

    @property
    def passes_text(self) -> str:
        """Passes in millions: `12.3`, `>= 12.3` if not all cells are counted, or `–` if none.

        With those of warm-ups: `6.38 + 77.5`.
        """
        least = "" if self.counted == self.cells else ">= "
        warmups = f" + {self.warmup_passes / 1e6:,.3g}" if self.warmup_passes else ""
        return f"{least}{self.passes / 1e6:,.3g}{warmups}" if self.counted else "–"

    @property
    def time_text(self) -> str:
        """`1.5 h`, `1.5 h (4 of 9 cells)`, or `–` without earlier runs."""
        share = "" if self.timed == self.cells else f" ({self.timed} of {self.cells} cells)"
        return f"{self.hours:.2g} h{share}" if self.timed else "–"

    def record(self) -> dict[str, Any]:
        """As plain values, None for unknown ones."""
        return {
            "image_passes_millions": round(self.passes / 1e6, 4) if self.counted else None,
            "warmup_passes_millions": round(self.warmup_passes / 1e6, 4),
            "cells_counted": self.counted,
            "hours": round(self.hours, 4) if self.timed else None,
            "cells_timed": self.timed,
        }


def cost_of(experiment: Experiment, rates: Rates) -> Cost:
    """The expected cost of an experiment file, without overrides."""
    wanted = requested(experiment)
    counted, timed = [], []
    warmups: dict[str, float] = {}
    for values in wanted:
        warmups |= _warmup_of(values)
        images, method = images_of(values), METHODS.entries().get(canonical(values["method"]))
        declared = method.attributes.get("passes_per_image") if method else None
        if images is None:
            continue
        if declared is not None:
            counted.append(images * sum(declared))
        if seen := rates.get(_kind_of(values)):
            timed.append(images / statistics.median(seen) / 3600)
    sums = sum(counted), len(counted), sum(timed), len(timed)
    return Cost(len(wanted), *sums, sum(warmups.values()))


WARMUP_PASSES = 2  # per source image and epoch: one forward, one backward


def _warmup_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Passes of the warm-up of a requested cell, by what decides it; {} if there is none."""
    entry = METHODS.entries().get(canonical(values["method"]))
    benchmark = str((values.get("shift") or {}).get("benchmark") or values["benchmark"])
    if entry is None or canonical(benchmark) not in known_streams():
        return {}
    model = _kind_of(values)[-1]
    chosen = (
        _warmup_defaults(entry)
        | preset_values(entry.name, values["preset"], canonical(benchmark), values.get("model"))
        | {k.removeprefix("method."): v for k, v in values["set"].items()}
    )
    images = warmup_images(canonical(benchmark), chosen)
    later = {*OptimizerHyperparameters.model_fields, *entry.attributes.get("stream_only", ())}
    of_start = {
        k: v for k, v in chosen.items() if k not in later and not k.startswith("benchmark.")
    }
    options = [values.get(key) for key in ("preprocessing", "precision", "seed")]
    key = json.dumps([entry.name, benchmark, model, options, of_start], default=str, sort_keys=True)
    return {key: WARMUP_PASSES * images} if images else {}


def warmup_images(benchmark: str, hyperparameters: Mapping[str, Any]) -> int | None:
    """Number of images that a warm-up trains on, over all epochs; None if it is not known."""
    if updates := hyperparameters["warmup_iterations"]:
        return int(updates * hyperparameters["warmup_batch_size"])
    source = known_streams().get(benchmark, {}).get("source")
    epochs = hyperparameters["warmup_epochs"]
    return 0 if not epochs else None if source is None else int(epochs * source)


@functools.cache
def known_streams() -> dict[str, dict[str, Any]]:
    """Number of domains, images per domain and default model, by benchmark."""
    file = resources.files("ctta_bench.datasets") / "streams.yaml"
    return parse_yaml(file.read_text(encoding="utf-8"), "streams.yaml")


def images_of(values: Mapping[str, Any]) -> int | None:
    """Number of images of a requested cell's stream; None if not known for its benchmark."""
    shift = values.get("shift") or {}
    stream = known_streams().get(canonical(shift.get("benchmark") or values["benchmark"]))
    chosen = {key.removeprefix("benchmark."): value for key, value in values["set"].items()}
    if shift:
        chosen |= {"domains": shift.get("domains")}
    return None if stream is None else _images(chosen, stream)


def _images(settings: Mapping[str, Any], stream: Mapping[str, Any]) -> int:
    """Number of images of a stream with some settings; stream: `domains`, `images` per domain."""
    chosen = {key: value for key, value in settings.items() if value is not None}
    setting = SETTINGS.get(chosen.get("setting", "continual"))
    domains = len(chosen.get("domains") or ()) or stream["domains"]
    of_each = chosen.get("examples") or stream["images"]
    images = domains * len(numbers_of(chosen.get("part"), of_each))
    if setting is not None and setting.severity_schedule:  # up to the severity, and down again
        images *= len(chosen.get("severities") or ()) or 2 * chosen.get("severity", 5) - 1
    if setting is not None and setting.labels == "shift":
        images = int(images * chosen.get("draws", setting.parameters["draws"]))
    return int(images * chosen.get("rounds", 1))


def _kind_of(values: Mapping[str, Any]) -> Kind:
    benchmark = canonical(values["benchmark"])
    model = values["set"].get("model") or values.get("model") or known_streams()[benchmark]["model"]
    seen = (values.get("shift") or {}).get("benchmark") or benchmark
    return canonical(values["method"]), seen, slug_of(str(model))


def measured(directory: Path) -> dict[Kind, list[float]]:
    """Images per second of the finished runs below a directory of experiments."""
    found: dict[Kind, list[float]] = {}
    benchmarks = frozenset(BENCHMARKS.names())
    for folder, result in _finished(directory):
        kind, rate = (
            _kind_in(folder, benchmarks),
            _positive(result.get("cost"), "images_per_second"),
        )
        if kind is not None and rate is not None:
            found.setdefault(kind, []).append(rate)
    return found


def _finished(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and result of finished cells and warm-ups; damaged ones are skipped."""
    for number, file in enumerate(sorted(directory.glob(f"*/*/{RESULT_FILE}"))):
        if number == MOST_RUNS:
            break
        try:
            result = json.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(result, dict):
            yield file.parent.name, result


def _positive(values: Any, key: str) -> float | None:
    """The positive number of a key; None if there is none."""
    value = values.get(key) if isinstance(values, dict) else None
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _kind_in(folder: str, benchmarks: frozenset[str]) -> Kind | None:
    """The kind of METHOD[-PRESET]-BENCHMARK[-SETTING]-MODEL-seedN-HASH (`config.cell_id`).

    None for warm-ups, and for cells without adaptation, which cost less.
    """
    words = folder.split("-")
    place = next((i for i, word in enumerate(words[1:], 1) if word in benchmarks), None)
    seed = next((i for i, word in enumerate(words) if word.startswith("seed")), len(words))
    if place is None or not place < seed - 1 or words[0] == "warmup" or "noadapt" in words:
        return None
    return words[0], words[place], words[seed - 1]


@dataclass(frozen=True)
class Estimate:
    """Expected hours of `known` steps; of the `unknown` ones nothing comparable was measured.

    devices: what was measured on, from files of `ctta-bench cost`; (): earlier runs.
    """

    hours: float
    known: int
    unknown: int
    devices: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.known:
            if self.devices:
                return "hours unknown: not in --throughput"
            return (
                "hours unknown: no comparable earlier runs (or --throughput, a record of "
                "`ctta-bench cost` on your GPU)"
            )
        where = f"as measured on {', '.join(self.devices)}" if self.devices else "from earlier runs"
        lacking = "measurement" if self.devices else "earlier runs"
        rest = f", plus {self.unknown} steps without {lacking}" if self.unknown else ""
        return f"about {self.hours:.1f} h on one worker, {where}{rest}"


@dataclass(frozen=True)
class Speeds:
    """What was measured: images per second of cells, seconds of warm-ups; `devices`: by `cost`."""

    rates: Rates
    warmups: Mapping[str, Sequence[float]] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    memory: Mapping[Kind, int] = field(default_factory=dict)  # peak bytes of a step

    def seconds(self, record: Mapping[str, Any]) -> float | None:
        """Expected seconds of a step; None if nothing comparable was measured.

        The time of a cell follows from its number of images, that of a warm-up from warm-ups of the
        same method and benchmark, else from its passes.
        """
        found = images_and_passes(record)
        benchmark = record["benchmark"]["name"]
        if record.get("kind") == WARM_UP:
            earlier = self.warmups.get(slug_of("warmup", record["method"]["name"], benchmark))
            if earlier:
                return statistics.median(earlier)
        seen = self.rates.get(kind_of_record(record))
        if not seen or found is None:
            return None
        images, passes = found
        if record.get("kind") == WARM_UP:  # the rate is of images that take the method's passes
            declared = METHODS.find(record["method"]["name"]).attributes.get("passes_per_image")
            if not declared or passes is None:
                return None
            images = images * passes / sum(declared)
        return images / statistics.median(seen)


def kind_of_record(record: Mapping[str, Any]) -> Kind:
    """The kind of a step. A cell without adaptation only predicts, so it costs what Source does."""
    method = record["method"]["name"] if record.get("adapt", True) else "source"
    return method, record["benchmark"]["name"], slug_of(record["model"]["name"])


def estimate(records: Sequence[Mapping[str, Any]], speeds: Speeds) -> Estimate:
    """Hours of steps run one after another; records: as in cell.yaml."""
    known = [s for record in records if (s := speeds.seconds(record)) is not None]
    return Estimate(sum(known) / 3600, len(known), len(records) - len(known), speeds.devices)


def earlier_runs(directory: Path) -> Speeds:
    """What the runs in `directory` and in the folders next to it measured."""
    rates: dict[Kind, list[float]] = {}
    warmups: dict[str, list[float]] = {}
    benchmarks = frozenset(BENCHMARKS.names())
    for folder, result in _finished(directory.resolve().parent):
        kind, rate = (
            _kind_in(folder, benchmarks),
            _positive(result.get("cost"), "images_per_second"),
        )
        seconds = _positive(result, "seconds")
        if kind is not None and rate is not None:
            rates.setdefault(kind, []).append(rate)
        elif folder.startswith("warmup-") and seconds is not None:
            warmups.setdefault(folder.rpartition("-seed")[0], []).append(seconds)
    return Speeds(rates, warmups)


def images_and_passes(record: Mapping[str, Any]) -> tuple[float, float | None] | None:
    """Number of images of a step's record, and passes for each; None if they are not known."""
    method, benchmark = METHODS.entries().get(record["method"]["name"]), record["benchmark"]
    facts = method.attributes if method else {}
    if record.get("kind") == WARM_UP:
        chosen = _warmup_defaults(method) | record["method"].get("hyperparameters", {})
        images = warmup_images(benchmark["name"], chosen)
        return None if images is None else (images, WARMUP_PASSES)
    own = {"domains": len(benchmark["domains"]), "images": benchmark.get("examples")}
    stream = known_streams().get(benchmark["name"], own)
    if not stream["images"]:
        return None
    declared = facts.get("passes_per_image") if record.get("adapt", True) else (1, 0)
    return _images(benchmark, stream), sum(declared) if declared else None


def _warmup_defaults(method: Entry | None) -> dict[str, Any]:
    """Defaults of the hyper-parameters of a method with a warm-up."""
    fields = WarmupHyperparameters.model_fields
    return {name: field.default for name, field in fields.items()} | (
        method.defaults if method else {}
    )


def read_throughput(files: Sequence[Path]) -> Speeds:
    """The measurements in records of `ctta-bench cost` (runs/cost/cost-….json).

    They hold for every benchmark, because a method sees images of the network's size. Raises
    ConfigError for a file that is no such record.
    """
    rates: dict[Kind, list[float]] = {}
    memory: dict[Kind, int] = {}
    devices: dict[str, None] = {}
    for file in files:
        try:
            made = json.loads(file.read_bytes())
            model, device = slug_of(made["model"]["name"]), str(made["environment"]["device"])
            costs = [
                (c["method"], float(c["images_per_second"]), c["resting_bytes"] + c["peak_bytes"])
                for c in made["methods"]
            ]
        except OSError as error:
            raise ConfigError(f"--throughput {file}: cannot be read ({error.strerror}).") from None
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"--throughput {file}: is no record of `ctta-bench cost`; give a file "
                "cost-….json that it wrote."
            ) from None
        batch = f"batches of {made['batch_size']}, {made['precision']}"
        devices[f"{device} ({batch})"] = None
        for benchmark in known_streams():
            for method, rate, size in costs:
                kind = method, benchmark, model
                rates.setdefault(kind, []).append(rate)
                memory[kind] = max(size, memory.get(kind, 0))
    return Speeds(rates, devices=tuple(devices), memory=memory)


def rows(
    found: Mapping[str, Experiment], directory: Path, throughput: Speeds | None = None
) -> Iterator[dict[str, Any]]:
    """One row per experiment for `ctta-bench list experiments`."""
    rates = measured(directory) if throughput is None else throughput.rates
    for name, experiment in found.items():
        cost = cost_of(experiment, rates)
        yield {
            "name": name,
            "cells": cost.cells,
            "passes": cost.passes_text,
            "time": cost.time_text,
            "description": experiment.title,
            "remakes": experiment.remakes or "–",
            **cost.record(),
        }
