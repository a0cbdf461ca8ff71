"""Procedural street scenes in clear weather, with labels, depth and lights, from a seed.

A street along the z axis with lanes, sidewalks, rows of houses, walls, fences and hedges, and with
furniture, vehicles and people, seen by a level camera on a car. Depth and class (Cityscapes' train
id) of every pixel are those of the surface that it shows.
"""

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ctta_bench.datasets.streets.buildings import (
    HEDGE,
    HOUSE,
    Plane,
    Row,
    make_row,
    paint_plane,
)
from ctta_bench.datasets.streets.canvas import (
    DEPTH,
    FAR,
    GLOW,
    HEIGHT,
    UP,
    WIDTH,
    Camera,
    Canvas,
    Street,
    noise,
)
from ctta_bench.datasets.streets.ground import (
    ground_depth,
    paint_ground,
    paint_texture,
    shade,
)
from ctta_bench.datasets.streets.objects import LABEL
from ctta_bench.datasets.streets.traffic import paint_things

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Scene:
    """A scene: `image` uint8 [h, w, 3]; `label` uint8 [2h, 2w], train ids.

    For weather, float32 [h, w]: `depth` in metres (1,000 for the sky), `up` (how much a surface
    faces up, 0 to 1) and `light` (number of a light in canvas.LIGHTS). `small`: labels [h, w] in
    the image's size; `camera`: in pixels of the label map.
    """

    image: NDArray[np.uint8]
    label: NDArray[np.uint8]
    small: NDArray[np.uint8]
    depth: NDArray[np.float32]
    up: NDArray[np.float32]
    light: NDArray[np.float32]
    camera: Camera


def make_scene(seed: tuple[int, ...]) -> Scene:
    """The scene of a seed; bit-identical for equal seeds."""
    rng = np.random.default_rng(seed)
    focal = WIDTH * rng.uniform(0.78, 0.98)
    u, v = WIDTH * rng.uniform(0.42, 0.58), HEIGHT * rng.uniform(0.38, 0.47)
    canvas = Canvas(Camera(focal, u, v, rng.uniform(1.35, 1.75)))
    street = _street(rng)
    sun = int(rng.integers(3))  # 0: from the left, 1: from the right, 2: overcast
    _sky(canvas, rng, sun == 2)
    ground_depth(canvas)
    rows = tuple(
        make_row(rng, kinds=(0.2, 0.54, 0.1, 0.09, 0.07), heights=(6, 19)) for _ in range(2)
    )
    paint_ground(canvas, rng, street)
    paint_texture(canvas, rng, shade(canvas, rng, street, rows, sun))
    _background(canvas, rng, street, rows)
    for s in (0, 1):
        tone = (0.72, 1.04, 0.86) if s == 0 else (1.04, 0.72, 0.86)
        _side(canvas, rng, street, rows[s], s, tone[sun])
    paint_things(canvas, rng, street)
    return _developed(canvas, rng)


def _street(rng: np.random.Generator) -> Street:
    lane = rng.uniform(2.9, 3.6)
    right = lane * rng.choice([0.55, 1.25], p=[0.6, 0.4]) + 0.3
    left = lane * rng.choice([1.5, 2.5], p=[0.7, 0.3]) + 0.3
    pair = rng.uniform(size=(4, 2))
    strip = np.where(pair[0] < 0.35, 0.8 + 2.2 * pair[1], 0.0)
    sidewalk = 1.9 + 2.4 * pair[2]
    yard = np.where(pair[3] < 0.3, 1.5 + 10 * pair[3], 0.3)
    widths = [(float(a), float(b)) for a, b in (strip, sidewalk, yard)]
    return Street((-left, right), widths[0], widths[1], widths[2], lane, rng.uniform(60, 180))


def _sky(canvas: Canvas, rng: np.random.Generator, overcast: bool) -> None:
    height = int(canvas.camera.v) + 2
    fall = np.linspace(0, 1, height // 4, dtype=np.float32)[:, None, None]
    zenith = np.array((96, 140, 204) if not overcast else (168, 176, 188), np.float32)
    horizon = np.array((190, 208, 226) if not overcast else (206, 208, 212), np.float32)
    colour = zenith * (1 - fall) + horizon * fall
    cloud = noise(rng, height // 4, WIDTH // 4, 1.3)[..., None]
    share = np.clip((cloud - rng.uniform(0.35, 0.75)) * 3, 0, 1) * np.float32(0.85)
    white = np.float32(236) - 60 * np.clip(cloud - np.float32(0.6), 0, 1)
    small = (colour * (1 - share) + white * share).astype(np.uint8)
    canvas.paint[:height, :, :3] = cv2.resize(small, (WIDTH, height))
    canvas.paint[..., 3] = LABEL["sky"]
    canvas.facts[..., DEPTH] = FAR


def _background(
    canvas: Canvas, rng: np.random.Generator, street: Street, rows: tuple[Row, ...]
) -> None:
    """Paint houses and trees behind the gaps, and the end of the street."""
    columns = np.arange(WIDTH)
    for s in (0, 1):
        far = street.front(s) + rng.uniform(14, 30)
        row = make_row(rng, kinds=(0.08, 0.6, 0.0, 0.0, 0.32), heights=(7, 22))
        row = _tall_hedges(row)
        for chosen in _open(canvas, street, rows[s], s):
            offset = np.maximum(np.abs(columns[chosen] - canvas.camera.u), 0.5)
            z = far * canvas.camera.focal / offset
            paint_plane(canvas, rng, row, Plane(chosen, z, z, row.at(z), 0.85, 0.3))
    row = _tall_hedges(make_row(rng, kinds=(0.1, 0.55, 0.0, 0.0, 0.35), heights=(8, 20)))
    across = (columns - canvas.camera.u) * (street.end / canvas.camera.focal)
    reach = max(street.front(0), street.front(1)) + 30
    seen = np.flatnonzero(np.abs(across) < reach)
    chosen = slice(int(seen[0]), int(seen[-1]) + 1)
    place = across[chosen] + reach
    z = np.full(len(place), street.end)
    paint_plane(canvas, rng, row, Plane(chosen, z, place, row.at(place), 0.9, 0.3))


def _tall_hedges(row: Row) -> Row:
    row.height[row.kind == HEDGE] *= 3.0
    return row


def _open(canvas: Canvas, street: Street, row: Row, s: int) -> list[slice]:
    """Runs of image columns of one side without a house in its front row."""
    chosen = _columns(canvas, (-1, 1)[s])
    offset = np.maximum(np.abs(np.arange(WIDTH)[chosen] - canvas.camera.u), 0.5)
    z = street.front(s) * canvas.camera.focal / offset
    is_open = np.concatenate([[False], row.kind[row.at(z)] != HOUSE, [False]])
    turns = np.flatnonzero(is_open[1:] != is_open[:-1]) + chosen.start
    return [slice(int(a), int(b)) for a, b in zip(turns[::2], turns[1::2], strict=True)]


def _columns(canvas: Canvas, sign: int) -> slice:
    middle = int(np.clip(np.ceil(canvas.camera.u), 0, WIDTH))
    return slice(0, middle) if sign < 0 else slice(middle, WIDTH)


def _side(
    canvas: Canvas, rng: np.random.Generator, street: Street, row: Row, s: int, tone: float
) -> None:
    """Paint one side of the street: the gable ends at gaps, then the fronts."""
    camera, sign, front = canvas.camera, (-1, 1)[s], street.front(s)
    for number in np.flatnonzero(row.kind == HOUSE)[::-1]:
        z = float(row.start[number])
        if number == 0 or row.kind[number - 1] == HOUSE or not 4 < z < 150:
            continue
        inner = camera.u + sign * front * camera.focal / z
        outer = camera.u + sign * (front + 11) * camera.focal / z
        u0, u1 = (int(np.clip(round(u), 0, WIDTH)) for u in sorted((inner, outer)))
        if u1 - u0 < 2:
            continue
        along = (np.arange(u0, u1) - camera.u) * (z / camera.focal)
        which, distance = np.full(u1 - u0, number), np.full(u1 - u0, z)
        end = Plane(slice(u0, u1), distance, np.abs(along), which, tone * 0.9)
        paint_plane(canvas, rng, row, end)
    chosen = _columns(canvas, sign)
    offset = np.maximum(np.abs(np.arange(WIDTH)[chosen] - camera.u), 0.5)
    z = front * camera.focal / offset
    paint_plane(canvas, rng, row, Plane(chosen, z, z, row.at(z), tone))


def _developed(canvas: Canvas, rng: np.random.Generator) -> Scene:
    """The canvas at half its size, with the exposure, white balance and grain of a camera."""
    size = (WIDTH // 2, HEIGHT // 2)
    shown = cv2.resize(
        np.ascontiguousarray(canvas.paint[..., :3]), size, interpolation=cv2.INTER_AREA
    )
    label = np.ascontiguousarray(canvas.paint[..., 3])
    gain = rng.uniform(0.85, 1.15) * rng.uniform(0.96, 1.04, 3)
    grain = noise(rng, HEIGHT // 2, WIDTH // 2, 0.2) - np.float32(0.5)
    image = shown * gain.astype(np.float32) + (grain * np.float32(14))[..., None]
    depth, up, light = (np.ascontiguousarray(canvas.facts[..., n]) for n in (DEPTH, UP, GLOW))
    small = np.ascontiguousarray(label[::2, ::2])
    image = np.clip(image, 0, 255).astype(np.uint8)
    return Scene(image, label, small, depth, up, light, canvas.camera)
