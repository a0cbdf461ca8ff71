"""The ground of a street: classes, road markings, grain, and shadows."""

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ctta_bench.datasets.streets.buildings import HOUSE, Row
from ctta_bench.datasets.streets.canvas import DEPTH, HEIGHT, UP, WIDTH, Canvas, Street, noise
from ctta_bench.datasets.streets.objects import LABEL, shaded

NEAR = 2.2  # metres; nearest point of polygons on the ground
END = 300.0  # metres; farthest point
ASPHALT, PAVING, GRASS, PAINT = (88, 88, 92), (132, 128, 124), (98, 112, 62), (206, 206, 200)


def paint_ground(canvas: Canvas, rng: np.random.Generator, street: Street) -> None:
    """Paint classes and colours of the ground, and the road markings."""
    first = int(np.ceil(canvas.camera.v + 1))
    canvas.paint[first:] = (*GRASS, LABEL["terrain"])
    grey = rng.uniform(0.78, 1.22)
    asphalt = shaded(ASPHALT, grey)
    light = rng.uniform(0.9, 1.25)
    paving = shaded(PAVING, light)
    for s, sign in ((0, -1), (1, 1)):
        edge, outer = street.edge(s), street.edge(s) + street.sidewalk[s]
        paved = street.front(s) + 8 if street.yard[s] < 1 and rng.random() < 0.5 else outer
        _strip(canvas, (sign * edge, sign * paved), paving, LABEL["sidewalk"])
        kerb = shaded(paving, 1.2)
        _strip(canvas, (sign * edge, sign * (edge + 0.22)), kerb, LABEL["sidewalk"])
    _strip(canvas, street.road, asphalt, LABEL["road"])
    _markings(canvas, rng, street)


def ground_depth(canvas: Canvas) -> None:
    """Note the depth of the ground below the horizon, and that it faces up."""
    camera = canvas.camera
    first = int(np.ceil(camera.v / 2 + 0.5))
    below = 2 * np.arange(first, HEIGHT // 2) - camera.v
    canvas.facts[first:, :, DEPTH] = (camera.focal * camera.height / below)[:, None]
    canvas.facts[first:, :, UP] = 1.0


def _strip(canvas: Canvas, x: tuple[float, float], colour: Any, label: int) -> None:
    canvas.ground([(x[0], NEAR), (x[1], NEAR), (x[1], END), (x[0], END)], colour, label)


def _markings(canvas: Canvas, rng: np.random.Generator, street: Street) -> None:
    road, worn = LABEL["road"], rng.uniform(0.7, 1.05)
    paint = shaded(PAINT, worn)
    first = -street.lane / 2 if street.road[1] < street.lane else street.lane / 2
    lines = [x for k in range(-3, 3) if street.road[0] < (x := first + k * street.lane) - 1.2]
    for x in lines:
        if x > street.road[1] - 1.2:
            continue
        begin = rng.uniform(0, 6)
        for z in np.arange(begin, 90, rng.uniform(6, 9)):
            near, far = max(NEAR, z), max(NEAR + 0.1, z + 3)
            outline = [(x - 0.07, near), (x + 0.07, near), (x + 0.07, far), (x - 0.07, far)]
            canvas.ground(outline, paint, road)
    if rng.random() < 0.5:
        for x in (street.road[0] + 0.25, street.road[1] - 0.25):
            _strip(canvas, (x - 0.06, x + 0.06), paint, road)
    if rng.random() < 0.3:
        z = rng.uniform(6, 25)
        for x in np.arange(street.road[0] + 0.4, street.road[1] - 0.5, 1.0):
            outline = [(x, z), (x + 0.5, z), (x + 0.5, z + 3), (x, z + 3)]
            canvas.ground(outline, paint, road)


def paint_texture(canvas: Canvas, rng: np.random.Generator, shade: NDArray[np.float32]) -> None:
    """Paint shadows, grain that gets finer with distance, and the joints of the paving."""
    camera = canvas.camera
    first = 2 * int(np.ceil(camera.v / 2 + 0.5))
    ground = canvas.paint[first:]
    below = (np.arange(first, HEIGHT, 2, dtype=np.float32) - np.float32(camera.v))[:, None]
    z = np.float32(camera.focal * camera.height) / below
    x = (np.arange(0, WIDTH, 2, dtype=np.float32) - np.float32(camera.u)) * (z / camera.focal)
    places = (np.abs(x * 24), np.broadcast_to(z * 14, x.shape))
    wrapped = [p - 511 * np.floor(p / 511) for p in places]
    grain = cv2.remap(noise(rng, 512, 512, 0.9), wrapped[0], wrapped[1], cv2.INTER_LINEAR)
    strength = np.float32(0.9) / (1 + z / 25)
    labels = ground[::2, ::2, 3]
    rough = np.where(labels == LABEL["terrain"], np.float32(1.5), np.float32(0.6))
    tone = 1 + rough * strength * (grain - np.float32(0.5))
    joints = (x - np.floor(x) < 0.06) | (z - np.floor(z) < 0.06)
    tone -= (joints & (labels == LABEL["sidewalk"])) * (np.float32(0.22) * strength)
    tone *= 1 - shade[first // 2 :]
    whole = cv2.resize((tone * 128).astype(np.uint8), (WIDTH, HEIGHT - first), interpolation=0)
    # The factor 128 / 128 leaves the labels unchanged.
    factors = cv2.merge([whole, whole, whole, np.full_like(whole, 128)])
    cv2.multiply(ground, factors, dst=ground, scale=1 / 128)


def shade(
    canvas: Canvas, rng: np.random.Generator, street: Street, rows: tuple[Row, ...], sun: int
) -> NDArray[np.float32]:
    """How much the shadows of houses darken the ground, [H/2, W/2]; 0 without sun."""
    mask = np.zeros((HEIGHT // 2, WIDTH // 2), np.uint8)
    if sun == 2:
        return mask.astype(np.float32)
    row, front = rows[sun], street.front(sun)
    side = -1.0 if sun == 0 else 1.0
    slope = rng.uniform(0.35, 1.1)
    for number in np.flatnonzero(row.kind == HOUSE):
        start = max(NEAR, float(row.start[number]))
        stop = float(row.start[number + 1]) if number + 1 < len(row.start) else END
        if stop <= NEAR or start > 200:
            continue
        tip = side * (front - slope * float(row.height[number]))
        corners = [(side * front, start), (tip, start + 2), (tip, stop + 2), (side * front, stop)]
        points = np.array([(x, 0.0, z) for x, z in corners])
        pixels = np.rint(canvas.camera.project(points) / 2).astype(np.int32)
        cv2.fillConvexPoly(mask, pixels, 255)
    return cv2.blur(mask, (3, 3)).astype(np.float32) * np.float32(0.48 / 255)
