"""Students of a teacher: what CoTTA, ViDA and Continual-MAE share.

Each predicts over random views of a batch, learns from the predictions of a teacher, takes no step
on rounding noise, and sets a random share of its weights back to the source. On segmentation the
views are those of segmentation/scales.py, and a teacher's labels are hard.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.method import Method
from ctta_bench.method.updates import (
    soft_cross_entropy,
    stochastic_restore,
    symmetric_cross_entropy,
)
from ctta_bench.model import SourceModel
from ctta_bench.parts.segmentation.scales import (
    View,
    averaged,
    confident,
    hard_loss,
    rescaled,
    scaled_size,
    seen_over,
    where_sure,
)
from ctta_bench.parts.views.batch import random_view

IMAGES_PER_PASS = 64  # views of small batches go through a network together


class StudentMethod(Method):
    """A method whose student learns from a teacher: a network of its own, or an earlier self.

    Its hyper-parameters have `views`, `min_gradient_norm`, `restore_probability` and `faithful`,
    and `loss` if it uses `objective`; on segmentation `output_scale`, and `confidence_threshold`
    if there is an anchor.
    """

    teacher: SourceModel  # where it is a network of its own
    anchor: SourceModel
    restored: list[Tensor]
    source: list[Tensor]
    augment: Callable[[Tensor, tuple[int, int] | None], Tensor] = staticmethod(random_view)

    def over_views(
        self, images: Tensor, see: Callable[[Tensor], Tensor], *, together: bool = True
    ) -> Iterator[Tensor]:
        """What `see` gives for N random views, as [views, n, ...] of some views at a time.

        Each view is one draw for the whole batch. `together` lets views of small batches share a
        pass, where no image's result depends on the others of its pass.
        """
        at_once = max(1, IMAGES_PER_PASS // len(images)) if together else 1
        size = self.model.preprocessing.size
        for first in range(0, self.hp.views, at_once):
            count = min(at_once, self.hp.views - first)
            views = torch.cat([self.augment(images, size) for _ in range(count)])
            yield see(views).unflatten(0, (count, -1))

    @property
    def scored_model(self) -> SourceModel:
        """The teacher, if it is a network of its own."""
        return vars(self).get("teacher", self.model)

    def objective(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy of logits [n, classes] against a teacher's, a scalar.

        With the loss "symmetric", half of it and half its reverse. On segmentation against the
        teacher's most likely classes, at the size of its maps.
        """
        if self.segments:
            return hard_loss(logits, target)
        symmetric = self.hp.loss == "symmetric"
        between = symmetric_cross_entropy if symmetric else soft_cross_entropy
        return between(logits, target).mean()

    def check_loss(self) -> None:
        """Raise MethodError for the loss "symmetric" on segmentation, whose labels are hard."""
        if self.segments and self.hp.loss == "symmetric":
            raise MethodError(
                f"{type(self).__name__} learns hard labels on {self.model.name}, which segments: "
                "there is no symmetric loss of them; set loss: cross_entropy."
            )

    @torch.no_grad()
    def labelled(self, images: Tensor, views: Sequence[View]) -> tuple[Tensor, float]:
        """Log-probabilities [n, classes, H, W] of the teacher, and the variance over the views.

        Those of the plain view where the anchor's confidence is above the threshold, elsewhere of
        the mean over the views; at the size that `output_scale` says.
        """
        scale, size = self.hp.output_scale, None
        if scale is not None:
            size = scaled_size((images.shape[-2], images.shape[-1]), scale)
        over = averaged(seen_over(views, partial(rescaled, images), self.teacher, size))
        sure = None
        if len(views) > 1:
            height, width = over.mean.shape[-2:]
            sure = confident(self.anchor(images), (height, width), self.hp.confidence_threshold)
        return where_sure(over, sure), over.variance

    def remember_source(
        self, parameters: Iterable[Tensor], source: Iterable[Tensor] | None = None
    ) -> None:
        """Say what `restore` sets back, and to what: copies of their values now, or `source`."""
        self.restored = list(parameters)
        copies = (parameter.detach().clone() for parameter in self.restored)
        self.source = list(copies if source is None else source)

    def learn(self, loss: Tensor) -> bool:
        """One step, or none on rounding noise; False if the update is to be left out as a whole."""
        if not self.backward(loss):
            return False
        if not self.hp.faithful and bool(self.gradient_norm() < self.hp.min_gradient_norm):
            self.optimizer_zero_grad()
            return True
        return self.optimizer_step()

    def restore(self) -> None:
        """Set a random share p of the scalars of `restored` back to the source."""
        stochastic_restore(self.restored, self.source, self.hp.restore_probability)


def at_least_float32(values: Tensor) -> Tensor:
    """Values in float32, or in float64 where they are."""
    return values if values.dtype == torch.float64 else values.float()
