"""People, bicycles, poles with lamps, lights and signs, and helpers for all objects."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from ctta_bench.datasets.io.street_classes import CLASSES
from ctta_bench.datasets.streets.canvas import (
    HEIGHT,
    WIDTH,
    Canvas,
    Colour,
    Face,
    disc,
    front,
)

LABEL = {name: number for number, name in enumerate(CLASSES)}

RUBBER, STEEL = (22, 22, 24), (96, 98, 100)
CLOTHES: tuple[Colour, ...] = (
    (36, 40, 60), (120, 30, 34), (180, 180, 176), (60, 80, 58), (196, 150, 60), (40, 40, 42),
    (90, 110, 150), (160, 80, 110), (230, 226, 214),
)  # fmt: skip

SKIN: tuple[Colour, ...] = ((206, 160, 130), (150, 104, 78), (96, 66, 50), (224, 184, 156))


def pick(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    """One of the choices."""
    return choices[int(rng.integers(len(choices)))]


def shaded(colour: Colour, factor: float) -> Colour:
    """A darker (factor below 1) or lighter colour."""
    r, g, b = (min(255, int(c * factor)) for c in colour)
    return (r, g, b)


def shadow(canvas: Canvas, x: float, z: float, width: float, length: float) -> None:
    """Darken the ground under an object, whatever the ground is."""
    camera, half = canvas.camera, width / 2 + 0.12
    outline = [(x - half, z - 0.25), (x + half, z - 0.25), (x + half, z + length)]
    outline.append((x - half, z + length))
    points = np.array([(a, 0.0, max(b, 1.5)) for a, b in outline])
    pixels = camera.project(points)
    low, high = pixels.min(0), pixels.max(0)
    u0, v0 = max(0, int(low[0])), max(0, int(low[1]))
    u1, v1 = min(WIDTH, int(high[0]) + 1), min(HEIGHT, int(high[1]) + 1)
    if u1 <= u0 or v1 <= v0:
        return
    mask = np.zeros((v1 - v0, u1 - u0), np.uint8)
    cv2.fillConvexPoly(mask, np.rint(pixels - (u0, v0)).astype(np.int32), 1)
    patch = canvas.paint[v0:v1, u0:u1, :3]
    dark = (patch * np.float32(0.42)).astype(np.uint8)
    np.copyto(patch, dark, where=mask.astype(bool)[..., None])


def person(canvas: Canvas, rng: np.random.Generator, x: float, z: float, lift: float = 0.0) -> None:
    """Paint a standing or walking person; `lift` raises a rider to the saddle."""
    tall = rng.uniform(1.5, 1.9)
    coat, trousers = pick(rng, CLOTHES), shaded(pick(rng, CLOTHES), 0.6)
    stride, wide = rng.uniform(0.03, 0.28), rng.uniform(0.19, 0.26)
    foot, hip, neck = 0.0, 0.48 * tall, 0.84 * tall
    if lift:
        foot, hip, neck, stride = 0.32, 0.95, 1.55, 0.12
    faces = [
        _quad(x, z, (foot, hip), (-0.14 - stride, 0.02 - stride), (-0.16, 0.02), trousers),
        _quad(x, z, (foot, hip), (-0.02 + stride, 0.14 + stride), (-0.02, 0.16),
              shaded(trousers, 0.8)),
        _arm(x, z, (hip, neck), -wide, coat),
        _arm(x, z, (hip, neck), wide, coat),
        _quad(x, z, (hip - 0.08, neck), (-wide * 0.85, wide * 0.85), (-wide, wide), coat),
        Face(disc(x, neck + 0.16, z, 0.1, 0.14, 8), pick(rng, SKIN)),
        _quad(x, z, (neck + 0.2, neck + 0.31), (-0.1, 0.1), (-0.07, 0.07), (44, 36, 30), 0.6),
    ]  # fmt: skip
    if not lift:
        shadow(canvas, x, z, 0.4, 0.25)
    canvas.faces(faces, LABEL["rider" if lift else "person"])


def _quad(
    x: float,
    z: float,
    y: tuple[float, float],
    low: tuple[float, float],
    high: tuple[float, float],
    colour: Colour,
    up: float = 0.0,
) -> Face:
    """A quadrangle facing the camera, from its lower edge `low` to `high`, relative to x."""
    corners = [(x + low[0], y[0], z), (x + low[1], y[0], z)]
    return Face([*corners, (x + high[1], y[1], z), (x + high[0], y[1], z)], colour, up)


def _arm(x: float, z: float, y: tuple[float, float], wide: float, coat: Colour) -> Face:
    """An arm, on the side given by the sign of `wide`."""
    hip, neck = y
    s = 1.0 if wide > 0 else -1.0
    corners = [(x + wide + 0.1 * s, hip + 0.02, z), (x + wide, hip, z)]
    corners += [(x + wide - 0.06 * s, neck, z), (x + wide + 0.02 * s, neck - 0.06, z)]
    return Face(corners, shaded(coat, 0.8))


def bicycle(
    canvas: Canvas, rng: np.random.Generator, x: float, z: float, ridden: bool, across: bool
) -> None:
    """Paint a bicycle, along or across the road, with or without a rider."""
    frame: Colour = pick(rng, ((150, 30, 30), (30, 60, 130), (40, 42, 44), (190, 190, 186)))
    faces = _across(x, z, frame) if across else _along(x, z, frame)
    canvas.faces(faces, LABEL["bicycle"])
    if ridden:
        person(canvas, rng, x, z, lift=0.4)


def _across(x: float, z: float, frame: Colour) -> list[Face]:
    faces = []
    for hub in (x - 0.52, x + 0.52):
        faces.append(Face(disc(hub, 0.34, z, 0.34, corners=12), RUBBER))
        faces.append(Face(disc(hub, 0.34, z, 0.25, corners=10), (104, 106, 106)))
    bars = (
        ((-0.52, 0.34), (-0.15, 0.92)),
        ((-0.15, 0.92), (0.4, 0.95)),
        ((-0.05, 0.3), (0.4, 0.95)),
        ((0.52, 0.34), (0.38, 1.08)),
    )
    for (a, b), (c, d) in bars:
        low, high = (a - 0.04, a + 0.04), (c - 0.04, c + 0.04)
        faces.append(_quad(x, z, (b, d), low, high, frame))
    return faces


def _along(x: float, z: float, frame: Colour) -> list[Face]:
    return [
        Face(disc(x, 0.34, z, 0.06, 0.36, 8), RUBBER),
        Face(front((x - 0.03, x + 0.03), (0.4, 1.0), z), frame),
        Face(front((x - 0.28, x + 0.28), (0.98, 1.06), z), STEEL),
        Face(front((x - 0.04, x + 0.04), (0.7, 0.78), z), (168, 22, 20), light="tail"),
    ]


def pole(
    canvas: Canvas, rng: np.random.Generator, x: float, z: float, kind: str, road: float
) -> None:
    """Paint a lamp with an arm over the road, a traffic light, or a sign.

    road: direction of the road, -1 (left) or 1 (right).
    """
    height = {"lamp": rng.uniform(5.5, 8.0), "light": 3.4, "sign": rng.uniform(2.4, 3.0)}[kind]
    thick = {"lamp": 0.09, "light": 0.075, "sign": 0.05}[kind]
    thick = max(thick, 0.55 * z / canvas.camera.focal)  # at least one pixel
    grey: Colour = shaded(STEEL, rng.uniform(0.6, 1.3))
    faces = [Face(front((x - thick, x + thick), (0.0, height), z), grey)]
    if kind == "lamp":
        tip = x + road * rng.uniform(1.2, 2.0)
        arm = (height - 0.12, height + 0.04)
        faces.append(Face(front((min(x, tip), max(x, tip)), arm, z), grey, 0.5))
        faces.append(
            Face(front((tip - 0.35, tip + 0.35), (height - 0.3, height - 0.1), z), (222, 220, 206),
                 light="lamp")
        )  # fmt: skip
    elif kind == "light":
        faces += _traffic_light(rng, x, z, height)
    else:
        faces += _sign(rng, x, z, height)
    canvas.faces(faces, LABEL["pole"])


def _traffic_light(rng: np.random.Generator, x: float, z: float, height: float) -> list[Face]:
    label = LABEL["traffic light"]
    box = front((x - 0.2, x + 0.2), (height - 1.0, height), z)
    faces = [Face(box, (26, 28, 26), 0.0, "none", label)]
    shows = int(rng.integers(3))
    lamps = (("red", (226, 40, 34)), ("amber", (240, 180, 40)), ("green", (50, 220, 130)))
    for number, (light, colour) in enumerate(lamps):
        on = number == shows
        lens = disc(x, height - 0.2 - 0.3 * number, z, 0.12, corners=8)
        faces.append(
            Face(lens, colour if on else shaded(colour, 0.25), 0.0, light if on else "none", label)
        )
    return faces


def _sign(rng: np.random.Generator, x: float, z: float, height: float) -> list[Face]:
    label, y = LABEL["traffic sign"], height - 0.35
    red, white, blue, yellow = (188, 28, 34), (232, 232, 228), (30, 80, 166), (236, 196, 50)
    kind = int(rng.integers(5))
    if kind == 0:
        outer, inner = disc(x, y, z, 0.38, corners=12), disc(x, y, z, 0.27, corners=12)
        shapes = [(outer, red), (inner, white)]
    elif kind == 1:
        shapes = [(disc(x, y, z, 0.38, corners=12), blue)]
        shapes.append((front((x - 0.05, x + 0.05), (y - 0.2, y + 0.2), z), white))
    elif kind == 2:
        shapes = [([(x - 0.42, y - 0.3, z), (x + 0.42, y - 0.3, z), (x, y + 0.42, z)], red)]
        shapes.append(([(x - 0.26, y - 0.2, z), (x + 0.26, y - 0.2, z), (x, y + 0.22, z)], white))
    elif kind == 3:
        shapes = [(front((x - 0.36, x + 0.36), (y - 0.36, y + 0.36), z), blue)]
        shapes.append((front((x - 0.2, x + 0.2), (y - 0.22, y + 0.22), z), white))
    else:
        shapes = [(front((x - 0.9, x + 0.9), (y - 0.25, y + 0.35), z), yellow)]
        shapes.append((front((x - 0.7, x + 0.5), (y - 0.02, y + 0.1), z), (40, 40, 40)))
    return [Face(corners, colour, 0.0, "none", label) for corners, colour in shapes]
