"""Images whose objects are destroyed while their colours stay, as DeYO destroys them.

Three ways: blocks in another order, pixels in another order, or the middle under the mean colour.
"""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

OCCLUDED = 0.5  # side of the rectangle in the middle: 112 of 224 pixels


def draw_orders(rows: int, length: int) -> Tensor:
    """Random permutations int64 [rows, length], from the host's stream whatever the device."""
    return torch.rand(rows, length).argsort(-1)


def reordered_blocks(images: Tensor, orders: Tensor, per_side: int) -> Tensor:
    """Images [n, 3, H, W] of `per_side` x `per_side` blocks, block j from where `orders[i, j]` was.

    Blocks are counted row by row. Sides that they do not divide are resized, and back.
    """
    size = (images.shape[-2], images.shape[-1])
    height, width = (side - side % per_side or per_side for side in size)
    cut = _resized(images, (height, width))
    cut = cut.unflatten(-1, (per_side, -1)).unflatten(-3, (per_side, -1))  # n, 3, i, h, j, w
    blocks = cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    rows = torch.arange(len(images), device=images.device)[:, None]
    blocks = blocks[rows, orders.to(images.device)].unflatten(1, (per_side, per_side))
    whole = blocks.permute(0, 3, 1, 4, 2, 5).reshape(*images.shape[:2], height, width)
    return _resized(whole, size)


def reordered_pixels(images: Tensor, order: Tensor) -> Tensor:
    """Images [n, 3, H, W] with their pixels in one other order [H·W], the same for all."""
    return images.flatten(-2)[..., order.to(images.device)].view_as(images)


def without_the_middle(images: Tensor) -> Tensor:
    """Images [n, 3, H, W] with the mean colour of each in a rectangle of half the sides."""
    height, width = images.shape[-2:]
    inside = (round(OCCLUDED * height), round(OCCLUDED * width))
    top, left = (height - inside[0]) // 2, (width - inside[1]) // 2
    covered = images.clone()
    covered[..., top : top + inside[0], left : left + inside[1]] = images.mean((-2, -1), True)
    return covered


def _resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(images.shape[-2:]) == size:
        return images
    return interpolate(images, size=size, mode="bilinear", antialias=True)
