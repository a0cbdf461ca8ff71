"""How long a grid will take, from what earlier runs of the same kind took."""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ctta_bench.launch.steps import Step
from ctta_bench.record import read_record

MOST_RUNS = 3000  # enough for a median, and read in seconds
Kind = tuple[str, ...]


@dataclass(frozen=True)
class Estimate:
    """Hours of all steps that earlier runs tell of; `unknown` steps have no run like them."""

    hours: float
    known: int
    unknown: int

    def __str__(self) -> str:
        if not self.known:
            return "hours unknown: no earlier run like these"
        rest = f", beside {self.unknown} without an earlier run" if self.unknown else ""
        return f"about {self.hours:.1f} h on one worker, from earlier runs{rest}"


def estimate(steps: Sequence[Step], directory: Path) -> Estimate:
    """Hours that steps take together, one after another, by the runs in and beside a directory."""
    by_image: dict[Kind, list[float]] = {}
    whole: dict[Kind, list[float]] = {}
    for record, seconds, images in _earlier(directory):
        whole.setdefault(_kind(record, whole=True), []).append(seconds)
        if images:
            by_image.setdefault(_kind(record), []).append(seconds / images)
    known = [_seconds(step.record, whole, by_image) for step in steps]
    told = [seconds for seconds in known if seconds is not None]
    return Estimate(sum(told) / 3600, len(told), len(known) - len(told))


def _seconds(
    record: dict[str, Any], whole: dict[Kind, list[float]], by_image: dict[Kind, list[float]]
) -> float | None:
    same = whole.get(_kind(record, whole=True))
    if same:
        return statistics.median(same)
    images, like = _images(record), by_image.get(_kind(record))
    return images * statistics.median(like) if images and like else None


def _kind(record: dict[str, Any], *, whole: bool = False) -> Kind:
    """What runs have in common that take as long an image, or (`whole`) as long altogether."""
    benchmark = record["benchmark"]
    named = (
        str(record.get("kind", "cell")),
        str(record["method"]["name"]),
        str(benchmark["name"]),
        str(record["model"]["name"]),
        str(record.get("precision")),
    )
    if not whole:
        return named
    return (*named, json.dumps([record["method"], benchmark], sort_keys=True, default=str))


def _images(record: dict[str, Any]) -> int | None:
    """Images in the stream of a cell, where its record tells."""
    benchmark = record["benchmark"]
    counts = (
        len(benchmark.get("domains") or ()),
        benchmark.get("examples"),
        benchmark.get("rounds"),
    )
    if not all(isinstance(count, int) and count > 0 for count in counts):
        return None
    domains, examples, rounds = counts
    return int(domains * examples * rounds)


def _earlier(directory: Path) -> Iterator[tuple[dict[str, Any], float, int]]:
    """Record, seconds and images of finished runs in a folder, and in the folders beside it."""
    places = [directory, *(p for p in sorted(directory.parent.glob("*")) if p != directory)]
    results = (file for place in places for file in sorted(place.glob("*/result.json")))
    for number, file in enumerate(results):
        if number == MOST_RUNS:
            return
        try:
            result = json.loads(file.read_text("utf-8"))
            record = read_record(file.parent)
            _kind(record, whole=True)
            if record.get("kind") == "warm-up":
                yield record, float(result["seconds"]), 0
            else:
                images = sum(d["n"] for entry in result["rounds"] for d in entry["domains"])
                yield record, float(result["cost"]["seconds"]), int(images)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError):
            continue  # unfinished or damaged: it tells nothing
