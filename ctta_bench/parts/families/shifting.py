"""Features shifted by the difference of the source's mean and the stream's (FOA and its parts)."""

import copy
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.method import Method, MethodHyperparameters
from ctta_bench.model import SourceModel
from ctta_bench.parts.prompts.class_token import check_class_token, class_tokens
from ctta_bench.parts.source.moments import SourceStatistics, cached_statistics, source_statistics


class ShiftHyperparameters(MethodHyperparameters):
    """What all that shift features have in common."""

    source_samples: int = Field(500, ge=2, description="source images for the statistics")
    shift_weight: float = Field(1.0, ge=0, description="γ of the shift")
    history: float = Field(0.9, ge=0, le=1, description="share of the past in the stream's mean")


class ShiftMethod(Method):
    """Scores shifted features.

    A method defines `adapt`; its hyper-parameters are `ShiftHyperparameters`.
    """

    source_access = "unlabelled"
    all_blocks: ClassVar[bool] = False
    """Whether it looks at the class token after every block, not at the last features alone."""

    def setup(self) -> None:
        """Nothing has been seen yet."""
        if self.all_blocks:
            check_class_token(self.model, asked_by=type(self).__name__)
        self.average: Tensor | None = None

    def prepare(self, source: Any) -> None:
        """Mean and deviation of the source's features."""
        samples = self.hp.source_samples

        def make() -> SourceStatistics:
            return source_statistics(
                self.model,
                source.batches(),
                samples=samples,
                entropy_limit=None,
                seen=lambda images: self.forward_features(images).flatten(1),
            )

        facts = {"samples": samples, "all_blocks": self.all_blocks}
        self.source = cached_statistics(source, facts, make, self.model.mean)
        self.source_used = self.source.images

    def forward_features(self, images: Tensor) -> Tensor:
        """Features [n, places, d], the last of them those that are shifted."""
        if self.all_blocks:
            return class_tokens(self.model, images)
        return self.model.features(images)[:, None]

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits of the shifted features."""
        return self.shifted_logits(self.forward_features(images)[:, -1])

    def shift(self) -> Tensor | float:
        """γ times the way from the stream's mean to the source's [d]; 0 before the first batch."""
        if self.average is None:
            return 0.0
        return self.hp.shift_weight * (self.source.mean[-len(self.average) :] - self.average)

    def shifted_logits(self, features: Tensor) -> Tensor:
        """Logits of features [n, d]."""
        return self.model.head(features + self.shift())

    def update_statistics(self, features: Tensor) -> None:
        """Take features [..., d] into the stream's mean, if they are finite."""
        mean = features.detach().flatten(0, -2).to(self.source.mean).mean(0)
        if not bool(mean.isfinite().all()):
            return
        past = self.hp.history
        self.average = mean if self.average is None else past * self.average + (1 - past) * mean

    @property
    def scored_model(self) -> SourceModel:
        """The model, with the shift in its last layer's bias."""
        if self.average is None:
            return self.model
        moved = copy.deepcopy(self.model)
        layer = moved.classifier
        if layer.bias is None:
            raise MethodError(
                f"{moved.name} has no bias that could hold the shift of its features."
            )
        with torch.no_grad():
            layer.bias.add_(layer.weight @ torch.as_tensor(self.shift()).to(layer.weight))
        return moved


def distance(tokens: Tensor, source: SourceStatistics) -> Tensor:
    """Mean squared difference of means, and of deviations, of tokens [n, places, d]; their sum."""
    seen = tokens.flatten(1)
    apart = (seen.std(0) - source.std).square() + (seen.mean(0) - source.mean).square()
    return apart.mean()
