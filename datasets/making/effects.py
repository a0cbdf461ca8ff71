"""The effect of each corruption on an image, uint8 [H, W, 3], with its own random numbers.

Errors of the released data are kept, since models are compared on these data: glass blur copies
pixels instead of swapping them, lengths of the ImageNet elastic transform are in units of 244
pixels, frost chooses among five of six pictures, two of them equal, and values are truncated to 8
bits (only those of the blur along a line, in motion blur and snow, are rounded).
"""

import functools
import importlib.util
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray
from PIL import Image

from ctta_bench.datasets.io.decoding import as_rgb, opened
from ctta_bench.datasets.making.strengths import CORRUPTIONS, HOLD_OUT
from ctta_bench.errors import DataError, expanded

U8 = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]  # x: an image scaled to [0, 1]

FROST = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
# Scaled by 0.2; without frost3, which shows the same as frost2.
_SMALL_FROST = ("frost1.png", "frost2.png", "frost2.png", "frost4.png", "frost5.png")


def to_bytes(x: Floats) -> U8:
    """Pixels of an image scaled to [0, 1]."""
    return (np.clip(x, 0, 1) * 255).astype(np.uint8)  # truncated, as in the released data


def _gaussian_noise(image: U8, rng: RandomState, sigma: float) -> Floats:
    return image / 255.0 + rng.normal(scale=sigma, size=image.shape)


def _shot_noise(image: U8, rng: RandomState, photons: float) -> Floats:
    return rng.poisson(image / 255.0 * photons) / photons


def _impulse_noise(image: U8, rng: RandomState, amount: float) -> U8:
    is_hit = rng.random_sample(image.shape) <= amount
    is_salt = rng.random_sample(image.shape) <= 0.5
    return np.where(is_hit, np.where(is_salt, 255, 0), image).astype(np.uint8)


def _speckle_noise(image: U8, rng: RandomState, sigma: float) -> Floats:
    x = image / 255.0
    return x + x * rng.normal(scale=sigma, size=image.shape)


def _smooth(x: Floats, sigma: float, mode: str = "nearest", truncate: float = 4) -> Floats:
    from scipy import ndimage  # slow to import, and needed only where data are made

    return np.asarray(ndimage.gaussian_filter(x, sigma, axes=(0, 1), mode=mode, truncate=truncate))


def _gaussian_blur(image: U8, rng: RandomState, sigma: float) -> Floats:
    return _smooth(image / 255.0, sigma)


def _defocus_blur(image: U8, rng: RandomState, radius: float, alias_sigma: float) -> Floats:
    reach, side = (8, 3) if radius <= 8 else (radius, 5)
    squares = np.arange(-reach, reach + 1) ** 2
    disk = (squares + squares[:, None] <= radius**2).astype(np.float32)
    kernel = cv2.GaussianBlur(disk / disk.sum(), (side, side), alias_sigma)
    return np.asarray(cv2.filter2D(image / 255.0, -1, kernel))


def _glass_blur(image: U8, rng: RandomState, sigma: float, reach: int, passes: int) -> Floats:
    pixels = to_bytes(_smooth(image / 255.0, sigma)).reshape(-1, 3)
    for _ in range(passes):
        pixels = pixels[_glass_sources(image.shape[0], image.shape[1], rng, reach)]
    return _smooth(pixels.reshape(image.shape) / 255.0, sigma)


def _glass_sources(height: int, width: int, rng: RandomState, reach: int) -> NDArray[np.intp]:
    """The flat position [H * W] that each pixel's value comes from after a pass of glass blur.

    From the last row and column upwards, the pass overwrites each pixel with one at an offset in
    [-reach, reach - 1]. A pixel that it reads further down has already been overwritten, so the
    origin of that pixel counts. Following these links to their ends equals the pass.
    """
    rows, columns = np.arange(height - reach, reach, -1), np.arange(width - reach, reach, -1)
    right, down = np.moveaxis(rng.randint(-reach, reach, size=(len(rows), len(columns), 2)), -1, 0)
    visited = rows[:, None] * width + columns
    positions = np.arange(height * width)
    source, is_visited = positions.copy(), np.zeros(positions.shape, dtype=bool)
    source[visited] += down * width + right
    is_visited[visited] = True
    end = np.where((source > positions) & is_visited[source], source, positions)
    while not np.array_equal(further := end[end], end):
        end = further
    return np.asarray(source[end])


def _motion_blur(image: U8, rng: RandomState, radius: float, sigma: float) -> U8:
    return _smear(image, radius, sigma, angle=rng.uniform(-45, 45))


def _smear(image: U8, radius: float, sigma: float, angle: float) -> U8:
    """ImageMagick's motion blur of [H, W] or [H, W, 3]: half a Gaussian along a line.

    radius, sigma: in pixels; angle: of the line, in degrees. Values are rounded to 8 bits, as in
    the ImageMagick of 2018; newer ones (6.9.11-60, say) truncate them when they write a PNG.
    """
    steps, (height, width) = np.arange(2 * radius + 1), image.shape[:2]
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    down = np.ceil(steps * np.sin(np.deg2rad(angle)) - 0.5).astype(int)
    right = np.ceil(steps * np.cos(np.deg2rad(angle)) - 0.5).astype(int)
    pad = len(steps)
    padded = cv2.copyMakeBorder(image, pad, pad, pad, pad, cv2.BORDER_REPLICATE).astype(np.float64)
    blurred = np.zeros(image.shape)
    for weight, top, left in zip(weights / weights.sum(), pad + down, pad + right, strict=True):
        blurred += weight * padded[top : top + height, left : left + width]
    return (blurred + 0.5).astype(np.uint8)


def _centre(x: Floats, height: int, width: int) -> Floats:
    top, left = (x.shape[0] - height) // 2, (x.shape[1] - width) // 2
    return x[top : top + height, left : left + width]


def _clipped_zoom(x: Floats, factor: float) -> Floats:
    """The centre of x, enlarged by `factor` (bilinear) to the size of x."""
    from scipy import ndimage  # slow to import, and needed only where data are made

    height, width = x.shape[:2]
    crop = _centre(x, int(np.ceil(height / factor)), int(np.ceil(width / factor)))
    return _centre(ndimage.zoom(crop, (factor, factor, 1)[: x.ndim], order=1), height, width)


def _zoom_blur(image: U8, rng: RandomState, stop: float, step: float) -> Floats:
    x = (image / 255.0).astype(np.float32)
    factors = np.arange(1, stop, step)  # the first is 1: x counts twice
    return (x + sum(_clipped_zoom(x, factor) for factor in factors)) / (len(factors) + 1)


def _snow(image: U8, rng: RandomState, *level: float) -> Floats:
    loc, scale, zoom, threshold, radius, sigma, mix = level
    flakes = _clipped_zoom(rng.normal(loc, scale, size=image.shape[:2]), zoom)
    flakes[flakes < threshold] = 0
    streaks = _smear(to_bytes(flakes), radius, sigma, angle=rng.uniform(-135, -45)) / 255.0
    x = (image / 255.0).astype(np.float32)
    grey = np.asarray(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY))[..., None]
    whitened = np.asarray(mix * x + (1 - mix) * np.maximum(x, grey * 1.5 + 0.5))
    return whitened + streaks[..., None] + np.rot90(streaks, k=2)[..., None]


def _frost(image: U8, rng: RandomState, *level: float) -> U8:
    (image_weight, frost_weight, scale), (height, width) = level, image.shape[:2]
    picture = _read_picture(_frost_path(int(rng.randint(5)), is_small=scale != 1))
    factor = max((height + 1) / picture.shape[0], (width + 1) / picture.shape[1])
    if factor > 1:  # + 1: the published crop never starts at the last possible row or column
        picture = np.asarray(cv2.resize(picture, None, fx=factor, fy=factor))
    top, left = rng.randint(picture.shape[0] - height), rng.randint(picture.shape[1] - width)
    frost = picture[top : top + height, left : left + width]
    return np.clip(image_weight * image + frost_weight * frost, 0, 255).astype(np.uint8)


def _frost_path(number: int, *, is_small: bool) -> Path:
    if is_small:
        return Path(__file__).parents[1] / "embedded" / "frost" / _SMALL_FROST[number]
    places = [os.environ.get("CTTA_BENCH_DATA")]
    if package := importlib.util.find_spec("imagecorruptions"):  # found, not imported
        places.extend(package.submodule_search_locations or ())
    for place in filter(None, places):
        if (path := expanded(place) / "frost" / FROST[number]).is_file():
            return path
    raise DataError(
        f"no {FROST[number]} for the parameters imagenet: put the five of hendrycks/robustness "
        "into $CTTA_BENCH_DATA/frost or `pip install --no-deps imagecorruptions-imaug==1.1.5`"
    )


@functools.lru_cache(maxsize=16)
def _read_picture(path: Path) -> U8:
    with opened(path) as picture:
        return np.asarray(as_rgb(picture))  # drops the alpha channel, unblended


def _fog(image: U8, rng: RandomState, amount: float, decay: float) -> Floats:
    x, (height, width) = image / 255.0, image.shape[:2]
    side = 1 << (max(height, width) - 1).bit_length()  # 32 for CIFAR, 256 for ImageNet
    foggy, peak = x + amount * _plasma(side, decay, rng)[:height, :width, None], float(x.max())
    return foggy * peak / (peak + amount)


def _plasma(side: int, decay: float, rng: RandomState) -> Floats:
    """Height map [side, side] in [0, 1]: diamond-square algorithm with periodic borders."""
    heights, wibble, step = np.zeros((side, side)), 100.0, side

    def middle(total: Floats) -> Floats:
        return total / 4 + wibble * rng.uniform(-wibble, wibble, size=total.shape)

    while step >= 2:
        half, corners = step // 2, heights[::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=0)
        centres = middle(pairs + np.roll(pairs, -1, axis=1))
        columns, rows = (centres + np.roll(centres, 1, axis) for axis in (0, 1))
        heights[half::step, half::step] = centres
        heights[::step, half::step] = middle(columns + (corners + np.roll(corners, -1, axis=1)))
        heights[half::step, ::step] = middle(rows + pairs)
        step, wibble = half, wibble / decay
    heights -= heights.min()
    return heights / float(heights.max())


def _spatter(image: U8, rng: RandomState, *level: float) -> Floats:
    loc, scale, sigma, threshold, strength, is_mud = level
    x = (image / 255.0).astype(np.float32)
    liquid = _smooth(rng.normal(loc, scale, size=image.shape[:2]), sigma)
    liquid[liquid < threshold] = 0
    if is_mud:
        cover = _smooth((liquid > threshold).astype(np.float32), strength)[..., None]
        cover[cover < 0.8] = 0
        return x * (1 - cover) + cover * (np.array([63, 42, 20]) / 255).astype(np.float32)
    water = (liquid * 255).astype(np.int64).astype(np.uint8)  # above 1 it wraps around, as released
    depth = cv2.distanceTransform(255 - cv2.Canny(water, 50, 150), cv2.DIST_L2, 5)
    depth = cv2.equalizeHist(cv2.blur(np.minimum(depth, 20), (3, 3)).astype(np.uint8))
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    depth = cv2.blur(cv2.filter2D(depth, cv2.CV_8U, emboss), (3, 3)).astype(np.float32)
    drops = water * depth
    drops /= max(drops.max(), 1)  # a tiny image may have no drop
    return x + drops[..., None] * strength * (np.array([175, 238, 238]) / 255).astype(np.float32)


def _brightness(image: U8, rng: RandomState, change: float) -> Floats:
    hue, saturation, value = _rgb_to_hsv(image / 255.0)
    return _hsv_to_rgb(hue, saturation, np.clip(value + change, 0, 1))


def _saturate(image: U8, rng: RandomState, factor: float, change: float) -> Floats:
    hue, saturation, value = _rgb_to_hsv(image / 255.0)
    return _hsv_to_rgb(hue, np.clip(saturation * factor + change, 0, 1), value)


def _rgb_to_hsv(x: Floats) -> tuple[Floats, Floats, Floats]:
    (red, green, blue), value = np.moveaxis(x, -1, 0), x.max(axis=-1)
    spread = value - x.min(axis=-1)
    span = np.where(spread == 0, 1, spread)
    sextant = np.where(value == green, 2 + (blue - red) / span, (green - blue) / span)
    sextant = np.where(value == blue, 4 + (red - green) / span, sextant)
    return np.where(spread == 0, 0, sextant / 6 % 1), spread / np.where(value == 0, 1, value), value


def _hsv_to_rgb(hue: Floats, saturation: Floats, value: Floats) -> Floats:
    sextant = np.floor(hue * 6)
    fraction = hue * 6 - sextant
    low = value * (1 - saturation)
    fall, rise = value * (1 - fraction * saturation), value * (1 - (1 - fraction) * saturation)
    red = (value, fall, low, low, rise, value)  # by sextant; green and blue lag by two and four
    turns = (sextant.astype(int) + lag for lag in (0, 4, 2))
    return np.stack([np.choose(turn % 6, red) for turn in turns], axis=-1)


def _contrast(image: U8, rng: RandomState, factor: float) -> Floats:
    x = image / 255.0
    mean = x.mean(axis=(0, 1), keepdims=True)
    return np.asarray((x - mean) * factor + mean)


def _elastic_transform(image: U8, rng: RandomState, *level: float) -> Floats:
    from scipy import ndimage  # slow to import, and needed only where data are made

    (alpha, sigma, reach), (height, width) = level, image.shape[:2]
    arm, centre = min(height, width) // 3, np.array([width // 2, height // 2])
    before = (centre + arm * np.array([[1, 1], [1, -1], [-1, -1]])).astype(np.float32)
    after = before + rng.uniform(-reach, reach, size=(3, 2)).astype(np.float32)
    # With scipy, since OpenCV 4 and 5 interpolate differently; (x, y) becomes (row, column).
    back = cv2.getAffineTransform(after, before)[::-1, [1, 0, 2]]
    warp = functools.partial(ndimage.affine_transform, matrix=back[:, :2], offset=back[:, 2])
    noise = (rng.uniform(-1, 1, size=(height, width)) for _ in range(2))
    right, down = (alpha * _smooth(layer, sigma, "reflect", 3) for layer in noise)
    places = (np.arange(height)[:, None] + down, np.arange(width) + right)
    move = functools.partial(ndimage.map_coordinates, coordinates=places, order=1, mode="reflect")
    channels = np.moveaxis(image / 255.0, -1, 0)
    return np.stack([move(warp(x, order=1, mode="mirror")) for x in channels], axis=-1)


def _pixelate(image: U8, rng: RandomState, scale: float) -> U8:
    (height, width), box = image.shape[:2], Image.Resampling.BOX
    small = Image.fromarray(image).resize((int(width * scale), int(height * scale)), box)
    return np.array(small.resize((width, height), box))


def _jpeg_compression(image: U8, rng: RandomState, quality: int) -> U8:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=quality)
    return np.array(Image.open(stream))


EFFECTS: dict[str, Callable[..., Any]] = {
    name: globals()[f"_{name}"] for name in (*CORRUPTIONS, *HOLD_OUT)
}
