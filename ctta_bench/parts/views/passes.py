"""Forward passes over random views of a batch."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ctta_bench.parts.views.batch import random_view

IMAGES_PER_PASS = 64  # views of small batches share a forward pass
Augment = Callable[[Tensor, tuple[int, int] | None], Tensor]


def over_views(
    images: Tensor,
    see: Callable[[Tensor], Tensor],
    count: int,
    *,
    size: tuple[int, int] | None,
    augment: Augment = random_view,
    together: bool = True,
) -> Iterator[Tensor]:
    """The outputs of `see` for `count` random views, as [views, n, ...], some views at a time.

    Each view is one draw per batch, at `size`. With `together`, views of small batches share a
    forward pass, which is possible if the output of an image does not depend on the other images.
    """
    at_once = max(1, IMAGES_PER_PASS // len(images)) if together else 1
    for first in range(0, count, at_once):
        some = min(at_once, count - first)
        views = torch.cat([augment(images, size) for _ in range(some)])
        yield see(views).unflatten(0, (some, -1))


def mean_over_views(
    images: Tensor,
    see: Callable[[Tensor], Tensor],
    count: int,
    *,
    size: tuple[int, int] | None,
    augment: Augment = random_view,
    together: bool = True,
) -> Tensor:
    """Mean [n, ...] of the outputs of `see` for `count` random views, in float32 or better."""
    total: Tensor | float = 0.0
    for seen in over_views(images, see, count, size=size, augment=augment, together=together):
        total = total + at_least_float32(seen).sum(0)
    assert isinstance(total, Tensor)  # there is a view
    return total / count


def at_least_float32(values: Tensor) -> Tensor:
    """Values in float32, or unchanged in float64."""
    return values if values.dtype == torch.float64 else values.float()
