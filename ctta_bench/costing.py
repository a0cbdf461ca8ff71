"""What an experiment will cost: image passes that its methods declare, and hours of earlier runs.

Nothing is imported that would take its time: methods are read as text (registry.py), benchmarks
from datasets/streams.yaml, and of runs the names of their folders and result.json alone.
"""

import functools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ctta_bench.config import parse_yaml, slug_of
from ctta_bench.experiment import Experiment, requested
from ctta_bench.registry import BENCHMARKS, METHODS, canonical
from ctta_bench.settings import SETTINGS

MOST_RUNS = 5000  # read in a fraction of a second
Kind = tuple[str, str, str]  # method, benchmark, model as folders spell it
Rates = Mapping[Kind, Sequence[float]]  # images a second


@dataclass(frozen=True)
class Cost:
    """Cost of the cells of an experiment, without warm-ups.

    passes: images x (forward + backward) of the `counted` cells. hours: of the `timed` cells, by
    earlier runs of the same method, benchmark and model.
    """

    cells: int
    passes: float
    counted: int
    hours: float
    timed: int

    @property
    def passes_text(self) -> str:
        """Passes in millions: `12.3`, `>= 12.3` where not all cells are counted, or `–`."""
        least = "" if self.counted == self.cells else ">= "
        return f"{least}{self.passes / 1e6:,.3g}" if self.counted else "–"

    @property
    def time_text(self) -> str:
        """`1.5 h`, `1.5 h (4 of 9 cells)`, or `–` without any run like these."""
        part = "" if self.timed == self.cells else f" ({self.timed} of {self.cells} cells)"
        return f"{self.hours:.2g} h{part}" if self.timed else "–"

    def record(self) -> dict[str, Any]:
        """As plain values, None for what nobody can tell."""
        return {
            "image_passes_millions": round(self.passes / 1e6, 4) if self.counted else None,
            "cells_counted": self.counted,
            "hours": round(self.hours, 4) if self.timed else None,
            "cells_timed": self.timed,
        }


def cost_of(experiment: Experiment, rates: Rates) -> Cost:
    """The cost of an experiment as its file stands."""
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
    """Domains, images a domain and model by benchmark."""
    file = resources.files("ctta_bench.datasets") / "streams.yaml"
    return parse_yaml(file.read_text(encoding="utf-8"), "streams.yaml")


def images_of(values: Mapping[str, Any]) -> int | None:
    """Images that a requested cell streams, None for a benchmark of which that is not known."""
    shift = values.get("shift") or {}
    stream = known_streams().get(canonical(shift.get("benchmark") or values["benchmark"]))
    if stream is None:
        return None
    chosen = {key.removeprefix("benchmark."): value for key, value in values["set"].items()}
    if shift:
        chosen |= {"domains": shift.get("domains")}
    setting = SETTINGS.get(chosen.get("setting", "continual"))
    domains = len(chosen.get("domains") or ()) or stream["domains"]
    images = domains * (chosen.get("examples") or stream["images"])
    if setting is not None and setting.walk:  # up to the severity, and back
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
    """Images a second of the finished runs below a directory of experiments; damaged ones tell
    nothing."""
    found: dict[Kind, list[float]] = {}
    for number, file in enumerate(sorted(directory.glob("*/*/result.json"))):
        kind = _kind_in(file.parent.name)
        if number == MOST_RUNS:
            break
        if kind is None:
            continue
        try:
            rate = float(json.loads(file.read_bytes())["cost"]["images_per_second"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if rate > 0:
            found.setdefault(kind, []).append(rate)
    return found


def _kind_in(folder: str) -> Kind | None:
    """METHOD[-PRESET]-BENCHMARK[-SETTING]-MODEL-seedN-HASH, as `config.cell_id` makes it.

    None for warm-ups, and for models that were not adapted, which cost less.
    """
    words = folder.split("-")
    place = next((i for i, word in enumerate(words[1:], 1) if word in _benchmarks()), None)
    seed = next((i for i, word in enumerate(words) if word.startswith("seed")), len(words))
    if place is None or not place < seed - 1 or words[0] == "warmup" or "noadapt" in words:
        return None
    return words[0], words[place], words[seed - 1]


@functools.cache
def _benchmarks() -> frozenset[str]:
    return frozenset(BENCHMARKS.names())


def rows(found: Mapping[str, Experiment], directory: Path) -> Iterator[dict[str, Any]]:
    """A row an experiment for `ctta-bench list experiments`."""
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
