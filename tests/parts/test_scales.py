"""Views at several scales: their order, mean and variance, and which one is used where."""

import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from ctta_bench.errors import MethodError
from ctta_bench.parts.segmentation.scales import (
    OverViews,
    View,
    averaged,
    confident,
    enlarged,
    first_views,
    hard_loss,
    rescaled,
    select_log_probabilities,
    view_probabilities,
    views_at,
)


def maps(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_fourteen_views_are_seven_scales_with_their_mirror_images() -> None:
    views = first_views(14, asked_by="this")
    assert {view.scale for view in views} == {0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0}
    assert [view.mirrored for view in views] == [False, True] * 7
    assert len(set(views)) == 14


def test_few_views_are_those_nearest_to_the_images_own_scale() -> None:
    assert first_views(3, asked_by="this") == [View(1.0, False), View(1.0, True), View(1.25, False)]
    assert views_at((0.5, 1.0))[:2] == [View(1.0, False), View(1.0, True)]


@pytest.mark.parametrize("count", [0, 15, 32])
def test_other_numbers_of_views_are_refused(count: int) -> None:
    with pytest.raises(
        MethodError, match=f"CoTTA supports 1 to 14 views for segmentation .*, not {count};"
    ):
        first_views(count, asked_by="CoTTA")


def test_images_are_rescaled_to_whole_pixels() -> None:
    assert rescaled(maps(1, 3, 540, 960), 0.5).shape == (1, 3, 270, 480)
    assert rescaled(maps(1, 3, 5, 6), 0.5).shape == (1, 3, 2, 3)
    assert torch.equal(rescaled(maps(1, 3, 5, 6), 1.0), maps(1, 3, 5, 6))


def test_logits_get_the_size_of_the_images_by_bilinear_interpolation() -> None:
    logits, images = maps(2, 4, 3, 3), maps(2, 3, 6, 10)
    expected = interpolate(logits, size=(12, 20), mode="bilinear", align_corners=False)
    assert torch.equal(enlarged(logits, images, 2.0), expected)
    assert enlarged(logits, images, None) is logits


def test_mirror_images_are_flipped_back_and_brought_to_one_size() -> None:
    images = maps(1, 3, 4, 6)
    seen = list(
        view_probabilities(views_at((1.0, 2.0)), lambda s: rescaled(images, s), lambda x: x, None)
    )
    large = interpolate(images, size=(8, 12), mode="bilinear", align_corners=False)
    back = interpolate(large, size=(4, 6), mode="bilinear", align_corners=False)
    for view, expected in zip(seen, (images, images, back, back), strict=True):
        torch.testing.assert_close(view, expected.softmax(1))


def test_mean_and_variance_are_those_of_all_views_at_once() -> None:
    views = maps(5, 2, 3, 4, 4).softmax(2)
    over = averaged(iter(views.clone()))
    assert torch.equal(over.plain, views[0])
    torch.testing.assert_close(over.mean, views.mean(0))
    assert over.variance == pytest.approx(float(views.var(0, correction=1).mean()), rel=1e-5)


def test_one_view_is_the_mean_and_has_no_variance() -> None:
    view = maps(1, 3, 2, 2).softmax(1)
    over = averaged([view])
    assert torch.equal(over.mean, view)
    assert over.variance != over.variance
    assert averaged([view, view.clone()]).variance == pytest.approx(0, abs=1e-12)


def test_views_are_let_go_one_after_another() -> None:
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def views() -> Iterator[Tensor]:
        nonlocal most
        for seed in range(14):
            view = maps(1, 3, 8, 8, seed=seed).softmax(1)
            alive.append(weakref.ref(view))
            most = max(most, sum(ref() is not None for ref in alive))
            yield view
            del view

    averaged(views())
    # The plain view, the one before and the new one; the sum is none of them.
    assert most <= 3


def test_the_plain_view_counts_where_it_is_sure_and_the_mean_elsewhere() -> None:
    plain = torch.tensor([[0.9, 0.6], [0.1, 0.4]]).view(1, 2, 1, 2)
    mean = torch.tensor([[0.3, 0.2], [0.7, 0.8]]).view(1, 2, 1, 2)
    over = OverViews(plain, mean, 0.0)
    sure = torch.tensor([True, False]).view(1, 1, 1, 2)
    chosen = select_log_probabilities(over, sure)
    torch.testing.assert_close(chosen.exp()[0, :, 0], torch.tensor([[0.9, 0.2], [0.1, 0.8]]))
    assert chosen.argmax(1).flatten().tolist() == [0, 1]
    torch.testing.assert_close(select_log_probabilities(over, None).exp(), mean)


def test_confidence_is_of_the_resized_logits_and_strictly_above() -> None:
    logits = torch.tensor([3.0, 1.0]).log().view(1, 2, 1, 1)  # probabilities 3/4 and 1/4
    assert confident(logits, (2, 2), 0.7).all()
    assert not confident(logits.double(), (2, 2), 0.7501).any()
    assert confident(logits, (2, 2), 0.7).shape == (1, 1, 2, 2)


def test_a_class_of_no_probability_stays_finite() -> None:
    certain = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1)
    assert select_log_probabilities(OverViews(certain, certain, 0.0), None).isfinite().all()


def test_the_hard_loss_is_that_of_enlarged_logits_against_the_most_likely_classes() -> None:
    logits, target = maps(2, 4, 3, 3), maps(2, 4, 6, 6, seed=1)
    large = interpolate(logits, size=(6, 6), mode="bilinear", align_corners=False)
    expected = cross_entropy(large.movedim(1, -1).flatten(0, 2), target.argmax(1).flatten())
    torch.testing.assert_close(hard_loss(logits, target), expected)
