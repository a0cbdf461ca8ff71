import dataclasses
import itertools
import math

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as reference

from ctta_bench.parts.views import batch as augment
from ctta_bench.parts.views.batch import (
    View,
    affine,
    blur,
    draw_view,
    in_chunks,
    jitter,
    light_view,
    random_view,
    turn_hue,
)
from tests.methods import pictures

PLAIN = View((0, 1, 2, 3, 4), 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, (0, 0), 1.0, 0.001, False)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def images(height: int = 32, width: int = 32, count: int = 3) -> Tensor:
    return torch.rand(count, 3, height, width)


def official_geometry(batch: Tensor, view: View) -> Tensor:
    """As the official codes do it: pad by half the side, map, blur, crop the centre."""
    height, width = batch.shape[-2:]
    padded = reference.pad(batch, [width // 2, height // 2], padding_mode="edge")
    mapped = reference.affine(
        padded,
        view.angle,
        [float(s) for s in view.shift],
        view.scale,
        [0.0, 0.0],
        InterpolationMode.BILINEAR,
    )
    return reference.center_crop(reference.gaussian_blur(mapped, 5, view.sigma), [height, width])


CORNERS = [
    dataclasses.replace(PLAIN, angle=a, shift=(x, y), scale=s, sigma=0.5)
    for a, x, y, s in itertools.product((-15.0, 15.0), (-4, 4), (-4, 4), (0.9, 1.1))
]


@pytest.mark.parametrize("view", CORNERS)
def test_extreme_views_are_those_of_padding_mapping_blurring_and_cropping(view: View) -> None:
    batch = images()
    ours = blur(affine(batch, view, margin=2), view.sigma)
    torch.testing.assert_close(ours, official_geometry(batch, view), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 48), (17, 16)])
def test_mirrored_edges_are_those_of_reflecting_mapping_and_cropping(
    height: int, width: int
) -> None:
    batch = images(height, width)
    for _ in range(20):
        view = draw_view(height, width)
        padded = reference.pad(batch, [width // 2, height // 2], padding_mode="reflect")
        shift = [float(s) for s in view.shift]
        mapped = reference.affine(
            padded, view.angle, shift, view.scale, [0.0, 0.0], InterpolationMode.BILINEAR
        )
        expected = reference.center_crop(mapped, [height, width])
        ours = affine(batch, view, margin=0, mirrored=True)
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


def test_a_light_view_is_coloured_mapped_and_perhaps_flipped_and_nothing_else() -> None:
    batch, sides = images(), set()
    for seed in range(8):
        torch.manual_seed(seed)
        view = draw_view(32, 32)
        torch.manual_seed(seed)
        found = light_view(batch)
        expected = affine(jitter(batch, view), view, margin=0, mirrored=True).clamp(0, 1)
        assert torch.equal(found, expected.flip(-1) if view.flipped else expected)
        sides.add(view.flipped)
    assert sides == {False, True}
    assert light_view(batch, (24, 40)).shape == (3, 3, 24, 40)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 48), (17, 16)])
def test_random_views_are_those_of_padding_mapping_blurring_and_cropping(
    height: int, width: int
) -> None:
    batch = images(height, width)
    for _ in range(20):
        view = draw_view(height, width)
        ours = blur(affine(batch, view, margin=2), view.sigma)
        torch.testing.assert_close(ours, official_geometry(batch, view), atol=1e-4, rtol=0)


@pytest.mark.parametrize("side", [16, 32, 224])
def test_shifts_are_whole_pixels_up_to_an_eighth_of_the_side(side: int) -> None:
    draws = {s for _ in range(3000) for s in draw_view(side, side).shift}
    assert draws == set(range(-side // 8, side // 8 + 1))


def test_draws_fill_their_ranges() -> None:
    views = [draw_view(32, 32) for _ in range(2000)]
    ranges = {
        "brightness": (0.6, 1.4),
        "contrast": (0.7, 1.3),
        "saturation": (0.5, 1.5),
        "hue": (-0.06, 0.06),
        "gamma": (0.7, 1.3),
        "angle": (-15, 15),
        "scale": (0.9, 1.1),
        "sigma": (0.001, 0.5),
    }
    for name, (low, high) in ranges.items():
        values = torch.tensor([getattr(view, name) for view in views])
        width = high - low
        assert low <= values.min() < low + 0.01 * width
        assert high - 0.01 * width < values.max() <= high
        assert values.mean().item() == pytest.approx((low + high) / 2, abs=0.03 * width)
    assert len({view.order for view in views}) == 120
    flips = sum(view.flipped for view in views)
    assert abs(flips - 1000) < 3 * math.sqrt(2000 * 0.25)


def grey(batch: Tensor) -> Tensor:
    r, g, b = batch.unbind(1)
    return (0.2989 * r + 0.587 * g + 0.114 * b).unsqueeze(1)


def test_colours_follow_the_formulas_in_the_drawn_order() -> None:
    view = dataclasses.replace(
        PLAIN, order=(4, 1, 0, 2, 3), brightness=1.3, contrast=0.8, saturation=1.4, gamma=0.75
    )
    x = batch = images()
    x = x.clamp(1e-8, 1).pow(0.75)
    x = (0.8 * x + 0.2 * grey(x).mean((1, 2, 3), keepdim=True)).clamp(0, 1)
    x = (1.3 * x).clamp(0, 1)
    x = (1.4 * x - 0.4 * grey(x)).clamp(0, 1)
    torch.testing.assert_close(jitter(batch, view), x, atol=1e-5, rtol=0)


def test_a_hue_of_a_third_turns_red_into_green() -> None:
    red = torch.tensor([0.8, 0.0, 0.0]).view(1, 3, 1, 1)
    turned = jitter(red, dataclasses.replace(PLAIN, hue=1 / 3)).flatten()
    torch.testing.assert_close(turned, torch.tensor([0.0, 0.8, 0.0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("turn", [-0.5, -0.06, 0.0, 0.03, 0.5])
def test_hues_turn_as_torchvision_turns_them(turn: float) -> None:
    batch = images()
    batch[0, :, :16] = batch[0, :1, :16]  # grey
    batch[1] = (4 * batch[1]).round() / 4  # equal colours
    batch[2, :, 0] = 0
    expected = reference.adjust_hue(batch, turn)
    torch.testing.assert_close(turn_hue(batch, turn), expected, atol=3e-6, rtol=0)
    torch.testing.assert_close(turn_hue(batch.double(), turn).float(), expected, atol=3e-6, rtol=0)


def test_images_that_are_changed_a_few_at_a_time_come_out_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, seen = images(count=5), []
    torch.manual_seed(1)
    whole = random_view(batch)
    monkeypatch.setattr(augment, "CACHED_VALUES", 2 * batch[0].numel() + 1)
    torch.manual_seed(1)
    torch.testing.assert_close(random_view(batch), whole, atol=1e-6, rtol=0)
    in_chunks(batch, lambda some: seen.append(len(some)) or some)
    assert seen == [2, 2, 1]


def test_a_tiny_sigma_blurs_nothing() -> None:
    batch = images()
    assert torch.equal(blur(batch, 0.001), batch[..., 2:-2, 2:-2])


def test_one_draw_holds_for_the_batch_but_for_the_noise() -> None:
    picture = pictures(1).expand(2, -1, -1, -1)
    for _ in range(20):
        first, second = random_view(picture)
        difference = (first - second).abs()
        assert 0 < difference.max() <= 10 * 0.005


def test_successive_views_differ() -> None:
    picture = pictures(1)
    assert (random_view(picture) - random_view(picture)).abs().max() > 0.05


def test_noise_has_its_deviation() -> None:
    flat = random_view(torch.full((64, 3, 32, 32), 0.5))
    assert flat.std((0, 2, 3)).mean().item() == pytest.approx(0.005, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_views_keep_shape_type_and_range(dtype: torch.dtype) -> None:
    batch = 1.5 * images(20, 28).to(dtype) - 0.25
    for _ in range(20):
        view = random_view(batch)
        assert (view.shape, view.dtype) == (batch.shape, dtype)
        assert 0 <= view.min() <= view.max() <= 1


def test_images_are_resized_to_the_input_size_first() -> None:
    assert random_view(pictures(2), (48, 40)).shape == (2, 3, 48, 40)


def test_autocast_does_not_coarsen_views() -> None:
    batch = pictures(4)
    plain = random_view(batch)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(random_view(batch), plain)
