"""result.json held against predictions.npz: a result is used only if both tell the same."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ctta_bench.analysis.confusion import SegmentedImages, read_segmented
from ctta_bench.analysis.folders import (
    UnusableCellError,
    check_schema,
    read_json,
    wrong_content,
)
from ctta_bench.analysis.measure import CLASS_PREFIX, metric_named
from ctta_bench.analysis.predictions import read_predictions

COLLAPSE_SHARE = 0.9  # of the predictions in one class
DOMINANT_LABEL_SHARE = 0.5  # with such a class among the labels, one-sided predictions are right
_ROUNDING = 0.06  # points: result.json may be rounded to one decimal
_NOT_VALUES = {"domain", "n", "errors", "pixels"}

Key = tuple[int, str]  # round, domain


@dataclass(frozen=True)
class Count:
    """What was counted in a domain of a round.

    n: images. errors: wrong images, or wrong pixels where these have labels. noted: what else
    result.json notes under which name. values: metrics in % at full precision, None where there is
    nothing to score.
    """

    n: int
    errors: int
    noted: tuple[str, int]
    collapsed: bool
    values: dict[str, float | None]


@dataclass(frozen=True)
class Result:
    """A finished cell.

    facts: metric, counters, cost, source accuracy and order hash, by their names in result.json.
    counts: round, domain, n, errors, collapsed. values: round, domain, metric, value; error, ece
    and IoU in %, None where there is nothing to score.
    """

    facts: dict[str, Any]
    counts: list[dict[str, Any]]
    values: list[dict[str, Any]]


def read_result(folder: Path, cell: Mapping[str, Any]) -> Result:
    """The result of a finished cell, recounted.

    cell: what cell.yaml says: `cell` (the name), `model_sha256`, `domains` and `metric`. Raises
    UnusableCellError with the reason if a file is cut, damaged, of a newer schema, of another cell
    or model, or disagrees with the others.
    """
    result = read_json(folder / "result.json")
    check_schema("result.json", result)
    try:
        _check_identity(result, cell)
        metric = metric_named(result["metric"])
        reported = {
            (int(part["round"]), str(entry["domain"])): entry
            for part in result["rounds"]
            for entry in part["domains"]
        }
        counts = _RECOUNTS[metric.name](folder, cell["domains"], result)
        _check_counts(reported, counts)
        _check_values(reported, counts, metric.name)
        _check_mean(result)
        rows = [
            {
                "round": step,
                "domain": domain,
                "n": c.n,
                "errors": c.errors,
                "collapsed": c.collapsed,
            }
            for (step, domain), c in counts.items()
        ]
        return Result(_facts(result), rows, list(_values(reported, counts)))
    except (KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError) as error:
        raise wrong_content("result.json", error) from error


def _facts(result: dict[str, Any]) -> dict[str, Any]:
    names = ("metric", "source_accuracy", "order_sha256")
    counters = {"skipped_updates": 0, "resets": 0} | result["counters"]
    classes = tuple(map(str, result.get("classes") or ()))
    named = {name: result.get(name) for name in names}
    return {**named, "classes": classes, **counters, **result["cost"]}


def _check_identity(result: Mapping[str, Any], cell: Mapping[str, Any]) -> None:
    if result["cell"] != cell["cell"]:
        raise UnusableCellError(
            f"contradictory: result.json is of cell {result['cell']}, not of this folder"
        )
    if result.get("model_sha256", cell["model_sha256"]) != cell["model_sha256"]:
        raise UnusableCellError(
            "contradictory: result.json was made with other weights than cell.yaml names"
        )
    if metric_named(result["metric"]).name != cell["metric"]:
        raise UnusableCellError(
            f"contradictory: result.json is in {result['metric']}, the benchmark of cell.yaml is "
            f"scored by {cell['metric']}"
        )


def _count_errors(folder: Path, domains: Sequence[str], _: Mapping[str, Any]) -> dict[Key, Count]:
    """Images and errors per round and domain, from what was predicted for each image."""
    prediction, label, domain, round_ = read_predictions(
        folder, "prediction", "label", "domain", "round"
    )
    _check_domains(domain, domains)
    # By visit (a domain of a round) all at once: a loop over visits takes most of a report's time.
    visits, visit = _numbered(round_.astype(np.int64) * len(domains) + domain)
    images = np.bincount(visit, minlength=len(visits))
    wrong = np.bincount(visit[prediction != label], minlength=len(visits))
    classes, number = _numbered(np.concatenate([prediction, label]))
    predicted, labelled = (
        np.bincount(visit * len(classes) + part, minlength=len(visits) * len(classes)).reshape(
            len(visits), len(classes)
        )
        for part in np.split(number, 2)
    )
    per_visit = zip(
        visits.tolist(),
        images.tolist(),
        wrong.tolist(),
        _is_collapsed(predicted, labelled).tolist(),
        strict=True,
    )
    return {
        (visit // len(domains), str(domains[visit % len(domains)])): Count(
            n=n,
            errors=errors,
            noted=("errors", errors),
            collapsed=collapsed,
            values={"error": 100 * errors / n},
        )
        for visit, n, errors, collapsed in per_visit
    }


def _numbered(
    values: npt.NDArray[Any],
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The distinct values, sorted, and for each value its place among them."""
    distinct, place = np.unique(values, return_inverse=True)
    return distinct, place.astype(np.int64)


def _count_pixels(
    folder: Path, domains: Sequence[str], result: Mapping[str, Any]
) -> dict[Key, Count]:
    """Pixels, mIoU and the IoU of each class per round and domain, from summed confusions."""
    images: SegmentedImages = read_segmented(folder)
    classes = [str(name) for name in result["classes"]]
    if images.tallies.hits.shape[1] != len(classes):
        raise UnusableCellError(
            f"contradictory: predictions.npz has {images.tallies.hits.shape[1]} classes, "
            f"result.json {len(classes)}"
        )
    counts = {}
    for step, position, name in _visits(images.round, images.domain, domains):
        here = images.of(step, position)
        tallies = images.tallies.at(here).summed()
        by_class = zip(classes, tallies.iou().tolist(), strict=True)
        values = {"miou": float(tallies.miou())}
        values |= {f"{CLASS_PREFIX}{class_name}": iou for class_name, iou in by_class}
        counts[step, name] = Count(
            n=int(here.sum()),
            errors=tallies.errors,
            noted=("pixels", tallies.pixels),
            collapsed=bool(_is_collapsed(tallies.predicted, tallies.labelled)),
            values={key: None if np.isnan(value) else value for key, value in values.items()},
        )
    return counts


_RECOUNTS: Mapping[str, Callable[[Path, Sequence[str], Mapping[str, Any]], dict[Key, Count]]] = {
    "error": _count_errors,
    "miou": _count_pixels,
}


def _visits(
    round_: npt.NDArray[Any], domain: npt.NDArray[Any], domains: Sequence[str]
) -> Iterator[tuple[int, int, str]]:
    """Round, position and name of each domain that has images."""
    _check_domains(domain, domains)
    for step, position in np.unique(np.stack([round_, domain], axis=1), axis=0).tolist():
        yield step, position, str(domains[position])


def _check_domains(domain: npt.NDArray[Any], domains: Sequence[str]) -> None:
    if len(domain) and not 0 <= domain.min() <= domain.max() < len(domains):
        raise UnusableCellError("contradictory: predictions.npz has domains that cell.yaml lacks")


def _is_collapsed(predicted: npt.NDArray[Any], labelled: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether predictions are of one class and labels are not, by how many [..., C] each has."""
    total = predicted.sum(-1)
    in_one = (total > 0) & (predicted.max(-1) >= COLLAPSE_SHARE * total)
    mixed = labelled.max(-1) < DOMINANT_LABEL_SHARE * labelled.sum(-1)
    return np.asarray(in_one & mixed)


def _check_counts(reported: Mapping[Key, dict[str, Any]], counts: Mapping[Key, Count]) -> None:
    name = next((count.noted[0] for count in counts.values()), "errors")
    for key in sorted(reported.keys() | counts.keys()):
        entry, count = reported.get(key), counts.get(key)
        said = (entry[name], entry["n"]) if entry else (0, 0)
        counted = (count.noted[1], count.n) if count else (0, 0)
        if said != counted:
            raise UnusableCellError(
                f"contradictory: round {key[0]}, {key[1]}: {said[0]} {name} in {said[1]} images by "
                f"result.json, {counted[0]} in {counted[1]} by predictions.npz"
            )


def _check_values(
    reported: Mapping[Key, dict[str, Any]], counts: Mapping[Key, Count], metric: str
) -> None:
    for key, entry in sorted(reported.items()):
        said, counted = entry[metric], counts[key].values[metric]
        if said is None and counted is None:
            continue
        if said is None or counted is None or not abs(said - counted) <= _ROUNDING:
            raise UnusableCellError(
                f"contradictory: round {key[0]}, {key[1]}: result.json gives "
                f"{_article(metric)} {metric} of {said} %, its counts give {_two(counted)} %"
            )


def _article(word: str) -> str:
    return "an" if word[0] in "aeio" else "a"


def _two(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _check_mean(result: dict[str, Any]) -> None:
    """The mean must be that of the domains that have a value, then of the rounds that have one."""
    metric = result["metric"]
    mean = _mean([_mean([entry[metric] for entry in part["domains"]]) for part in result["rounds"]])
    said = result["mean"]
    if mean is None and said is None:
        return
    if mean is None or said is None or not abs(mean - said) <= _ROUNDING:
        raise UnusableCellError(
            f"contradictory: result.json gives a mean of {said}, its domains {_two(mean)}"
        )


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None


def _values(
    reported: Mapping[Key, dict[str, Any]], counts: Mapping[Key, Count]
) -> Iterator[dict[str, Any]]:
    """Metrics of every domain: the recounted ones exact, where result.json may be rounded."""
    for (step, domain), entry in reported.items():
        values = {name: entry[name] for name in entry if name not in _NOT_VALUES}
        for metric, value in (values | counts[step, domain].values).items():
            if value is None or isinstance(value, int | float):
                yield {"round": step, "domain": domain, "metric": metric, "value": value}
