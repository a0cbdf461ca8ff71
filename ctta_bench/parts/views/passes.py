"""Predictions over random views of a batch, some views a pass."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ctta_bench.parts.views.batch import random_view

IMAGES_PER_PASS = 64  # views of small batches go through a network together
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
    """What `see` gives for `count` random views, as [views, n, ...] of some views at a time.

    Each view is one draw for the whole batch, at `size`. `together` lets views of small batches
    share a pass, where no image's result depends on the others of its pass.
    """
    at_once = max(1, IMAGES_PER_PASS // len(images)) if together else 1
    for first in range(0, count, at_once):
        some = min(at_once, count - first)
        views = torch.cat([augment(images, size) for _ in range(some)])
        yield see(views).unflatten(0, (some, -1))


def at_least_float32(values: Tensor) -> Tensor:
    """Values in float32, or in float64 where they are."""
    return values if values.dtype == torch.float64 else values.float()
