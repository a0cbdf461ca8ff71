"""Deprecated: the base class that methods with a teacher had in 0.1.0, for plug-ins.

CoTTA, ViDA and Continual-MAE derive from Method and call functions for what they share.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from ctta_bench.method import Method
from ctta_bench.method.updates import (
    soft_cross_entropy,
    stochastic_restore,
    symmetric_cross_entropy,
)
from ctta_bench.model import SourceModel
from ctta_bench.parts.segmentation.scales import (
    View,
    check_hard_labels,
    hard_loss,
    log_probabilities_over_views,
)
from ctta_bench.parts.views.batch import random_view
from ctta_bench.parts.views.passes import IMAGES_PER_PASS, Augment, at_least_float32, over_views

__all__ = ["IMAGES_PER_PASS", "StudentMethod", "at_least_float32"]


class StudentMethod(Method):
    """A method whose student learns from a teacher: another network, or its own earlier state.

    Its hyper-parameters have `views`, `min_gradient_norm`, `restore_probability` and `faithful`,
    and `loss` if it uses `objective`; for segmentation `output_scale`, and `confidence_threshold`
    if there is an anchor. Its hooks keep their names until it is removed in 0.3.0.
    """

    teacher: SourceModel  # if it is another network
    anchor: SourceModel
    restored: list[Tensor]
    source: list[Tensor]
    augment: Augment = staticmethod(random_view)

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Warn that the class is deprecated."""
        super().__init_subclass__(**arguments)
        warnings.warn(
            f"{cls.__name__}: StudentMethod will be removed in 0.3.0; derive from Method, as "
            "methods/cotta.py does.",
            FutureWarning,
            stacklevel=2,
        )

    def over_views(
        self, images: Tensor, see: Callable[[Tensor], Tensor], *, together: bool = True
    ) -> Iterator[Tensor]:
        """The outputs of `see` for N random views, as [views, n, ...], some views at a time."""
        size, views = self.model.preprocessing.size, self.hp.views
        return over_views(images, see, views, size=size, augment=self.augment, together=together)

    @property
    def scored_model(self) -> SourceModel:
        """The teacher, if it is another network."""
        return vars(self).get("teacher", self.model)

    def objective(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy against a teacher's logits; for pixels against its hard labels."""
        if self.segments:
            return hard_loss(logits, target)
        symmetric = self.hp.loss == "symmetric"
        between = symmetric_cross_entropy if symmetric else soft_cross_entropy
        return between(logits, target).mean()

    def check_loss(self) -> None:
        """Raise MethodError for the loss "symmetric" with segmentation, whose labels are hard."""
        if self.segments:
            check_hard_labels(self.model, self.hp.loss, asked_by=self.title)

    def labelled(self, images: Tensor, views: Sequence[View]) -> tuple[Tensor, float]:
        """The teacher's log-probabilities [n, classes, H, W], and the variance over the views."""
        return log_probabilities_over_views(
            images,
            views,
            self.teacher,
            self.anchor,
            scale=self.hp.output_scale,
            threshold=self.hp.confidence_threshold,
        )

    def remember_source(
        self, parameters: Iterable[Tensor], source: Iterable[Tensor] | None = None
    ) -> None:
        """Set the parameters that `restore` sets back, and their source values (default: now)."""
        self.restored = list(parameters)
        copies = (parameter.detach().clone() for parameter in self.restored)
        self.source = list(copies if source is None else source)

    def learn(self, loss: Tensor) -> bool:
        """One step, or none on rounding noise; False if the update is skipped as not finite."""
        least = 0.0 if self.hp.faithful else self.hp.min_gradient_norm
        return self.step(loss, least_norm=least)

    def restore(self) -> None:
        """Set a random share p of the scalars of `restored` back to the source weights."""
        stochastic_restore(self.restored, self.source, self.hp.restore_probability)
