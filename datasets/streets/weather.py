"""Weather and light for a clear scene, computed from its depth, classes and lights.

Fog, night, rain and snow are the benchmark's domains; dusk and dust are hold-out domains.

All light is summed in linear units (display values squared, a gamma of 2), then converted back to
display values. Fog and veils: I = J t + A (1 - t) with t = exp(-3 d / V) for the visibility V in
metres (Koschmieder: at V, 5 % of the contrast remain).
"""

import functools
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ctta_bench.datasets.io.street_classes import CLASSES
from ctta_bench.datasets.streets.canvas import LIGHTS, noise
from ctta_bench.datasets.streets.scene import Scene

Floats = NDArray[np.floating[Any]]
SKY, ROAD, WALK = (CLASSES.index(name) for name in ("sky", "road", "sidewalk"))
_LUMINANCE = np.array([0.30, 0.59, 0.11], np.float32)
_LIGHT_TABLE = np.array([value for _, value in LIGHTS.values()], np.float32)
_LAYER = 512  # side of the tiles of drops and flakes


def fog(scene: Scene, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Dense fog with patches: visibility 90 to 300 m."""
    colour = rng.uniform(0.50, 0.68) * rng.uniform(0.97, 1.03, 3)
    light = _overcast(_linear(scene.image), scene, 0.15, colour)
    return _display(_veil(light, scene, rng, rng.uniform(90, 300), colour))


def night(scene: Scene, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Darkness with lamps, windows and cars: halos, light on the road, and noise."""
    light = _linear(scene.image)
    cast = np.array((1.0, 0.86, 0.62) if rng.random() < 0.6 else (0.80, 0.92, 1.0), np.float32)
    sources = _LIGHT_TABLE[scene.light.astype(np.intp)]
    near, wide = _blur(sources, 1.2), _blur(sources, 5.0)
    spread = _blur(np.concatenate([sources[10:], np.zeros_like(sources[:10])]), 22.0)
    shine = rng.uniform(0.018, 0.05) * cast + 1.6 * spread + _headlights(scene)[..., None]
    sky = rng.uniform(0.003, 0.014) * np.array((1.0, 0.95, 1.05), np.float32)
    lit = np.where((scene.small == SKY)[..., None], sky, light * shine.astype(np.float32))
    total = lit + 0.22 * sources + 0.45 * near + 0.35 * wide
    total *= np.float32(rng.uniform(0.9, 1.5))
    photons = rng.uniform(250, 700)
    grain = rng.standard_normal(total.shape, dtype=np.float32)
    total += grain * np.sqrt(np.maximum(total, 0) / photons + np.float32(1.5e-5))
    return _display(total)


def rain(scene: Scene, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A wet, reflecting road, a grey veil, streaks, and drops on the lens."""
    colour = rng.uniform(0.36, 0.55) * np.array((0.97, 1.0, 1.04))
    light = _overcast(_linear(scene.image), scene, 0.2, colour) * rng.uniform(0.65, 0.95)
    light = _mirror(light, scene, rng)
    light = _veil(light, scene, rng, rng.uniform(250, 600), colour * 0.85)
    streaks = _layer(rng, "streaks") + _layer(rng, "fine streaks")
    light += (np.float32(rng.uniform(0.04, 0.10)) * streaks)[..., None]
    return _lens_drops(_display(light), rng)


def snow(scene: Scene, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Snow on surfaces that face up, tracks on the road, flakes, and a bright veil."""
    colour = rng.uniform(0.56, 0.74) * np.array((0.98, 1.0, 1.03))
    light = _overcast(_linear(scene.image), scene, 0.25, colour) * np.float32(0.9)
    patches = _noise(rng, scene, 1.1) + 0.5 * _noise(rng, scene, 0.4)
    cover = np.clip((scene.up - rng.uniform(0.55, 0.95) + 0.55 * patches) * 4, 0, 1)
    is_road = scene.small == ROAD
    tracks = _tracks(scene)
    cover = np.where(is_road, cover * (1 - 0.85 * tracks) * rng.uniform(0.1, 0.7), cover)
    white = (0.62 + 0.16 * patches)[..., None] * np.array((0.95, 0.98, 1.04), np.float32)
    light = light * (1 - cover[..., None]) + white * cover[..., None]
    light = _veil(light, scene, rng, rng.uniform(250, 600), colour)
    flakes = np.clip(_layer(rng, "flakes") + _layer(rng, "fine flakes"), 0, 1)[..., None]
    flakes *= np.float32(rng.uniform(0.4, 0.75))
    return _display(light * (1 - flakes) + flakes * np.float32(0.85))


def dusk(scene: Scene, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A low sun ahead: a sky from orange to blue, backlit objects, glare.

    Surfaces facing the camera are lit only by the blue sky behind it; the low sun grazes surfaces
    that face up.
    """
    angles = _angles(scene)
    bearing, height = rng.uniform(-0.45, 0.45), rng.uniform(0.03, 0.12)
    apart = np.hypot(angles[0] - bearing, angles[1] - height)[..., None]
    warm, blue = np.array((1.0, 0.50, 0.20), np.float32), np.array((0.42, 0.48, 0.60), np.float32)
    level = np.exp(-np.maximum(angles[1], 0) / 0.16)[..., None]
    sky = 0.55 * (warm * level + blue * (1 - level)) + warm * (1.4 * np.exp(-apart / 0.12))
    shine = 0.55 * blue + warm * (0.22 * scene.up[..., None])
    is_sky = (scene.small == SKY)[..., None]
    light = np.where(is_sky, sky, _linear(scene.image) * shine.astype(np.float32))
    haze = warm * (0.10 + 0.35 * np.exp(-apart / 0.3))
    left = np.exp(scene.depth * np.float32(-3 / rng.uniform(250, 600)))[..., None]
    light = np.where(is_sky, light, light * left + haze * (1 - left))
    light = light * 0.9 + 0.10 * _blur(light.astype(np.float32), 22.0)  # glare in the lens
    light *= rng.uniform(0.55, 0.95)
    grain = rng.standard_normal(light.shape, dtype=np.float32)
    return _display(light + grain * np.sqrt(np.maximum(light, 0) / 3000 + 4e-6))


def dust(scene: Scene, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Brown haze, denser in blue light than in red; ochre light; sand on surfaces that face up."""
    sand = np.array((0.58, 0.49, 0.36), np.float32) * rng.uniform(0.9, 1.1)
    light = np.where((scene.small == SKY)[..., None], sand, _linear(scene.image))
    patches = _noise(rng, scene, 1.4)
    cover = (rng.uniform(0.15, 0.4) * np.clip(scene.up * (0.4 + 1.2 * patches), 0, 1))[..., None]
    light = light * (1 - cover) + 0.55 * sand * cover
    light = light * np.array((0.97, 0.87, 0.72), np.float32)
    # Visibility in red, green and blue light.
    metres = rng.uniform(130, 320) * np.array((1.2, 1.0, 0.75), np.float32)
    density = (0.65 + 0.7 * _noise(rng, scene, 1.8)) * scene.depth
    left = np.exp(-3 * density[..., None] / metres)
    return _display(light * left + rng.uniform(0.8, 1.05) * sand * (1 - left))


Weather = Callable[[Scene, np.random.Generator], NDArray[np.uint8]]
WEATHER: dict[str, Weather] = {"fog": fog, "night": night, "rain": rain, "snow": snow}
# For the choice of hyper-parameters, which must not use the four domains.
HELD_OUT: dict[str, Weather] = {"dusk": dusk, "dust": dust}


def _angles(scene: Scene) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The viewing direction of each pixel, as slopes [h, w] to the right and up."""
    height, width = scene.depth.shape
    right = (2 * np.arange(width, dtype=np.float32) - scene.camera.u) / scene.camera.focal
    up = (scene.camera.v - 2 * np.arange(height, dtype=np.float32)) / scene.camera.focal
    return np.broadcast_to(right, (height, width)), np.broadcast_to(up[:, None], (height, width))


def _noise(rng: np.random.Generator, scene: Scene, slope: float) -> NDArray[np.float32]:
    height, width = scene.depth.shape
    return noise(rng, height, width, slope)


def _linear(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    shown = image.astype(np.float32) * np.float32(1 / 255)
    return shown * shown


def _display(light: Floats) -> NDArray[np.uint8]:
    return (np.sqrt(np.clip(light, 0, 1)) * 255).astype(np.uint8)


def _blur(light: Floats, sigma: float) -> NDArray[np.float32]:
    """A Gaussian blur; wide ones are computed on a smaller image."""
    if sigma < 4:
        return np.asarray(cv2.GaussianBlur(light, (0, 0), sigma), np.float32)
    height, width = light.shape[:2]
    small = cv2.resize(light, (width // 4, height // 4), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.resize(cv2.GaussianBlur(small, (0, 0), sigma / 4), (width, height)))


def _overcast(light: Floats, scene: Scene, grey: float, sky: Floats) -> NDArray[np.float32]:
    """Less saturated colours (by the share `grey`) under a sky of one colour."""
    pale = (light @ _LUMINANCE)[..., None]
    mixed = light * np.float32(1 - grey) + pale * np.float32(grey)
    return np.where((scene.small == SKY)[..., None], sky.astype(np.float32), mixed)


def _veil(
    light: Floats, scene: Scene, rng: np.random.Generator, visibility: float, colour: Floats
) -> NDArray[np.float32]:
    patches = np.float32(0.65) + np.float32(0.7) * _noise(rng, scene, 1.8)
    left = np.exp(scene.depth * patches * np.float32(-3 / visibility))[..., None]
    return light * left + colour.astype(np.float32) * (1 - left)


def _aside(scene: Scene) -> NDArray[np.float32]:
    """How far each pixel is to the right of the camera's axis, in metres."""
    place = 2 * np.arange(scene.depth.shape[1]) - scene.camera.u
    return (place / scene.camera.focal).astype(np.float32) * scene.depth


def _headlights(scene: Scene) -> NDArray[np.float32]:
    """The own car's dipped headlights: right of its centre, weaker with distance."""
    rows = 2 * np.arange(scene.depth.shape[0])[:, None] - scene.camera.v
    dipped = 1 / (1 + np.exp(-(rows / scene.camera.focal + 0.01) * 60))
    beam = np.exp(-(((_aside(scene) - 0.6) / 3.4) ** 2))
    return (0.55 * beam * dipped / (1 + (scene.depth / 11) ** 2)).astype(np.float32)


def _mirror(light: Floats, scene: Scene, rng: np.random.Generator) -> NDArray[np.float32]:
    """The road reflects what is behind it, strongest at flat viewing angles."""
    height, width = scene.small.shape
    rows = np.arange(height, dtype=np.int32)[:, None]
    wet = (scene.small == ROAD) | (scene.small == WALK)
    foot = np.maximum.accumulate(np.where(wet, 0, rows), axis=0)
    ripple = 3 * (noise(rng, height, width, 0.7) - 0.5)
    source = np.clip(2 * foot - rows + ripple, 0, height - 1).astype(np.float32)
    columns = np.broadcast_to(np.arange(width, dtype=np.float32), source.shape)
    seen = cv2.blur(cv2.remap(light, columns + ripple, source, cv2.INTER_LINEAR), (1, 5))
    puddle = np.clip((noise(rng, height, width, 1.5) - 0.5) * 6, 0, 1)
    flat = scene.depth / (scene.depth + 10)
    share = np.where(wet, 0.08 + 0.42 * flat + 0.38 * puddle, 0)
    share = np.where(scene.small == WALK, share * 0.6, share)[..., None]
    dark = np.where(wet[..., None], light * np.float32(0.6), light)
    return np.asarray(dark * (1 - share) + seen * share, np.float32)


def _tracks(scene: Scene) -> NDArray[np.float32]:
    """Wheel tracks of the own lane and the next one: 1 in a track."""
    aside = _aside(scene)
    places = np.stack([np.abs(aside - x) for x in (-4.0, -2.5, -0.75, 0.75)]).min(0)
    return np.clip(1.9 - places / 0.22, 0, 1) * (scene.depth < 40)


def _layer(rng: np.random.Generator, kind: str) -> NDArray[np.float32]:
    """A crop of a tile of streaks or flakes, in the image's size."""
    tile = _tile(kind)
    top, left = rng.integers(0, _LAYER - 128), rng.integers(0, _LAYER - 256)
    return tile[top : top + 128, left : left + 256]


@functools.cache
def _tile(kind: str) -> NDArray[np.float32]:
    """Streaks or flakes [512, 512] in [0, 1]."""
    share, length, slant, size, seed = {
        "streaks": (0.0007, 11, 0.16, 0.55, 1),
        "fine streaks": (0.004, 6, 0.16, 0.4, 2),
        "flakes": (0.0014, 2, 0.5, 0.9, 3),
        "fine flakes": (0.008, 1, 0.3, 0.5, 4),
    }[kind]
    rng = np.random.RandomState(seed)
    points = (rng.random_sample((_LAYER, _LAYER)) < share) * rng.uniform(0.4, 1, (_LAYER, _LAYER))
    kernel = np.zeros((2 * length + 1, 2 * length + 1), np.float32)
    reach = round(slant * length)
    cv2.line(kernel, (length - reach, 0), (length + reach, 2 * length), 1.0)
    drawn = cv2.filter2D(points.astype(np.float32), -1, kernel)
    drawn = cv2.GaussianBlur(drawn, (0, 0), size)
    return np.clip(drawn / np.quantile(drawn[drawn > 0.01], 0.9), 0, 1).astype(np.float32)


def _lens_drops(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Drops on the lens; each shows the scene upside down and out of focus."""
    height, width = image.shape[:2]
    blurred = cv2.GaussianBlur(image, (0, 0), 1.6)
    result = image.copy()
    for _ in range(int(rng.integers(4, 13))):
        radius = float(rng.uniform(2.5, 8))
        u, v = rng.uniform(0, width), rng.uniform(0, height)
        u0, u1 = max(0, int(u - radius)), min(width, int(u + radius) + 1)
        v0, v1 = max(0, int(v - radius)), min(height, int(v + radius) + 1)
        across, down = np.meshgrid(np.arange(u0, u1) - u, np.arange(v0, v1) - v)
        inside = np.clip((radius - np.hypot(across, down)) / 1.2, 0, 1)[..., None]
        rows = np.clip(v - 2.5 * down, 0, height - 1).astype(int)
        columns = np.clip(u - 2.5 * across, 0, width - 1).astype(int)
        patch = result[v0:v1, u0:u1]
        drop = blurred[rows, columns] * 0.9 + 14
        patch[...] = np.clip(patch * (1 - 0.85 * inside) + drop * 0.85 * inside, 0, 255)
    return result
