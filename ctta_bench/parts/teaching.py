"""Students of a teacher: what CoTTA, ViDA and Continual-MAE share.

Each predicts over random views of a batch, learns from the predictions of a teacher, takes no step
on rounding noise, and sets a random share of its weights back to the source.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.parts.augment import random_view
from ctta_bench.parts.updates import soft_cross_entropy, stochastic_restore

IMAGES_PER_PASS = 64  # views of small batches go through a network together


class StudentMethod(Method):
    """A method whose student learns from a teacher: a network of its own, or an earlier self.

    Its hyper-parameters have `views`, `min_gradient_norm`, `restore_probability` and `faithful`,
    and `loss` if it uses `objective`.
    """

    teacher: SourceModel  # where it is a network of its own
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

        With the loss "symmetric", half of it and half its reverse.
        """
        loss = soft_cross_entropy(logits, target)
        if self.hp.loss == "symmetric":
            loss = (loss + soft_cross_entropy(target, logits)) / 2
        return loss.mean()

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
