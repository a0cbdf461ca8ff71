"""The metric of segmentation: mean intersection over union in %, from summed confusion matrices.

A class that occurs neither in a domain's labels nor in its predictions has no IoU and is left out
of the mean; one that is only predicted counts as 0. Pixels with the label 255 are not counted.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ctta_bench.errors import RunError
from ctta_bench.record.schema import PREDICTIONS_FILE, RESULT_FILE
from ctta_bench.registry import METRICS
from ctta_bench.scoring.confusion import SegmentedImages, domain_metrics, tallies
from ctta_bench.scoring.metric import Array, Count, Key, Metric, is_collapsed, visits

if TYPE_CHECKING:
    from ctta_bench.scoring.base import Scorer

CLASS_PREFIX = "iou/"  # of the metric of one class: `iou/road`


@METRICS.register_module("segmentation")
class Miou(Metric):
    """Mean IoU over classes in %, higher is better."""

    name = "miou"
    symbol, higher_is_better = "mIoU", True
    errors_text, count_key, check = "wrong pixels", "pixels", "pixel accuracy"
    arrays = {"confusion": 3, "index": 1}
    from_sums = True

    def scorer(self, num_classes: int, class_names: Sequence[str]) -> "Scorer":
        """The scorer that stores the confusion matrix of each image."""
        from ctta_bench.scoring.segmentation import MiouScorer

        return MiouScorer(num_classes, class_names)

    def entry_of(self, arrays: Mapping[str, Array], rows: Array) -> dict[str, Any]:
        """Images, pixels, mIoU, IoU of each class and pixel accuracy in %."""
        total = arrays["confusion"][rows].sum(0, dtype=np.int64)
        return {"n": len(rows), **domain_metrics(total)}

    def images(self, arrays: Mapping[str, Array]) -> SegmentedImages:
        """The scored images. Raises RunError if `confusion` is not [n, K, K + 1]."""
        confusion = arrays["confusion"]
        if confusion.shape[2] != confusion.shape[1] + 1:
            raise RunError(
                f"corrupted: {PREDICTIONS_FILE} has confusion matrices that are not of K rows and "
                "K + 1 columns"
            )
        return SegmentedImages(
            tallies(confusion), arrays["index"], arrays["domain"], arrays["round"]
        )

    def count(
        self, arrays: Mapping[str, Array], domains: Sequence[str], result: Mapping[str, Any]
    ) -> dict[Key, Count]:
        """Pixels, mIoU and the IoU of each class per round and domain, from summed confusions."""
        images = self.images(arrays)
        numbered = [f"class {number}" for number in range(images.tallies.hits.shape[1])]
        classes = [str(name) for name in result.get("classes") or numbered]
        if images.tallies.hits.shape[1] != len(classes):
            raise RunError(
                f"contradictory: {PREDICTIONS_FILE} has {images.tallies.hits.shape[1]} classes, "
                f"{RESULT_FILE} has {len(classes)}"
            )
        counts = {}
        for step, position, name in visits(images.round, images.domain, domains):
            here = images.of(step, position)
            sums = images.tallies.at(here).summed()
            by_class = zip(classes, sums.iou().tolist(), strict=True)
            values = {"miou": float(sums.miou())}
            values |= {f"{CLASS_PREFIX}{class_name}": iou for class_name, iou in by_class}
            counts[step, name] = Count(
                n=int(here.sum()),
                errors=sums.errors,
                recorded=("pixels", sums.pixels),
                classes=int((sums.labelled > 0).sum()),
                collapsed=bool(is_collapsed(sums.predicted, sums.labelled)),
                values={key: None if np.isnan(value) else value for key, value in values.items()},
            )
        return counts
