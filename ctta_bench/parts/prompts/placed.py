"""Prompts on the pixels where a segmentor is least certain, as SVDP places them.

Uncertainty is the variance of the head's predictions under dropout. At every scale the same number
of pixels is prompted, the most uncertain ones; a vector of the prompt has no place of its own.
"""

from collections.abc import Iterable

import numpy as np
import torch
from scipy.ndimage import zoom
from torch import Tensor


def dropout_uncertainty(passes: Iterable[Tensor]) -> Tensor:
    """Variance over passes of probabilities [..., classes, H, W], summed over classes: [..., H, W].

    Followed pass by pass and in place (Welford), for a map of every class is large.
    """
    each = iter(passes)
    count, mean = 1, next(each).clone()
    squares = torch.zeros_like(mean)
    for count, probabilities in enumerate(each, start=2):
        off = probabilities - mean
        del probabilities  # before the next pass
        mean.add_(off, alpha=1 / count)
        squares.addcmul_(off, off, value=1 - 1 / count)  # (p - old mean) (p - new mean)
        del off
    return squares.sum(-3) / count


def prompt_count(height: int, width: int, rate: float) -> int:
    """k, prompted pixels at every scale: a share of the base image."""
    return int(height * width * rate)


def most_uncertain(uncertainty: Tensor, height: int, width: int, count: int) -> Tensor:
    """Positions int64 [count, 2] (row, column), ascending in the uncertainty at this scale.

    The map [H, W] is resized by cubic splines.
    """
    factors = (height / uncertainty.shape[0], width / uncertainty.shape[1])
    resized = zoom(uncertainty.double().cpu().numpy(), factors, order=3)
    chosen = np.argsort(resized, axis=None, kind="stable")[len(resized.flat) - count :]
    rows, columns = np.unravel_index(chosen, resized.shape)
    return torch.from_numpy(np.stack([rows, columns], axis=1)).to(uncertainty.device)


def prompt_image(prompt: Tensor, positions: Tensor, height: int, width: int) -> Tensor:
    """The vectors [k, 3] on their positions [k, 2] of an image of zeros [3, height, width]."""
    flat = positions[:, 0] * width + positions[:, 1]
    return prompt.new_zeros(3, height * width).index_copy(1, flat, prompt.T).view(3, height, width)


def prompt_momentum(uncertainty: Tensor, scale: float) -> float:
    """α of the prompts' average: the more uncertain, the faster they follow."""
    return 0.999 - scale * float(uncertainty.mean())
