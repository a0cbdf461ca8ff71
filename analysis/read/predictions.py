"""predictions.npz of a cell: arrays with one entry per scored image, in stream order."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ctta_bench.errors import RunError
from ctta_bench.record.arrays import read_arrays
from ctta_bench.record.read import UnusableCellError
from ctta_bench.record.schema import PREDICTIONS_FILE
from ctta_bench.scoring.confusion import SegmentedImages
from ctta_bench.scoring.miou import Miou

_VISIT = {"domain": 1, "round": 1}


def read_predictions(folder: Path, axes: Mapping[str, int]) -> dict[str, npt.NDArray[Any]]:
    """Arrays of predictions.npz by name, each with its number of axes, and `domain` and `round`.

    Raises UnusableCellError for another number of axes or if the arrays differ in length.
    """
    axes = {**axes, **_VISIT}
    arrays = dict(zip(axes, read_arrays(folder, PREDICTIONS_FILE, *axes), strict=True))
    is_shaped = all(array.ndim == axes[name] for name, array in arrays.items())
    if not is_shaped or len({len(array) for array in arrays.values()}) != 1:
        raise UnusableCellError(f"corrupted: the arrays of {PREDICTIONS_FILE} differ in length")
    return arrays


def read_segmented(folder: Path) -> SegmentedImages:
    """The images of a finished cell of segmentation, or UnusableCellError."""
    metric = Miou()
    with contradictions_make_unusable():
        return metric.images(read_predictions(folder, metric.arrays))


@contextlib.contextmanager
def contradictions_make_unusable() -> Iterator[None]:
    """Turn the RunError of a metric that cannot count into an UnusableCellError."""
    try:
        yield
    except UnusableCellError:
        raise
    except RunError as error:
        raise UnusableCellError(str(error)) from error
