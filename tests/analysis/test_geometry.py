"""ΔM, ΔA and ΔS against a loop over pairs, and their invariances."""

import numpy as np
import pytest

from ctta_bench.analysis.kept_models.geometry import (
    compare,
    compare_layers,
    hyperspherical_energy,
    pooled,
    random_change,
    rescaled,
    source_layer,
)
from ctta_bench.errors import RunError


def weights(k: int, d: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(k, d)).astype(np.float32)


def rotation(size: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(9).normal(size=(size, size)))[0]


def unit(weight: np.ndarray) -> np.ndarray:
    return weight / np.linalg.norm(weight, axis=1, keepdims=True)


def energy_by_pairs(weight: np.ndarray) -> float:
    """The definition, one ordered pair at a time."""
    rows = [row / np.sqrt(sum(float(x) ** 2 for x in row)) for row in weight.astype(np.float64)]
    pairs = [(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    return sum(1 / np.sqrt(sum((a - b) ** 2)) for a, b in pairs)


@pytest.mark.parametrize("block", [1, 3, 10, 512])
def test_the_energy_is_the_sum_over_all_pairs_whatever_the_block(block):
    weight = weights(10, 6, 0)
    expected = energy_by_pairs(weight)
    found = hyperspherical_energy(unit(weight.astype(np.float64)), block)
    assert found == pytest.approx(expected, rel=1e-12)


def test_two_orthogonal_and_two_opposite_neurons_have_known_energies():
    assert hyperspherical_energy(np.eye(2)) == pytest.approx(2 / np.sqrt(2))
    assert hyperspherical_energy(np.array([[1.0, 0], [-1, 0]])) == pytest.approx(2 / 2)


def test_equal_neurons_have_the_energy_of_the_floor_and_not_infinity():
    assert hyperspherical_energy(np.array([[1.0, 0], [1, 0]])) == pytest.approx(2 / 1e-6)


def test_the_measures_are_those_of_the_definition():
    before, after = weights(7, 5, 0), weights(7, 5, 1)
    found = compare(source_layer(before), after)
    lengths = [np.linalg.norm(w.astype(np.float64), axis=1) for w in (before, after)]
    cosines = (unit(before.astype(np.float64)) * unit(after.astype(np.float64))).sum(1)
    assert found["delta_m"] == pytest.approx(np.abs(lengths[0] - lengths[1]).mean())
    assert found["delta_a"] == pytest.approx((1 - cosines).mean())
    assert found["delta_s"] == pytest.approx(abs(energy_by_pairs(before) - energy_by_pairs(after)))
    assert found["change"] == pytest.approx(np.linalg.norm((after - before).astype(np.float64)))
    assert (found["neurons"], found["undirected"]) == (7, 0)


def test_identical_weights_have_not_changed():
    weight = weights(10, 6, 0)
    found = compare(source_layer(weight), weight)
    assert (found["delta_m"], found["delta_a"], found["delta_s"], found["change"]) == (0, 0, 0, 0)


def test_a_rotation_of_the_inputs_keeps_lengths_and_pairwise_angles():
    weight = weights(40, 12, 0).astype(np.float64)
    found = compare(source_layer(weight), weight @ rotation(12))
    assert found["delta_s"] <= 1e-9 * found["energy"]
    assert found["delta_m"] <= 1e-12
    assert found["delta_a"] > 0.1


def test_a_rotation_of_the_outputs_mixes_neurons_and_keeps_neither():
    weight = weights(12, 40, 0).astype(np.float64)
    found = compare(source_layer(weight), rotation(12) @ weight)
    assert found["delta_s"] > 1e-6 * found["energy"]
    assert found["delta_m"] > 1e-3


def test_scaling_neurons_changes_lengths_alone():
    weight = weights(10, 6, 0).astype(np.float64)
    found = compare(source_layer(weight), weight * np.linspace(0.5, 2, 10)[:, None])
    assert found["delta_m"] > 0.1
    assert found["delta_a"] == pytest.approx(0, abs=1e-15)
    assert found["delta_s"] <= 1e-12 * found["energy"]


def test_a_small_angle_is_measured_to_its_last_digits():
    angle = 1e-9  # 1 - cos would be 0 in float64
    before, after = np.array([[1.0, 0]]), np.array([[np.cos(angle), np.sin(angle)]])
    assert compare(source_layer(before), after)["delta_a"] == pytest.approx(angle**2 / 2, rel=1e-6)


def test_a_neuron_of_zeros_has_no_angle_and_is_counted():
    before, after = weights(6, 4, 0), weights(6, 4, 1)
    after[2] = 0
    kept = [0, 1, 3, 4, 5]
    found = compare(source_layer(before), after)
    alone = compare(source_layer(before[kept]), after[kept])
    assert found["undirected"] == 1
    assert found["delta_s"] == pytest.approx(alone["delta_s"])
    assert found["delta_a"] == pytest.approx(alone["delta_a"])
    assert np.isfinite(list(found.values())).all()


def test_pooling_counts_each_neuron_once_and_each_pair_once():
    before = {"a": weights(4, 5, 0), "b": weights(8, 5, 1)}
    after = {"a": weights(4, 5, 2), "b": weights(8, 5, 3)}
    source = {name: source_layer(weight) for name, weight in before.items()}
    a, b = (compare(source[name], after[name]) for name in "ab")
    found = pooled(compare_layers(source, after, "here"))
    assert found["delta_m"] == pytest.approx((4 * a["delta_m"] + 8 * b["delta_m"]) / 12)
    assert found["delta_a"] == pytest.approx((4 * a["delta_a"] + 8 * b["delta_a"]) / 12)
    assert found["delta_s"] == pytest.approx((12 * a["delta_s"] + 56 * b["delta_s"]) / 68)
    assert found["delta_s_per_pair"] == pytest.approx((a["delta_s"] + b["delta_s"]) / 68)
    sizes = np.hypot(a["change"], b["change"]), np.hypot(a["norm"], b["norm"])
    assert found["relative_change"] == pytest.approx(sizes[0] / sizes[1])


def test_a_change_is_scaled_to_a_size_along_its_own_line():
    before = {"a": weights(4, 5, 0), "b": weights(3, 5, 1)}
    after = {"a": weights(4, 5, 2), "b": weights(3, 5, 3)}
    source = {name: source_layer(weight) for name, weight in before.items()}
    found = rescaled(source, after, 0.25)
    steps = {name: found[name] - before[name] for name in before}
    assert np.sqrt(sum((s**2).sum() for s in steps.values())) == pytest.approx(0.25)
    ratio = [steps[n] / (after[n].astype(np.float64) - before[n]) for n in before]
    np.testing.assert_allclose(np.concatenate(ratio), ratio[0][0, 0], rtol=1e-5)


def test_noise_has_the_size_it_was_given_in_each_layer():
    source = {"a": source_layer(weights(4, 5, 0)), "b": source_layer(weights(3, 5, 1))}
    found = random_change(source, {"a": 0.5, "b": 2.0})
    sizes = {n: np.linalg.norm(found[n] - layer.weight) for n, layer in source.items()}
    assert sizes == {"a": pytest.approx(0.5), "b": pytest.approx(2.0)}


@pytest.mark.parametrize(
    ("adapted", "words"),
    [
        ({"a": weights(4, 5, 0), "b": weights(4, 5, 0)}, "b is only in one"),
        ({}, "a is only in one"),
        ({"a": weights(4, 6, 0)}, r"\(4, 6\), but \(4, 5\)"),
        ({"a": np.full((4, 5), np.nan)}, "not finite"),
    ],
)
def test_weights_of_another_network_are_refused(adapted, words):
    source = {"a": source_layer(weights(4, 5, 0))}
    with pytest.raises(RunError, match=f"FILE.*{words}"):
        compare_layers(source, adapted, "FILE")
