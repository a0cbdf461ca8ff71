"""Expected cost of an experiment: passes that its methods declare, and hours from earlier runs.

`cost_of` needs only requests of cells, `estimate` their records; both use the same earlier runs.
Nothing slow is imported: methods are read as text (registry.py), benchmarks from
datasets/streams.yaml, and of earlier runs only the folder's name and result.json.
"""

import functools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ctta_bench.config.experiment import Experiment, requested
from ctta_bench.config.yaml import parse_yaml
from ctta_bench.record.schema import RESULT_FILE, WARM_UP, slug_of
from ctta_bench.registry import BENCHMARKS, METHODS, canonical
from ctta_bench.stream.settings import SETTINGS

MOST_RUNS = 5000  # they are read in a fraction of a second
Kind = tuple[str, str, str]  # method, benchmark, and model as in names of folders
Rates = Mapping[Kind, Sequence[float]]  # images per second


@dataclass(frozen=True)
class Cost:
    """Expected cost of the cells of an experiment, without warm-ups.

    passes: images x (forward + backward passes) of the `counted` cells. hours: of the `timed`
    cells, from earlier runs of the same method, benchmark and model.
    """

    cells: int
    passes: float
    counted: int
    hours: float
    timed: int

    @property
    def passes_text(self) -> str:
        """Passes in millions: `12.3`, `>= 12.3` if not all cells are counted, or `–` if none."""
        least = "" if self.counted == self.cells else ">= "
        return f"{least}{self.passes / 1e6:,.3g}" if self.counted else "–"

    @property
    def time_text(self) -> str:
        """`1.5 h`, `1.5 h (4 of 9 cells)`, or `–` without earlier runs."""
        share = "" if self.timed == self.cells else f" ({self.timed} of {self.cells} cells)"
        return f"{self.hours:.2g} h{share}" if self.timed else "–"

    def record(self) -> dict[str, Any]:
        """As plain values, None for unknown ones."""
        return {
            "image_passes_millions": round(self.passes / 1e6, 4) if self.counted else None,
            "cells_counted": self.counted,
            "hours": round(self.hours, 4) if self.timed else None,
            "cells_timed": self.timed,
        }


def cost_of(experiment: Experiment, rates: Rates) -> Cost:
    """The expected cost of an experiment file, without overrides."""
    wanted = requested(experiment)
    counted, timed = [], []
    for values in wanted:
        images, method = images_of(values), METHODS.entries().get(canonical(values["method"]))
        declared = method.attributes.get("passes_per_image") if method else None
        if images is None:
            continue
        if declared is not None:
            counted.append(images * sum(declared))
        if seen := rates.get(_kind_of(values)):
            timed.append(images / statistics.median(seen) / 3600)
    return Cost(len(wanted), sum(counted), len(counted), sum(timed), len(timed))


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
    images = domains * (chosen.get("examples") or stream["images"])
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
    """Expected hours of `known` steps, from earlier runs; `unknown` steps have no such run."""

    hours: float
    known: int
    unknown: int

    def __str__(self) -> str:
        if not self.known:
            return "hours unknown: no comparable earlier runs"
        rest = f", plus {self.unknown} steps without earlier runs" if self.unknown else ""
        return f"about {self.hours:.1f} h on one worker, from earlier runs{rest}"


def estimate(records: Sequence[Mapping[str, Any]], directory: Path) -> Estimate:
    """Hours of steps run one after another, from runs in `directory` and the folders next to it.

    records: as in cell.yaml. The time of a cell follows from its number of images, that of a
    warm-up from warm-ups of the same method and benchmark.
    """
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
    known = [s for record in records if (s := _seconds(record, rates, warmups)) is not None]
    return Estimate(sum(known) / 3600, len(known), len(records) - len(known))


def _seconds(
    record: Mapping[str, Any], rates: Rates, warmups: Mapping[str, Sequence[float]]
) -> float | None:
    method, benchmark = record["method"]["name"], record["benchmark"]
    if record.get("kind") == WARM_UP:
        earlier = warmups.get(slug_of("warmup", method, benchmark["name"]))
        return statistics.median(earlier) if earlier else None
    # A cell without adaptation only predicts, so it costs as much as `source`.
    cost_as = method if record.get("adapt", True) else "source"
    seen = rates.get((cost_as, benchmark["name"], slug_of(record["model"]["name"])))
    own = {"domains": len(benchmark["domains"]), "images": benchmark.get("examples")}
    stream = known_streams().get(benchmark["name"], own)
    if not seen or not stream["images"]:
        return None
    return _images(benchmark, stream) / statistics.median(seen)


def rows(found: Mapping[str, Experiment], directory: Path) -> Iterator[dict[str, Any]]:
    """One row per experiment for `ctta-bench list experiments`."""
    rates = measured(directory)
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
