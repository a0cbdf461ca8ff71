"""The method contract, for every registered method, and the base class by itself."""

import inspect
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.method import Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.method.state import capture
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from tests.methods import (
    build,
    changed,
    declared,
    make,
    pictures,
    plain,
    snapshot,
    tensors,
    through_disk,
    toy,
)

ALL = [name for name in METHODS.names() if "classification" in METHODS.get(name).tasks]
# Those that take one gradient step on every batch and score the logits before it.
STEPPING = (
    "pseudo_label",
    "tent",
    "sar",
    "paid",
    "lora",
    "dora",
    "eta",
    "eata",
    "ecotta",
    "rdumb",
    "cmae",
    "deyo",
    "foa_bp",
    "santa",
    "come_tent",
    "come_eata",
    "come_sar",
)
FAST = {"lr": 0.01}
slow = partial(pytest.param, marks=pytest.mark.slow)
# Steps that a toy model shows, and thresholds of SAR and EATA out of the way: every image is
# reliable, none is redundant, and nothing is reset.
ALWAYS: dict[str, dict[str, Any]] = {
    "pseudo_label": FAST,
    "tent": FAST,
    "sar": FAST | {"margin": 1e6, "recovery_threshold": 0.0},
    "paid": FAST,
    "lora": FAST,
    "dora": FAST,
    "eta": FAST | {"margin": 1.0, "max_similarity": 2.0},
    "eata": FAST | {"margin": 1.0, "max_similarity": 2.0},
    "vida": FAST | {"lr_adapters": 0.01, "views": 2},
    "ecotta": FAST | {"margin": 1.1},
    "vdp": FAST,
    "cotta": FAST | {"views": 2, "confidence_threshold": 2.0},
    "rotta": FAST | {"memory_size": 8, "update_every": 6, "teacher_rate": 0.5},
    "rdumb": FAST | {"margin": 1.0, "max_similarity": 2.0, "reset_every": 5},
    "cmae": FAST | {"views": 2},
    "deyo": FAST | {"max_entropy": 10.0, "min_drop": -1.0},
    "roid": FAST,
    "cmf": FAST,
    "rmt": FAST | {"projection": 8},
    "santa": FAST | {"projection": 8},
    "foa": {"candidates": 5},
    "foa_bp": FAST | {"shift_weight": 0.0},
    "dpcore": {"similarity": 1e9, "steps": 1},
    "come_tent": FAST,
    "come_eata": FAST | {"margin": 1.0, "max_similarity": 2.0},
    "come_sar": FAST | {"margin": 1e6, "recovery_threshold": 0.0},
    "palm": FAST | {"max_gradient": 1e6, "temperature": 50.0},
    "spa": FAST,
    "spa_tent": FAST,
    "spa_eta": FAST | {"margin": 1.0, "max_similarity": 2.0},
    "spa_eata": FAST | {"margin": 1.0, "max_similarity": 2.0},
    "asr_eta": FAST | {"margin": 1.0, "max_similarity": 2.0},
    "asr_roid": FAST,
    "asr_tent": FAST,
    "dept": FAST | {"dino": True, "hidden": 16, "bottleneck": 8, "outputs": 12, "bank_start": 10},
}


def stream(batches: int = 12, size: int = 4) -> list[Tensor]:
    return list(pictures(batches * size, seed=5).split(size))


def state(method: Method) -> Any:
    """Everything that a reset restores."""
    survives = frozenset({"counters", "passes", "loss", "_rng", "_initial"})
    return plain(capture(method, skip=survives, frozen=method.model))


# -- every method


@pytest.mark.parametrize("name", ALL)
def test_adapt_gets_the_images_and_nothing_else(name: str) -> None:
    assert list(inspect.signature(METHODS.get(name).adapt).parameters) == ["self", "images"]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", [1, 5, slow(2), slow(8)])
def test_a_stream_of_any_batch_size_with_a_last_short_batch_gives_finite_logits(
    name: str, size: int
) -> None:
    method = build(name, **ALWAYS.get(name, {}))
    for images in pictures(11).split(size):
        logits = method(images)
        assert logits.shape == (len(images), toy.CLASSES)
        assert not logits.requires_grad
        assert bool(logits.isfinite().all())
    assert all(bool(t.isfinite().all()) for t in tensors(method.model).values())


@pytest.mark.parametrize("name", ALL)
def test_only_declared_tensors_change(name: str) -> None:
    method = build(name, **ALWAYS.get(name, {}))
    before = tensors(method.model)
    for images in stream(3):
        method(images)
    moved = {name for name in changed(before, method.model) if ".running_" not in name}
    assert moved <= declared(method)


@pytest.mark.parametrize("name", ALL)
def test_images_that_are_not_finite_leave_all_tensors_finite(name: str) -> None:
    method = build(name, **ALWAYS.get(name, {}))
    method(pictures(4))
    method(torch.full((4, 3, toy.SIDE, toy.SIDE), torch.nan))
    method(pictures(4) * torch.inf)
    assert all(bool(t.isfinite().all()) for t in tensors(method.model).values())
    assert bool(method(pictures(4)).isfinite().all())


@pytest.mark.parametrize("name", ALL)
def test_random_draws_elsewhere_change_nothing_and_nothing_is_drawn_from_them(name: str) -> None:
    torch.manual_seed(1)
    alone = build(name, **ALWAYS.get(name, {}))
    expected = [alone(images) for images in stream(3)]
    torch.manual_seed(2)
    torch.rand(5)
    crowded = build(name, **ALWAYS.get(name, {}))
    elsewhere = []
    for images, logits in zip(stream(3), expected, strict=True):
        elsewhere.append(torch.rand(2))
        assert torch.equal(crowded(images), logits)
    torch.manual_seed(2)
    torch.rand(5)
    assert torch.equal(torch.cat(elsewhere), torch.rand(6))


@pytest.mark.parametrize("name", ALL)
def test_a_reset_returns_to_the_state_before_the_stream(name: str) -> None:
    method = build(name, **ALWAYS.get(name, {}))
    source = state(method)
    for images in stream(3):
        method(images)
    method.reset()
    assert state(method) == source


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("after", "count"), [(2, 5), slow(0, 12), slow(1, 12), slow(5, 12)])
def test_a_resumed_stream_ends_with_the_same_bits(name: str, after: int, count: int) -> None:
    resumes(lambda: build(name, **ALWAYS.get(name, {})), after, count)


def resumes(new: Any, after: int, count: int = 12) -> None:
    """Check `count` batches straight against `after`, a checkpoint, a new object, and the rest."""
    batches = stream(count)
    whole, first, second = new(), new(), new()
    expected = [whole(images) for images in batches]
    for images in batches[:after]:
        first(images)
    second.load_state_dict(through_disk(first.state_dict()))
    for images, logits in zip(batches[after:], expected[after:], strict=True):
        assert torch.equal(second(images), logits)
    assert plain(second.state_dict()) == plain(whole.state_dict())
    assert second.counters == whole.counters
    assert second.passes == whole.passes


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("precision", ["bfloat16", slow("float16")])
def test_half_precision_gives_finite_float32_logits_even_for_flat_images(
    name: str, precision: Any
) -> None:
    method = build(name, precision=precision, **ALWAYS.get(name, {}))
    for images in (pictures(4), torch.zeros(4, 3, 16, 16), torch.ones(4, 3, 16, 16)):
        logits = method(images)
        assert logits.dtype == torch.float32
        assert bool(logits.isfinite().all())
    assert all(bool(t.isfinite().all()) for t in tensors(method.model).values())


@pytest.mark.parametrize("name", ALL)
def test_double_precision_is_double_throughout(name: str) -> None:
    method = build(name, dtype=torch.float64, precision="float64")
    assert method(pictures(4).double()).dtype == torch.float64
    assert {p.dtype for p in method.trainable.values()} <= {torch.float64}


# -- methods that step on every batch


@pytest.mark.parametrize("name", STEPPING)
def test_every_declared_tensor_changes(name: str) -> None:
    method = build(name, **ALWAYS[name])
    before = tensors(method.model)
    for images in stream(2):  # the first step of a low-rank product moves one factor alone
        method(images)
    assert changed(before, method.model) == declared(method)


@pytest.mark.parametrize("name", STEPPING)
def test_the_scored_logits_are_those_before_the_update(name: str) -> None:
    method = build(name, **ALWAYS[name])
    for images in stream(3):
        with torch.no_grad():
            before = method.model(images)
        torch.testing.assert_close(method(images), before, atol=1e-6, rtol=0)
        with torch.no_grad():
            assert (method.model(images) - before).abs().max() > 1e-4


@pytest.mark.parametrize("name", STEPPING)
def test_a_learning_rate_of_zero_is_the_source_model(name: str) -> None:
    method, source = build(name, **ALWAYS[name] | {"lr": 0.0}), build("source")
    for images in stream(3):
        torch.testing.assert_close(method(images), source(images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", STEPPING)
def test_a_skipped_update_is_counted_and_the_next_batch_adapts(name: str) -> None:
    method = build(name, **ALWAYS[name])
    method(pictures(4))
    before = snapshot(method)
    method(torch.full((4, 3, 16, 16), torch.nan))
    assert method.counters["skipped_updates"] == 1
    assert plain(snapshot(method)) == plain(before)
    method(pictures(4, seed=1))
    assert method.counters["skipped_updates"] == 1
    assert plain(snapshot(method)) != plain(before)


@pytest.mark.parametrize("name", STEPPING)
@pytest.mark.parametrize("optimizer", ["adam", slow("sgd"), slow("adamw")])
def test_a_reset_clears_parameters_and_moments_of_every_optimiser(
    name: str, optimizer: str
) -> None:
    method = build(name, **ALWAYS[name] | {"optimizer": optimizer})
    source, first = state(method), method(pictures(4))
    method(pictures(4, seed=1))
    method.reset()
    assert state(method) == source
    assert torch.equal(method(pictures(4)), first)


@pytest.mark.parametrize("name", STEPPING)
def test_adaptation_works_inside_no_grad(name: str) -> None:
    inside, outside = build(name, **ALWAYS[name]), build(name, **ALWAYS[name])
    outside(pictures(4))
    with torch.no_grad():
        inside(pictures(4))
    assert plain(snapshot(inside)) == plain(snapshot(outside))


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("source", 1, 0),
        ("tent", 1, 1),
        ("pseudo_label", 1, 1),
        ("sar", 2, 2),
        ("paid", 1, 1),
        ("lora", 1, 1),
        ("dora", 1, 1),
        ("eta", 1, 1),
        ("eata", 1, 1),
        ("norm", 1, 0),
        ("lame", 1, 0),
        ("cotta", 4, 1),
        ("rdumb", 1, 1),
        ("vida", 4, 1),
        ("ecotta", 1, 1),
        ("vdp", 2, 1),
        ("cmae", 4, 1),
        ("deyo", 2, 1),
        ("dept", 4, 1),
        ("santa", 3, 2),
        ("foa", 6, 0),
        ("foa_shift", 1, 0),
        ("foa_bp", 1, 1),
        ("dpcore", 2, 1),
        ("t3a", 1, 0),
        ("come_tent", 1, 1),
        ("come_eata", 1, 1),
        ("come_sar", 2, 2),
        ("palm", 2, 3),
        ("asr_eta", 2, 1),
        ("asr_tent", 2, 1),
        ("spa", 3, 2),
        ("spa_tent", 3, 3),
        ("spa_eta", 3, 3),
        ("spa_eata", 3, 3),
    ],
)
def test_passes_per_image_are_counted(name: str, forward: int, backward: int) -> None:
    method = build(name, **ALWAYS.get(name, {}))
    for images in pictures(10).split(4):
        method(images)
    assert method.passes.forward_images == 10 * forward
    assert method.passes.backward_images == 10 * backward


@pytest.mark.parametrize("faithful", [False, "mariodoebler"])
def test_a_resume_after_resets_of_sar_ends_with_the_same_bits(faithful: Any) -> None:
    options = {"margin": 1e6, "recovery_threshold": 10.0, "faithful": faithful}
    assert resets(options) == 5
    resumes(lambda: build("sar", **FAST, **options), 5)


def resets(options: dict[str, Any]) -> int:
    method = build("sar", **FAST, **options)
    for images in stream(12)[:5]:
        method(images)
    return method.counters["resets"]


# -- window mode


@pytest.mark.parametrize("name", STEPPING)
def test_a_window_updates_once_it_has_filled(name: str) -> None:
    method = build(name, window=4, **ALWAYS[name])
    updates, before = [], plain(snapshot(method))
    for number, image in enumerate(pictures(8).split(1), start=1):
        method(image)
        after = plain(snapshot(method))
        updates += [number] * (after != before)
        before = after
    assert updates == [4, 8]


@pytest.mark.parametrize("name", STEPPING)
def test_before_the_first_update_a_window_predicts_as_the_source(name: str) -> None:
    method, source = build(name, window=4, **ALWAYS[name]), build("source")
    for image in pictures(4).split(1):
        torch.testing.assert_close(method(image), source(image), atol=1e-5, rtol=0)
    image = pictures(1, seed=1)
    assert (method(image) - source(image)).abs().max() > 1e-4


@pytest.mark.parametrize("name", STEPPING)
def test_a_full_window_updates_as_a_batch_does(name: str) -> None:
    windowed, batched = build(name, window=4, **ALWAYS[name]), build(name, **ALWAYS[name])
    for image in pictures(4).split(1):
        windowed(image)
    batched(pictures(4))
    assert plain(snapshot(windowed)) == plain(snapshot(batched))


def test_a_window_resumes_half_full() -> None:
    resumes(lambda: build("tent", window=8, **FAST), 5)


def test_a_window_over_batch_statistics_predicts_from_all_it_holds() -> None:
    method = build("tent", "toy_cnn", window=4)
    images = pictures(3)
    method(images[:1])
    method(images[1:2])
    with torch.no_grad():
        expected = method.model(images)[2:]
    torch.testing.assert_close(method(images[2:]), expected)


# -- a user's method, without a line about state


@dataclass
class Memory:
    images: Tensor
    age: int


class Diary(Method):
    """Averages, memories and counters made when first needed, and random noise."""

    Hyperparameters = OptimizerHyperparameters

    def setup(self) -> None:
        self.adapt_only(self.model.norm_parameters())
        self.optimizer = torch.optim.Adam(self.trainable.values(), 0.01)

    def adapt(self, images: Tensor) -> Tensor:
        if not hasattr(self, "average"):
            self.average = snapshot(self)
            self.memory: deque[Memory] = deque(maxlen=3)
            self.seen = 0
            self.usual = None
        self.memory.append(Memory(images + 0.05 * torch.randn_like(images), 0))
        logits = self.model(torch.cat([item.images for item in self.memory]))
        loss = softmax_entropy(logits).mean()
        self.step(loss if self.usual is None else loss + (loss - self.usual).abs())
        self.usual = loss.detach()
        self.seen += len(images)
        for item in self.memory:
            item.age += 1
        for name, parameter in self.trainable.items():
            self.average[name].lerp_(parameter.detach(), 0.1)
        distance = sum((self.average[n] - p).norm() for n, p in self.trainable.items())
        return logits[-len(images) :] + self.seen * distance + self.memory[0].age


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_users_method_without_state_code_resumes_to_the_same_bits(after: int) -> None:
    resumes(lambda: make(Diary), after)


def test_a_reset_forgets_what_a_users_method_made_along_the_stream() -> None:
    method = make(Diary)
    source = state(method)
    method(pictures(4))
    assert method.seen == 4
    method.reset()
    assert not hasattr(method, "memory")
    assert state(method) == source


class Noisy(Method):
    """Source with noise."""

    def adapt(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model(images) + torch.rand(1)


def test_the_seed_decides_what_a_method_draws() -> None:
    drawn = [make(Noisy, seed=s)(pictures(2)).tolist() for s in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_random_stream_goes_on_over_a_reset() -> None:
    method = make(Noisy)
    first = method(pictures(2))
    method.reset()
    assert not torch.equal(method(pictures(2)), first)


# -- the base


def test_counters_go_on_over_a_reset() -> None:
    method = build("tent")
    method(torch.full((2, 3, 16, 16), torch.nan))
    method.reset()
    method.reset()
    assert method.counters == {"skipped_updates": 1, "resets": 2}


def test_a_reset_before_the_first_batch_changes_nothing() -> None:
    kind = METHODS.get("tent")
    method = kind(SourceModel(toy.toy_vit()))
    method.reset()
    assert torch.equal(method(pictures(4)), build("tent")(pictures(4)))


def test_a_method_resumed_before_it_was_started_still_resets_to_the_source() -> None:
    first = build("tent", **FAST)
    first(pictures(4))
    second = METHODS.get("tent")(SourceModel(toy.toy_vit()))
    second.load_state_dict(through_disk(first.state_dict()))
    assert plain(snapshot(second)) == plain(snapshot(first))
    second.reset()
    assert plain(snapshot(second)) == plain(snapshot(build("tent")))


def test_an_update_with_infinite_gradients_is_skipped() -> None:
    method = build("tent")
    parameter = next(iter(method.trainable.values()))
    before = parameter.detach().clone()
    # Finite loss, infinite slope: the square root at zero.
    method.step((parameter - parameter.detach()).sum().abs().sqrt())
    assert method.counters["skipped_updates"] == 1
    assert torch.equal(parameter, before)
    assert parameter.grad is None


def test_a_method_that_reads_source_data_asks_for_it() -> None:
    method = METHODS.get("paid")(SourceModel(toy.toy_vit()))
    with pytest.raises(
        MethodError, match=r"PAID reads unlabelled source data .* start\(\) got none"
    ):
        method(pictures(2))


def test_a_method_without_adapt_says_so() -> None:
    with pytest.raises(MethodError, match=r"Method: define the method adapt"):
        make(Method)(pictures(2))


@pytest.mark.parametrize("name", ["pseudo_label", "tent", "sar"])
def test_a_model_without_norm_layers_is_refused_at_construction(name: str) -> None:
    bare = SourceModel(nn.Sequential(nn.Flatten(), nn.Linear(768, 10)), name="bare")
    with pytest.raises(MethodError, match="finds nothing to adapt in bare"):
        METHODS.get(name)(bare)


def test_unknown_hyperparameters_are_refused() -> None:
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        build("tent", learning_rate=1.0)


def test_extra_state_counts_what_is_kept_beside_model_and_optimiser() -> None:
    method = make(Diary)
    method(pictures(4))
    norms = 4 * sum(p.numel() for p in method.trainable.values())
    images = 4 * 4 * 3 * 16 * 16
    assert method.extra_state_bytes == norms + images + 4  # the last 4: the usual loss
    # Mean and deviation of 24 features.
    assert build("paid").extra_state_bytes == 2 * 24 * 4


def test_entropy_is_that_of_the_softmax_in_nats() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, 1000.0], [0.0, torch.log(torch.tensor(3.0))]])
    quarter = -(0.25 * torch.tensor(0.25).log() + 0.75 * torch.tensor(0.75).log())
    expected = torch.stack([torch.tensor(2.0).log(), torch.tensor(0.0), quarter])
    torch.testing.assert_close(softmax_entropy(logits), expected)
    assert softmax_entropy(logits.bfloat16()).dtype == torch.float32
    assert softmax_entropy(logits.double()).dtype == torch.float64
