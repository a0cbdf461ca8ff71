"""Images, errors and IoU counted from predictions.npz, by round and domain."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ctta_bench.analysis.read.confusion import SegmentedImages, read_segmented
from ctta_bench.analysis.read.measure import CLASS_PREFIX
from ctta_bench.analysis.read.predictions import read_predictions
from ctta_bench.record.read import UnusableCellError
from ctta_bench.record.schema import CELL_FILE, PREDICTIONS_FILE, RESULT_FILE

COLLAPSE_SHARE = 0.9  # of the predictions in one class
DOMINANT_LABEL_SHARE = 0.5  # with such a class among the labels, one-sided predictions are right
CLASS_ERROR = "class_error"
_FEW = 10_000_000  # pairs of a visit and a class: beyond, only those that occur are counted

Key = tuple[int, str]  # round, domain


class Count(NamedTuple):
    """What was counted in a domain of a round.

    n: images. errors: wrong images, or wrong pixels where these have labels. noted: what else
    result.json notes under which name. classes: how many occur among the labels. values: metrics
    in % at full precision, None where there is nothing to score.
    """

    n: int
    errors: int
    noted: tuple[str, int]
    classes: int
    collapsed: bool
    values: dict[str, float | None]


def count_errors(folder: Path, domains: Sequence[str], _: Mapping[str, Any]) -> dict[Key, Count]:
    """Images and errors per round and domain, from what was predicted for each image."""
    prediction, label, domain, round_ = read_predictions(
        folder, "prediction", "label", "domain", "round"
    )
    if not len(label):
        return {}
    _check_domains(domain, domains)
    # By visit (a domain of a round) all at once: a loop over visits takes most of a report's time.
    visit = round_.astype(np.int64) * len(domains) + domain
    low = int(min(prediction.min(), label.min()))  # -1: no valid prediction
    classes = int(max(prediction.max(), label.max())) - low + 1
    visits = np.arange(int(visit.max()) + 1)
    if classes * len(visits) > _FEW:
        visits, visit = np.unique(visit, return_inverse=True)
    size = classes * len(visits)
    first = visit * classes - low  # the place of class 0 of the visit

    def by_class(places: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return np.bincount(places, minlength=size).reshape(len(visits), classes)

    predicted, labelled = by_class(first + prediction), by_class(first + label)
    hits = by_class((first + label)[prediction == label])
    images = labelled.sum(axis=1)
    columns = (
        visits,
        images,
        images - hits.sum(axis=1),
        (labelled > 0).sum(axis=1),
        _is_collapsed(predicted, labelled),
        _class_errors(hits, labelled),
    )
    names = [str(name) for name in domains]
    return {
        (number // len(names), names[number % len(names)]): Count(
            n,
            errors,
            ("errors", errors),
            there,
            collapsed,
            {"error": 100 * errors / n, CLASS_ERROR: class_error},
        )
        for number, n, errors, there, collapsed, class_error in zip(
            *(column.tolist() for column in columns), strict=True
        )
        if n
    }


def _class_errors(hits: npt.NDArray[Any], labelled: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """[visits] mean error in % over the classes [visits, C] that occur: none counts as 0 or NaN."""
    there = np.maximum((labelled > 0).sum(axis=1), 1)
    return np.asarray(100 - 100 * (hits / np.maximum(labelled, 1)).sum(axis=1) / there)


def count_pixels(
    folder: Path, domains: Sequence[str], result: Mapping[str, Any]
) -> dict[Key, Count]:
    """Pixels, mIoU and the IoU of each class per round and domain, from summed confusions."""
    images: SegmentedImages = read_segmented(folder)
    classes = [str(name) for name in result["classes"]]
    if images.tallies.hits.shape[1] != len(classes):
        raise UnusableCellError(
            f"contradictory: {PREDICTIONS_FILE} has {images.tallies.hits.shape[1]} classes, "
            f"{RESULT_FILE} {len(classes)}"
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
            classes=int((tallies.labelled > 0).sum()),
            collapsed=bool(_is_collapsed(tallies.predicted, tallies.labelled)),
            values={key: None if np.isnan(value) else value for key, value in values.items()},
        )
    return counts


def _visits(
    round_: npt.NDArray[Any], domain: npt.NDArray[Any], domains: Sequence[str]
) -> Iterator[tuple[int, int, str]]:
    """Round, position and name of each domain that has images."""
    _check_domains(domain, domains)
    for step, position in np.unique(np.stack([round_, domain], axis=1), axis=0).tolist():
        yield step, position, str(domains[position])


def _check_domains(domain: npt.NDArray[Any], domains: Sequence[str]) -> None:
    if len(domain) and not 0 <= domain.min() <= domain.max() < len(domains):
        raise UnusableCellError(
            f"contradictory: {PREDICTIONS_FILE} has domains that {CELL_FILE} lacks"
        )


def _is_collapsed(predicted: npt.NDArray[Any], labelled: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether predictions are of one class and labels are not, by how many [..., C] each has."""
    total = predicted.sum(-1)
    in_one = (total > 0) & (predicted.max(-1) >= COLLAPSE_SHARE * total)
    mixed = labelled.max(-1) < DOMINANT_LABEL_SHARE * labelled.sum(-1)
    return np.asarray(in_one & mixed)
