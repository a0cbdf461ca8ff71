"""Procedural streets: geometry, labels, and the same bits for the same seed."""

import numpy as np
import pytest

from ctta_bench.datasets.io.street_classes import CLASSES
from ctta_bench.datasets.streets.canvas import (
    DEPTH,
    FAR,
    HEIGHT,
    LIGHTS,
    WIDTH,
    Camera,
    Canvas,
    Face,
    front,
    noise_tile,
    side,
)
from ctta_bench.datasets.streets.scene import Scene, make_scene

CAMERA = Camera(focal=500.0, u=256.0, v=100.0, height=1.5)
ROAD, SKY, CAR = (CLASSES.index(name) for name in ("road", "sky", "car"))


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [make_scene((99, number)) for number in range(14)]


def test_a_point_is_projected_by_the_pinhole_law() -> None:
    points = np.array([[0.0, 0.0, 10.0], [2.0, 1.5, 20.0]])
    assert CAMERA.project(points).tolist() == [[256.0, 175.0], [306.0, 100.0]]


def test_a_face_paints_its_colour_class_depth_and_light_where_it_is_seen() -> None:
    canvas = Canvas(CAMERA)
    wall = Face(front((-1, 1), (0.5, 2.5), 10.0), (200, 10, 30), 0.25, "tail")
    canvas.faces([wall], CAR)
    # x from -1 to 1 at 10 m are columns 206 to 306, y from 0.5 to 2.5 rows 150 to 50.
    assert canvas.paint[100, 256].tolist() == [200, 10, 30, CAR]
    assert canvas.facts[50, 128].tolist() == [10.0, 0.25, LIGHTS["tail"][0]]
    assert canvas.paint[100, 210, 3] == canvas.paint[100, 302, 3] == CAR
    assert canvas.paint[100, [202, 310]].max() == canvas.paint[[46, 154], 256].max() == 0


def test_the_near_face_hides_the_far_one_and_a_side_has_the_depth_of_its_middle() -> None:
    canvas = Canvas(CAMERA)
    canvas.faces([Face(side(2.0, (0, 3), (10.0, 30.0)), (9, 9, 9))], 2)
    assert canvas.facts[50, 150, DEPTH] == 20.0
    canvas.faces([Face(front((1, 4), (0, 3), 8.0), (1, 2, 3))], 4)
    assert (canvas.facts[50, 180, DEPTH], canvas.paint[100, 360, 3]) == (8.0, 4)


def test_noise_is_in_range_and_repeats_without_a_seam() -> None:
    tile = noise_tile(1.3)
    assert 0 <= tile.min() < 0.2 < 0.8 < tile.max() <= 1
    seam, inside = np.abs(tile[0] - tile[-1]).mean(), np.abs(tile[1] - tile[0]).mean()
    assert seam == pytest.approx(inside, rel=0.3)


def test_the_same_seed_gives_the_same_bits_and_another_another_scene() -> None:
    one, same, other = (make_scene((5, number)) for number in (3, 3, 4))
    for name in ("image", "label", "small", "depth", "up", "light"):
        assert np.array_equal(getattr(one, name), getattr(same, name))
    assert not np.array_equal(one.label, other.label)


def test_every_pixel_has_a_class_and_all_occur_but_trains_and_motorcycles(
    scenes: list[Scene],
) -> None:
    present = np.unique(np.concatenate([np.unique(scene.label) for scene in scenes]))
    absent = {"train", "motorcycle"}
    assert present.tolist() == [n for n, name in enumerate(CLASSES) if name not in absent]


def test_images_are_half_the_size_of_their_labels(scenes: list[Scene]) -> None:
    scene = scenes[0]
    assert scene.label.shape == (HEIGHT, WIDTH) == (256, 512)
    assert scene.image.shape == (128, 256, 3)
    assert np.array_equal(scene.small, scene.label[::2, ::2])


def test_the_road_lies_on_a_plane_below_the_camera_and_the_sky_is_far(scenes: list[Scene]) -> None:
    for scene in scenes:
        camera = scene.camera
        rows, columns = np.nonzero(scene.small == ROAD)
        plane = camera.focal * camera.height / (2 * rows - camera.v)
        # Outlines of things are rounded to the pixels of labels and to the larger ones of depths.
        assert np.isclose(scene.depth[rows, columns], plane, rtol=1e-5).mean() > 0.99
        assert scene.up[rows, columns].mean() > 0.99
        assert (scene.depth[scene.small == SKY] == FAR).mean() > 0.9


def test_things_stand_nearer_than_the_ground_behind_them(scenes: list[Scene]) -> None:
    for scene in scenes:
        rows, columns = np.nonzero(scene.small == CAR)
        below = 2 * rows - scene.camera.v
        plane = scene.camera.focal * scene.camera.height / np.maximum(below, 1e-6)
        seen_before_the_road = scene.depth[rows, columns] < plane + 2.5  # a side is 5 m long
        assert seen_before_the_road[below > 0].mean() > 0.99


def test_a_scene_looks_like_its_classes(scenes: list[Scene]) -> None:
    """The sky is brighter than the road, plants are greener than houses."""
    colours = {
        name: np.concatenate([s.image[s.small == CLASSES.index(name)] for s in scenes]).mean(0)
        for name in ("sky", "road", "vegetation", "building")
    }
    assert colours["sky"].min() > colours["road"].max() + 40
    greens = {name: c[1] - (c[0] + c[2]) / 2 for name, c in colours.items()}
    assert greens["vegetation"] > greens["building"] + 15


def test_lights_are_at_things_that_have_some(scenes: list[Scene]) -> None:
    kinds = {name: number for name, (number, _) in LIGHTS.items()}
    for scene in scenes:
        assert set(scene.small[scene.light == kinds["tail"]]) <= {
            CLASSES.index(name) for name in ("car", "bus", "truck", "bicycle")
        }
        assert set(scene.small[scene.light == kinds["window"]]) <= {CLASSES.index("building")}
    assert sum((s.light == kinds["lamp"]).sum() for s in scenes) > 0
