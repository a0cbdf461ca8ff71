"""RoTTA. N is the memory's size, C the number of classes (10 here), A an age, U an uncertainty."""

import math
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from ctta_bench.method import Method, soft_cross_entropy
from ctta_bench.methods.rotta import Item, RobustNorm
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from tests.methods import build, changed, pictures, plain, snapshot, tensors, toy

RoTTA = METHODS.get("rotta")
DOUBLE = {"dtype": torch.float64, "precision": "float64"}
IMAGE = torch.zeros(3, 16, 16)


def fill(method: Any, labels: list[int], uncertainty: float = 1.0) -> None:
    for label in labels:
        method.insert(IMAGE, label, uncertainty)


def facts(method: Any) -> list[tuple[int, float, int]]:
    return [(item.label, item.uncertainty, item.age) for item in method.memory]


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "per_class"), [(64, 7), (20, 2), (10, 1), (4, 1)])
def test_the_memory_holds_at_most_its_size_and_a_class_its_share(size: int, per_class: int) -> None:
    method = build("rotta", memory_size=size)
    generator = torch.Generator().manual_seed(0)
    for number in torch.randint(0, 100, (400,), generator=generator).tolist():
        method.insert(IMAGE, number % 7 if number < 80 else number % 10, number / 50)
        counts = [sum(item.label == label for item in method.memory) for label in range(10)]
        assert sum(counts) <= size
        assert max(counts) <= per_class
    assert len(method.memory) == size


def test_a_stream_of_one_class_fills_its_share_alone() -> None:
    method = build("rotta", memory_size=64)
    fill(method, [3] * 100)
    assert [item.label for item in method.memory] == [3] * 7


@pytest.mark.parametrize(
    ("age", "uncertainty", "expected"),
    [
        (0, 0.0, 2.0 / 2),
        (0, math.log(10), 2.0 / 2 + 0.5),
        (8, 0.0, 2.0 / (1 + math.exp(-1))),
        (80, math.log(10) / 2, 2.0 / (1 + math.exp(-10)) + 0.25),
    ],
)
def test_the_score_weighs_age_and_uncertainty(
    age: int, uncertainty: float, expected: float
) -> None:
    method = build("rotta", memory_size=8, age_weight=2.0, uncertainty_weight=0.5)
    assert method.score(age, uncertainty) == pytest.approx(expected)


def test_all_images_grow_older_with_every_insertion_the_new_one_and_a_dropped_one_included() -> (
    None
):
    method = build("rotta", memory_size=10)
    fill(method, [0, 1, 2])
    assert facts(method) == [(0, 1.0, 3), (1, 1.0, 2), (2, 1.0, 1)]
    method.insert(IMAGE, 2, 2.0)  # worth less than the one it would replace
    assert facts(method) == [(0, 1.0, 4), (1, 1.0, 3), (2, 1.0, 2)]


def test_a_full_class_gives_up_its_worst_image_to_a_better_one() -> None:
    method = build("rotta", memory_size=20)
    for label, uncertainty in ((5, 0.5), (5, 1.5), (6, 2.0)):
        method.insert(IMAGE, label, uncertainty)
    method.insert(IMAGE, 5, 0.1)
    assert facts(method) == [(5, 0.5, 4), (6, 2.0, 2), (5, 0.1, 1)]


def test_in_a_full_memory_the_largest_class_gives_way_to_a_new_one() -> None:
    # C = 10 and N = 15: up to two of a class.
    method = build("rotta", memory_size=15)
    fill(method, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7])
    method.memory[3].uncertainty = 1.9  # of class 1
    method.memory[14].uncertainty = 2.3  # of class 7, which is not among the largest
    method.insert(IMAGE, 9, 0.5)
    labels = [item.label for item in method.memory]
    assert labels == [0, 0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 9]


def test_of_equal_images_the_last_visited_gives_way() -> None:
    method = build("rotta", memory_size=2)
    method.memory = [Item(IMAGE, 4, 2.0, 3), Item(IMAGE, 1, 2.0, 3)]
    method.insert(IMAGE, 8, 0.1)  # classes are visited in their order: 1, 4
    assert facts(method) == [(1, 2.0, 4), (8, 0.1, 1)]


def test_labels_and_uncertainties_are_the_teachers() -> None:
    method, images = build("rotta"), pictures(8)
    with torch.no_grad():
        p = method.teacher(images).softmax(1)
    method(images)
    expected = -(p * (p + 1e-6).log()).sum(1)
    for item in method.memory:
        number = 8 - item.age  # the image inserted last is one insertion old
        assert item.label == int(p[number].argmax())
        assert item.uncertainty == pytest.approx(float(expected[number]), abs=1e-5)
        assert torch.equal(item.image, images[number])


def test_the_memory_does_not_keep_whole_batches_alive() -> None:
    method = build("rotta")
    method(pictures(32))
    assert all(i.image.untyped_storage().nbytes() == 4 * 3 * 16 * 16 for i in method.memory)


def test_images_that_are_not_finite_stay_out_and_are_counted() -> None:
    method = build("rotta", update_every=4)
    images = pictures(8)
    images[2] = torch.nan
    images[5] = torch.inf
    method(images)
    assert method.counters["skipped_updates"] == 1
    assert {8 - item.age for item in method.memory} <= {0, 1, 3, 4, 6, 7}
    assert all(bool(item.image.isfinite().all()) for item in method.memory)


def test_a_stream_without_a_finite_image_moves_nothing() -> None:
    method = build("rotta", update_every=2)
    student, teacher = tensors(method.model), tensors(method.teacher)
    method(torch.full((4, 3, 16, 16), torch.nan))
    assert method.memory == []
    assert changed(student, method.model) == changed(teacher, method.teacher) == set()


# -- updates ---------------------------------------------------------------------------------------


def updates(method: Any, sizes: list[int]) -> list[int]:
    """Numbers of updates made by each batch of these sizes."""
    made: list[int] = []
    update = method.update
    method.update = lambda: (made.append(1), update())
    counts = []
    for size in sizes:
        before = len(made)
        method(pictures(size, seed=size))
        counts.append(len(made) - before)
    return counts


def test_updates_come_after_every_so_many_images_within_batches_as_well() -> None:
    # After images 10, 20, 30, 40; batches end at 16, 17, 22, 38, 43.
    assert updates(build("rotta", update_every=10), [16, 1, 5, 16, 5]) == [1, 0, 1, 1, 1]


def test_fewer_images_change_no_parameter() -> None:
    method = build("rotta")
    student, teacher = tensors(method.model), tensors(method.teacher)
    for images in pictures(63).split(9):
        method(images)
    assert changed(student, method.model) == changed(teacher, method.teacher) == set()
    method(pictures(1))
    assert changed(student, method.model) != set()


def test_the_teacher_from_before_the_batch_is_scored() -> None:
    method = build("rotta", update_every=3, teacher_rate=0.5, lr=0.01)
    for images in pictures(24).split(8):
        with torch.no_grad():
            before = method.teacher(images)
        assert torch.equal(method(images), before)
        with torch.no_grad():
            assert (method.teacher(images) - before).abs().max() > 1e-4


def test_the_teacher_follows_by_its_rate() -> None:
    method = build("rotta", update_every=8, teacher_rate=0.25, lr=0.01, **DOUBLE)
    source = snapshot(method)
    method(pictures(8).double())
    teacher = dict(method.teacher.network.named_parameters())
    for name, student in method.trainable.items():
        expected = 0.25 * (student.detach() - source[name])
        assert expected.abs().max() > 1e-4
        torch.testing.assert_close(teacher[name] - source[name], expected, atol=1e-12, rtol=0)


def test_a_teacher_that_does_not_follow_predicts_as_the_source() -> None:
    method, source = build("rotta", update_every=4, teacher_rate=0.0), build("source")
    for images in pictures(24).split(8):
        torch.testing.assert_close(method(images), source(images), atol=1e-5, rtol=0)


def test_an_update_follows_the_algorithm() -> None:
    """One plain step on the memory, written out."""
    method = build(
        "rotta", update_every=8, memory_size=10, optimizer="sgd", lr=0.1, momentum=0.0, **DOUBLE
    )
    views = []
    method.augment = lambda images, size: views.append((images * 0.7).detach()) or views[-1]
    images, start = pictures(8).double(), snapshot(method)
    method(images)
    (view,) = views
    kept = images[[8 - item.age for item in method.memory]]
    torch.testing.assert_close(view, kept * 0.7)
    twin = build("rotta", **DOUBLE)
    ages = torch.tensor([float(item.age) for item in method.memory]) / 10
    weights = (-ages).exp() / (1 + (-ages).exp())
    loss = (weights * soft_cross_entropy(twin.model(view), twin.teacher(kept))).mean()
    loss.backward()
    torch.testing.assert_close(method.loss, loss.detach())
    for name, parameter in method.trainable.items():
        expected = start[name] - 0.1 * twin.trainable[name].grad
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-12, rtol=0)


def test_weights_are_at_most_a_half_and_fall_with_age() -> None:
    method = build("rotta", memory_size=16)
    method.memory = [Item(IMAGE, 0, 0.0, age) for age in (0, 1, 16, 160)]
    expected = [0.5, 1 / (1 + math.exp(1 / 16)), 1 / (1 + math.e), 1 / (1 + math.exp(10))]
    assert method.sample_weights().tolist() == pytest.approx(expected)


def test_one_view_is_drawn_for_the_whole_memory_of_one_update() -> None:
    method = build("rotta", update_every=8)
    shapes = []
    method.augment = lambda images, size: shapes.append((len(images), size)) or images
    method(pictures(16))
    assert [size for _, size in shapes] == [(16, 16), (16, 16)]
    assert shapes[-1][0] == len(method.memory)


def test_passes_are_those_of_the_stream_and_two_of_the_memory() -> None:
    method = build("rotta", update_every=8, memory_size=10)
    sizes = []
    total_loss = method.total_loss
    method.total_loss = lambda images: sizes.append(len(images)) or total_loss(images)
    method(pictures(20))
    assert method.passes.forward_images == 20 + 2 * sum(sizes)
    assert method.passes.backward_images == sum(sizes)


# -- which parameters, and BatchNorm ---------------------------------------------------------------


def test_vit_base_adapts_all_layer_norms() -> None:
    with torch.device("meta"):
        method = RoTTA(SourceModel(timm.create_model("vit_base_patch16_224")))
    assert len(method.trainable) == 50
    assert sum(p.numel() for p in method.trainable.values()) == 38_400


def test_only_norm_parameters_change() -> None:
    method = build("rotta", update_every=4)
    before = tensors(method.model)
    method(pictures(8))
    assert changed(before, method.model) == {f"network.{name}" for name in method.trainable}


def cnn(**arguments: Any) -> Method:
    return build("rotta", "toy_cnn", **arguments)


def test_on_batchnorm_predictions_start_as_the_sources_and_do_not_depend_on_the_batch() -> None:
    method, source = cnn(), build("source", "toy_cnn")
    images = pictures(8)
    torch.testing.assert_close(method(images), source(images), atol=1e-5, rtol=0)
    alone = torch.cat([cnn()(image) for image in images.split(1)])
    torch.testing.assert_close(method(images), alone, atol=1e-5, rtol=0)


def test_a_robust_norm_moves_its_statistics_by_its_rate_and_uses_the_moved_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    norm = nn.BatchNorm2d(3, eps=0.1).eval()
    norm.running_mean.copy_(torch.tensor([0.1, 0.2, 0.3]))
    norm.running_var.copy_(torch.tensor([1.0, 2.0, 3.0]))
    robust = RobustNorm(norm, 0.2).train()
    x = 2 + torch.randn(4, 3, 5, 5, generator=generator)
    mean = 0.8 * norm.running_mean + 0.2 * x.mean((0, 2, 3))
    var = 0.8 * norm.running_var + 0.2 * x.var((0, 2, 3), correction=0)
    expected = (x - mean.view(1, 3, 1, 1)) / (var.view(1, 3, 1, 1) + 0.1).sqrt()
    torch.testing.assert_close(robust(x), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(robust.mean, mean)
    torch.testing.assert_close(robust.var, var)
    robust.eval()
    torch.testing.assert_close(robust(x), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(robust.mean, mean)


def test_the_gradient_of_a_robust_norm_goes_through_the_batchs_statistics() -> None:
    robust = RobustNorm(nn.BatchNorm1d(2), 1.0).train()
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    # With a rate of 1 the output's mean is 0 whatever x: no gradient.
    (gradient,) = torch.autograd.grad(robust(x).sum(), x)
    torch.testing.assert_close(gradient, torch.zeros_like(x), atol=1e-6, rtol=0)


def test_updates_move_the_statistics_of_student_and_teacher_each_by_its_own_pass() -> None:
    method = cnn(update_every=8, teacher_rate=0.0)
    method(pictures(8) * 0.5)
    student, teacher = method.model.network[1], method.teacher.network[1]
    source = toy.toy_cnn()[1]
    for norm in (student, teacher):
        assert (norm.mean - source.running_mean).abs().max() > 1e-3
    assert not torch.equal(student.mean, teacher.mean)
    assert not any(m.training for m in [*method.model.modules(), *method.teacher.modules()])


def test_a_norm_keeps_the_activation_that_it_carries() -> None:
    network = timm.create_model("efficientnet_b0", num_classes=10).eval()
    images = pictures(2)
    with torch.no_grad():
        expected = network(images)
        method = RoTTA(SourceModel(network, preprocessing="lineage"))
        ours = method.model.network(images)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def streamed(seed: int) -> list[Any]:
    method = build("rotta", seed=seed, update_every=8, teacher_rate=0.5)
    return [method(images).tolist() for images in pictures(24).split(8)]


def test_one_seed_gives_the_same_bits_and_another_gives_others() -> None:
    assert streamed(0) == streamed(0) != streamed(1)


def test_a_reset_empties_the_memory_and_the_count() -> None:
    method = build("rotta", update_every=4)
    source = plain(snapshot(method))
    method(pictures(6))
    method.reset()
    assert method.memory == []
    assert method.seen == 0
    assert plain(snapshot(method)) == source


def test_window_mode_scores_the_teacher() -> None:
    method = build("rotta", window=4, update_every=2, teacher_rate=0.5, lr=0.01)
    for image in pictures(6).split(1):
        with torch.no_grad():
            expected: Tensor = method.teacher(image)
        torch.testing.assert_close(method(image), expected, atol=1e-5, rtol=0)
