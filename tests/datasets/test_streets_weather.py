"""Weather and light by what their physics says of simple scenes."""

import functools

import numpy as np
import pytest

from ctta_bench.datasets.io.street_classes import CLASSES
from ctta_bench.datasets.streets.canvas import LIGHTS, Camera
from ctta_bench.datasets.streets.scene import Scene, make_scene
from ctta_bench.datasets.streets.weather import (
    HELD_OUT,
    WEATHER,
    _mirror,
    _veil,
    dusk,
    dust,
    fog,
    night,
    snow,
)

EVERY = WEATHER | HELD_OUT
ROAD, BUILDING, SKY = (CLASSES.index(name) for name in ("road", "building", "sky"))
SHAPE = (128, 256)


@functools.cache
def clear_scene(number: int) -> Scene:
    return make_scene((97, number))


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def scene(*, grey: int = 128, label: int = BUILDING, depth: float = 20.0, up: float = 0.0) -> Scene:
    """A scene of one surface."""
    full = np.full(SHAPE, 1.0, np.float32)
    small = np.full(SHAPE, label, np.uint8)
    return Scene(
        image=np.full((*SHAPE, 3), grey, np.uint8),
        label=small.repeat(2, 0).repeat(2, 1),
        small=small,
        depth=full * np.float32(depth),
        up=full * np.float32(up),
        light=full * 0,
        camera=Camera(400.0, 256.0, 100.0, 1.5),
    )


@pytest.mark.parametrize("name", EVERY)
def test_weather_is_a_function_of_the_scene_and_the_random_numbers(name: str) -> None:
    clear = clear_scene(1)
    before = clear.image.copy()
    one, same = (EVERY[name](clear, rng()) for _ in range(2))
    assert np.array_equal(one, same)
    assert (one.dtype, one.shape) == (np.uint8, (*SHAPE, 3))
    assert np.array_equal(clear.image, before)
    assert np.abs(one.astype(float) - before).mean() > 15


def test_a_veil_leaves_what_is_near_and_hides_what_is_far() -> None:
    light, white = np.full((*SHAPE, 3), 0.25, np.float32), np.ones(3)
    for depth, visibility in ((0.0, 50.0), (20.0, 50.0), (1000.0, 50.0)):
        seen = _veil(light, scene(depth=depth), rng(), visibility, white)
        share = (1 - seen) / 0.75  # what is left of the difference to the veil
        # Koschmieder's law, with a density of 0.65 to 1.35 of the mean.
        assert np.exp(-3 * 1.35 * depth / visibility) - 1e-5 <= share.min()
        assert share.max() <= np.exp(-3 * 0.65 * depth / visibility) + 1e-5


def test_fog_takes_contrast_with_the_distance() -> None:
    contrast = []
    for depth in (5.0, 60.0, 200.0):
        dark, bright = (fog(scene(grey=g, depth=depth), rng()).mean() for g in (40, 200))
        contrast.append(bright - dark)
    assert contrast[0] > 1.5 * contrast[1] > 3 * contrast[2] > 0


def test_at_night_it_is_dark_but_around_lamps() -> None:
    unlit, lit = scene(depth=60.0), scene(depth=60.0)
    lit.light[40:42, 100:102] = LIGHTS["lamp"][0]
    dark, image = night(unlit, rng()).mean(-1), night(lit, rng()).mean(-1)
    assert dark[:90].mean() < 60  # of 128 by day
    rings = [image[40, 100 + r : 102 + r].mean() for r in (0, 5, 12, 60)]
    assert rings[0] > 220
    assert rings == sorted(rings, reverse=True)


def test_our_headlights_light_the_near_road() -> None:
    near, far = (night(scene(label=ROAD, depth=d), rng()) for d in (6.0, 60.0))
    assert near[100:, 110:150].mean() > 2 * far[100:, 110:150].mean()


def test_a_wet_road_mirrors_what_stands_on_it() -> None:
    street = scene(label=ROAD, depth=30.0)
    street.small[:64] = BUILDING
    light = np.zeros((*SHAPE, 3), np.float32)
    light[40:64, :, 0] = 1.0  # a red front above a black road
    seen = _mirror(light, street, rng())
    assert np.array_equal(seen[:60], light[:60])
    assert seen[68:80, :, 0].mean() > 0.3
    assert seen[100:].max() < 0.05  # what would be mirrored here is black


def test_snow_lies_on_what_looks_up() -> None:
    flat, upright = (snow(scene(grey=60, depth=8.0, up=up), rng()).mean() for up in (1.0, 0.0))
    assert flat > 175
    assert upright < 130


def test_the_sky_has_no_colour_in_bad_weather() -> None:
    blue = scene(label=SKY, depth=1000.0)
    blue.image[...] = (96, 140, 204)
    for name in ("fog", "snow"):
        low, high = np.quantile(WEATHER[name](blue, rng()).reshape(-1, 3), (0.05, 0.95), axis=0)
        assert (high - low).max() < 40
        assert np.ptp(low) < 20


def test_at_dusk_the_sky_is_orange_at_the_horizon_and_bluer_above() -> None:
    image = dusk(scene(label=SKY, depth=1000.0), rng()).astype(float)
    low, high = (image[rows].mean((0, 1)) for rows in (slice(44, 50), slice(0, 4)))
    assert low[0] > low[1] + 40 > low[2] + 60
    assert high[2] - high[0] > low[2] - low[0] + 40
    assert low.sum() > high.sum()


def test_at_dusk_grey_things_are_dark_and_bluish_but_what_looks_up_is_warmer() -> None:
    upright, flat = (dusk(scene(depth=4.0, up=up), rng()).mean((0, 1)) for up in (0.0, 1.0))
    assert upright.mean() < 100  # of 128 by day
    assert upright[2] > upright[0]
    assert flat[0] / flat[2] > 1.1 * upright[0] / upright[2]


def test_dust_takes_blue_before_red() -> None:
    colours = [dust(scene(grey=255, depth=depth), rng()).mean((0, 1)) for depth in (1.0, 80.0)]
    near, far = (colour / 255 for colour in colours)
    assert near[0] > near[1] > near[2]
    assert far[2] / near[2] < far[0] / near[0] - 0.05
    contrast = []
    for depth in (5.0, 60.0, 200.0):
        dark, bright = (dust(scene(grey=g, depth=depth), rng()).mean() for g in (40, 200))
        contrast.append(bright - dark)
    assert contrast[0] > 1.2 * contrast[1] > 2 * contrast[2] > 0


def test_dust_lies_on_what_looks_up() -> None:
    flat, upright = (dust(scene(grey=40, depth=3.0, up=up), rng()).mean() for up in (1.0, 0.0))
    assert flat > upright + 15


def test_what_is_held_out_is_no_copy_of_a_domain() -> None:
    """Mean colours of the ground and the sky differ from each domain's."""

    def colours(name: str) -> np.ndarray:
        image = EVERY[name](clear_scene(2), rng()).astype(float)
        small = clear_scene(2).small
        return np.stack([image[small == label].mean(0) for label in (ROAD, SKY, BUILDING)])

    for held in HELD_OUT:
        assert min(np.abs(colours(held) - colours(name)).max() for name in WEATHER) > 30


@pytest.mark.parametrize("name", EVERY)
def test_things_stay_to_be_seen(name: str) -> None:
    """Outlines of near cars are steps in the picture, more than what is inside of them."""
    outlines, insides = [], []
    for number in range(6):
        clear = clear_scene(number)
        image = EVERY[name](clear, rng()).astype(np.float32).mean(-1)
        car = (clear.small == CLASSES.index("car")) & (clear.depth < 25)
        step = np.abs(np.diff(image, axis=1))
        outlines.append(step[car[:, 1:] != car[:, :-1]])
        insides.append(step[car[:, 1:] & car[:, :-1]])
    assert np.concatenate(outlines).mean() > 1.5 * np.concatenate(insides).mean()
