"""Trees and bushes."""

import functools

import numpy as np
from numpy.typing import NDArray

from ctta_bench.datasets.streets.canvas import (
    DEPTH,
    GLOW,
    HEIGHT,
    UP,
    WIDTH,
    Canvas,
    Face,
    front,
    noise,
)
from ctta_bench.datasets.streets.objects import LABEL, pick, shaded


def tree(canvas: Canvas, rng: np.random.Generator, x: float, z: float, low: bool = False) -> None:
    """Paint a tree with a trunk, or a bush (`low`)."""
    tall = rng.uniform(0.8, 1.8) if low else rng.uniform(4.5, 9.0)
    crown = rng.uniform(0.6, 1.3) if low else rng.uniform(1.5, 2.9)
    middle = tall / 2 if low else tall - crown * 0.9
    if not low:
        thick = max(rng.uniform(0.12, 0.24), 0.55 * z / canvas.camera.focal)
        bark = shaded((78, 64, 52), rng.uniform(0.6, 1.2))
        trunk = [Face(front((x - thick, x + thick), (0.0, middle), z), bark)]
        canvas.faces(trunk, LABEL["vegetation"])
    _crown(canvas, rng, x, middle, z, crown, tall / 2 if low else crown * rng.uniform(0.9, 1.4))


@functools.cache
def _falloff(size: int) -> NDArray[np.float32]:
    """Distance from the centre of a square [size, size]; 1 at the middle of its sides."""
    place = (np.arange(size, dtype=np.float32) + 0.5) * (2 / size) - 1
    return np.sqrt(place[:, None] ** 2 + place[None] ** 2)


def _crown(
    canvas: Canvas, rng: np.random.Generator, x: float, y: float, z: float, wide: float, high: float
) -> None:
    camera = canvas.camera
    scale = camera.focal / z
    u, v = camera.u + scale * x, camera.row(y, z)
    half_u, half_v = max(2, int(scale * wide)), max(2, int(scale * high))
    u0, u1 = max(0, int(u) - half_u), min(WIDTH, int(u) + half_u)
    v0, v1 = max(0, int(v) - half_v), min(HEIGHT, int(v) + half_v)
    if u1 <= u0 or v1 <= v0:
        return
    rows = (np.arange(v0, v1) - (v - half_v)) * (63.999 / (2 * half_v))
    columns = (np.arange(u0, u1) - (u - half_u)) * (63.999 / (2 * half_u))
    rows, columns = np.clip(rows.astype(int), 0, 63), np.clip(columns.astype(int), 0, 63)
    height_above = (1 - rows / 63)[:, None].astype(np.float32)
    grain = noise(rng, v1 - v0, u1 - u0, 1.35)
    mask = _falloff(64)[rows[:, None], columns] < np.float32(0.72) + grain - np.float32(0.42)
    leaves = noise(rng, v1 - v0, u1 - u0, 0.6)
    tone = (0.35 + 0.55 * height_above) * (0.55 + 0.95 * leaves)
    green = np.array(pick(rng, ((92, 116, 52), (78, 104, 56), (110, 120, 50), (66, 92, 44))))
    area = np.s_[v0:v1, u0:u1]
    canvas.tint(area, (green * 1.35).astype(np.float32), tone, mask)
    canvas.paint[area][..., 3][mask] = LABEL["vegetation"]
    up = np.minimum(height_above * (0.4 + leaves), 1)
    flat = np.zeros_like(up)
    canvas.note((v0, u0), {DEPTH: flat + np.float32(z), UP: up, GLOW: flat}, mask)
