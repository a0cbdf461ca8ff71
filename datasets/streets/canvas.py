"""The canvas of a street: a pinhole camera, and colour, label, depth and light of each pixel.

World, in metres: x to the right of the camera, y up from the ground, z ahead. Canvas, in pixels: u
to the right, v down. Shapes are painted from far to near.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Colour = tuple[int, int, int]

HEIGHT, WIDTH = 256, 512  # of the canvas and the label maps; images are half as high and wide
FAR = 1000.0  # metres; the depth of the sky
DEPTH, UP, GLOW = 0, 1, 2  # channels of `Canvas.facts`
_SUBPIXEL = 4  # fractional bits of cv2's coordinates
_TILE = 1024

# Lights by their number in GLOW, linear RGB; visible only at night.
LIGHTS: dict[str, tuple[int, tuple[float, float, float]]] = {
    "none": (0, (0.0, 0.0, 0.0)),
    "lamp": (1, (6.0, 4.2, 2.0)),
    "window": (2, (0.55, 0.40, 0.18)),
    "shop": (3, (0.75, 0.65, 0.45)),
    "head": (4, (7.0, 7.0, 6.4)),
    "tail": (5, (2.6, 0.12, 0.08)),
    "red": (6, (3.6, 0.15, 0.10)),
    "amber": (7, (3.4, 1.9, 0.15)),
    "green": (8, (0.2, 3.4, 1.6)),
    "cabin": (9, (0.50, 0.50, 0.40)),
}


class Face(NamedTuple):
    """A flat convex shape: corners [k, 3] in metres, colour, how far it faces up (0 to 1)."""

    corners: Sequence[tuple[float, float, float]]
    colour: Colour
    up: float = 0.0
    light: str = "none"
    label: int = -1  # of this face, if an object has faces of several classes


@dataclass(frozen=True)
class Camera:
    """A level pinhole camera: focal length and principal point in pixels, height in metres."""

    focal: float
    u: float
    v: float
    height: float

    def project(self, points: Floats) -> Floats:
        """Pixels [n, 2] of points [n, 3] in metres, all ahead of the camera."""
        scale = self.focal / points[:, 2]
        return np.stack(
            [self.u + scale * points[:, 0], self.v - scale * (points[:, 1] - self.height)], 1
        )

    def row(self, y: float, z: float) -> float:
        """The pixel row of height y at distance z."""
        return self.v - self.focal * (y - self.height) / z


@dataclass(frozen=True)
class Street:
    """The cross-section of a street, in metres left (-) and right (+) of the camera."""

    road: tuple[float, float]
    strip: tuple[float, float]  # width of the grass next to the road, 0: none
    sidewalk: tuple[float, float]  # width of the sidewalks
    yard: tuple[float, float]  # from the sidewalk to the house fronts
    lane: float
    end: float  # distance of the street's end

    def edge(self, s: int) -> float:
        """Distance of the sidewalk, on the left (0) or right (1); positive."""
        return abs(self.road[s]) + self.strip[s]

    def front(self, s: int) -> float:
        """Distance of the house fronts; positive."""
        return self.edge(s) + self.sidewalk[s] + self.yard[s]


@dataclass
class Canvas:
    """`paint` uint8 [H, W, 4] is RGB and label; `facts` float32 [H/2, W/2, 3] depth, up, light.

    Pixel (i, j) of the facts is pixel (2i, 2j) of the paint.
    """

    camera: Camera
    paint: NDArray[np.uint8] = field(
        default_factory=lambda: np.zeros((HEIGHT, WIDTH, 4), dtype=np.uint8)
    )
    facts: NDArray[np.float32] = field(
        default_factory=lambda: np.zeros((HEIGHT // 2, WIDTH // 2, 3), dtype=np.float32)
    )

    def faces(self, faces: Sequence[Face], label: int) -> None:
        """Paint the faces in their order, each at the mean depth of its corners."""
        corners = np.array([corner for face in faces for corner in face.corners])
        corners[:, 2] = np.maximum(corners[:, 2], 1.0)  # ahead of the camera
        pixels = _fixed(self.camera.project(corners))
        sizes = [len(face.corners) for face in faces]
        starts = np.cumsum([0, *sizes])
        depths = np.add.reduceat(corners[:, 2], starts[:-1]) / sizes
        for face, start, depth in zip(faces, starts.tolist(), depths.tolist(), strict=False):
            outline = pixels[start : start + len(face.corners)]
            colour = (*face.colour, label if face.label < 0 else face.label)
            facts = (depth, face.up, LIGHTS[face.light][0])
            cv2.fillConvexPoly(self.paint, outline, colour, cv2.LINE_8, _SUBPIXEL)
            # One more fractional bit halves the size.
            cv2.fillConvexPoly(self.facts, outline, facts, cv2.LINE_8, _SUBPIXEL + 1)

    def tint(
        self, area: tuple[slice, slice], colour: Floats, tone: Floats, mask: NDArray[np.bool_]
    ) -> None:
        """Paint `colour` [3] or [c, 3] times `tone` [r, c] on an area, under `mask` [r, c]."""
        paint = self.paint[area]
        for channel in range(3):  # all three at once take four times as long
            values = np.minimum(colour[..., channel] * tone, 255).astype(np.uint8)
            np.copyto(paint[..., channel], values, where=mask)

    def note(
        self, corner: tuple[int, int], facts: dict[int, Floats], mask: NDArray[np.bool_]
    ) -> None:
        """Write facts [r, c] of an area of the paint into their channels, of half its size."""
        (top, left), (height, width) = corner, mask.shape
        half = np.s_[top % 2 :: 2, left % 2 :: 2]
        rows = slice((top + 1) // 2, (top + height + 1) // 2)
        area = self.facts[rows, (left + 1) // 2 : (left + width + 1) // 2]
        for channel, values in facts.items():
            np.copyto(area[..., channel], values[half].astype(np.float32), where=mask[half])

    def ground(self, outline: Sequence[tuple[float, float]], colour: Colour, label: int) -> None:
        """Paint a polygon (x, z) on the ground, z from 2 m on; depth stays unchanged."""
        points = np.array([(x, 0.0, z) for x, z in outline])
        corners = _fixed(self.camera.project(points))
        cv2.fillConvexPoly(self.paint, corners, (*colour, label), cv2.LINE_8, _SUBPIXEL)


def _fixed(pixels: Floats) -> NDArray[np.int32]:
    """Pixels as cv2's fixed-point numbers."""
    return np.rint(pixels * (1 << _SUBPIXEL)).astype(np.int32)


def front(
    x: tuple[float, float], y: tuple[float, float], z: float
) -> list[tuple[float, float, float]]:
    """The corners of an upright rectangle that faces the camera."""
    return [(x[0], y[0], z), (x[1], y[0], z), (x[1], y[1], z), (x[0], y[1], z)]


def side(
    x: float, y: tuple[float, float], z: tuple[float, float]
) -> list[tuple[float, float, float]]:
    """The corners of an upright rectangle along the road."""
    return [(x, y[0], z[0]), (x, y[0], z[1]), (x, y[1], z[1]), (x, y[1], z[0])]


def disc(
    x: float, y: float, z: float, radius: float, height: float | None = None, corners: int = 10
) -> list[tuple[float, float, float]]:
    """The corners of an ellipse that faces the camera."""
    angles = np.arange(corners) * (2 * np.pi / corners)
    tall = radius if height is None else height
    return [(x + radius * np.cos(a), y + tall * np.sin(a), z) for a in angles]


@functools.cache
def noise_tile(slope: float) -> NDArray[np.float32]:
    """Fractal noise [1024, 1024] in [0, 1] that repeats without a seam; spectrum f^-slope."""
    rng = np.random.RandomState(round(slope * 1000))
    frequency = np.hypot(np.fft.fftfreq(_TILE)[:, None], np.fft.rfftfreq(_TILE)[None]) * _TILE
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.standard_normal((_TILE, _TILE))) / frequency**slope
    field_ = np.fft.irfft2(spectrum)
    ranks = np.clip(0.5 + field_ / (5 * field_.std()), 0, 1)
    return ranks.astype(np.float32)


def noise(
    rng: np.random.Generator, height: int, width: int, slope: float = 1.0
) -> NDArray[np.float32]:
    """A random crop [height, width] of a noise tile."""
    top, left = rng.integers(0, _TILE - height + 1), rng.integers(0, _TILE - width + 1)
    return noise_tile(slope)[top : top + height, left : left + width]
