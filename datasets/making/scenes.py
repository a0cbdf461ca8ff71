"""Scenes: grey photographs of garments, tinted, in front of coloured procedural grounds.

A ground mixes two colours by a field: a gradient in a random direction plus a texture whose octaves
have amplitudes of a power law (value noise, about 1/f). A garment is lighter or darker than its
ground, in half of the scenes each. Each scene depends only on the photograph, the name of its split
and its number, by elementwise arithmetic, so it is the same on every machine.
"""

import hashlib

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

SIDE = 32
# Increase it whenever a pixel changes; part of the cache's key and of a benchmark's version.
VERSION = 1

Floats = NDArray[np.float64]
OCTAVES = (2, 4, 8, 16, 32)  # cells per side of the texture's grids
_COLOURS, _FIELD, _PLACE = 9, 4, 2  # random numbers of three colours, the field, the place
_GRIDS = [(size + 1) ** 2 for size in OCTAVES]
_DRAWS = 1 + _COLOURS + _FIELD + _PLACE + sum(_GRIDS)
OPAQUE = 48  # grey value from which a pixel of a photograph hides the ground


def render(
    photographs: NDArray[np.uint8], numbers: NDArray[np.int64], split: str
) -> NDArray[np.uint8]:
    """Scenes uint8 [n, 32, 32, 3] of photographs uint8 [n, h, w], h and w at most 32.

    numbers: int64 [n], one for each scene; two numbers give one photograph two grounds.

    Example: `render(photographs, np.arange(len(photographs)), "test")`
    """
    if len(photographs) == 0:
        return np.empty((0, SIDE, SIDE, 3), np.uint8)
    draws = np.stack([_draws(split, int(number)) for number in numbers])
    parts = np.split(draws, np.cumsum([1, _COLOURS, _FIELD, _PLACE]), axis=1)
    polarity, colours, field, place, grids = parts
    darker = polarity[:, 0] < 0.5
    high, low = colours[:, 2] * 0.4 + 0.6, colours[:, 2] * 0.35 + 0.05
    tint = _rgb(colours[:, 0], colours[:, 1], np.where(darker, low, high))
    ends = []
    for first in (3, 6):
        hue, saturation, value = colours[:, first : first + 3].T
        bright, dim = value * 0.55 + 0.45, value * 0.5 + 0.05
        ends.append(_rgb(hue, saturation, np.where(darker, bright, dim)))
    mixed = _field(field, grids)[..., None]
    ground = ends[0][:, None, None] * (1 - mixed) + ends[1][:, None, None] * mixed
    grey = _placed(photographs, place)
    alpha = np.minimum(grey / OPAQUE, 1.0)[..., None]
    shading = (0.35 + 0.65 * grey / 255)[..., None]
    scene = alpha * (tint[:, None, None] * shading) + (1 - alpha) * ground
    return np.rint(scene * 255).astype(np.uint8)


def _draws(split: str, number: int) -> Floats:
    """All random numbers of a scene, in [0, 1)."""
    digest = hashlib.sha256(f"scene/{split}/{number}".encode()).digest()
    return RandomState(int.from_bytes(digest[:4], "little")).random_sample(_DRAWS)


def _rgb(hue: Floats, saturation: Floats, value: Floats) -> Floats:
    """Colours [n, 3] of hue, saturation and value in [0, 1]."""
    steps = (np.array([5.0, 3.0, 1.0]) + 6 * hue[:, None]) % 6
    share = np.clip(np.minimum(steps, 4 - steps), 0, 1)
    return value[:, None] * (1 - saturation[:, None] * share)


def _field(numbers: Floats, grids: Floats) -> Floats:
    """Gradient plus texture, [n, 32, 32] from 0 to 1."""
    angle, texture, slope, gradient = numbers.T[:, :, None, None]
    axis = (np.arange(SIDE) + 0.5) / SIDE - 0.5
    field = (0.2 + gradient) * (
        np.cos(2 * np.pi * angle) * axis + np.sin(2 * np.pi * angle) * axis[:, None]
    )
    start = 0
    for size, count in zip(OCTAVES, _GRIDS, strict=True):
        grid = grids[:, start : start + count].reshape(-1, size + 1, size + 1) - 0.5
        amplitude = (0.5 + 1.5 * texture) * (size / 2.0) ** -(0.2 + 0.7 * slope)
        field = field + amplitude * _enlarged(grid, size)
        start += count
    low, high = field.min((1, 2), keepdims=True), field.max((1, 2), keepdims=True)
    return (field - low) / (high - low)


def _enlarged(grid: Floats, size: int) -> Floats:
    """A grid of (size + 1) x (size + 1) points, bilinearly to 32 x 32 pixels."""
    at = (np.arange(SIDE) + 0.5) * size / SIDE
    cell = at.astype(int)
    share = at - cell
    rows = grid[:, cell] * (1 - share)[:, None] + grid[:, cell + 1] * share[:, None]
    return rows[:, :, cell] * (1 - share) + rows[:, :, cell + 1] * share


def _placed(photographs: NDArray[np.uint8], place: Floats) -> Floats:
    """The photographs at random places of black 32 x 32 images, as floats in 0 to 255."""
    grey = np.zeros((len(photographs), SIDE, SIDE))
    height, width = photographs.shape[1:]
    tops = (place[:, 0] * (SIDE - height + 1)).astype(int)
    lefts = (place[:, 1] * (SIDE - width + 1)).astype(int)
    for image, photograph, top, left in zip(grey, photographs, tops, lefts, strict=True):
        image[top : top + height, left : left + width] = photograph
    return grey
