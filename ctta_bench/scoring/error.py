"""The metric of classification: the error in %, from the prediction of each image."""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ctta_bench.record.schema import RESULTS_TABLE_FILE
from ctta_bench.registry import METRICS
from ctta_bench.scoring.measures import Measure, all_measures
from ctta_bench.scoring.metric import Array, Count, Key, Metric, check_domains, is_collapsed

if TYPE_CHECKING:
    from ctta_bench.scoring.base import Scorer

CLASS_ERROR = "class_error"
_DENSE_LIMIT = 10_000_000  # pairs (visit, class); with more, only visits that occur are counted


@METRICS.register_module("classification")
class Error(Metric):
    """Share of wrong images in %, lower is better."""

    name = "error"
    symbol = errors_text = name
    arrays = {"prediction": 1, "label": 1}
    missing_note = (
        f"Errors are over images; `class_error` in {RESULTS_TABLE_FILE} is the mean over the "
        "classes that occur."
    )

    @functools.cached_property
    def measures(self) -> list[Measure]:
        """The measures in addition to the error."""
        return all_measures()

    def scorer(self, num_classes: int, class_names: Sequence[str]) -> "Scorer":
        """The scorer that stores the prediction of each image."""
        from ctta_bench.scoring.classification import ErrorScorer

        return ErrorScorer(self, self.measures)

    def image_values(self, arrays: Mapping[str, Array]) -> Array:
        """Bool [n]: whether the prediction is wrong."""
        wrong: Array = arrays["prediction"] != arrays["label"]
        return wrong

    def entry_of(self, arrays: Mapping[str, Array], rows: Array) -> dict[str, Any]:
        """Numbers of images and errors, the error in %, and all measures with stored arrays."""
        errors = int(self.image_values(arrays)[rows].sum())
        measured = [m for m in self.measures if all(name in arrays for name in m.arrays)]
        return {
            "n": len(rows),
            "errors": errors,
            "error": 100 * errors / len(rows),
            **{measure.name: measure.value(arrays, rows) for measure in measured},
        }

    def count(
        self, arrays: Mapping[str, Array], domains: Sequence[str], result: Mapping[str, Any]
    ) -> dict[Key, Count]:
        """Images and errors per round and domain, from the prediction of each image."""
        prediction, label = arrays["prediction"], arrays["label"]
        domain, round_ = arrays["domain"], arrays["round"]
        if not len(label):
            return {}
        check_domains(domain, domains)
        # All visits (a domain in a round) at once: a loop would take most of a report's time.
        visit = round_.astype(np.int64) * len(domains) + domain
        low = int(min(prediction.min(), label.min()))  # -1: no valid prediction
        classes = int(max(prediction.max(), label.max())) - low + 1
        visits = np.arange(int(visit.max()) + 1)
        if classes * len(visits) > _DENSE_LIMIT:
            visits, visit = np.unique(visit, return_inverse=True)
        size = classes * len(visits)
        first = visit * classes - low  # index of class 0 of the visit

        def by_class(index: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
            return np.bincount(index, minlength=size).reshape(len(visits), classes)

        predicted, labelled = by_class(first + prediction), by_class(first + label)
        hits = by_class((first + label)[prediction == label])
        images = labelled.sum(axis=1)
        columns = (
            visits,
            images,
            images - hits.sum(axis=1),
            (labelled > 0).sum(axis=1),
            is_collapsed(predicted, labelled),
            _class_errors(hits, labelled),
        )
        names = [str(name) for name in domains]
        return {
            (number // len(names), names[number % len(names)]): Count(
                n,
                errors,
                ("errors", errors),
                present,
                collapsed,
                {"error": 100 * errors / n, CLASS_ERROR: class_error},
            )
            for number, n, errors, present, collapsed, class_error in zip(
                *(column.tolist() for column in columns), strict=True
            )
            if n
        }


def _class_errors(hits: npt.NDArray[Any], labelled: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """[visits] mean error in % over the classes that occur in each visit; inputs [visits, C]."""
    present = np.maximum((labelled > 0).sum(axis=1), 1)
    return np.asarray(100 - 100 * (hits / np.maximum(labelled, 1)).sum(axis=1) / present)
