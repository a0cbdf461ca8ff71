"""The invariants of DePT."""

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ctta_bench.authoring.parity import ReplayedCase, collect, replay_case
from ctta_bench.errors import MethodError
from ctta_bench.methods import dept
from ctta_bench.model import SourceModel
from ctta_bench.parts import memory
from ctta_bench.parts.prompts import learner as prompt_losses
from ctta_bench.parts.views import image as image_views
from ctta_bench.registry import METHODS
from ctta_bench.stream import SourceData
from tests.methods import build, changed, pictures, plain, snapshot, tensors, toy

DEPT = METHODS.get("dept")
HEADS = {"dino": True, "hidden": 16, "bottleneck": 8, "outputs": 12}
FAST = {"lr": 0.01, "stages": 2, "prompts": 3}
GOLDEN = collect([Path(__file__).parents[1] / "parity"])


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def seen_by(method: Any, images: Tensor) -> Any:
    """A pass of the student without gradients."""
    with torch.no_grad():
        return method.forward_pass(images, method.student)


# -- against the official code ---------------------------------------------------------------------

TERMS = {
    "dino_cls": "distillation",
    "dino_prompt": "consistency_of_prompts",
    "prompt_diversity": "diversity_of_prompts",
    "class_diversity": "diversity_of_classes",
}


@pytest.fixture(scope="module")
def official() -> tuple[ReplayedCase, dict[str, list[Any]]]:
    """The official run, with what ours computed on the way, by the official names."""
    noted: dict[str, list[Any]] = defaultdict(list)

    def noting(name: str, function: Any) -> Any:
        def noted_function(*arguments: Any, **named: Any) -> Any:
            found = function(*arguments, **named)
            noted[name].append(found.detach())
            return found

        return noted_function

    def adapt(self: Any, images: Tensor) -> Tensor:
        logits = original(self, images)
        noted["lr"].append(self.optimizer.param_groups[0]["lr"])
        noted["bank_pointer"].append(self.bank.pointer)
        noted["dino_center_norm"].append(float(self.centre.norm()))
        return logits

    original = DEPT.adapt
    with pytest.MonkeyPatch.context() as patch:
        for theirs, ours in TERMS.items():
            patch.setattr(dept, ours, noting(theirs, getattr(dept, ours)))
        patch.setattr(DEPT, "pseudo_labels", noting("pseudo_labels", DEPT.pseudo_labels))
        patch.setattr(DEPT, "adapt", adapt)
        return replay_case(GOLDEN["dept_official"], torch.float64), noted


def test_every_batch_has_the_official_pseudo_labels_and_bank(official: Any) -> None:
    replayed, noted = official
    theirs = replayed.case["per_batch"]
    assert [labels.tolist() for labels in noted["pseudo_labels"]] == [
        after["pseudo_labels"] for after in theirs
    ]
    assert noted["bank_pointer"] == [after["bank_pointer"] for after in theirs]


@pytest.mark.parametrize("name", [*TERMS, "lr", "dino_center_norm"])
def test_every_batch_has_the_official_figures(official: Any, name: str) -> None:
    replayed, noted = official
    theirs = [after[name] for after in replayed.case["per_batch"]]
    # Theirs are of the run in float32, whose rounding the steps carry on.
    assert [float(value) for value in noted[name]] == pytest.approx(theirs, rel=2e-5)


def test_bank_centre_and_teacher_end_as_the_official_ones(official: Any) -> None:
    replayed, _ = official
    method, recorded = replayed.method, replayed.recorded
    found = {
        "bank_features": method.bank.features,
        "bank_probs": method.bank.probs,
        "dino_center": method.centre,
        "teacher_prompt_0": method.teacher.prompts[0],
        "teacher_prompt_1": method.teacher.prompts[1],
    }
    for name, ours in found.items():
        theirs = recorded[f"aux/final_{name}"].double()
        torch.testing.assert_close(ours.detach(), theirs, atol=5e-5, rtol=0, msg=name)


def test_features_and_prompt_outputs_equal_the_official_ones() -> None:
    replayed = replay_case(GOLDEN["dept_forward"], torch.float64)
    stream = last_batch(GOLDEN["dept_forward"])
    seen = seen_by(replayed.method, stream)
    for name, ours in (("features_6", seen.features), *enumerate(seen.prompts)):
        key = name if isinstance(name, str) else f"prompt_outputs_6_stage_{name}"
        theirs = replayed.recorded[f"aux/{key}"].double()
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def last_batch(case: Any) -> Tensor:
    """The last batch of the stream of the reference outputs."""
    return load_file(case.folder / "stream" / "stream.safetensors")["images_6"].double() / 255


# -- prompts and what learns -----------------------------------------------------------------------


def test_vit_base_has_the_counted_parameters() -> None:
    with torch.device("meta"):
        method = DEPT(
            SourceModel(timm.create_model("vit_base_patch16_224")), DEPT.Hyperparameters(dino=True)
        )
    counts: dict[str, int] = defaultdict(int)
    for name, parameter in method.trainable.items():
        counts[name.split(".")[0]] += parameter.numel()
    assert counts == {"prompts": 153_600, "classifier": 769_000, "heads": 10_494_976}
    assert sum(counts.values()) == 11_417_576


def test_prompts_start_uniform_within_xaviers_bound() -> None:
    with torch.device("meta"):
        shape = (
            DEPT(SourceModel(timm.create_model("vit_base_patch16_224"))).student.prompts[0].shape
        )
    assert shape == (1, 50, 768)
    prompts = build("dept").student.prompts
    bound = math.sqrt(6 / (24 * (50 + 1)))  # of a tensor [1, 50, 24]
    largest = torch.cat(list(prompts)).detach().abs().max().item()
    assert 0.99 * bound < largest <= bound
    assert len(prompts) == 4


def test_without_stages_the_network_is_the_plain_one_to_the_bit() -> None:
    method, source = build("dept", stages=0), build("source")
    assert torch.equal(method(pictures(8)), source(pictures(8)))
    assert set(method.trainable) == {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_prompts_reach_the_logits_and_leave_every_stage(stages: int) -> None:
    method, source = build("dept", stages=stages, prompts=3), build("source")
    seen = seen_by(method, pictures(2))
    assert [tuple(outputs.shape) for outputs in seen.prompts] == [(2, 3, 24)] * stages
    assert seen.features.shape == (2, 24)
    assert (seen.logits - source(pictures(2))).abs().max() > 1e-3


def test_prompts_have_no_place_of_their_own() -> None:
    """Their order within a stage is nothing to the logits, so no position was added."""
    method = build("dept", **FAST, dtype=torch.float64, precision="float64")
    images = pictures(2).double()
    before = seen_by(method, images).logits
    with torch.no_grad():
        for prompt in method.student.prompts:
            prompt.copy_(prompt.flip(1))
    torch.testing.assert_close(seen_by(method, images).logits, before, atol=1e-12, rtol=0)


def test_at_a_new_stage_the_old_prompts_are_dropped() -> None:
    method = build("dept", **FAST)
    lengths = []
    for block in method.model.network.blocks:
        block.register_forward_hook(lambda module, inputs, out: lengths.append(out.shape[1]))
    seen_by(method, pictures(1))
    assert lengths == [1 + 4 + 3] * 4


@pytest.mark.parametrize("train_head", [True, False])
def test_prompts_heads_and_on_request_the_classifier_learn(train_head: bool) -> None:
    method = build("dept", train_head=train_head, **FAST, **HEADS)
    start, before = snapshot(method), tensors(method.model)
    for images in pictures(16).split(8):
        method(images)
    head = {"network.head.weight", "network.head.bias"} if train_head else set()
    assert changed(before, method.model) == head
    assert all(not torch.equal(start[n], p) for n, p in method.trainable.items())
    assert ("classifier.weight" in method.trainable) == train_head


def test_networks_that_are_no_vit_are_refused() -> None:
    with pytest.raises(MethodError, match=r"DePT does not support toy_cnn: .* timm"):
        build("dept", "toy_cnn")


def test_stages_that_do_not_divide_the_blocks_are_refused() -> None:
    with pytest.raises(MethodError, match=r"does not support 3 stages on .* 4 blocks"):
        build("dept", stages=3)


# -- losses ----------------------------------------------------------------------------------------


def test_weights_of_the_stages_sum_to_one_and_grow() -> None:
    weights = prompt_losses.stage_weights(torch.zeros(()).double(), 4)
    assert weights.tolist() == pytest.approx([0.0321, 0.0871, 0.2369, 0.6439], abs=5e-5)
    assert weights.sum().item() == pytest.approx(1)


def test_equal_prompts_are_consistent_and_opposite_ones_are_two_apart() -> None:
    prompts = [some(3, 4, 6, seed=i) for i in range(3)]
    assert prompt_losses.consistency_of_prompts(prompts, prompts).item() == pytest.approx(
        0, abs=1e-6
    )
    opposite = prompt_losses.consistency_of_prompts(prompts, [-p for p in prompts])
    assert opposite.item() == pytest.approx(2)


def test_diversity_of_prompts_counts_each_pair_of_an_image() -> None:
    # Two opposite prompts: of 2 x 2 pairs two are 2 apart.
    opposite = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])
    assert prompt_losses.diversity_of_prompts([opposite, opposite]).item() == pytest.approx(-1)
    assert -2 <= prompt_losses.diversity_of_prompts([some(3, 4, 6)]).item() <= 0
    assert prompt_losses.diversity_of_prompts([torch.ones(2, 4, 6)]).item() == pytest.approx(
        0, abs=1e-6
    )


def test_diversity_of_classes_is_least_for_a_uniform_mean() -> None:
    logits = 50 * torch.eye(10).double()  # every class once
    assert prompt_losses.diversity_of_classes(logits).item() == pytest.approx(
        -math.log(10), rel=1e-6
    )
    assert prompt_losses.diversity_of_classes(logits[:1]).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("summed", "expected"), [(False, 0.9 * 2 + 0.1 * 2), (True, 1.8 + 0.6)])
def test_the_centre_follows_the_mean_and_officially_the_sum(summed: bool, expected: float) -> None:
    centre, outputs = torch.full((1, 4), 2.0), torch.tensor([[1.0], [2.0], [3.0]]).expand(3, 4)
    found = prompt_losses.next_centre(centre, outputs, summed=summed)
    torch.testing.assert_close(found, torch.full((1, 4), expected))


@pytest.mark.parametrize("faithful", [False, True])
def test_only_faithful_sums_into_the_centre(faithful: bool) -> None:
    method = build("dept", faithful=faithful, **FAST, **HEADS)
    heard: list[Tensor] = []
    original = method.update
    method.update = lambda loss, theirs: heard.append(theirs[-1]) or original(loss, theirs)
    method(pictures(8))
    expected = 0.1 * (heard[0].sum(0) if faithful else heard[0].mean(0))
    torch.testing.assert_close(method.centre, expected[None])


@pytest.mark.parametrize(
    ("size", "faithful", "calls"), [(7, False, 0), (8, False, 1), (7, True, 1)]
)
def test_only_faithful_spreads_the_classes_of_small_batches(
    size: int, faithful: bool, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = build("dept", faithful=faithful, **FAST)
    found: list[Any] = []
    original = dept.diversity_of_classes
    monkeypatch.setattr(
        dept, "diversity_of_classes", lambda logits: found.append(logits) or original(logits)
    )
    method(pictures(size))
    assert len(found) == calls


def test_the_pseudo_label_loss_has_a_weight() -> None:
    plain, heavy = build("dept", **FAST), build("dept", **FAST, label_weight=3.0)
    logits, labels = some(4, 10), torch.tensor([0, 1, 2, 3])
    difference = heavy.total_loss(logits, [], [], labels) - plain.total_loss(logits, [], [], labels)
    torch.testing.assert_close(difference, 2 * torch.nn.functional.cross_entropy(logits, labels))


def test_the_teacher_s_temperature_sharpens_its_target() -> None:
    student, teacher, centre = (
        torch.tensor([[0.1, 0.0]]),
        torch.tensor([[0.2, 0.0]]),
        torch.zeros(2),
    )
    for temperature in (0.07, 0.5):
        target = torch.tensor([0.2, 0.0]).div(temperature).softmax(0)
        expected = -(target * torch.tensor([1.0, 0.0]).log_softmax(0)).sum()
        found = prompt_losses.distillation(student, teacher, centre, temperature)
        torch.testing.assert_close(found, expected)
    assert prompt_losses.distillation(student, teacher, centre) == prompt_losses.distillation(
        student, teacher, centre, DEPT.Hyperparameters().teacher_temperature
    )


def test_without_heads_no_loss_needs_the_teachers_strong_view() -> None:
    plain_form, whole = build("dept", **FAST), build("dept", **FAST, **HEADS)
    for method in (plain_form, whole):
        method(pictures(5))
    assert plain_form.passes.forward_images == 5 * 3
    assert whole.passes.forward_images == 5 * 4
    assert plain_form.passes.backward_images == whole.passes.backward_images == 5


def test_the_official_order_makes_one_pass_more() -> None:
    method = build("dept", faithful=True, **FAST, **HEADS)
    method(pictures(5))
    assert method.passes.forward_images == 5 * 5


# -- the bank --------------------------------------------------------------------------------------


def test_the_bank_is_first_in_first_out_and_never_grows() -> None:
    bank = memory.Bank(4, 2, 3, torch.zeros(()))
    rows = torch.arange(6.0)[:, None]
    bank.add(rows[:3].expand(-1, 2), rows[:3].expand(-1, 3))
    assert (bank.filled, bank.pointer) == (3, 3)
    bank.add(rows[3:].expand(-1, 2), rows[3:].expand(-1, 3))
    assert bank.features[:, 0].tolist() == bank.probs[:, 2].tolist() == [4, 5, 2, 3]
    assert (bank.filled, bank.pointer) == (4, 2)


def test_of_a_batch_larger_than_the_bank_the_last_stay() -> None:
    bank = memory.Bank(2, 1, 1, torch.zeros(()))
    rows = torch.arange(5.0)[:, None]
    bank.add(rows, rows)
    assert sorted(bank.features[:, 0].tolist()) == [3, 4]


def test_what_is_not_finite_stays_out_of_the_bank() -> None:
    bank = memory.Bank(4, 1, 1, torch.zeros(()))
    bank.add(torch.tensor([[1.0], [math.nan], [3.0]]), torch.tensor([[1.0], [1.0], [math.inf]]))
    assert (bank.filled, bank.features[0].item()) == (1, 1.0)


def test_an_equal_entry_is_the_nearest_whatever_its_length() -> None:
    bank, probs = some(20, 6), torch.eye(20).double()
    found = memory.neighbour_probs(3 * bank[[7, 2]], bank, probs, 1)
    assert found.argmax(1).tolist() == [7, 2]


def test_fewer_entries_than_neighbours_are_all_averaged() -> None:
    probs = some(3, 5).softmax(1)
    found = memory.neighbour_probs(some(2, 6), some(3, 6), probs, 10)
    torch.testing.assert_close(found, probs.mean(0).expand(2, -1))


def test_neighbours_are_asked_once_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    method = build("dept", bank_start=12, neighbours=10, **FAST)
    asked: list[int] = []
    original = dept.neighbour_probs
    monkeypatch.setattr(dept, "neighbour_probs", lambda *a: asked.append(len(a[1])) or original(*a))
    for images in pictures(32).split(8):
        method(images)
    assert asked == [16, 24, 32]


def test_before_that_the_weak_views_own_prediction_is_the_label() -> None:
    method = build("dept", **FAST)
    weak = pictures(8)
    expected = seen_by(method, weak).logits.argmax(1)
    assert torch.equal(method.pseudo_labels(weak), expected)
    assert method.bank.filled == 8


def test_the_state_does_not_grow_along_the_stream() -> None:
    method = build("dept", bank_size=16, **FAST)
    method(pictures(8))
    size = method.extra_state_bytes
    for images in pictures(48).split(8):
        method(images)
    assert method.extra_state_bytes == size
    assert method.bank.filled == 16


# -- step and teacher ------------------------------------------------------------------------------


def test_the_students_plain_prediction_from_before_the_step_is_scored() -> None:
    method = build("dept", **FAST)
    for images in pictures(24).split(8):
        before = seen_by(method, images).logits
        assert torch.equal(method(images), before)
        assert (seen_by(method, images).logits - before).abs().max() > 1e-4


def test_the_teacher_follows_before_its_passes_in_the_batch_after_a_step() -> None:
    method = build("dept", teacher_momentum=0.9, **FAST)
    start = method.student.prompts[0].detach().clone()
    method(pictures(8))
    stepped = method.student.prompts[0].detach().clone()
    assert torch.equal(method.teacher.prompts[0], start) and not torch.equal(stepped, start)
    at_its_pass: list[Tensor] = []
    original = method.memorise
    method.memorise = lambda weak: (
        at_its_pass.append(method.teacher.prompts[0].clone()) or original(weak)
    )
    method(pictures(8, seed=1))
    torch.testing.assert_close(at_its_pass[0], 0.9 * start + 0.1 * stepped, atol=1e-7, rtol=0)
    assert not any(p.requires_grad for p in method.teacher.parameters())


def test_half_precision_reaches_all_that_learns() -> None:
    """Passes without gradients come first; their half copies of the weights have none."""
    method = build("dept", precision="bfloat16", **FAST, **HEADS)
    start = snapshot(method)
    method(pictures(8))
    assert all(not torch.equal(start[n], p) for n, p in method.trainable.items())


def test_a_batch_that_is_not_finite_moves_nothing() -> None:
    method = build("dept", teacher_momentum=0.5, **FAST, **HEADS)
    for images in pictures(16).split(8):
        method(images)
    method.ema_update_teacher()
    watched = (method.student, method.teacher)
    before = [tensors(part) for part in watched]
    centre, bank = method.centre.clone(), method.bank.features.clone()
    method(torch.full((8, 3, 16, 16), torch.nan))
    assert [changed(b, part) for b, part in zip(before, watched, strict=True)] == [set(), set()]
    assert torch.equal(method.centre, centre) and torch.equal(method.bank.features, bank)
    assert (method.counters["skipped_updates"], method.steps) == (1, 2)


@pytest.mark.parametrize("faithful", [False, True])
def test_each_tensors_gradient_is_clipped_officially_but_for_the_heads(faithful: bool) -> None:
    method = build("dept", faithful=faithful, clip=0.5, **FAST, **HEADS)
    for parameter in method.trainable.values():
        parameter.grad = torch.full_like(parameter, 3.0)
    method.clip_gradients()
    norms = {n: float(p.grad.norm()) for n, p in method.trainable.items()}
    heads = {n for n in norms if n.startswith("heads")}
    assert all(norms[n] == pytest.approx(0.5, abs=1e-5) for n in norms.keys() - heads)
    assert all((norms[n] > 3) == faithful for n in heads)


def test_the_rate_falls_by_half_a_cosine_if_asked() -> None:
    method = build("dept", cosine_steps=2, **FAST)
    rates = []
    for images in pictures(32).split(8):
        method(images)
        rates.append(method.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.01, 0.005, 0.0, 0.0])


# -- views -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", [image_views.weak_view, image_views.strong_view])
def test_views_are_random_per_image_and_stay_in_range(view: Any) -> None:
    images = pictures(1).expand(6, -1, -1, -1)
    torch.manual_seed(0)
    views = view(images)
    assert views.shape == images.shape
    assert views.min() >= 0 and views.max() <= 1
    assert all((views[0] - other).abs().max() > 1e-3 for other in views[1:])
    assert view(images, (24, 24)).shape == (6, 3, 24, 24)


@pytest.mark.parametrize("view", [image_views.weak_view, image_views.strong_view])
def test_half_precision_makes_no_coarser_views(view: Any) -> None:
    torch.manual_seed(0)
    expected = view(pictures(8))
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(view(pictures(8)), expected)


def test_a_weak_view_is_a_crop_of_seven_eighths_half_of_them_mirrored() -> None:
    """On a ramp from left to right every crop rises, or falls if mirrored, by 7/8."""
    torch.manual_seed(0)
    ramp = ((torch.arange(64) + 0.5) / 64).expand(400, 3, 64, 64).double()
    views = image_views.weak_view(ramp)
    slope = (views[:, 0, 0, 40] - views[:, 0, 0, 20]) / (20 / 64)
    torch.testing.assert_close(slope.abs(), torch.full((400,), 7 / 8).double(), atol=1e-9, rtol=0)
    assert 150 < int((slope < 0).sum()) < 250
    places = views.mean((1, 2, 3))
    assert places.min() < 0.45 and places.max() > 0.55


def test_a_strong_view_keeps_a_fifth_to_all_of_the_area(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[Tensor] = []
    original = image_views.random_crop
    monkeypatch.setattr(
        image_views, "random_crop", lambda *a: shares.append(a[1] * a[2]) or original(*a)
    )
    image_views.strong_view(torch.rand(500, 3, 16, 16))
    # Where a side would be longer than the image's, it is cut, and so is the area.
    assert 0.19 < float(shares[0].min()) < 0.23
    assert 0.85 < float(shares[0].max()) <= 1


def test_blur_is_a_gaussian_and_leaves_the_others() -> None:
    impulse = torch.zeros(2, 3, 33, 33).double()
    impulse[..., 16, 16] = 1
    sigma = torch.tensor([1.0, 2.0]).double()
    line = image_views.blurred(impulse, sigma, 1.0).sum(-2)[:, 0]
    places = torch.arange(-16, 17).double()
    torch.testing.assert_close(line.sum(1), torch.ones(2).double())
    torch.testing.assert_close((line * places**2).sum(1), sigma**2, atol=0.06, rtol=0)
    assert torch.equal(image_views.blurred(impulse, sigma, 0.0), impulse)


def test_grey_images_have_no_colour() -> None:
    views = image_views.grey(torch.rand(2, 3, 4, 4))
    assert torch.equal(views[:, 0], views[:, 1]) and torch.equal(views[:, 1], views[:, 2])


# -- the warm-up -----------------------------------------------------------------------------------


def test_without_warm_up_no_source_data_are_read_and_there_are_no_heads() -> None:
    method = build("dept", **FAST)
    assert method.source_access == "none"
    assert DEPT.warmup_access == "labelled"
    assert len(method.student.heads) == 0


def test_the_warm_up_teaches_prompts_and_heads_before_a_frozen_network() -> None:
    cold, warm = build("dept", **FAST | HEADS), warmed(warmup_epochs=8)
    assert plain(tensors(warm.model)) == plain(tensors(cold.model))
    assert len(warm.student.heads) == 2
    for name, parameter in cold.trainable.items():
        assert torch.equal(warm.trainable[name], parameter) == name.startswith("classifier")
    assert source_error(warm) < source_error(cold)


def test_the_stream_after_a_warm_up_starts_with_an_equal_teacher_and_nothing_else() -> None:
    warm = warmed(warmup_epochs=1)
    assert all(p.requires_grad for p in warm.trainable.values())
    assert plain(tensors(warm.teacher)) == plain(tensors(warm.student))
    assert warm.centre.count_nonzero() == warm.steps == warm.bank.filled == 0
    assert not warm.optimizer.state
    start = snapshot(warm)
    warm(pictures(8))
    warm.reset()
    assert plain(snapshot(warm)) == plain(start)


def warmed(**arguments: Any) -> Any:
    """DePT after a warm-up on the toy benchmark's source set."""
    options = FAST | HEADS | {"dino": None, "warmup_lr": 0.05, "warmup_batch_size": 8} | arguments
    method = DEPT(SourceModel(toy.toy_vit()), DEPT.Hyperparameters(**options))
    cpu = torch.device("cpu")
    images = toy.Toy().source()
    method.start(SourceData(images, labelled=True, seed=0, device=cpu, dtype=torch.float32))
    return method


def source_error(method: Any) -> float:
    """Cross-entropy of the plain source images."""
    images, labels = toy.labelled(2, "toy_vit")
    logits = seen_by(method, torch.from_numpy(images).float() / 255).logits
    return float(nn.functional.cross_entropy(logits, torch.from_numpy(labels)))
