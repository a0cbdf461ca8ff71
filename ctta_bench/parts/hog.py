"""Histograms of oriented gradients (HOG) of images, and of each patch of a transformer."""

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

BINS = 9
CELLS = 2  # along each side of a patch
TARGETS = 3 * BINS * CELLS**2  # 108 values per patch


@torch.no_grad()
def oriented_gradients(images: Tensor, cell: int) -> Tensor:
    """Histograms of oriented gradients [n, 3, 9, H / cell, W / cell] of images [n, 3, H, W].

    Nine bins of unsigned direction, weighted by magnitude without interpolation; each histogram
    has length 1, or 0 for cells of one colour.
    """
    # Slices instead of a convolution, which autocast and TF32 would compute with few bits.
    # Differences come before sums, so that equal pixels give exactly zero.
    padded = pad(images, (1, 1, 1, 1), mode="reflect")
    across = padded[..., :-2] - padded[..., 2:]
    along = padded[..., :-2, :] - padded[..., 2:, :]
    dx = across[..., :-2, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :]
    dy = along[..., :-2] + 2 * along[..., 1:-1] + along[..., 2:]
    turns = torch.atan2(dx, dy) / math.pi * BINS
    bins = turns.nan_to_num().floor().long() % BINS
    magnitude = torch.hypot(dx, dy).unsqueeze(2)
    shape = (*images.shape[:2], BINS, *images.shape[2:])
    votes = images.new_zeros(shape).scatter_(2, bins.unsqueeze(2), magnitude)
    sums = votes.unflatten(-1, (-1, cell)).sum(-1).unflatten(-2, (-1, cell)).sum(-2)
    return normalize(sums, dim=2)


def patch_targets(histograms: Tensor) -> Tensor:
    """The regression target of each patch [n, N, 108], from `oriented_gradients`.

    A value of its 2 x 2 cells has the index ((colour · 9 + bin) · 2 + row) · 2 + column.
    """
    cells = histograms.unflatten(-1, (-1, CELLS)).unflatten(-3, (-1, CELLS))
    return cells.permute(0, 3, 5, 1, 2, 4, 6).flatten(3).flatten(1, 2)
