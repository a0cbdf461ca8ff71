"""Markov chains over domain and class, against the laws that their matrices define."""

from typing import Any

import numpy as np
import pytest

from ctta_bench.errors import ConfigError
from ctta_bench.stream.markov import markov, proportions, reaches, transition_matrix
from ctta_bench.stream.orders import make_order
from ctta_bench.stream.settings import StreamSettings

DOMAINS, CLASSES, EACH = 5, 4, 400
DOMAIN = np.repeat(np.arange(DOMAINS), CLASSES * EACH)
LABEL = np.tile(np.repeat(np.arange(CLASSES), EACH), DOMAINS)


def stream(seed: int = 0, **values: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions, domains and labels of a stream."""
    settings = StreamSettings(setting="markov", **values)
    order = markov(DOMAIN, LABEL, settings, np.random.default_rng(seed))
    return order, DOMAIN[order], LABEL[order]


def staying(numbers: np.ndarray, value: int | None = None) -> float:
    """Share of steps that keep the number; of those from `value` if it is given."""
    here = np.ones(len(numbers) - 1, bool) if value is None else numbers[:-1] == value
    return float((numbers[1:] == numbers[:-1])[here].mean())


def test_a_balanced_matrix_stays_with_the_correlation_and_moves_evenly() -> None:
    matrix = transition_matrix(3, 0.8, 1.0)
    assert matrix.tolist() == pytest.approx(np.array([[8, 1, 1], [1, 8, 1], [1, 1, 8]]) / 10)
    assert transition_matrix(1, 0.5, 1.0).tolist() == [[1.0]]
    # Below 1/K the draws are independent.
    assert transition_matrix(4, 0.0, 1.0) == pytest.approx(np.full((4, 4), 0.25))


def test_an_unbalanced_matrix_has_the_proportions_as_its_stationary_distribution() -> None:
    matrix, share = transition_matrix(5, 0.95, 8.0), proportions(5, 8.0)
    assert share[0] / share[-1] == pytest.approx(8)
    assert matrix.sum(axis=1) == pytest.approx(1)
    assert share @ matrix == pytest.approx(share)
    assert matrix[0, 0] == pytest.approx(0.95) and matrix[-1, -1] == pytest.approx(1 - 0.05 * 8)


def test_a_chain_reaches_an_imbalance_only_if_it_is_left_less_often_than_at_random() -> None:
    assert reaches(15, 0.85, 5.0) and reaches(10, 0.95, 10.0) and reaches(1, 1.0, 5.0)
    assert not reaches(15, 0.067, 5.0) and not reaches(10, 1.0, 1.0)
    assert reaches(10, 0.0, 1.0)


def test_the_stream_stays_as_the_matrices_say() -> None:
    _, domain, label = stream(domain_correlation=0.9, class_correlation=0.8)
    assert staying(domain) == pytest.approx(0.9, abs=0.02)
    assert staying(label) == pytest.approx(0.8, abs=0.02)
    assert (domain[0], label[0]) == (0, 0)
    _, domain, _ = stream(domain_correlation=0.9, domain_imbalance=4.0, class_correlation=0)
    assert staying(domain, 0) == pytest.approx(0.9, abs=0.02)
    assert staying(domain, DOMAINS - 1) == pytest.approx(1 - 0.1 * 4, abs=0.05)


def test_without_quotas_it_ends_when_a_state_has_had_its_images_and_none_comes_twice() -> None:
    order, domain, label = stream(class_correlation=0, domain_correlation=0)
    counts = np.bincount(domain * CLASSES + label)
    assert counts.max() == EACH == counts[domain[-1] * CLASSES + label[-1]]
    assert len(np.unique(order)) == len(order)
    few = stream(class_correlation=0, domain_correlation=0, images_per_state=7)[0]
    assert np.array_equal(few, order[: len(few)]) and len(few) < DOMAINS * CLASSES * 7


@pytest.mark.parametrize("correlation", [0.0, 1.0])
def test_quotas_make_the_imbalance_of_domains_that_the_chain_cannot_make(
    correlation: float,
) -> None:
    _, domain, _ = stream(
        domain_correlation=correlation, domain_imbalance=16.0, class_correlation=0
    )
    # Per domain: the quotas round(400 · 16^(-k/4)) of four classes.
    assert np.bincount(domain).tolist() == [1600, 800, 400, 200, 100]


def test_correlation_one_visits_each_domain_once_until_its_quota_is_used_up() -> None:
    _, domain, label = stream(domain_correlation=1, class_correlation=0.9)
    starts = np.flatnonzero(np.diff(domain)) + 1
    assert len(starts) == DOMAINS - 1 and domain[0] == 0
    assert staying(label) == pytest.approx(0.9, abs=0.02)


def test_both_quotas_bound_every_state() -> None:
    _, domain, label = stream(
        domain_correlation=0, domain_imbalance=16, class_correlation=0, class_imbalance=8
    )
    counts = np.bincount(domain * CLASSES + label).reshape(DOMAINS, CLASSES)
    expected = np.round(400 * np.outer(16.0 ** -(np.arange(5) / 4), 8.0 ** -(np.arange(4) / 3)))
    assert counts.tolist() == expected.tolist()


def test_states_without_images_are_left_out_and_images_come_again_in_turn() -> None:
    domain, label = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])  # no class 0 in domain 1
    settings = StreamSettings(setting="markov", class_correlation=0, images_per_state=6)
    order = markov(domain, label, settings, np.random.default_rng(0))
    counts = np.bincount(order, minlength=4)
    assert len(order) == counts.sum() and abs(counts[0] - counts[1]) <= 1
    first = order[np.isin(order, [0, 1])]
    assert first.tolist() == [n % 2 for n in range(len(first))]


def test_a_stream_that_never_comes_to_a_domain_is_refused() -> None:
    settings = StreamSettings(setting="markov", images_per_state=1)
    labels = [np.arange(20) % CLASSES] * 3
    with pytest.raises(ConfigError, match=r"1 images ends before it comes to 2 of 3 domains; give"):
        make_order([20, 20, 20], settings, 0, labels=labels)


def test_the_seed_decides_the_stream() -> None:
    assert np.array_equal(stream(3)[0], stream(3)[0])
    assert not np.array_equal(stream(3)[0][:50], stream(4)[0][:50])
