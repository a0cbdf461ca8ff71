"""What is aligned with the source: features of images, or of the places of a segmentor's stages.

For segmentation no code was published: a sample is a place of the encoder's stages (`stages`, the
deepest alone unless it is said), so that a single image has a deviation, too. The source's are by
default moments of each image, averaged.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.model import SourceModel, Task
from ctta_bench.parts.source.moments import (
    SourceStatistics,
    filter_limit,
    place_statistics,
    source_statistics,
)

See = Callable[[Tensor], list[Tensor]]


class ImageFeatures:
    """The features [n, d] of images; `hp` has `source_samples` and `entropy_filter`."""

    def __init__(self, model: SourceModel, hp: Any) -> None:
        self.model, self.hp = model, hp

    def check(self, *, asked_by: str) -> None:
        """Nothing is undefined."""

    def facts(self) -> dict[str, Any]:
        """What decides the statistics, beside what all kinds of features have."""
        return {}

    def features_and_logits(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        """One tensor of features [n, d] with gradient, and logits [n, classes] without."""
        seen = self.model.features(images)
        with torch.no_grad():
            return [seen], self.model.head(seen)

    def statistics(self, source: Any, see: See) -> list[SourceStatistics]:
        """Those of the source images that pass the filter; `see` is not needed."""
        limit = filter_limit(self.model.num_classes) if self.hp.entropy_filter else None
        samples = self.hp.source_samples
        return [
            source_statistics(self.model, source.batches(), samples=samples, entropy_limit=limit)
        ]


class StageFeatures:
    """The features [n·h·w, C] of the places of `hp.stages`, a tensor for each."""

    def __init__(self, model: SourceModel, hp: Any) -> None:
        self.model, self.hp = model, hp

    def check(self, *, asked_by: str) -> None:
        """Raise MethodError for the entropy filter, of which places have none."""
        if self.hp.entropy_filter:
            raise MethodError(
                f"{asked_by} has no entropy filter that is defined for segmentation, "
                f"the task of {self.model.name}; set entropy_filter: false."
            )

    def facts(self) -> dict[str, Any]:
        """Which stages, and what is averaged."""
        return {"stages": self.hp.stages, "moments": self.hp.source_moments}

    def features_and_logits(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        """Features of each stage with gradient, and logits [n, classes, h, w] without."""
        maps = self.model.feature_maps(images)
        features = [self.model.rows(maps[int(stage) - 1]) for stage in self.hp.stages]
        with torch.no_grad():
            return features, self.model.decode(maps)

    def statistics(self, source: Any, see: See) -> list[SourceStatistics]:
        """Those of what `see` gives for source images, image by image, so that large ones fit."""
        return place_statistics(
            see,
            source.batches(1),
            samples=self.hp.source_samples,
            pooled=self.hp.source_moments == "pooled",
        )


FEATURES: Mapping[Task, type[ImageFeatures] | type[StageFeatures]] = {
    "classification": ImageFeatures,
    "segmentation": StageFeatures,
}
