"""Random views with separate draws per image: weak views, and strong views as in MoCo.

They take batches in [0, 1] and draw from torch's global streams, which `Method` makes private.
(`batch.py` has the views of CoTTA, with one draw per batch.)
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad
from torchvision.transforms.v2 import functional as colour

from ctta_bench.parts.views.batch import turn_hue

# Shares of the image, and probabilities per image.
WEAK_CROP = 224 / 256
STRONG_AREA, RATIO = (0.2, 1.0), (3 / 4, 4 / 3)
JITTER, HUE, JITTERED = 0.4, 0.1, 0.8
GREYED, BLURRED = 0.2, 0.5
SIGMA, SIGMA_SIDE = (0.1, 2.0), 224  # of the blur, in pixels of an image of that side


def weak_view(images: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """A crop of 7/8 of the side at a random position, mirrored with probability 1/2."""
    share = images.new_full((len(images),), WEAK_CROP)
    return random_crop(images, share, share, size, "bilinear")


def strong_view(images: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """A crop of 1/5 to all of the area with colour jitter, sometimes grey or blurred; in [0, 1].

    The order of the colour operations and the rotation of the hue are one draw per batch.
    """
    area, ratio = uniform(images, *STRONG_AREA), uniform(images, *map(math.log, RATIO)).exp()
    height, width = (area / ratio).sqrt().clamp(max=1), (area * ratio).sqrt().clamp(max=1)
    views = random_crop(images, height, width, size, "bicubic").clamp(0, 1)
    views = torch.where(chance(views, JITTERED), jittered(views), views)
    views = torch.where(chance(views, GREYED), grey(views), views)
    return blurred(views, uniform(views, *SIGMA) * views.shape[-1] / SIGMA_SIDE, BLURRED)


def uniform(images: Tensor, low: float, high: float) -> Tensor:
    """A uniform draw per image, [n]."""
    return low + (high - low) * torch.rand(len(images), dtype=images.dtype, device=images.device)


def chance(images: Tensor, probability: float) -> Tensor:
    """A draw per image that is True with this probability, bool [n, 1, 1, 1]."""
    return (uniform(images, 0, 1) < probability).view(-1, 1, 1, 1)


def random_crop(
    images: Tensor, height: Tensor, width: Tensor, size: tuple[int, int] | None, mode: str
) -> Tensor:
    """Random crops with these shares [n] of the sides, half of them mirrored, at `size`."""
    mirrored = torch.where(chance(images, 0.5).flatten(), -width, width)
    height_out, width_out = size or images.shape[-2:]
    # Without affine_grid, whose matrix product autocast and TF32 would compute with few bits.
    x = mirrored[:, None] * centred(width_out, images) + shift(images, width)
    y = height[:, None] * centred(height_out, images) + shift(images, height)
    grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), dim=-1)
    return grid_sample(images, grid, mode=mode, padding_mode="border", align_corners=False)


def centred(side: int, like: Tensor) -> Tensor:
    """Centres of pixels [side], in half sides from the centre."""
    return (2 * torch.arange(side, dtype=like.dtype, device=like.device) + 1) / side - 1


def shift(images: Tensor, share: Tensor) -> Tensor:
    """A random position [n, 1] of a crop with this share [n] of a side, in half sides."""
    return ((1 - share) * uniform(images, -1, 1))[:, None]


def grey(images: Tensor) -> Tensor:
    """Luminance in all three colours."""
    return colour.rgb_to_grayscale(images, num_output_channels=3)


def jittered(images: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue changed, in random order; in [0, 1]."""
    for operation in torch.randperm(4).tolist():
        share = uniform(images, 1 - JITTER, 1 + JITTER).view(-1, 1, 1, 1)
        if operation == 0:
            images = share * images
        elif operation == 1:
            images = torch.lerp(grey(images).mean((1, 2, 3), keepdim=True), images, share)
        elif operation == 2:
            images = torch.lerp(grey(images), images, share)
        else:
            images = turn_hue(images, float(torch.rand(())) * 2 * HUE - HUE)
        images = images.clamp(0, 1)
    return images


def blurred(images: Tensor, sigma: Tensor, probability: float) -> Tensor:
    """Gaussian blur of deviation `sigma` [n] in pixels, of images drawn by `probability`."""
    reach = min(max(1, math.ceil(3 * float(sigma.max()))), min(images.shape[-2:]) - 1)
    taps = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    weights = (-0.5 * (taps / sigma[:, None]).square()).softmax(1)
    weights = torch.where(chance(images, probability).flatten(1), weights, (taps == 0).to(weights))
    for axis, margin in ((-1, (reach, reach, 0, 0)), (-2, (0, 0, reach, reach))):
        padded, length = pad(images, margin, mode="reflect"), images.shape[axis]
        images = torch.zeros_like(images)
        for tap in range(len(taps)):
            images += padded.narrow(axis, tap, length) * weights[:, tap].view(-1, 1, 1, 1)
    return images
