"""KFF. θ_D, θ_C and θ_H its thresholds, α_D and α_C rates of keys, E steps of a new domain."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ctta_bench.authoring.parity import replay_case
from ctta_bench.errors import MethodError
from ctta_bench.method import softmax_entropy
from ctta_bench.methods.kff import ClassPool, DomainPool, averaged
from tests.methods import build, changed, pictures, plain, tensors
from tests.parity.test_parity import CASES
from tests.parity.test_teachers import noting, per_batch

DOUBLE = {"dtype": torch.float64, "precision": "float64"}
FEW: dict[str, Any] = {"prompts": 2, "steps": 3, "source_samples": 16}
KNOWN = {**FEW, "domain_distance": 1e9}  # after the first batch
UNKNOWN = {**FEW, "domain_distance": 0.0}
KFFS = [name for name in CASES if name.startswith("kff")]


def method_of(**values: Any) -> Any:
    return build("kff", **DOUBLE, **values)


def batches(count: int = 3, size: int = 8) -> list[Tensor]:
    return list(pictures(count * size).double().split(size))


# -- the domains


@pytest.fixture
def domains() -> DomainPool:
    """Two domains, the second ln 3 · τ away in the mean, seen from the first."""
    pool = DomainPool(torch.zeros(1, 1).double(), radius=5.0, temperature=2.0)
    away = 2 * torch.log(torch.tensor(3.0)).item()
    for mean, prompt in ((0.0, 1.0), (away, 5.0)):
        key, prompts = torch.tensor([mean, 1.0]).double(), torch.full((1, 1), prompt).double()
        pool.add(key, prompts, most=2)
    return pool


def test_near_domains_weigh_by_distance_over_temperature_and_far_ones_nothing(
    domains: DomainPool,
) -> None:
    weights = domains.weights(torch.tensor([0.0, 1.0]).double())
    torch.testing.assert_close(weights, torch.tensor([0.75, 0.25]).double())
    torch.testing.assert_close(domains.mixture(weights), torch.full((1, 1), 2.0).double())
    domains.radius = 1.0
    assert domains.weights(torch.tensor([0.0, 1.0]).double()).tolist() == [1, 0]
    assert domains.weights(torch.tensor([9.0, 1.0]).double()) is None
    assert domains.weights(torch.tensor([torch.nan, 1.0]).double()) is None


def test_a_single_image_is_compared_by_the_mean_alone(domains: DomainPool) -> None:
    domains.keys[:, 1] = 100.0
    torch.testing.assert_close(
        domains.weights(torch.zeros(1).double()), torch.tensor([0.75, 0.25]).double()
    )


def test_used_domains_move_by_their_weight_and_keys_slower(domains: DomainPool) -> None:
    before = domains.keys.clone()
    weights, key = torch.tensor([0.5, 0.0]).double(), torch.tensor([2.0, 3.0]).double()
    domains.move(weights, key, torch.full((1, 1), 9.0).double(), rate=0.1)
    torch.testing.assert_close(domains.keys[0], before[0] + 0.05 * (key - before[0]))
    assert torch.equal(domains.keys[1], before[1])
    assert domains.prompts.flatten().tolist() == [5.0, 5.0]  # 1 + 0.5 (9 - 1), and the other


def test_the_nearest_two_of_too_many_domains_become_their_mean(domains: DomainPool) -> None:
    domains.add(torch.tensor([0.2, 1.0]).double(), torch.full((1, 1), 3.0).double(), most=2)
    assert domains.keys[:, 0].tolist() == pytest.approx([0.1, 2.1972246])
    assert domains.prompts.flatten().tolist() == [2.0, 5.0]


# -- the classes


@pytest.fixture
def classes() -> ClassPool:
    pool = ClassPool(torch.zeros(1, 1).double(), num_classes=2, least=0.5)
    keys = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    pool.learn(torch.zeros(2, 0).double(), keys, torch.tensor([[1.0], [3.0]]).double(), 0.1, 9)
    return pool


def test_similar_classes_weigh_by_their_cosine_and_others_nothing(classes: ClassPool) -> None:
    weights = classes.weights(torch.tensor([[1.0, 1.0], [1.0, 0.1]]).double())
    torch.testing.assert_close(weights, torch.tensor([[0.5, 0.5], [1.0, 0.0]]).double())
    assert classes.mixtures(weights).flatten().tolist() == pytest.approx([2, 1])
    classes.least = 1.0  # strictly above it
    assert not bool(classes.weights(torch.eye(2).double()).any())


def test_images_move_their_classes_one_after_another_and_new_ones_are_added(
    classes: ClassPool,
) -> None:
    weights = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]).double()
    predictions = torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.3, 0.7]]).double()
    classes.learn(weights, predictions, torch.tensor([[2.0], [4.0], [8.0]]).double(), 0.1, 9)
    # (1, 0) to (0.95, 0.05), then to (0.855, 0.145).
    torch.testing.assert_close(
        classes.keys, torch.tensor([[0.855, 0.145], [0.0, 1.0], [0.3, 0.7]]).double()
    )
    assert classes.prompts.flatten().tolist() == [4.0, 3.0, 8.0]
    torch.testing.assert_close(classes.keys.sum(1), torch.ones(3).double())


def test_the_most_similar_of_too_many_classes_are_averaged_in_growing_groups() -> None:
    pool = ClassPool(torch.zeros(1, 1).double(), num_classes=3, least=0.5)
    # 0 and 2 are the most similar, then 2 and 3: one group of three.
    keys = torch.tensor([[0.9, 0.1, 0.0], [0, 0.5, 0.5], [0.85, 0.15, 0], [0.6, 0.2, 0.2]])
    prompts = torch.tensor([[1.0], [10.0], [2.0], [6.0]])
    pool.learn(torch.zeros(4, 0).double(), keys.double(), prompts.double(), 0.1, most=2)
    torch.testing.assert_close(pool.keys[0], keys[[0, 2, 3]].double().mean(0))
    assert pool.prompts.flatten().tolist() == [3.0, 10.0]


def test_groups_of_rows_become_their_means_at_the_first_place() -> None:
    values = torch.arange(5.0)[:, None]
    assert averaged(values, [[0], [1, 4], [2, 3]]).flatten().tolist() == [0.0, 2.5, 2.5]
    assert values.flatten().tolist() == [0, 1, 2, 3, 4]


# -- a batch


def test_an_unknown_batch_makes_a_domain_and_a_known_one_takes_a_step() -> None:
    unknown, known = method_of(**UNKNOWN), method_of(**KNOWN)
    for number, images in enumerate(batches(), start=1):
        unknown(images)
        known(images)
        assert (len(unknown.domains.keys), len(known.domains.keys)) == (number, 1)
    assert (unknown.passes.forward_images, unknown.passes.backward_images) == (8 * 12, 8 * 9)
    assert (known.passes.forward_images, known.passes.backward_images) == (8 * 8, 8 * 5)


def test_new_prompts_begin_at_those_of_construction_which_never_change() -> None:
    method = method_of(**UNKNOWN | {"steps": 1})
    start = method.start_prompts.clone()
    for images in batches():
        method(images)
        # AdamW's first step: the rate against the sign of the gradient, and the decay.
        steps = (method.prompts.detach() - start * (1 - 0.1 * 0.01)).abs()
        torch.testing.assert_close(steps, torch.full_like(steps, 0.1), atol=1e-4, rtol=0)
    assert torch.equal(method.start_prompts, start)


def test_the_loss_is_the_distance_of_the_moments_and_three_times_the_entropy() -> None:
    method = method_of(**KNOWN | {"mean_weight": 0.5, "entropy_weight": 2.0})
    features, logits = torch.randn(2, 6, 24).double(), torch.randn(6, 10).double()
    found = method.total_loss(features[0], logits)
    mean, std = features[0].mean(0) - method.source.mean, features[0].std(0) - method.source.std
    expected = std.norm() + 0.5 * mean.norm() + 2.0 * softmax_entropy(logits).mean()
    torch.testing.assert_close(found, expected)


def test_class_prompts_take_the_last_step_alone_and_only_with_sure_images() -> None:
    method = method_of(**UNKNOWN | {"max_entropy": 100.0, "class_similarity": 1.0})
    drawn = torch.rand(8, 24).double()
    method.new_class_prompts = lambda count: drawn.clone()
    (images, *_) = batches()
    logits = method(images)
    torch.testing.assert_close(method.classes.keys, logits.softmax(1))
    steps = (method.classes.prompts - drawn * (1 - 1e-3 * 0.01)).abs()
    torch.testing.assert_close(steps, torch.full_like(steps, 1e-3), atol=1e-6, rtol=0)
    unsure = method_of(**UNKNOWN | {"max_entropy": 0.0})
    unsure(images)
    assert len(unsure.classes.keys) == 0 and len(unsure.domains.keys) == 1


def test_known_classes_lend_their_prompts_and_new_ones_are_random() -> None:
    method = method_of(**KNOWN | {"max_entropy": 100.0, "class_similarity": 0.0})
    first, second, _ = batches()
    method(first)
    stored = method.classes.prompts
    weights = method.classes.weights(method.look(second)[1])
    torch.testing.assert_close(weights.sum(1), torch.ones(8).double())
    expected = weights @ stored
    torch.testing.assert_close(method.class_prompts(weights), expected)
    drawn = torch.rand(8, 24).double()
    method.new_class_prompts = lambda count: drawn
    assert torch.equal(method.class_prompts(torch.zeros_like(weights)), drawn)


def test_both_pools_stay_small_over_many_batches() -> None:
    small = {"steps": 1, "max_domains": 3, "max_classes": 5}
    method = build("kff", **UNKNOWN | small, max_entropy=9.0, class_similarity=1.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        method(torch.rand(4, 3, 16, 16, generator=generator))
        assert len(method.domains.keys) <= 3 and len(method.classes.keys) <= 5
    assert (len(method.domains.keys), len(method.classes.keys)) == (3, 5)


@pytest.mark.parametrize("values", [KNOWN, UNKNOWN])
def test_a_single_image_makes_no_update_and_is_scored(values: dict[str, Any]) -> None:
    method = method_of(**values)
    first, second, _ = batches()
    method(first)
    before = plain(tensors(method.model)), plain(vars(method.domains)), plain(vars(method.classes))
    logits = method(second[:1])
    after = plain(tensors(method.model)), plain(vars(method.domains)), plain(vars(method.classes))
    assert before == after and method.counters["skipped_updates"] == 1
    assert bool(logits.isfinite().all())
    if values is UNKNOWN:
        torch.testing.assert_close(logits, method.model(second[:1]))


def test_nan_images_add_nothing() -> None:
    method = method_of(**UNKNOWN)
    method(torch.full((4, 3, 16, 16), torch.nan).double())
    assert len(method.domains.keys) == len(method.classes.keys) == 0
    assert method.counters["skipped_updates"] == 1


def test_no_weight_of_the_network_changes_and_a_reset_empties_the_pools() -> None:
    method = method_of(**UNKNOWN)
    before = tensors(method.model)
    for images in batches():
        method(images)
    assert changed(before, method.model) == set()
    method.reset()
    assert len(method.domains.keys) == len(method.classes.keys) == 0


def test_only_faithful_filters_source_images_with_random_prompts() -> None:
    filtered = {**FEW, "source_samples": 40, "source_max_entropy": 0.6}
    used = [method_of(**filtered, faithful=value).source_used for value in (False, True)]
    assert used[0] != used[1]


def test_a_network_without_a_class_token_is_refused() -> None:
    with pytest.raises(MethodError, match=r"KFF does not support toy_cnn: .* class token"):
        build("kff", "toy_cnn")


# -- the official code


@pytest.mark.parametrize("name", KFFS)
def test_pools_grow_as_the_official_ones_and_end_as_they_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = noting(monkeypatch, "kff", lambda m: (len(m.domains.keys), len(m.classes.keys)))
    replayed = replay_case(CASES[name], torch.float64)
    domains, classes = zip(*sizes, strict=True)
    assert list(domains) == per_batch(replayed, "domain_prompts")
    assert list(classes) == per_batch(replayed, "class_prompts")
    ours, recorded = replayed.method, replayed.recorded
    for kind, values in (("key", ours.domains.keys), ("prompt", ours.domains.prompts[:, None])):
        theirs = [recorded[f"aux/domain_{kind}_{j}"] for j in range(domains[-1])]
        torch.testing.assert_close(
            ordered(values.float()), ordered(torch.stack(theirs)), atol=1e-3, rtol=0
        )
    for kind, values in (("keys", ours.classes.keys), ("prompts", ours.classes.prompts)):
        theirs = recorded[f"aux/class_{kind}"]
        torch.testing.assert_close(ordered(values.float()), ordered(theirs), atol=1e-3, rtol=0)


def ordered(values: Tensor) -> Tensor:
    """Rows by their first number: merged groups stand at other places in the official code."""
    rows = values.flatten(1)
    return rows[rows[:, 0].argsort()]
