"""The invariants of VDP. Names as in its file: ψ specific, ω agnostic, Λ importance."""

import math
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.method import Method, soft_cross_entropy
from ctta_bench.methods.vdp import recoloured
from ctta_bench.model import SourceModel
from ctta_bench.parts.importance import PathImportance
from ctta_bench.registry import METHODS
from tests.methods import build, changed, make, pictures, plain, snapshot, tensors, toy

VDP = METHODS.get("vdp")
DOUBLE = {"dtype": torch.float64, "precision": "float64"}


def canvas(method: Method, height: int = 16, width: int = 16) -> Tensor:
    """Where the prompts lie: 1 for ψ, 2 for ω, 0 elsewhere."""
    specific = torch.ones_like(method.specific)
    images = specific.new_zeros(1, 3, height, width)
    with torch.no_grad():
        return method.prompt_image(images, specific, 2 * specific)


# -- the prompts


@pytest.mark.parametrize("side", [pytest.param(224, marks=pytest.mark.slow), 384])
def test_vit_base_has_1800_values_at_any_size(side: int) -> None:
    with torch.device("meta"):
        network = timm.create_model(f"vit_base_patch16_{side}")
    network.pretrained_cfg = {"input_size": (3, side, side)}
    method = VDP(SourceModel(network.to_empty(device="cpu")))
    assert sum(p.numel() for p in method.trainable.values()) == 1800


def test_the_first_logits_are_the_source_models_to_the_bit() -> None:
    assert torch.equal(build("vdp")(pictures(4)), build("source")(pictures(4)))


@pytest.mark.parametrize("seed", range(5))
def test_the_two_prompts_share_no_pixel(seed: int) -> None:
    # A third of 16 pixels is 5: three patches of 25 pixels each, on three channels.
    places = canvas(build("vdp", seed=seed))
    assert [int((places == value).sum()) for value in (1, 2)] == [225, 225]
    assert int((places == 0).sum()) == 3 * 16 * 16 - 450


def test_a_prompt_is_made_of_square_patches() -> None:
    places = canvas(build("vdp", patch_size=3), 32, 48)[0] > 0
    # Six times three rows of three pixels: 18 runs of length 3, or 6, 9 ... of neighbours.
    assert int(places.sum()) == 6 * 9
    whole = torch.nn.functional.avg_pool2d(places[None, None].double(), 3, 3)
    assert whole.unique().tolist() == [0.0, 1.0]


def test_places_are_drawn_once_and_differ_between_seeds() -> None:
    method = build("vdp", patch_size=2)
    before = canvas(method)
    method(pictures(4))
    assert torch.equal(canvas(method), before)
    assert torch.equal(canvas(build("vdp", patch_size=2)), before)
    assert not torch.equal(canvas(build("vdp", patch_size=2, seed=1)), before)


@pytest.mark.parametrize("patch_size", [9, 6])
def test_patches_that_do_not_fit_are_refused_at_construction(patch_size: int) -> None:
    with pytest.raises(MethodError, match=r"no room for 6 patches .* set a smaller patch_size"):
        build("vdp", patch_size=patch_size)


def test_images_are_resized_before_they_are_prompted() -> None:
    method = build("vdp")
    with torch.no_grad():
        method.specific.fill_(0.5)
        large = torch.nn.functional.interpolate(pictures(4), size=40, mode="bilinear")
        small = torch.nn.functional.interpolate(large, size=16, mode="bilinear")
        expected = method.model(small + 0.5 * (canvas(method) == 1))
    torch.testing.assert_close(method(large), expected, atol=1e-6, rtol=0)


def test_the_gradient_of_a_prompt_is_the_images_own_at_its_pixels_summed_over_the_batch() -> None:
    method, images = build("vdp", **DOUBLE), pictures(4).double()
    target = torch.randn(4, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    prompted = images + method.prompt_image(images, method.specific, method.agnostic)
    prompted.retain_grad()
    soft_cross_entropy(method.model(prompted), target).mean().backward()
    summed = prompted.grad.sum(0)
    for value, prompt in ((1, method.specific), (2, method.agnostic)):
        assert prompt.grad.abs().max() > 0
        theirs = summed[canvas(method) == value].sort().values
        torch.testing.assert_close(prompt.grad.flatten().sort().values, theirs)


def test_the_network_stays_and_gathers_no_gradient() -> None:
    method = build("vdp", lr=0.1)
    before, start = tensors(method.model), snapshot(method)
    for images in pictures(24).split(8):
        method(images)
    assert changed(before, method.model) == set()
    assert all(p.grad is None for p in method.model.parameters())
    assert all(not torch.equal(start[name], p) for name, p in method.trainable.items())


# -- the teacher


def test_the_teachers_image_keeps_every_pixel_in_its_place() -> None:
    images = torch.zeros(8, 3, 32, 32)
    images[:, :, 16, 16] = 1.0
    for _ in range(20):
        brightest = recoloured(images).mean((0, 1)).flatten().argmax()
        assert int(brightest) == 16 * 32 + 16


def test_the_teachers_image_has_the_same_size_and_range() -> None:
    view = recoloured(pictures(4).double())
    assert view.shape == (4, 3, 16, 16)
    assert view.dtype == torch.float64
    assert 0 <= view.min() <= view.max() <= 1


def test_after_one_step_the_teacher_is_its_share_of_the_student() -> None:
    method = build("vdp", teacher_momentum=0.9, **DOUBLE)
    method(pictures(8).double())
    for teacher, student in zip(method.teacher, method.trainable.values(), strict=True):
        assert student.abs().max() > 0
        torch.testing.assert_close(teacher, 0.1 * student.detach(), atol=1e-15, rtol=0)


def test_a_skipped_update_leaves_teacher_and_importance() -> None:
    method = build("vdp", lr=0.1)
    method(pictures(4))
    before = plain([method.teacher, method.importance.work, method.usual])
    method(torch.full((4, 3, 16, 16), torch.nan))
    assert plain([method.teacher, method.importance.work, method.usual]) == before
    assert method.counters["skipped_updates"] == 1


def test_an_update_follows_the_formulas() -> None:
    """Cross-entropy for both prompts, and the hold on ω alone; w gathers -g δ of the first."""

    class Still(VDP):
        """Notes the teacher's target."""

        def update(self, loss: Tensor) -> None:
            self.ce = torch.autograd.grad(loss, [self.specific, self.agnostic], retain_graph=True)
            super().update(loss)

    options: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.0, "lr": 0.5, "homeostasis": 0.3}
    method = make(Still, **options, **DOUBLE)
    method.importance.importance += 2.0
    method.importance.anchor += 0.1
    method(pictures(8).double())
    specific, agnostic = method.ce
    torch.testing.assert_close(method.specific.detach(), -0.5 * specific)
    # 2 λ Λ (ω - ω*) = 2 · 0.3 · 2 · (0 - 0.1)
    moved = -0.5 * (agnostic - 0.12)
    torch.testing.assert_close(method.agnostic.detach(), moved)
    torch.testing.assert_close(method.importance.work, -agnostic * moved)


# -- importance and domains


def test_the_work_along_a_path_is_the_decrease_of_the_loss() -> None:
    """On ½ Σ h x², which falls from ½ Σ h to 0."""
    stiffness = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    x = torch.ones(3, dtype=torch.float64)
    path = PathImportance(x, damping=1e-3)
    for _ in range(4000):
        gradient = stiffness * x
        path.accumulate(gradient, -0.002 * gradient)
        x = x - 0.002 * gradient
    torch.testing.assert_close(path.work, stiffness / 2, rtol=1e-2, atol=0)
    path.close_domain(x)
    # The whole way has length 1.
    torch.testing.assert_close(path.importance, stiffness / 2 / 1.001, rtol=1e-2, atol=0)
    torch.testing.assert_close(path.anchor, x)
    assert not path.work.any()


def test_importance_is_never_negative() -> None:
    path = PathImportance(torch.zeros(2), damping=1.0)
    path.accumulate(torch.tensor([1.0, -1.0]), torch.tensor([1.0, 1.0]))
    path.close_domain(torch.tensor([1.0, 1.0]))
    assert path.importance.tolist() == [0.0, 0.5]  # -1 and 1 over 1² + 1


def test_in_the_first_domain_nothing_is_held() -> None:
    free, held = build("vdp", homeostasis=0.0), build("vdp", homeostasis=1e6)
    for images in pictures(12).split(4):
        assert torch.equal(free(images), held(images))


def test_a_strong_hold_keeps_the_agnostic_prompt_after_a_switch() -> None:
    moved = {}
    for strength in (0.0, 1e4):
        method = build("vdp", homeostasis=strength, lr=1e-3)
        method(pictures(8))
        method.importance.close_domain(method.agnostic)
        method.importance.importance += 1.0
        for images in pictures(160, seed=1).split(8):
            method(images)
        moved[strength] = float((method.agnostic - method.importance.anchor).detach().norm())
    assert moved[1e4] < 0.2 * moved[0.0]


def confident(value: float) -> Tensor:
    """Logits of ten classes whose largest probability is `value`."""
    logits = torch.zeros(4, 10)
    logits[:, 0] = math.log(9 * value / (1 - value))
    return logits


@pytest.mark.parametrize(
    ("confidences", "seen"),
    [
        ([0.6] * 5 + [0.75], 1),  # a jump above S
        ([0.6] * 5 + [0.45], 1),  # downwards
        ([0.6] * 5 + [0.69], 6),  # below S
        ([0.6] * 4 + [0.9], 5),  # too early to tell
        ([0.6, 0.65, 0.55, 0.62, 0.58, 0.64, 0.56], 7),  # noise
        ([0.6] * 5 + [0.9] * 3, 3),
    ],
)
def test_a_domain_ends_with_a_jump_of_the_confidence(confidences: list[float], seen: int) -> None:
    method = build("vdp")
    for value in confidences:
        method.notice_domain(confident(value))
    assert method.seen == seen


def test_a_switch_sets_the_anchor_and_keeps_the_specific_prompt() -> None:
    method = build("vdp", lr=0.01)
    method(pictures(8))
    specific, agnostic = method.specific.detach().clone(), method.agnostic.detach().clone()
    method.seen, method.usual = 5, 0.2
    method.notice_domain(confident(0.9))
    assert torch.equal(method.importance.anchor, agnostic)
    assert torch.equal(method.specific, specific)


def test_a_resume_after_a_switch_ends_with_the_same_bits() -> None:
    batches = pictures(96, seed=2).split(8)
    whole, first, second = (build("vdp", lr=0.05, switch_threshold=0.0) for _ in range(3))
    expected = [whole(images) for images in batches]
    assert whole.importance.importance.any()
    for images in batches[:7]:
        first(images)
    second.load_state_dict(first.state_dict())
    assert [torch.equal(second(x), y) for x, y in zip(batches[7:], expected[7:], strict=True)] == [
        True
    ] * 5


def test_a_reset_clears_prompts_teacher_and_importance() -> None:
    method = build("vdp", lr=0.05, switch_threshold=0.0)
    for images in pictures(64).split(8):
        method(images)
    method.reset()
    kept = [*method.trainable.values(), *method.teacher]
    kept += [method.importance.importance, method.importance.work, method.importance.anchor]
    assert not any(tensor.any() for tensor in kept)
    assert method.seen == 0
    assert method.optimizer.state_dict()["state"] == {}


def test_a_network_of_any_kind_is_served() -> None:
    method = build("vdp", "toy_cnn", patch_size=4)
    assert method(pictures(4)).shape == (4, toy.CLASSES)
