"""The invariants of DeYO. τ_E, τ_P thresholds; E0 margin; PLPD, drop of the class's probability."""

import math

import pytest
import torch
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.method import softmax_entropy
from ctta_bench.methods.deyo import (
    draw_orders,
    reordered_blocks,
    reordered_pixels,
    without_the_middle,
)
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from tests.methods import build, changed, make, pictures, plain, snapshot, tensors

DEYO = METHODS.get("deyo")
DOUBLE = {"dtype": torch.float64, "precision": "float64"}
OPEN = {"lr": 0.01, "max_entropy": 10.0, "min_drop": -1.0}  # uses every image


class Unweighted(DEYO):
    """Without weights."""

    def weigh(self, entropy: Tensor, drop: Tensor) -> Tensor:
        return entropy


def in_order(rows: int, length: int) -> Tensor:
    return torch.arange(length).expand(rows, -1)


# -- destruction


def test_block_j_comes_from_where_its_order_says_row_by_row() -> None:
    image = torch.arange(16.0).view(1, 1, 4, 4).expand(1, 3, -1, -1)
    moved = reordered_blocks(image, torch.tensor([[3, 0, 1, 2]]), per_side=2)
    expected = [[10.0, 11, 0, 1], [14, 15, 4, 5], [2, 3, 8, 9], [6, 7, 12, 13]]
    assert moved[0, 2].tolist() == expected


def test_blocks_are_moved_differently_in_each_image_and_none_is_lost() -> None:
    images = pictures(2)[:1].expand(6, -1, -1, -1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        moved = reordered_blocks(images, draw_orders(6, 16), 4)
    assert len(torch.unique(moved, dim=0)) == 6
    for channel in range(3):
        values = moved[:, channel].flatten(1).sort(-1).values
        assert torch.equal(values, images[:, channel].flatten(1).sort(-1).values)


def test_blocks_that_do_not_divide_the_sides_give_images_of_the_same_size() -> None:
    images = torch.full((2, 3, 18, 15), 0.25)
    moved = reordered_blocks(images, draw_orders(2, 16), 4)
    torch.testing.assert_close(moved, images)


def test_pixels_take_one_order_for_all_images() -> None:
    images = torch.arange(24.0).view(2, 3, 2, 2)
    moved = reordered_pixels(images, torch.tensor([3, 1, 0, 2]))
    assert moved[0, 0].tolist() == [[3, 1], [0, 2]]
    assert moved[1, 2].tolist() == [[23, 21], [20, 22]]


@pytest.mark.parametrize(("side", "first", "last"), [(224, 56, 167), (32, 8, 23), (384, 96, 287)])
def test_the_middle_takes_the_mean_colour_of_its_image(side: int, first: int, last: int) -> None:
    images = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    covered = without_the_middle(images)
    inside = covered != images
    places = inside[1, 2].nonzero()
    assert places.min(0).values.tolist() == [first, first]
    assert places.max(0).values.tolist() == [last, last]
    assert int(inside[0, 0].sum()) == (side // 2) ** 2
    middle = covered[..., side // 2, side // 2]
    torch.testing.assert_close(middle, images.mean((-2, -1)))
    assert torch.equal(images, before)


def test_a_square_of_given_size_and_place_is_covered() -> None:
    images = torch.rand(1, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    covered = without_the_middle(images, 4, 0, 20)
    places = (covered != images)[0, 0].nonzero()
    assert places.min(0).values.tolist() == [0, 20]
    assert places.max(0).values.tolist() == [3, 23]
    # What is not given is as before: half the sides, in the middle.
    places = (without_the_middle(images, column=1) != images)[0, 0].nonzero()
    assert places.min(0).values.tolist() == [4, 1]
    assert places.max(0).values.tolist() == [11, 12]


@pytest.mark.parametrize("place", [(20, None, None), (8, 10, 0), (8, 0, 9)])
def test_a_square_that_leaves_the_images_is_refused(place: tuple[int | None, ...]) -> None:
    options = dict(zip(("size", "row", "column"), place, strict=True))
    settings = {f"occlusion_{k}": v for k, v in options.items() if v is not None}
    method = build("deyo", **OPEN, destruction="middle", **settings)
    with pytest.raises(MethodError, match=r"DeYO cannot cover rows .* 16 x 16 pixels; choose"):
        method(pictures(4))


def test_a_square_without_an_occlusion_is_refused() -> None:
    with pytest.raises(ValueError, match="occlusion_column need destruction: middle"):
        build("deyo", occlusion_row=3)


# -- what is used


def test_margins_are_shares_of_the_largest_entropy() -> None:
    method = build("deyo")
    assert method.max_entropy == pytest.approx(1.1513, abs=5e-5)  # 0.5 ln 10
    assert method.margin == pytest.approx(0.9210, abs=5e-5)  # 0.4 ln 10


@pytest.mark.parametrize(
    ("options", "step_counted"),
    [({"max_entropy": 0.0}, False), ({"min_drop": 1.0}, True)],
    ids=["none reliable", "no prediction drops"],
)
def test_without_an_image_to_use_nothing_moves_and_it_is_counted(
    options: dict[str, float], step_counted: bool
) -> None:
    method = build("deyo", **OPEN | options)
    before = tensors(method.model)
    method(pictures(8))
    assert changed(before, method.model) == set()
    assert method.optimizer.state_dict()["state"] == {}
    assert method.counters["skipped_updates"] == 1
    assert method.passes.forward_images == (16 if step_counted else 8)


@pytest.mark.parametrize("network", ["toy_vit", "toy_cnn"])
def test_images_that_stay_whole_do_not_drop_and_are_not_used(network: str) -> None:
    # On BatchNorm, too: all images are reliable, so that both passes have the same batch.
    method = build("deyo", network, **OPEN | {"min_drop": 1e-6})
    method.draw_orders = in_order
    before = tensors(method.model)
    method(pictures(8))
    assert changed(before, method.model) == set()


def test_a_constant_image_never_drops() -> None:
    method = build("deyo", **OPEN | {"min_drop": 1e-6})
    before = tensors(method.model)
    method(torch.full((4, 3, 16, 16), 0.6))
    assert changed(before, method.model) == set()


@pytest.mark.parametrize(
    ("by_entropy", "by_drop", "expected"),
    [
        (True, True, math.exp(0.4 * math.log(10) - 0.5) + math.exp(0.3)),
        (True, False, math.exp(0.4 * math.log(10) - 0.5)),
        (False, True, math.exp(0.3)),
        (False, False, 1.0),
    ],
)
def test_each_weight_can_be_left_out(by_entropy: bool, by_drop: bool, expected: float) -> None:
    method = build("deyo", weigh_by_entropy=by_entropy, weigh_by_drop=by_drop, **DOUBLE)
    entropy, drop = torch.tensor([0.5]).double(), torch.tensor([0.3]).double()
    assert method.weigh(entropy, drop).item() == pytest.approx(expected * 0.5)


def test_the_record_of_a_cell_has_new_hyperparameters_only_if_they_are_set() -> None:
    plain = DEYO.Hyperparameters().record()
    assert not [name for name in plain if name.startswith(("occlusion_", "weigh_"))]
    assert DEYO.Hyperparameters(weigh_by_drop=False).record() == plain | {"weigh_by_drop": False}


def test_without_weights_and_filters_it_is_tent_on_its_layers() -> None:
    deyo = make(Unweighted, **OPEN, skip_last_blocks=0)
    tent = build("tent", lr=0.01)
    norms = tent.model.norm_parameters(skip_final=True)
    tent.adapt_only(norms)
    tent.optimizer = tent.build_optimizer()
    for images in pictures(24).split(8):
        torch.testing.assert_close(deyo(images), tent(images), atol=1e-5, rtol=0)


def test_the_step_is_that_of_the_weighted_mean_over_the_images_used() -> None:
    method = build("deyo", lr=1.0, momentum=0.0, max_entropy=0.8, min_drop=0.15, **DOUBLE)
    images, start = pictures(24).double(), snapshot(method)
    method.draw_orders = lambda rows, length: in_order(rows, length).flip(-1)
    logits = method.model(images)
    entropy = softmax_entropy(logits)
    reliable = entropy < 0.8 * math.log(10)
    with torch.no_grad():
        rotated = torch.stack(
            [
                torch.cat([image[:, r : r + 4, c : c + 4] for c in (12, 8, 4, 0)], -1)
                for image in images
                for r in (12, 8, 4, 0)
            ]
        )
        turned = torch.stack([torch.cat(list(rows), -2) for rows in rotated.split(4)])
        after = method.model(turned).softmax(-1)
    p, classes = logits.softmax(-1), logits.argmax(-1)
    numbers = torch.arange(24)
    drop = (p[numbers, classes] - after[numbers, classes]).detach()
    used = reliable & (drop > 0.15)
    assert 0 < used.sum() < reliable.sum() < 24
    weight = (0.4 * math.log(10) - entropy.detach()).exp() + drop.exp()
    loss = (weight * entropy)[used].sum() / used.sum()
    gradients = torch.autograd.grad(loss, list(method.trainable.values()))
    method(images)
    torch.testing.assert_close(method.loss, loss.detach())
    for (name, parameter), gradient in zip(method.trainable.items(), gradients, strict=True):
        torch.testing.assert_close(parameter.detach(), start[name] - gradient, atol=1e-12, rtol=0)


def test_on_batchnorm_destroyed_images_are_normalised_among_the_reliable_ones() -> None:
    method, seen = build("deyo", "toy_cnn", **OPEN | {"lr": 0.0}), []
    forward = method.model.forward
    method.model.forward = lambda images: seen.append(len(images)) or forward(images)
    images = pictures(16)
    with torch.no_grad():
        method.max_entropy = float(softmax_entropy(forward(images)).sort().values[5])
    method(images)
    assert seen == [16, 5]


# -- which layers


def test_it_adapts_what_sar_adapts() -> None:
    for network in ("toy_vit", "toy_cnn"):
        assert list(build("deyo", network).trainable) == list(build("sar", network).trainable)
    assert len(build("deyo").trainable) == 3 * 2 * 2  # three of four blocks, no final norm


def test_on_the_vit_of_the_paper_these_are_18_layers_and_27648_values() -> None:
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        network = timm.create_model("vit_base_patch16_224")
        resnet = timm.create_model("resnet50")
    found = SourceModel(network).early_norm_parameters()
    assert (len(found), sum(p.numel() for p in found.values())) == (36, 27_648)
    found = SourceModel(resnet).early_norm_parameters()
    assert sum(p.numel() for p in found.values()) == 30_592


def test_reset_returns_to_the_source_and_images_stay_as_they_were() -> None:
    method = build("deyo", **OPEN)
    source, images = plain(snapshot(method)), pictures(8)
    before = images.clone()
    method(images)
    assert torch.equal(images, before)
    assert plain(snapshot(method)) != source
    method.reset()
    assert plain(snapshot(method)) == source
