"""Orders as protocols define them, on indices alone."""

import time
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from ctta_bench.errors import ConfigError
from ctta_bench.stream.orders import (
    HENDRYCKS,
    PUBLISHED_ORDERS,
    Order,
    domain_sequence,
    make_order,
)
from ctta_bench.stream.settings import SETTINGS, CorruptionSettings

SIZES = (60, 40, 53)
LABELS = [np.random.default_rng(d).integers(0, 4, n) for d, n in enumerate(SIZES)]
ONCE = [
    name
    for name, s in SETTINGS.items()
    if not s.severity_schedule and s.labels not in ("shift", "markov")
]


def settings(setting: str = "continual", **changes: Any) -> CorruptionSettings:
    # On so few images, a chain that stays for long may end before it comes to every domain.
    more = {"domain_correlation": 0.0} if setting == "markov" else {}
    values = {"setting": setting, "batch_size": 8, "order": "shuffled"} | more | changes
    return CorruptionSettings(**values)


def made(setting: str = "continual", seed: int = 0, **changes: Any) -> Order:
    return make_order(SIZES, settings(setting, **changes), seed, labels=LABELS)


def rows(order: Order) -> list[tuple[int, int, int]]:
    """Round, domain and image of each row, in order."""
    return list(zip(order.round.tolist(), order.domain.tolist(), order.index.tolist(), strict=True))


def runs(values: np.ndarray) -> list[tuple[int, int]]:
    """Value and length of each run of equal values."""
    return [(int(value), len(list(run))) for value, run in groupby(values.tolist())]


def split_by_domain(order: Order) -> list[np.ndarray]:
    """Which domains each batch holds."""
    return [np.unique(part) for part in np.split(order.domain, order.cuts[1:-1])]


# -- all settings


@pytest.mark.parametrize("setting", ONCE)
@pytest.mark.parametrize("order", ["file", "shuffled", "alike"])
def test_every_image_comes_exactly_once_a_round(setting: str, order: str) -> None:
    found = rows(made(setting, order=order, rounds=2))
    everything = [(r, d, i) for r in range(2) for d, n in enumerate(SIZES) for i in range(n)]
    assert sorted(found) == everything
    assert [r for r, _, _ in found] == sorted(r for r, _, _ in found)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_seed_alone_decides_and_fewer_rounds_are_the_beginning(setting: str) -> None:
    one, two = made(setting), made(setting, rounds=2)
    assert rows(one) == rows(made(setting)) != rows(made(setting, seed=1))
    assert rows(two)[: len(one.index)] == rows(one)
    assert rows(two)[len(one.index) :] != rows(one)


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_batch_is_empty_or_larger_than_asked_for(setting: str) -> None:
    order = made(setting, rounds=2)
    sizes = np.diff(order.cuts)
    assert sizes.min() >= 1
    assert sizes.max() == 8
    assert order.cuts[-1] == len(order.index) == len(order.domain) == len(order.severity)


CROSSING = ["mixed", "mixed_correlated", "ptta", "smooth", "markov"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_batches_cross_domains_in_some_settings_only(setting: str) -> None:
    crosses = any(len(held) > 1 for held in split_by_domain(made(setting)))
    assert crosses == (setting in CROSSING)


@pytest.mark.parametrize("setting", CROSSING)
def test_where_batches_cross_domains_only_the_last_of_a_round_is_short(setting: str) -> None:
    order = made(setting)
    *sizes, last = np.diff(order.cuts).tolist()
    assert set(sizes) <= {8} and sum(sizes) + last == len(order.domain) and 1 <= last <= 8
    assert setting == "markov" or (len(sizes), last) == (19, 1)  # 153 images


def test_the_hashes_are_those_of_earlier_releases() -> None:
    # Made with release 0.1's code: a folder of runs stays valid.
    earlier = {
        ("continual", "file"): "aab0c94d9cfa26fb1b488c66fd5e0cd2e4962378484c364170e17e5cde2d7b77",
        ("continual", "shuffled"): (
            "693bdbae993f8dde32baabf7056d29b2deadd6e87ce630fd6d050693283abeec"
        ),
        ("reset", "shuffled"): "693bdbae993f8dde32baabf7056d29b2deadd6e87ce630fd6d050693283abeec",
        ("mixed", "file"): "31a7375437d15f029efad1f8b2b24140978c9f147b9889ee1070d3481a9fd83a",
        ("mixed", "shuffled"): "7323520df782b4e0a8e7dfe9207539af5629e18e039659c1ac32d03079e8e8c5",
    }
    for (setting, order), expected in earlier.items():
        chosen = settings(setting, order=order, rounds=2, batch_size=3)
        assert make_order((7, 4, 10), chosen, 5).sha256() == expected


def test_every_setting_has_a_hash_of_its_own_but_for_resets() -> None:
    hashes = {name: made(name).sha256() for name in SETTINGS}
    for name in ("continual", "correlated", "label_shift"):
        reset = "reset" if name == "continual" else f"reset_{name}"
        assert hashes.pop(reset) == hashes[name]
    assert len(set(hashes.values())) == len(hashes)


def test_the_severity_is_part_of_the_hash() -> None:
    hashes = {made("gradual", severities=s).sha256() for s in [(1, 2), (2, 1), (1, 1)]}
    assert len(hashes) == 3


def test_alike_orders_give_all_domains_one_permutation() -> None:
    order = make_order((30, 30), settings(order="alike"), 0)
    assert order.index[:30].tolist() == order.index[30:].tolist() != list(range(30))
    same = [LABELS[0][:40]] * 2
    order = make_order((40, 40), settings("correlated", order="alike", delta=0.5), 0, labels=same)
    assert order.index[:40].tolist() == order.index[40:].tolist()


@pytest.mark.parametrize(("setting", "labels"), [("mixed", 1), ("correlated", 1000), ("ptta", 100)])
def test_an_order_of_750_000_images_takes_seconds_at_most(setting: str, labels: int) -> None:
    sizes = [50_000] * 15
    classes = [np.arange(50_000) % labels] * 15
    began = time.process_time()
    make_order(sizes, settings(setting), 0, labels=classes)
    assert time.process_time() - began < 3


# -- domains and resets


def test_the_published_orders_are_permutations_of_the_fifteen() -> None:
    assert sorted(PUBLISHED_ORDERS) == sorted([*(f"cotta{k}" for k in range(10)), "rotta"])
    for order in PUBLISHED_ORDERS.values():
        assert sorted(order) == list(range(1, 16))


def visited(names: tuple[str, ...], **changes: Any) -> list[str]:
    return [names[d] for d in domain_sequence(names, settings(**changes), 0)]


def test_a_published_order_visits_the_corruptions_by_name() -> None:
    first = ["brightness", "pixelate", "gaussian_noise", "motion_blur", "zoom_blur"]
    assert visited(HENDRYCKS, domain_order="cotta0")[:5] == first
    assert visited(HENDRYCKS[::-1], domain_order="cotta0")[:5] == first
    assert visited(HENDRYCKS, domain_order="rotta")[:3] == ["motion_blur", "snow", "fog"]
    assert visited(("fog", "snow"), domain_order="rotta") == ["snow", "fog"]
    assert visited(("b", "a")) == ["b", "a"]


def test_a_published_order_refuses_domains_that_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match=r"cotta1 orders the 15 .* without night, rain"):
        domain_sequence(("fog", "night", "rain"), settings(domain_order="cotta1"), 0)


def test_a_random_order_of_domains_comes_from_the_seed() -> None:
    chosen = settings(domain_order="random")
    orders = [domain_sequence(HENDRYCKS, chosen, seed).tolist() for seed in (0, 0, 1, 2)]
    assert orders[0] == orders[1]
    assert len(set(map(tuple, orders))) == 3
    assert sorted(orders[0]) == list(range(15))


def test_another_order_of_domains_leaves_the_order_inside_them() -> None:
    there = make_order(SIZES, settings(), 0)
    back = make_order(SIZES, settings(), 0, sequence=(2, 0, 1))
    assert [d for d, _ in runs(back.domain)] == [2, 0, 1]
    for d in range(3):
        assert there.index[there.domain == d].tolist() == back.index[back.domain == d].tolist()


def resets(sizes: tuple[int, ...], setting: str, **changes: Any) -> list[int]:
    chosen = settings(setting, batch_size=3, **changes)
    labels = [np.zeros(n, int) for n in sizes]
    order = make_order(sizes, chosen, 0, labels=labels)
    return np.flatnonzero(order.resets(chosen)).tolist()


def test_reset_settings_reset_at_each_domain_and_round_but_not_at_the_start() -> None:
    # Batches of 3 in domains of 7, 4, 10 images: 3, 2 and 4 of them a round.
    assert resets((7, 4, 10), "reset", rounds=2) == [3, 5, 9, 12, 14]
    assert resets((7, 4, 10), "reset_correlated") == [3, 5]
    assert resets((7, 4), "reset", rounds=1, domain_order=None) == [3]
    assert resets((7,), "reset", rounds=3) == [3, 6]
    assert resets((7, 4, 10), "continual", rounds=2) == []


def test_a_blind_reset_comes_with_the_first_batch_at_or_after_each_n_images() -> None:
    # Batches begin at images 0, 3, 6, 7, 10, 11, 14, 17, 20.
    assert resets((7, 4, 10), "continual", reset_every=7) == [3, 6]
    assert resets((7, 4, 10), "continual", reset_every=10) == [4, 8]
    assert resets((7, 4, 10), "mixed", reset_every=9) == [3, 6]  # 0, 3, 6, 9, 12, 15, 18


# -- gradual


def test_gradual_shows_each_domain_at_each_severity_of_the_walk() -> None:
    order = made("gradual", severity=3)
    assert runs(order.domain) == [(d, 5 * n) for d, n in enumerate(SIZES)]
    assert runs(order.severity) == [  # the last 1 of a domain and the first of the next are one run
        (1, 60), (2, 60), (3, 60), (2, 60), (1, 60 + 40),
        (2, 40), (3, 40), (2, 40), (1, 40 + 53),
        (2, 53), (3, 53), (2, 53), (1, 53),
    ]  # fmt: skip
    visits = np.split(order.index, np.cumsum(np.repeat(SIZES, 5))[:-1])
    assert [sorted(v.tolist()) for v in visits] == [list(range(n)) for n in SIZES for _ in range(5)]
    assert visits[0].tolist() != visits[1].tolist()


def test_no_batch_of_gradual_crosses_a_severity() -> None:
    order = made("gradual", severity=2)
    parts = np.split(order.severity, order.cuts[1:-1])
    assert all(len(set(part.tolist())) == 1 for part in parts)
    assert np.flatnonzero(order.starts_domain()).tolist() == [0, 24, 39]  # 3 x 8 and 3 x 5 batches


# -- mixed, dealt, blended


def test_mixed_streams_are_uniform() -> None:
    order = make_order((1000,) * 5, settings("mixed"), 0)
    for part in np.split(order.domain, 5):
        counts = np.bincount(part, minlength=5)
        # 1,000 drawn of 5,000: 200 of each, standard deviation 11.3 (hypergeometric)
        assert np.abs(counts - 200).max() < 4 * 11.4


def test_cdc_interleaves_whole_batches_in_the_order_of_the_file() -> None:
    order = make_order((60, 40, 53), settings("cdc", order="file"), 0)
    for d, n in enumerate(SIZES):
        assert order.index[order.domain == d].tolist() == list(range(n))
    sizes = np.diff(order.cuts)
    first = order.index[order.cuts[:-1]]
    assert (first % 8 == 0).all()
    assert sorted(sizes[sizes < 8].tolist()) == [4, 5]  # the last of 60 and of 53


def test_cdc_domains_return_with_the_shares_of_a_dirichlet_draw() -> None:
    order = make_order((100,) * 400, settings("cdc", batch_size=1), 0)
    found = runs(order.domain)
    squares = sum((length / 100) ** 2 for _, length in found) / 400
    # E sum p² = (delta + 1) / (slots delta + 1) = 1/2; its deviation over 400 domains is below 0.01
    assert squares == pytest.approx(0.5, abs=0.04)
    assert 800 < len(found) <= 1200


def test_cdc_visits_the_domains_of_a_slot_in_random_order() -> None:
    order = make_order((100,) * 20, settings("cdc", batch_size=1, delta=1e6), 0)
    visited = np.array([domain for domain, _ in runs(order.domain)]).reshape(3, 20)
    assert (np.sort(visited) == np.arange(20)).all()
    assert len({tuple(slot) for slot in (*visited.tolist(), range(20))}) == 4


def test_smooth_with_no_overlap_is_continual_in_batches_that_cross() -> None:
    smooth, continual = made("smooth", overlap=0), made()
    assert rows(smooth) == rows(continual)
    assert np.diff(smooth.cuts).tolist() == [8] * 19 + [1]


def test_smooth_changes_linearly_over_the_overlap_and_not_elsewhere() -> None:
    n = 10_000
    order = make_order((n, n), settings("smooth", overlap=0.5), 0)
    share = order.domain.reshape(-1, n // 20).mean(1)  # of the second domain, in twentieths
    # It rises from 3/4 n to 5/4 n, i.e. over the parts number 15 to 24.
    assert share[:14].max() == 0
    assert share[26:].min() == 1
    assert share[15:25] == pytest.approx((np.arange(10) + 0.5) / 10, abs=0.08)
