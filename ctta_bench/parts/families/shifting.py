"""Features shifted by the difference of source mean and stream mean: the base class of FOA."""

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
    """Hyper-parameters of methods that shift features."""

    source_samples: int = Field(500, ge=2, description="source images for the statistics")
    shift_weight: float = Field(1.0, ge=0, description="γ of the shift")
    history: float = Field(0.9, ge=0, le=1, description="momentum of the stream mean")


class ShiftMethod(Method):
    """Scores the logits of shifted features.

    A subclass defines `adapt`; its hyper-parameters derive from `ShiftHyperparameters`.
    """

    source_access = "unlabelled"
    all_blocks: ClassVar[bool] = False
    """Whether features are the class tokens after every block, not only the last features."""

    def setup(self) -> None:
        """Start without a stream mean."""
        if self.all_blocks:
            check_class_token(self.model, asked_by=self.title)
        self.average: Tensor | None = None

    def prepare(self, source: Any) -> None:
        """Mean and standard deviation of the source features."""
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
        """Features [n, positions, d] of images; the last position is shifted."""
        if self.all_blocks:
            return class_tokens(self.model, images)
        return self.model.features(images)[:, None]

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits of the shifted features."""
        return self.shifted_logits(self.forward_features(images)[:, -1])

    def shift(self) -> Tensor | float:
        """γ times the difference [d] of source mean and stream mean; 0 before the first batch."""
        if self.average is None:
            return 0.0
        return self.hp.shift_weight * (self.source.mean[-len(self.average) :] - self.average)

    def shifted_logits(self, features: Tensor) -> Tensor:
        """Logits [n, classes] of features [n, d] after the shift."""
        return self.model.head(features + self.shift())

    def update_statistics(self, features: Tensor) -> None:
        """Update the stream mean with features [..., d], if they are finite."""
        mean = features.detach().flatten(0, -2).to(self.source.mean).mean(0)
        if not bool(mean.isfinite().all()):
            return
        past = self.hp.history
        self.average = mean if self.average is None else past * self.average + (1 - past) * mean

    @property
    def scored_model(self) -> SourceModel:
        """A copy of the model with the shift added to the bias of its last layer."""
        if self.average is None:
            return self.model
        moved = copy.deepcopy(self.model)
        layer = moved.classifier
        if layer.bias is None:
            raise MethodError(
                f"{moved.name} has no bias in its last layer, which an export needs for the shift."
            )
        with torch.no_grad():
            layer.bias.add_(layer.weight @ torch.as_tensor(self.shift()).to(layer.weight))
        return moved


def distance(tokens: Tensor, source: SourceStatistics) -> Tensor:
    """Mean squared difference of means plus that of deviations, of tokens [n, positions, d]."""
    seen = tokens.flatten(1)
    apart = (seen.std(0) - source.std).square() + (seen.mean(0) - source.mean).square()
    return apart.mean()
