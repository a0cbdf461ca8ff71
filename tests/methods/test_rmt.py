"""The invariants of RMT: three losses, the teacher, prototypes, replay and the warm-up."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from ctta_bench.errors import DataError, MethodError
from ctta_bench.method import Method
from ctta_bench.method.warmup import warmup_rate
from ctta_bench.model import SourceModel
from ctta_bench.parts.families.contrast import contrastive_loss, nearest, projector
from ctta_bench.parts.source.replay import Replay
from ctta_bench.registry import METHODS
from tests.methods import (
    build,
    changed,
    make,
    pictures,
    plain,
    snapshot,
    source_images,
    tensors,
    through_disk,
    toy,
)

RMT = METHODS.get("rmt")
DOUBLE = {"dtype": torch.float64, "precision": "float64"}
SMALL = {"projection": 8}
ALONE = {"target_weight": 0.0, "contrast_weight": 0.0, "source_weight": 0.0}


def labelled() -> tuple[Tensor, Tensor]:
    """All source images, in the order in which they are read, and their labels."""
    both = list(source_images(labelled=True).labelled_batches(64))
    return torch.cat([x for x, _ in both]), torch.cat([y for _, y in both])


# -- the contrast


def test_the_contrast_is_the_supervised_one_written_out() -> None:
    vectors = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    unit = normalize(vectors)
    total = 0.0
    for anchor in range(6):
        others = [i for i in range(6) if i != anchor]
        below = sum(math.exp(float(unit[anchor] @ unit[i]) / 0.1) for i in others)
        mine = [i for i in others if i % 2 == anchor % 2]
        assert len(mine) == 2
        for i in mine:
            total -= math.log(math.exp(float(unit[anchor] @ unit[i]) / 0.1) / below) / 2
    assert float(contrastive_loss(vectors, 0.1)) == pytest.approx(total / 6)


@pytest.mark.parametrize(("images", "expected"), [(1, math.log(2)), (64, 0.70)])
def test_equal_views_have_the_contrast_of_two_choices(images: int, expected: float) -> None:
    vectors = torch.randn(images, 128, generator=torch.Generator().manual_seed(0)).repeat(3, 1)
    assert float(contrastive_loss(vectors, 0.1)) == pytest.approx(expected, abs=0.02)
    assert float(contrastive_loss(vectors * 7, 0.1)) == pytest.approx(expected, abs=0.02)


def test_prototypes_are_the_mean_features_of_the_classes_that_there_are() -> None:
    method = build("rmt", **SMALL, **DOUBLE)
    images, labels = labelled()
    with torch.no_grad():
        features = method.model.features(images.double())
    expected = [features[labels == c].mean(0) for c in range(10) if bool((labels == c).any())]
    assert len(expected) < 10  # the toy's pictures have not all classes
    torch.testing.assert_close(method.prototypes, torch.stack(expected))


def test_only_so_many_images_are_read_for_the_prototypes() -> None:
    method = build("rmt", source_samples=7, **SMALL, **DOUBLE)
    images, labels = labelled()
    with torch.no_grad():
        features = method.model.features(images[:7].double())
    expected = [features[labels[:7] == c].mean(0) for c in labels[:7].unique()]
    torch.testing.assert_close(method.prototypes, torch.stack(expected))
    assert len(method.prototypes) < 7


def test_the_nearest_prototype_is_that_of_the_smallest_angle() -> None:
    prototypes = torch.tensor([[10.0, 0.0], [1.0, 1.0]])
    features = torch.tensor([[1.0, 0.1], [3.0, 4.0], [0.2, 0.0]])
    assert nearest(features, prototypes).tolist() == [[10, 0], [1, 1], [10, 0]]


def test_without_source_images_it_is_refused() -> None:
    class Nothing:
        def labelled_batches(self, size: int, **place: int) -> list[Any]:
            return []

    with pytest.raises(DataError, match="RMT needs labelled source images for its prototypes"):
        RMT(SourceModel(toy.toy_vit())).start(Nothing())


# -- the step


def symmetric(logits: Tensor, target: Tensor) -> Tensor:
    forth = -(target.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    return (forth - (logits.softmax(-1) * target.log_softmax(-1)).sum(-1)) / 2


def test_the_loss_is_the_sum_of_its_three_parts() -> None:
    weights = {"target_weight": 2.0, "contrast_weight": 3.0, "source_weight": 5.0}
    method = build("rmt", **SMALL, **weights, **DOUBLE)
    with torch.no_grad():
        for parameter in method.teacher.parameters():
            parameter.mul_(1.1)
    method.augment = lambda images, size: images.flip(-1)
    images = pictures(8).double()
    (shown, labels) = next(iter(source_images(torch.float64, labelled=True).labelled_batches(8)))
    with torch.no_grad():
        features, z = method.model.features_and_logits(images)
        of_view, view = method.model.features_and_logits(images.flip(-1))
        target = method.teacher(images)
        towards = (symmetric(z, target) + symmetric(view, target)).mean() / 2
        near = nearest(features, method.prototypes)
        vectors = method.projector(torch.cat([near, features, of_view]))
        source = cross_entropy(method.model(shown), labels)
        expected = 2 * towards + 3 * contrastive_loss(vectors, 0.1) + 5 * source
    scored = method(images)
    torch.testing.assert_close(method.loss, expected)
    torch.testing.assert_close(scored, z + target)


def test_the_teacher_follows_all_weights_by_a_thousandth() -> None:
    method = build("rmt", lr=0.1, **SMALL, **DOUBLE)
    before = tensors(method.teacher)
    method(pictures(8).double())
    student = tensors(method.model)
    for name, teacher in tensors(method.teacher).items():
        expected = 0.999 * before[name] + 0.001 * student[name]
        torch.testing.assert_close(teacher, expected, atol=1e-14, rtol=0)


def test_without_any_loss_nothing_but_rounding_moves() -> None:
    method = build("rmt", lr=0.1, **ALONE, **SMALL)
    before = tensors(method.model)
    method(pictures(8))
    assert changed(before, method.model) == set()


def test_all_weights_and_the_projector_learn_but_not_token_and_positions() -> None:
    method = build("rmt")
    whole = sum(p.numel() for p in method.model.network.parameters())
    beside = 24 * 128 + 128 + 128 * 128 + 128
    expected = whole - 24 - 5 * 24 + beside
    assert sum(p.numel() for p in method.trainable.values()) == expected


def test_the_projector_of_a_width_of_768_has_the_published_count() -> None:
    assert sum(p.numel() for p in projector(768, 128).parameters()) == 114_944


def test_the_head_learns_and_the_teacher_takes_it_over() -> None:
    method = build("rmt", lr=0.1, **SMALL)
    before = tensors(method.teacher)
    method(pictures(8))
    assert {"network.head.weight", "network.head.bias"} <= changed(before, method.teacher)


def test_an_update_that_is_left_out_moves_no_network() -> None:
    method, images = build("rmt", **SMALL), pictures(8)
    student, teacher = tensors(method.model), tensors(method.teacher)
    images[2] = torch.nan
    method(images)
    assert method.counters["skipped_updates"] == 1
    assert changed(student, method.model) == changed(teacher, method.teacher) == set()


def test_passes_are_those_of_student_view_teacher_and_source() -> None:
    for settings, forward, backward in (({}, 4, 3), ({"source_weight": 0.0}, 3, 2)):
        method = build("rmt", **SMALL, **settings)
        for images in pictures(16).split(8):
            method(images)
        passes = (method.passes.forward_images, method.passes.backward_images)
        assert passes == (16 * forward, 16 * backward)


def test_no_plain_network_gives_its_scores() -> None:
    with pytest.raises(MethodError, match=r"RMT has no plain network .* sum of two"):
        _ = build("rmt", **SMALL).scored_model


# -- source images during the stream


class Counted:
    """Twelve numbers for images, which note how often they were read."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def labelled_batches(self, size: int, *, epoch: int = 0, first: int = 0) -> list[Any]:
        self.asked.append((size, epoch, first))
        order = torch.randperm(12, generator=torch.Generator().manual_seed(epoch))
        return list(zip(order.split(size), order.split(size), strict=True))[first:]


def test_a_replay_goes_round_epoch_by_epoch_in_batches_of_its_first_size() -> None:
    source = Counted()
    replay = Replay(source)
    drawn = [replay.draw(size)[0] for size in (5, 5, 2, 5, 5, 5, 5)]
    assert [len(images) for images in drawn] == [5, 5, 2, 5, 5, 2, 5]
    for epoch in (drawn[:3], drawn[3:6]):
        assert torch.cat(epoch).sort().values.tolist() == list(range(12))
    assert not torch.equal(torch.cat(drawn[:3]), torch.cat(drawn[3:6]))
    assert source.asked == [(5, 0, 0), (5, 1, 0), (5, 2, 0)]


@pytest.mark.parametrize("stop", [0, 1, 3, 4])
def test_a_replay_goes_on_from_its_state_and_a_copy_from_its_place(stop: int) -> None:
    whole, cut = Replay(Counted()), Replay(Counted())
    expected = [whole.draw(5)[0] for _ in range(7)]
    for _ in range(stop):
        cut.draw(5)
    other, twin = Replay(Counted()), copy.deepcopy(cut)
    other.load_state_dict(through_disk(cut.state_dict()))
    for replay in (cut, other, twin):
        rest = [replay.draw(5)[0] for _ in range(7 - stop)]
        assert all(map(torch.equal, rest, expected[stop:]))


def test_its_state_holds_a_place_and_no_source_image() -> None:
    method = build("rmt", **SMALL)
    method(pictures(8))
    node = method.state_dict()["replay"]
    assert node == {"kind": "stateful", "state": {"size": 8, "epoch": 0, "batch": 1}}
    method.reset()
    assert method.replay.state_dict() == {"size": 0, "epoch": 0, "batch": 0}


def test_without_its_weight_no_source_image_is_read_beside_the_stream() -> None:
    method = make(RMT, **SMALL, source_weight=0.0)
    assert "replay" not in vars(method)


# -- the warm-up


WARM = {**SMALL, "warmup_iterations": 4, "warmup_batch_size": 16, "warmup_lr": 0.05}


def test_a_linear_rate_rises_to_the_end_of_the_warm_up() -> None:
    rates = [warmup_rate("linear", 0.01, i, 3, total=4) for i in range(4)]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01])


def warmed(**more: Any) -> Method:
    method = RMT(SourceModel(toy.toy_vit()), RMT.Hyperparameters(**WARM | more))
    method.start(source_images(labelled=True))
    return method


def test_the_warm_up_draws_both_networks_together_and_spares_the_projector() -> None:
    method, cold = warmed(), build("rmt", **SMALL)
    student, teacher = tensors(method.model), tensors(method.teacher)
    start = tensors(cold.model)
    moved = {n for n in start if not torch.equal(start[n], student[n])}
    assert moved == {n for n in start if n.rpartition(".")[2] in ("weight", "bias")}
    assert not torch.equal(teacher["network.head.weight"], student["network.head.weight"])
    assert not torch.equal(teacher["network.head.weight"], start["network.head.weight"])
    for name, parameter in method.trainable.items():
        if name.startswith("projector."):
            assert torch.equal(parameter, cold.trainable[name])
    assert not method.optimizer.state


def test_the_first_update_of_a_warm_up_is_half_of_that_of_entropy_minimisation() -> None:
    # Student and teacher are equal, and the gradient goes to the student alone.
    rmt = build("rmt", lr=0.1, momentum=0.0, nesterov=False, **SMALL, **DOUBLE)
    images, start = pictures(8).double(), snapshot(rmt)
    logits = rmt.model(images)
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
    names = list(rmt.weights)
    gradients = torch.autograd.grad(entropy, [rmt.weights[n] for n in names])
    rmt.warm_up(images, None)
    for name, gradient in zip(names, gradients, strict=True):
        expected = start[name] - 0.1 * gradient / 2
        torch.testing.assert_close(rmt.weights[name].detach(), expected, atol=1e-10, rtol=0)


def test_reset_returns_to_what_the_warm_up_left() -> None:
    method = warmed()
    student, teacher = plain(tensors(method.model)), plain(tensors(method.teacher))
    method(pictures(8))
    method.reset()
    assert plain(tensors(method.model)) == student
    assert plain(tensors(method.teacher)) == teacher
