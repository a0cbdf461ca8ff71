"""Random views of a batch: the augmentation of CoTTA, which RoTTA, ViDA, Continual-MAE and RMT
share, and the lighter one of ROID and CMF.

Colour operations in random order, a small affine map with replicated edges, blur, flip and noise,
on images in [0, 1]. All images of a batch share one draw, as in the official codes; only the noise
is per image. Draws come from torch's global streams, which `Method` makes private.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate
from torchvision.transforms.v2 import functional as colour

from ctta_bench.names import renamed

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)

TAPS = 5  # of the blur
NOISE = 0.005
# Ranges of uniform draws.
BRIGHTNESS, CONTRAST, SATURATION = (0.6, 1.4), (0.7, 1.3), (0.5, 1.5)
HUE, GAMMA = (-0.06, 0.06), (0.7, 1.3)
ANGLE, SCALE, SIGMA = (-15.0, 15.0), (0.9, 1.1), (0.001, 0.5)
SHIFT = 1 / 8  # of the side; 1/16 of the padded image, which is twice as large
CACHED_VALUES = 2**18  # of the images in a chunk: 1 MB, half of a core's cache


@dataclass(frozen=True)
class View:
    """One draw: angle in degrees, shift (x, y) in whole pixels, sigma of the blur in pixels."""

    order: tuple[int, ...]
    brightness: float
    contrast: float
    saturation: float
    hue: float
    gamma: float
    angle: float
    shift: tuple[int, int]
    scale: float
    sigma: float
    flipped: bool


def random_view(images: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """One random view of images [n, 3, H, W] in [0, 1], with one draw for all but the noise.

    `size` (H, W), if given, resizes the images first: to the network's input size, at which the
    official codes augment. Returns images in [0, 1].
    """
    images = resized(images, size)
    view = draw_view(*images.shape[-2:])

    def seen(some: Tensor) -> Tensor:
        some = jitter(some.clamp(0, 1), view)
        some = blur(affine(some, view, margin=TAPS // 2), view.sigma)
        return some.flip(-1) if view.flipped else some

    noise = torch.randn(images.shape, dtype=images.dtype, device=images.device)
    return noise.mul_(NOISE).add_(in_chunks(images, seen)).clamp_(0, 1)


def in_chunks(images: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """`change(images)` of images [n, 3, H, W], on a CPU in chunks that stay in the cache.

    `change` has many small steps and treats each image independently.
    """
    few = max(1, CACHED_VALUES // max(1, images[:1].numel()))
    if images.device.type != "cpu" or len(images) <= few:
        return change(images)
    return torch.cat([change(some) for some in images.split(few)])


def light_view(images: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """The view of ROID and CMF: as `random_view`, with mirrored edges, without blur and noise."""
    images = resized(images, size)
    view = draw_view(*images.shape[-2:])

    def seen(some: Tensor) -> Tensor:
        some = affine(jitter(some.clamp(0, 1), view), view, margin=0, mirrored=True)
        return (some.flip(-1) if view.flipped else some).clamp(0, 1)

    return in_chunks(images, seen)


def resized(images: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Images [n, 3, H, W] resized to (H, W), if a size is given."""
    if size is None or tuple(images.shape[-2:]) == size:
        return images
    return interpolate(images, size=size, mode="bilinear", align_corners=False)


def draw_view(height: int, width: int) -> View:
    """A random draw for images of this size, from the CPU's stream on every device."""
    order = tuple(torch.randperm(5).tolist())
    share = iter(torch.rand(11, dtype=torch.float64).tolist())

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * next(share)

    return View(
        order,
        uniform(*BRIGHTNESS),
        uniform(*CONTRAST),
        uniform(*SATURATION),
        uniform(*HUE),
        uniform(*GAMMA),
        uniform(*ANGLE),
        (
            round(uniform(-SHIFT * width, SHIFT * width)),
            round(uniform(-SHIFT * height, SHIFT * height)),
        ),
        uniform(*SCALE),
        uniform(*SIGMA),
        next(share) < 0.5,
    )


def jitter(images: Tensor, view: View) -> Tensor:
    """All five colour operations in the order of the view; the mean for contrast is per image."""
    for operation in view.order:
        if operation == 0:
            images = colour.adjust_brightness(images, view.brightness)
        elif operation == 1:
            images = colour.adjust_contrast(images, view.contrast)
        elif operation == 2:
            images = colour.adjust_saturation(images, view.saturation)
        elif operation == 3:
            images = turn_hue(images, view.hue)
        else:
            images = colour.adjust_gamma(images.clamp(1e-8, 1), view.gamma)
    return images


def turn_hue(images: Tensor, turn: float) -> Tensor:
    """Images [..., 3, H, W] in [0, 1] with hues rotated by `turn` (1 is a full circle).

    Equal to torchvision's adjust_hue within 2e-6, in a sixth of its time.
    """
    red, green, blue = images.unbind(-3)
    high = torch.maximum(torch.maximum(red, green), blue)
    chroma = high - torch.minimum(torch.minimum(red, green), blue)
    # The largest channel as 0 and 1: multiplication on a CPU is much faster than selection.
    not_red = (high - red).sign_()
    most_blue = (high - green).sign_().mul_(not_red)
    most_green = not_red - most_blue
    hue = (green - blue).mul_(1 - not_red)
    hue.addcmul_(blue - red, most_green).addcmul_(red - green, most_blue)
    hue.div_(chroma.sign().neg_().add_(1).add_(chroma))  # in sixths of a circle; 0 for grey
    hue.add_(most_green, alpha=2).add_(most_blue, alpha=4)
    channels = []
    for zero in (5, 3, 1):  # each colour falls to its minimum and rises again with the hue
        place = hue + (zero + 6 * turn)
        place.sub_((place / 6).floor_(), alpha=6)
        share = torch.minimum(place, 4 - place).clamp_(0, 1)
        channels.append(torch.addcmul(high, chroma, share, value=-1))
    return torch.stack(channels, -3)


def affine(images: Tensor, view: View, *, margin: int, mirrored: bool = False) -> Tensor:
    """Rotate, scale and shift about the centre, with `margin` additional pixels on each side.

    The official codes pad by half the side with replicated (or `mirrored`) edges, map, and crop the
    centre. The crop never reaches the edge of the padding, so clamped (or reflected) sampling of
    the image itself gives the same at a quarter of the cost.
    """
    height, width = images.shape[-2:]
    x = _centred(width, margin, images) - view.shift[0]
    y = _centred(height, margin, images)[:, None] - view.shift[1]
    cosine = math.cos(math.radians(view.angle)) / view.scale
    sine = math.sin(math.radians(view.angle)) / view.scale
    # The input position of each output pixel, in half sides from the centre. A side ends at the rim
    # of its last pixel; in its middle if it is mirrored without repeating that pixel.
    scales = [2 / max(side - mirrored, 1) for side in (width, height)]
    grid = torch.stack(
        [(cosine * x + sine * y) * scales[0], (cosine * y - sine * x) * scales[1]], dim=-1
    )
    grid = grid.expand(len(images), -1, -1, -1)
    padding = "reflection" if mirrored else "border"
    return grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=mirrored)


def _centred(side: int, margin: int, like: Tensor) -> Tensor:
    """Pixel positions [side + 2 margin] from the centre."""
    half = (side - 1) / 2 + margin
    return torch.linspace(-half, half, side + 2 * margin, dtype=like.dtype, device=like.device)


def blur(images: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of five taps without padding: each side becomes four pixels shorter."""
    # Weighted slices, not a convolution, which autocast and TF32 would compute with few bits.
    weights = [math.exp(-0.5 * ((tap - TAPS // 2) / sigma) ** 2) for tap in range(TAPS)]
    for axis in (-1, -2):
        length = images.shape[axis] - TAPS + 1
        blurred = images.narrow(axis, 0, length) * (weights[0] / sum(weights))
        for tap in range(1, TAPS):
            blurred.add_(images.narrow(axis, tap, length), alpha=weights[tap] / sum(weights))
        images = blurred
    return images
