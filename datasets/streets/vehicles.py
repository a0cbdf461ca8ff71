"""Cars, buses and trucks, seen from behind or from the front, with one side."""

from dataclasses import dataclass

import numpy as np

from ctta_bench.datasets.streets.canvas import Canvas, Colour, Face, disc, front, side
from ctta_bench.datasets.streets.objects import LABEL, RUBBER, pick, shaded, shadow

GLASS = (38, 48, 58)
PAINTS: tuple[Colour, ...] = (
    (30, 32, 36), (208, 210, 212), (122, 126, 130), (150, 26, 28), (34, 58, 120), (236, 236, 232),
    (62, 66, 70), (70, 92, 78), (176, 160, 130),
)  # fmt: skip
BUS_PAINTS: tuple[Colour, ...] = (
    (206, 176, 40), (176, 34, 36), (40, 96, 150), (228, 228, 224), (52, 128, 80),
)  # fmt: skip
TRUCK_PAINTS: tuple[Colour, ...] = (*PAINTS[1:3], PAINTS[5], (52, 84, 130))


@dataclass(frozen=True)
class Body:
    """A vehicle's position and size in metres; z is its near end."""

    x: float
    z: float
    length: float
    width: float
    paint: Colour

    @property
    def left(self) -> float:
        """Its left edge."""
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width / 2

    @property
    def shows_side(self) -> bool:
        """Whether the camera sees one of its sides."""
        return abs(self.x) > self.width / 2

    @property
    def seen_side(self) -> float:
        """The position of the side that the camera sees."""
        return self.right if self.x < 0 else self.left

    def wheels(self, radius: float, ahead: float, behind: float) -> list[Face]:
        """The two wheels of the visible side."""
        faces = []
        for middle in (self.z + ahead, self.z + self.length - behind):
            rim = disc(0, radius, 0, radius + 0.01, corners=8)
            faces.append(Face([(self.seen_side, y, middle + d) for d, y, _ in rim], RUBBER))
        return faces

    def lamps(self, oncoming: bool, inset: float, wide: float, top: float) -> list[Face]:
        """Head lamps or tail lamps at the near end."""
        colour, light = ((238, 236, 220), "head") if oncoming else ((168, 22, 20), "tail")
        edges = (
            (self.left + inset, self.left + inset + wide),
            (self.right - inset - wide, self.right - inset),
        )
        return [Face(front(edge, (0.6, top), self.z), colour, light=light) for edge in edges]


def car(canvas: Canvas, rng: np.random.Generator, x: float, z: float, oncoming: bool) -> None:
    """Paint a car, seen from behind or, if oncoming, from the front; z is its near end."""
    length, width = rng.uniform(3.7, 4.8), rng.uniform(1.68, 1.9)
    waist, roof = rng.uniform(0.82, 0.95), rng.uniform(1.38, 1.72)
    if rng.random() < 0.15:
        roof, waist = 2.0, 1.05  # a van
    body = Body(x, z, length, width, pick(rng, PAINTS))
    shadow(canvas, x, z, width, length)
    hood = 0.95 if oncoming else 0.45  # from the near end to the foot of the windscreen
    cabin = (z + hood, z + length - (0.5 if oncoming else 1.1))
    faces = _car_side(body, waist, roof, cabin) if body.shows_side else []
    faces += _car_end(body, waist, roof, hood) + body.lamps(oncoming, 0.04, 0.30, 0.76)
    canvas.faces(faces, LABEL["car"])


def _car_side(body: Body, waist: float, roof: float, cabin: tuple[float, float]) -> list[Face]:
    s, paint = body.seen_side, body.paint
    inner = s + (-0.14 if body.x < 0 else 0.14)  # the cabin is narrower at the roof
    a, b = cabin
    outline = [(s, waist, a), (s, waist, b + 0.5), (inner, roof, b - 0.2), (inner, roof, a + 0.5)]
    faces = [
        Face(side(s, (0.28, waist), (body.z, body.z + body.length)), shaded(paint, 0.72)),
        Face(outline, shaded(paint, 0.6)),
    ]
    low, high = waist + 0.05, roof - 0.08
    for first, last in ((0.14, 0.48), (0.53, 0.86)):
        near, far = a + (b - a) * first, a + (b - a) * last
        pane = [(s, low, near), (s, low, far), (inner, high, far - 0.1), (inner, high, near + 0.3)]
        faces.append(Face(pane, GLASS))
    return faces + body.wheels(0.32, 0.8, 0.8)


def _car_end(body: Body, waist: float, roof: float, hood: float) -> list[Face]:
    """The near end: bumper, hood or boot, windscreen, roof."""
    x, z, paint, left, right = body.x, body.z, body.paint, body.left, body.right
    foot, brow = z + hood, z + hood + 0.5

    def slope(
        inset: tuple[float, float], y: tuple[float, float], ends: tuple[float, float]
    ) -> list[tuple[float, float, float]]:
        low = [(left + inset[0], y[0], ends[0]), (right - inset[0], y[0], ends[0])]
        return [*low, (right - inset[1], y[1], ends[1]), (left + inset[1], y[1], ends[1])]

    return [
        Face(front((left + 0.1, right - 0.1), (0.0, 0.4), z + 0.2), RUBBER),
        Face(slope((0.0, 0.1), (waist, waist), (z, foot)), shaded(paint, 1.15), 1.0),
        Face(slope((0.0, 0.16), (waist, roof), (foot, brow)), shaded(paint, 0.92)),
        Face(slope((0.12, 0.24), (waist + 0.04, roof - 0.1), (foot, brow - 0.05)), GLASS),
        Face(front((left + 0.18, right - 0.18), (roof - 0.07, roof + 0.03), brow),
             shaded(paint, 1.2), 1.0),
        Face(front((left, right), (0.26, waist), z), paint),
        Face(front((left + 0.04, right - 0.04), (0.26, 0.42), z), shaded(paint, 0.45)),
        Face(front((x - 0.26, x + 0.26), (0.46, 0.57), z), (226, 226, 214)),
    ]  # fmt: skip


def box_vehicle(
    canvas: Canvas, rng: np.random.Generator, x: float, z: float, oncoming: bool, kind: str
) -> None:
    """Paint a bus or a truck; z is its near end."""
    is_bus = kind == "bus"
    length = rng.uniform(9, 12) if is_bus else rng.uniform(6, 9)
    height = rng.uniform(2.9, 3.2) if is_bus else rng.uniform(2.8, 3.7)
    body = Body(x, z, length, 2.5, pick(rng, BUS_PAINTS if is_bus else TRUCK_PAINTS))
    shadow(canvas, x, z, body.width, length)
    faces = _box_side(body, height, is_bus) if body.shows_side else []
    faces += _box_end(body, height, is_bus, oncoming) + body.lamps(oncoming, 0.08, 0.28, 0.85)
    canvas.faces(faces, LABEL[kind])


def _box_side(body: Body, height: float, is_bus: bool) -> list[Face]:
    s, whole = body.seen_side, (body.z, body.z + body.length)
    faces = [Face(side(s, (0.4, height), whole), shaded(body.paint, 0.72))]
    if not is_bus:
        faces.append(Face(side(s, (0.4, 0.9), whole), (52, 52, 54)))
    for place in np.linspace(0.04, 0.84, 6) if is_bus else ():
        pane = (body.z + place * body.length, body.z + (place + 0.12) * body.length)
        faces.append(Face(side(s, (1.35, 2.5), pane), GLASS, light="cabin"))
    return faces + body.wheels(0.46, 1.4, 1.8)


def _box_end(body: Body, height: float, is_bus: bool, oncoming: bool) -> list[Face]:
    x, z, paint, left, right = body.x, body.z, body.paint, body.left, body.right
    faces = [
        Face(front((left + 0.1, right - 0.1), (0.0, 0.5), z + 0.2), RUBBER),
        Face(front((left, right), (0.35, height), z), paint),
        Face(front((left, right), (height - 0.12, height), z), shaded(paint, 1.15), 1.0),
    ]
    if is_bus or oncoming:
        panes = (1.3, height - 0.45) if is_bus else (1.5, 2.4)
        pane = front((left + 0.15, right - 0.15), panes, z)
        return [*faces, Face(pane, GLASS, light="cabin")]
    doors = front((x - 0.03, x + 0.03), (0.6, height - 0.1), z)
    bumper = front((left, right), (0.35, 0.8), z)
    return [*faces, Face(doors, shaded(paint, 0.6)), Face(bumper, (60, 60, 62))]
