"""result.json held against predictions.npz: a result is used only if both tell the same."""

import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ctta_bench.analysis.folders import (
    UnusableCellError,
    check_schema,
    read_json,
    wrong_content,
)

COLLAPSE_SHARE = 0.9  # of the predictions in one class
DOMINANT_LABEL_SHARE = 0.5  # with such a class among the labels, one-sided predictions are right
# What zipfile, zlib and numpy raise on cut or flipped bytes (a flipped flag reads as encryption or
# an unknown compression, RuntimeError; a flipped shape as too much memory; no zip at all as an
# array, which is no context manager).
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    RuntimeError,
    MemoryError,
    TypeError,
    AttributeError,
    zipfile.BadZipFile,
    zlib.error,
)
_ROUNDING = 0.06  # points: result.json may be rounded to one decimal

Key = tuple[int, str]  # round, domain


@dataclass(frozen=True)
class Result:
    """A finished cell.

    facts: metric, counters, cost, source accuracy and order hash, by their names in result.json.
    counts: round, domain, n, errors, collapsed; empty for metrics other than error.
    values: round, domain, metric, value; error, ece and mIoU in %.
    """

    facts: dict[str, Any]
    counts: list[dict[str, Any]]
    values: list[dict[str, Any]]


def read_result(folder: Path, cell: str, model_sha256: str, domains: Sequence[str]) -> Result:
    """The result of a finished cell, recounted.

    Raises UnusableCellError with the reason if a file is cut, damaged, of a newer schema, of
    another cell or model, or disagrees with the others.
    """
    result = read_json(folder / "result.json")
    check_schema("result.json", result)
    try:
        _check_identity(result, cell, model_sha256)
        reported = {
            (int(part["round"]), str(entry["domain"])): entry
            for part in result["rounds"]
            for entry in part["domains"]
        }
        counts = {}
        if result["metric"] == "error":
            counts = _recount(folder, domains)
            _check_counts(reported, counts)
        _check_mean(result)
        return Result(_facts(result), list(counts.values()), list(_values(reported, counts)))
    except (KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError) as error:
        raise wrong_content("result.json", error) from error


def _facts(result: dict[str, Any]) -> dict[str, Any]:
    names = ("metric", "source_accuracy", "order_sha256")
    counters = {"skipped_updates": 0, "resets": 0} | result["counters"]
    return {**{name: result.get(name) for name in names}, **counters, **result["cost"]}


def _check_identity(result: dict[str, Any], cell: str, model_sha256: str) -> None:
    if result["cell"] != cell:
        raise UnusableCellError(
            f"contradictory: result.json is of cell {result['cell']}, not of this folder"
        )
    if result.get("model_sha256", model_sha256) != model_sha256:
        raise UnusableCellError(
            "contradictory: result.json was made with other weights than cell.yaml names"
        )


def read_predictions(folder: Path, *names: str) -> list[npt.NDArray[Any]]:
    """The named arrays of predictions.npz, equally long, or UnusableCellError."""
    try:
        # Opened here, for np.load leaves a damaged file open.
        with (
            (folder / "predictions.npz").open("rb") as stream,
            np.load(stream, allow_pickle=False) as file,
        ):
            arrays = [file[name] for name in names]
    except FileNotFoundError as error:
        raise UnusableCellError("half-written: predictions.npz is missing") from error
    except _DAMAGE as error:
        raise UnusableCellError("corrupted: predictions.npz cannot be read") from error
    if len({array.shape for array in arrays}) != 1 or arrays[0].ndim != 1:
        raise UnusableCellError("corrupted: the arrays of predictions.npz differ in length")
    return arrays


def _recount(folder: Path, domains: Sequence[str]) -> dict[Key, dict[str, Any]]:
    """Images, errors and collapse per round and domain, from what was predicted for each image."""
    prediction, label, domain, round_ = read_predictions(
        folder, "prediction", "label", "domain", "round"
    )
    if len(domain) and not 0 <= domain.min() <= domain.max() < len(domains):
        raise UnusableCellError("contradictory: predictions.npz has domains that cell.yaml lacks")
    counts = {}
    for step, position in np.unique(np.stack([round_, domain], axis=1), axis=0).tolist():
        here = (round_ == step) & (domain == position)
        counts[step, str(domains[position])] = {
            "round": step,
            "domain": str(domains[position]),
            "n": int(here.sum()),
            "errors": int((prediction[here] != label[here]).sum()),
            "collapsed": _is_collapsed(prediction[here], label[here]),
        }
    return counts


def _is_collapsed(prediction: npt.NDArray[Any], label: npt.NDArray[Any]) -> bool:
    return _top_share(prediction) >= COLLAPSE_SHARE and _top_share(label) < DOMINANT_LABEL_SHARE


def _top_share(classes: npt.NDArray[Any]) -> float:
    return float(np.unique(classes, return_counts=True)[1].max() / len(classes))


def _check_counts(reported: dict[Key, dict[str, Any]], counts: dict[Key, dict[str, Any]]) -> None:
    for key in sorted(reported.keys() | counts.keys()):
        said, counted = _pair(reported.get(key)), _pair(counts.get(key))
        if said != counted:
            raise UnusableCellError(
                f"contradictory: round {key[0]}, {key[1]}: {said[0]} errors in {said[1]} images by "
                f"result.json, {counted[0]} in {counted[1]} by predictions.npz"
            )
        error = 100 * said[0] / said[1]
        if not abs(reported[key]["error"] - error) <= _ROUNDING:
            raise UnusableCellError(
                f"contradictory: round {key[0]}, {key[1]}: result.json gives an error of "
                f"{reported[key]['error']} %, its counts give {error:.2f} %"
            )


def _pair(entry: dict[str, Any] | None) -> tuple[int, int]:
    return (entry["errors"], entry["n"]) if entry else (0, 0)


def _check_mean(result: dict[str, Any]) -> None:
    metric = result["metric"]
    means = [
        math.fsum(entry[metric] for entry in part["domains"]) / len(part["domains"])
        for part in result["rounds"]
    ]
    mean = math.fsum(means) / len(means)
    if not abs(mean - result["mean"]) <= _ROUNDING:
        raise UnusableCellError(
            f"contradictory: result.json gives a mean of {result['mean']}, its domains {mean:.2f}"
        )


def _values(
    reported: dict[Key, dict[str, Any]], counts: dict[Key, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    for (step, domain), entry in reported.items():
        values = {name: entry[name] for name in entry if name not in ("domain", "n", "errors")}
        if (step, domain) in counts:  # exact, where result.json may be rounded
            values["error"] = 100 * entry["errors"] / entry["n"]
        for metric, value in values.items():
            if value is None or isinstance(value, int | float):
                yield {"round": step, "domain": domain, "metric": metric, "value": value}
