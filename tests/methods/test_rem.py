"""REM. n views, m the share that each masks beyond the last, τ the margin, λ of the ranking."""

import math
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from ctta_bench.authoring.parity import replay_case
from ctta_bench.errors import MethodError
from ctta_bench.method import soft_cross_entropy, softmax_entropy
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from tests.methods import build, changed, pictures, plain, snapshot, tensors
from tests.parity.test_parity import CASES
from tests.parity.test_teachers import noting, per_batch

REM = METHODS.get("rem")
DOUBLE = {"dtype": torch.float64, "precision": "float64"}
SGD = {"optimizer": "sgd", "momentum": 0.0, "lr": 0.01}
QUARTERS = {"mask_step": 0.25}  # of four patches: one more in every view


def logits(count: int = 3, images: int = 6, classes: int = 10) -> list[Tensor]:
    drawn = torch.randn(count, images, classes, generator=torch.Generator().manual_seed(0))
    return list(3 * drawn.double())


def gradients(method: Any, views: list[Tensor]) -> list[Tensor]:
    views = [view.clone().requires_grad_() for view in views]
    return list(torch.autograd.grad(method.total_loss(views), views, materialize_grads=True))


# -- what learns


@pytest.mark.parametrize(("final", "count"), [(False, 27_648), (True, 29_184)])
def test_vit_base_adapts_the_norms_of_nine_blocks(final: bool, count: int) -> None:
    with torch.device("meta"):
        model = SourceModel(timm.create_model("vit_base_patch16_224"))
        method = REM(model, REM.Hyperparameters(final_norm=final))
    assert sum(p.numel() for p in method.trainable.values()) == count
    assert ("norm.weight" in method.trainable) == final


def test_the_final_norm_and_the_last_block_stay() -> None:
    method = build("rem", **QUARTERS)
    before = tensors(method.model)
    for images in pictures(24).split(8):
        method(images)
    assert changed(before, method.model) == {
        f"network.blocks.{b}.norm{n}.{key}"
        for b in range(3)
        for n in (1, 2)
        for key in ("weight", "bias")
    }


# -- the views


@pytest.mark.parametrize(
    ("patches", "step", "kept"),
    [(196, 0.1, [196, 176, 156]), (576, 0.1, [576, 518, 460]), (16, 0.3, [16, 11, 6])],
)
def test_the_numbers_of_kept_patches_are_truncated(
    patches: int, step: float, kept: list[int]
) -> None:
    method = build("rem", mask_step=step)
    assert [method.kept(patches, number) for number in range(3)] == kept


@torch.no_grad()
def test_the_patches_that_the_class_token_attends_to_are_masked_first() -> None:
    method, images = build("rem", **QUARTERS), pictures(4)
    with method.model.attention() as matrices:
        whole = method.model(images)
    attended = matrices[-1][:, :, 0, 1:].mean(1)
    views = method.views(images)
    torch.testing.assert_close(views[0], whole)
    for number, view in enumerate(views):
        for image, scores in enumerate(attended):
            left = scores.argsort()[: 4 - number].flip(0)[None]  # in any order
            with method.model.drop_tokens(keep=left):
                expected = method.model(images[image : image + 1])
            torch.testing.assert_close(view[image : image + 1], expected)


@torch.no_grad()
def test_without_masking_all_views_are_equal() -> None:
    first, *others = build("rem", mask_step=0.0).views(pictures(4))
    for other in others:
        torch.testing.assert_close(other, first)


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("rem_")])
def test_the_official_code_keeps_the_same_patches(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[list[Tensor]] = []
    drop = SourceModel.drop_tokens

    def noted(model: SourceModel, *, keep: Tensor) -> Any:
        kept[-1].append(keep)
        return drop(model, keep=keep)

    monkeypatch.setattr(SourceModel, "drop_tokens", noted)
    views = REM.views

    def began(method: Any, images: Tensor) -> list[Tensor]:
        kept.append([])
        return views(method, images)

    monkeypatch.setattr(REM, "views", began)
    entropies = noting(monkeypatch, "rem", lambda method: method.margin)
    replayed = replay_case(CASES[name], torch.float64)
    for batch, ours in enumerate(kept):
        for number, keep in enumerate(ours, 1):
            theirs = replayed.recorded[f"aux/kept_tokens_{batch}_{number}"].long()
            assert torch.equal(keep, theirs)
    assert [[k.shape[1] for k in ours] for ours in kept] == per_batch(replayed, "kept_tokens")
    classes = 1000 if replayed.case["hyper_parameters"]["code"] == "imagenet" else 10
    margin = replayed.case["hyper_parameters"]["margin"] * math.log(classes)
    assert entropies == [pytest.approx(margin)] * 7


# -- the loss


def test_the_loss_is_that_of_the_paper() -> None:
    views = logits()
    method = build("rem", margin=0.1, rank_weight=0.5)
    expected = torch.zeros(()).double()
    for more in range(3):
        for less in range(more):
            expected += soft_cross_entropy(views[more], views[less]).mean()
            gap = softmax_entropy(views[less]) - softmax_entropy(views[more]) + 0.1 * math.log(10)
            expected += 0.5 * gap.clamp(min=0).mean()
    torch.testing.assert_close(method.total_loss(views), expected)


def test_the_whole_image_learns_only_where_it_is_less_sure_than_a_masked_one() -> None:
    views = logits(2)
    gaps = softmax_entropy(views[0]) - softmax_entropy(views[1])
    assert bool((gaps > 0).any()) and bool((gaps < 0).any())
    of_whole, of_masked = gradients(build("rem"), views)
    assert torch.equal(of_whole.abs().sum(1) > 0, gaps > 0)
    # The masked view has the gradient of the cross-entropy alone.
    torch.testing.assert_close(of_masked, (views[1].softmax(1) - views[0].softmax(1)) / 6)


@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_of_equal_views_only_a_margin_makes_a_gradient_that_of_tent(margin: float) -> None:
    (view,) = logits(1)
    found = gradients(build("rem", margin=margin), [view, view.clone(), view.clone()])
    p, entropy = view.softmax(1), softmax_entropy(view).unsqueeze(1)
    of_tent = -p * (p.log() + entropy) / 6
    # The first view is the less masked one of two pairs, the second of one, the last of none.
    for pairs, ours in zip((2, 1, 0), found, strict=True):
        expected = of_tent * pairs if margin else torch.zeros_like(view)
        torch.testing.assert_close(ours, expected, atol=1e-12, rtol=1e-9)


def test_a_single_view_has_no_loss_and_changes_nothing() -> None:
    method = build("rem", views=1, **SGD)
    start = snapshot(method)
    method(pictures(8))
    assert float(method.loss) == 0 and plain(snapshot(method)) == plain(start)
    assert method.counters["skipped_updates"] == 0


def test_the_margin_is_a_share_of_ln_c_and_with_faithful_of_ln_1000() -> None:
    assert build("rem", margin=0.1).margin == pytest.approx(0.1 * math.log(10))
    assert build("rem", margin=0.1, faithful=True).margin == pytest.approx(0.1 * math.log(1000))


# -- a batch


def test_scored_is_the_whole_image_from_before_the_step() -> None:
    method, images = build("rem", **DOUBLE, **QUARTERS), pictures(8).double()
    with torch.no_grad():
        expected = method.predict(images)
    torch.testing.assert_close(method(images), expected)


def test_nan_images_and_a_batch_of_one_leave_the_model_whole() -> None:
    method = build("rem", **QUARTERS)
    start = snapshot(method)
    method(torch.full((4, 3, 16, 16), torch.nan))
    assert method.counters["skipped_updates"] == 1 and plain(snapshot(method)) == plain(start)
    assert bool(method(pictures(1)).isfinite().all())
    assert plain(snapshot(method)) != plain(start)


@pytest.mark.parametrize(
    ("network", "values", "said"),
    [
        ("toy_cnn", {}, "REM does not support toy_cnn: it has no class token"),
        ("toy_vit", {"mask_step": 0.5}, "the last of 3 views masks all 4 patches of toy_vit"),
        ("toy_vit", {"mask_step": 0.1, "views": 12}, r"lower mask_step \(0.1\) or views"),
    ],
)
def test_what_it_cannot_do_is_refused(network: str, values: dict[str, Any], said: str) -> None:
    with pytest.raises(MethodError, match=said):
        build("rem", network, **values)
