"""The sides of a street: rows of buildings, walls, fences and hedges on planes of the scene."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctta_bench.datasets.io.street_classes import CLASSES
from ctta_bench.datasets.streets.canvas import DEPTH, GLOW, HEIGHT, LIGHTS, UP, Canvas, noise

Floats = NDArray[np.floating[Any]]
GAP, HOUSE, WALL, FENCE, HEDGE = range(5)
LABEL_OF = np.array([255, *(CLASSES.index(n) for n in ("building", "wall", "fence", "vegetation"))])
FRONTS = np.array([
    (196, 178, 150), (178, 150, 122), (150, 92, 72), (206, 200, 190), (168, 168, 164),
    (120, 96, 84), (214, 190, 140), (146, 152, 160), (186, 140, 112), (130, 120, 110),
])  # fmt: skip
BOUND = 400.0  # metres; nothing beyond it is painted


@dataclass(frozen=True)
class Row:
    """Segments one after another; all arrays [n], `start` in metres, ascending."""

    start: Floats
    kind: NDArray[np.int64]
    height: Floats
    colour: Floats  # [n, 3]
    storey: Floats
    ground: Floats  # height of the ground floor
    bay: Floats  # metres from window to window
    glass: Floats  # half the width of a window, as a share of the bay
    salt: NDArray[np.int64]  # determines which windows are lit

    def at(self, z: Floats) -> NDArray[np.intp]:
        """The segment at each distance."""
        return np.maximum(np.searchsorted(self.start, z, side="right") - 1, 0)


def make_row(
    rng: np.random.Generator, *, kinds: tuple[float, ...], heights: tuple[float, float]
) -> Row:
    """A row of random segments; `kinds`: probabilities of gap, house, wall, fence and hedge."""
    n = 24
    kind = rng.choice(5, n, p=kinds)
    length = np.where(kind == HOUSE, rng.uniform(9, 28, n), rng.uniform(5, 16, n))
    start = np.concatenate([[0.0], np.cumsum(length)[:-1]]) + rng.uniform(-12, 0)
    low = np.array([0.0, 0.0, 1.0, 0.9, 1.2])[kind]
    high = np.array([0.0, 0.0, 2.6, 1.9, 3.2])[kind]
    height = np.where(kind == HOUSE, rng.uniform(*heights, n), rng.uniform(low, high))
    colour = FRONTS[rng.integers(0, len(FRONTS), n)] * rng.uniform(0.75, 1.1, (n, 1))
    grey = rng.uniform(90, 170, (n, 1)) * np.array([[1.0, 0.97, 0.92]])
    green = rng.uniform(0.7, 1.1, (n, 1)) * np.array([[70.0, 96.0, 46.0]])
    dark = rng.uniform(40, 110, (n, 1)) * np.array([[1.0, 1.02, 1.0]])
    colour = np.where((kind == WALL)[:, None], grey, colour)
    colour = np.where((kind == FENCE)[:, None], dark, colour)
    colour = np.where((kind == HEDGE)[:, None], green, colour)
    return Row(
        start,
        kind,
        height,
        colour,
        storey=rng.uniform(2.7, 3.8, n),
        ground=rng.uniform(3.0, 4.6, n),
        bay=rng.uniform(1.8, 4.0, n),
        glass=rng.uniform(0.16, 0.36, n),
        salt=rng.integers(0, 1 << 30, n),
    )


@dataclass(frozen=True)
class Plane:
    """An upright plane, by image column: distances `z` and positions `along` it [c], in metres.

    `which` [c]: segments of its row; `brightness`: how much light it receives; `lit`: the share of
    lit windows.
    """

    columns: slice
    z: Floats
    along: Floats
    which: NDArray[np.intp]
    brightness: float
    lit: float = 0.35


def paint_plane(canvas: Canvas, rng: np.random.Generator, row: Row, plane: Plane) -> None:
    """Paint the segments of a row on a plane."""
    camera, kind = canvas.camera, row.kind[plane.which]
    z = plane.z.astype(np.float32)
    height = row.height[plane.which].astype(np.float32)
    if (kind == HEDGE).any():
        crest = noise(rng, 1, len(z), 1.0)[0]
        height = np.where(kind == HEDGE, height * (0.7 + 0.6 * crest), height)
    scale = np.float32(camera.focal) / z
    top = np.float32(camera.v) - scale * (height - np.float32(camera.height))
    base = np.float32(camera.v) + scale * np.float32(camera.height)
    seen = (kind != GAP) & (z < BOUND)
    if not seen.any():
        return
    first, last = max(0, int(top[seen].min())), min(HEIGHT, int(base[seen].max()) + 1)
    v = np.arange(first, last, dtype=np.float32)[:, None]
    mask = (v >= np.where(seen, top, HEIGHT)) & (v < base)
    y = np.float32(camera.height) - (v - np.float32(camera.v)) / scale
    fade = np.float32(plane.brightness) * np.clip(1.25 - z / 260, 0.6, 1)
    tone = fade * (0.82 + np.float32(0.36) * noise(rng, last - first, len(z), 0.8))
    light = np.zeros(mask.shape, np.float32)
    if (kind == HOUSE).any():
        change, light = _windows(row, plane, y, height, kind == HOUSE)
        tone *= change
    area = np.s_[first:last, plane.columns]
    shown = mask & _solid(plane, y, height, kind)
    canvas.tint(area, row.colour[plane.which].astype(np.float32), tone, shown)
    np.copyto(canvas.paint[area][..., 3], LABEL_OF[kind].astype(np.uint8), where=mask)
    up = np.where(kind == HEDGE, (y / np.maximum(height, 0.1)) ** 2, y > height - 0.35)
    facts = {DEPTH: np.broadcast_to(z, mask.shape), UP: np.clip(up, 0, 1), GLOW: light}
    canvas.note((first, plane.columns.start), facts, mask)


def _solid(plane: Plane, y: Floats, height: Floats, kind: NDArray[np.int64]) -> NDArray[np.bool_]:
    """What is opaque: everything except the gaps of fences, whose label is fence, too."""
    if not (kind == FENCE).any():
        return np.ones((), np.bool_)
    bars = _fraction(plane.along.astype(np.float32) / 0.28) < 0.42
    return np.asarray(bars | (y > height - 0.12) | (y < 0.2) | (kind != FENCE))


def _fraction(values: Floats) -> Floats:
    """The fractional part."""
    return values - np.floor(values)


def _windows(
    row: Row, plane: Plane, y: Floats, height: Floats, house: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Darkening by glass and cornices, and the number of each pixel's light; both [rows, c]."""
    which = plane.which
    bay = plane.along.astype(np.float32) / row.bay[which].astype(np.float32)
    column = np.floor(bay)
    middle = np.abs(bay - column - np.float32(0.5))
    ground = row.ground[which].astype(np.float32)
    level = (y - ground) / row.storey[which].astype(np.float32)
    storey = np.floor(level)
    inside = np.abs(level - storey - np.float32(0.52)) < 0.27
    inside &= (level > 0) & (y < height - np.float32(0.9))
    upper = inside & ((middle < row.glass[which]) & house)
    salt = row.salt[which]
    is_shop = (salt & 3) > 0
    shop = (y > 0.6) & (y < ground - np.float32(0.7)) & ((middle < 0.44) & is_shop & house)
    door = (y < 2.2) & ((middle < 0.2) & ~is_shop & (column % 3 == 1) & house)
    cornice = ((np.abs(level) < 0.07) | (y > height - np.float32(0.5))) & house
    draw = (column.astype(np.int64) * 7919 + salt).astype(np.uint32) + (
        storey.astype(np.int32).astype(np.uint32) * np.uint32(2741)
    )
    is_lit = (draw * np.uint32(2654435761)) >> np.uint32(22) < np.uint32(plane.lit * 1024)
    change = np.ones(y.shape, np.float32)
    change[cornice] = 0.72
    change[upper | shop | door] = 0.33
    light = np.zeros(y.shape, np.float32)
    light[upper & is_lit] = LIGHTS["window"][0]
    light[shop & ((salt & 7) > 2)] = LIGHTS["shop"][0]
    return change, light
