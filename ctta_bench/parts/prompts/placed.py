"""Prompts on the most uncertain pixels of a segmentation, as in SVDP.

Uncertainty is the variance of the head's predictions under dropout. At every scale the same number
of pixels is prompted, the most uncertain ones; a vector of the prompt has no fixed position.
"""

from collections.abc import Iterable

import numpy as np
import torch
from scipy.ndimage import zoom
from torch import Tensor


def dropout_uncertainty(passes: Iterable[Tensor]) -> Tensor:
    """Variance over passes of probabilities [..., classes, H, W], summed over classes: [..., H, W].

    It is computed pass by pass and in place (Welford), as the maps of all classes are large.
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
    """k, the number of prompted pixels at every scale: the share `rate` of the base image."""
    return int(height * width * rate)


def most_uncertain(uncertainty: Tensor, height: int, width: int, count: int) -> Tensor:
    """Positions int64 [count, 2] (row, column), by ascending uncertainty at this scale.

    The uncertainty [H, W] is resized to [height, width] by cubic splines.
    """
    factors = (height / uncertainty.shape[0], width / uncertainty.shape[1])
    resized = zoom(uncertainty.double().cpu().numpy(), factors, order=3)
    chosen = np.argsort(resized, axis=None, kind="stable")[len(resized.flat) - count :]
    rows, columns = np.unravel_index(chosen, resized.shape)
    return torch.from_numpy(np.stack([rows, columns], axis=1)).to(uncertainty.device)


def prompt_image(prompt: Tensor, positions: Tensor, height: int, width: int) -> Tensor:
    """An image of zeros [3, height, width] with the vectors [k, 3] at positions [k, 2]."""
    flat = positions[:, 0] * width + positions[:, 1]
    return prompt.new_zeros(3, height * width).index_copy(1, flat, prompt.T).view(3, height, width)


def prompt_momentum(uncertainty: Tensor, scale: float) -> float:
    """α of the prompts' EMA, smaller for a higher mean uncertainty."""
    return 0.999 - scale * float(uncertainty.mean())
