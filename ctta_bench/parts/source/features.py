"""The features that are aligned: of images, or of positions in a segmentation network's stages.

For segmentation no code was published. A sample is a position in a map of the encoder's stages
(`stages`, by default the deepest), so that a single image has a standard deviation, too. Source
statistics are by default moments of each image, averaged over images.
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
    """The features [n, d] of images; `hp` is that of an alignment method."""

    def __init__(self, model: SourceModel, hp: Any) -> None:
        self.model, self.hp = model, hp

    def check(self, *, asked_by: str) -> None:
        """Raise MethodError if the model offers no features."""
        self.model.require_features(asked_by=asked_by)

    def facts(self) -> dict[str, Any]:
        """What else the statistics depend on."""
        return {}

    def features_and_logits(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        """One tensor of features [n, d] with gradient, and logits [n, classes] without."""
        seen = self.model.features(images)
        with torch.no_grad():
            return [seen], self.model.head(seen)

    def statistics(self, source: Any, see: See) -> list[SourceStatistics]:
        """Statistics of the source images that pass the filter; `see` is not used."""
        limit = self.hp.entropy_limit  # not given without the filter
        if self.hp.entropy_filter and limit is None:
            limit = filter_limit(self.model.num_classes)
        samples = self.hp.source_samples
        return [
            source_statistics(self.model, source.batches(), samples=samples, entropy_limit=limit)
        ]


class StageFeatures:
    """The features [n·h·w, C] of the positions in the maps of `hp.stages`, a tensor per stage."""

    def __init__(self, model: SourceModel, hp: Any) -> None:
        self.model, self.hp = model, hp

    def check(self, *, asked_by: str) -> None:
        """Raise MethodError for the entropy filter, which is not defined for positions."""
        if self.hp.entropy_filter:
            raise MethodError(
                f"{asked_by} does not support the entropy filter for segmentation, the task of "
                f"{self.model.name}; set entropy_filter: false."
            )

    def facts(self) -> dict[str, Any]:
        """The stages, and the kind of moments."""
        return {"stages": self.hp.stages, "moments": self.hp.source_moments}

    def features_and_logits(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        """Features of each stage with gradient, and logits [n, classes, h, w] without."""
        maps = self.model.feature_maps(images)
        features = [self.model.rows(maps[int(stage) - 1]) for stage in self.hp.stages]
        with torch.no_grad():
            return features, self.model.decode(maps)

    def statistics(self, source: Any, see: See) -> list[SourceStatistics]:
        """Statistics of `see(images)`, image by image, so that large images fit in memory."""
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
