"""Orders that labels decide, against the laws that they are drawn from."""

from itertools import groupby
from typing import Any

import numpy as np
import pytest

from ctta_bench.errors import ConfigError
from ctta_bench.stream import label_orders
from ctta_bench.stream.label_orders import chunks, shift, slots
from ctta_bench.stream.settings import StreamSettings

CLASSES, EACH = 50, 400
LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(CLASSES), EACH))


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def settings(setting: str, **values: Any) -> StreamSettings:
    return StreamSettings(setting=setting, **values)


def concentration(labels: np.ndarray) -> float:
    """Sum of the squared shares of a class's runs, mean over classes: 1 if each is in one run."""
    lengths: dict[int, list[int]] = {}
    for label, run in groupby(labels.tolist()):
        lengths.setdefault(label, []).append(len(list(run)))
    return float(
        np.mean([sum(n * n for n in found) / sum(found) ** 2 for found in lengths.values()])
    )


def test_delta_zero_sorts_by_class_and_keeps_the_plain_order_inside_it() -> None:
    order = chunks(LABELS, settings("correlated"), rng())
    pairs = list(zip(LABELS[order].tolist(), order.tolist(), strict=True))
    assert pairs == sorted(pairs)


@pytest.mark.parametrize("setting", ["correlated", "ptta"])
def test_parts_keep_the_plain_order_of_their_images(setting: str) -> None:
    arrange = {"correlated": chunks, "ptta": slots}[setting]
    order = arrange(LABELS, settings(setting, delta=0.1), rng())
    assert sorted(order.tolist()) == list(range(len(LABELS)))
    for label in range(CLASSES):
        of_class = order[LABELS[order] == label]
        assert (np.diff(of_class) > 0).all()


@pytest.mark.parametrize("delta", [0.01, 0.1, 1.0, 10.0])
def test_slots_have_the_concentration_of_the_dirichlet_law(delta: float) -> None:
    number = 20
    order = slots(LABELS, settings("ptta", delta=delta, slots=number), rng())
    # E sum p² = (delta + 1) / (slots delta + 1); whole images and 50 classes leave some spread.
    expected = (delta + 1) / (number * delta + 1)
    assert concentration(LABELS[order]) == pytest.approx(expected, rel=0.12)


def test_classes_come_in_random_order_inside_a_slot() -> None:
    # At a large delta all classes are in each slot, and their order is a permutation.
    order = slots(LABELS, settings("ptta", delta=1e6, slots=2), rng())
    first, second = np.split(np.array([label for label, _ in groupby(LABELS[order].tolist())]), 2)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(CLASSES))
    assert len({tuple(first), tuple(second), tuple(range(CLASSES))}) == 3


def test_there_are_as_many_slots_as_classes_and_at_most_a_hundred() -> None:
    few = slots(LABELS, settings("ptta", delta=1e6), rng())
    runs = [label for label, _ in groupby(LABELS[few].tolist())]
    # At a large delta each class is in each slot: 50 runs in each of 50 slots, less the few where
    # a slot ends with the class that the next begins with.
    assert 2440 <= len(runs) <= 2500
    many = np.repeat(np.arange(120), 200)
    order = slots(many, settings("ptta", delta=1e6), rng())
    assert 11_950 <= len(list(groupby(many[order].tolist()))) <= 12_000


def test_chunks_go_from_whole_classes_to_even_shares_as_delta_grows() -> None:
    found = [
        concentration(LABELS[chunks(LABELS, settings("correlated", delta=delta), rng())])
        for delta in (1e-4, 0.1, 1.0, 1e5)
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.9
    assert found[-1] == pytest.approx(1 / CLASSES, rel=0.05)
    assert concentration(LABELS) < 1.1 / EACH  # shuffled images have hardly any runs


def test_chunks_are_balanced() -> None:
    sizes = np.full(CLASSES, EACH)
    counts = label_orders._balanced_counts(sizes, 0.05, rng())
    assert counts.sum(1).tolist() == sizes.tolist()
    # A chunk is closed once it holds an even share, here 400: it never gets two classes more.
    assert counts.sum(0).max() < 400 + 400
    assert counts.min() >= 0


def test_chunks_that_stay_too_small_are_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(label_orders, "ATTEMPTS", 5)
    labels = np.array([0] * 39 + [1])  # at this delta each class is whole: a chunk of one image
    with pytest.raises(
        ConfigError, match=r"delta: with 1e-05, none of 5 draws split 40 images of 2 "
    ):
        chunks(labels, settings("correlated", delta=1e-5), rng())


def test_small_streams_are_split_without_a_least_size() -> None:
    labels = np.repeat(np.arange(10), 6)
    order = chunks(labels, settings("correlated", delta=0.01), rng())
    assert sorted(order.tolist()) == list(range(60))


def test_classes_are_numbered_by_those_that_are_there() -> None:
    some = LABELS * 7 + 100
    for arrange, setting in ((chunks, "mixed_correlated"), (slots, "ptta"), (shift, "label_shift")):
        assert (
            arrange(some, settings(setting), rng()).tolist()
            == arrange(LABELS, settings(setting), rng()).tolist()
        )


# -- label shift


def shifted(labels: np.ndarray = LABELS, **values: Any) -> np.ndarray:
    return labels[shift(labels, settings("label_shift", **values), rng())]


def test_a_label_shift_gives_each_class_one_step_and_all_steps_one_length() -> None:
    found = [(label, len(list(run))) for label, run in groupby(shifted(imbalance_ratio=1e12))]
    assert sorted(label for label, _ in found) == list(range(CLASSES))
    assert {n for _, n in found} == {2 * EACH}  # twice the images are drawn, as SAR does
    assert [label for label, _ in found] != list(range(CLASSES))


def test_in_its_step_a_class_has_the_share_that_the_ratio_gives() -> None:
    ratio = CLASSES - 1  # then q = r / (r + C - 1) = 1/2
    steps = shifted(imbalance_ratio=ratio, draws=2).reshape(CLASSES, 2 * EACH)
    top = np.array([np.bincount(step, minlength=CLASSES).max() for step in steps]) / (2 * EACH)
    assert top.mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(steps.size))
    prevailing = [int(np.bincount(step).argmax()) for step in steps]
    assert sorted(prevailing) == list(range(CLASSES))


def test_of_two_classes_one_prevails_in_each_half() -> None:
    halves = shifted(np.repeat([0, 1], 20_000), imbalance_ratio=3, draws=1).reshape(2, -1)
    shares = sorted(halves.mean(1).tolist())
    # q = 3 / (3 + 2 - 1); the deviation of a share of 20,000 draws is 0.003
    assert shares == pytest.approx([0.25, 0.75], abs=0.015)


def test_a_ratio_of_one_is_no_shift() -> None:
    counts = np.bincount(shifted(imbalance_ratio=1, draws=5), minlength=CLASSES)
    assert np.abs(counts - 5 * EACH).max() < 4 * np.sqrt(5 * EACH)


def test_images_of_a_label_shift_are_drawn_with_replacement_from_their_class() -> None:
    order = shift(LABELS, settings("label_shift"), rng())
    # 1 - 1/e² of the images are seen when twice as many are drawn.
    seen = len(np.unique(order)) / len(LABELS)
    assert seen == pytest.approx(1 - np.exp(-2), abs=0.01)


def test_one_class_alone_is_no_trouble() -> None:
    assert shifted(np.zeros(5, int)).tolist() == [0] * 10
