"""CoTTA. θ is the student, θ' the teacher, θ0 the source; α and p as in its file."""

import math
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.method import soft_cross_entropy, softmax_entropy
from ctta_bench.methods import cotta as module
from ctta_bench.model import SourceModel
from ctta_bench.parts.views import passes
from ctta_bench.registry import METHODS
from tests.methods import build, changed, pictures, plain, snapshot, tensors

CoTTA = METHODS.get("cotta")
SGD = {"optimizer": "sgd", "lr": 0.01, "momentum": 0.0}
DOUBLE = {"dtype": torch.float64, "precision": "float64"}
NEVER, ALWAYS = {"confidence_threshold": 0.0}, {"confidence_threshold": 2.0}
# Half of TENT on the first batch: a gradient without a view.
MOVING = {"loss": "symmetric", **NEVER, **SGD}


def darker(images: Tensor, size: Any = None) -> Tensor:
    return images * 0.7


# -- what learns -----------------------------------------------------------------------------------


def test_vit_base_adapts_all_but_class_token_and_position_table() -> None:
    with torch.device("meta"):
        method = CoTTA(SourceModel(timm.create_model("vit_base_patch16_224")))
    assert len(method.trainable) == 150
    assert sum(p.numel() for p in method.trainable.values()) == 86_415_592
    frozen = {n for n, _ in method.model.network.named_parameters()} - set(method.trainable)
    assert frozen == {"cls_token", "pos_embed"}


def test_every_weight_and_bias_moves_and_nothing_else() -> None:
    method = build("cotta", restore_probability=0.0, views=2, **ALWAYS, **SGD)
    before = tensors(method.model)
    for images in pictures(24).split(8):
        method(images)
    moved = changed(before, method.model)
    assert not any("token" in name or "pos_embed" in name for name in moved)
    assert len(moved) == len(method.trainable) == len(list(method.model.parameters())) - 2


def test_a_network_without_norm_layers_is_served() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(768, 10))
    method = CoTTA(SourceModel(network), CoTTA.Hyperparameters(views=2, **ALWAYS))
    start = snapshot(method)
    assert bool(method(pictures(8)).isfinite().all())
    assert plain(snapshot(method)) != plain(start)


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(10))

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)).repeat(1, 4)[:, :10] * self.scale


def test_a_network_without_weights_and_biases_is_refused() -> None:
    with pytest.raises(MethodError, match="CoTTA finds nothing to adapt in bare"):
        CoTTA(SourceModel(Bare(), name="bare"))


# -- the loss --------------------------------------------------------------------------------------


def gradient(loss: str, logits: Tensor, target: Tensor) -> Tensor:
    logits = logits.clone().requires_grad_()
    (found,) = torch.autograd.grad(build("cotta", loss=loss).total_loss(logits, target), logits)
    return found


def test_the_gradient_of_the_cross_entropy_is_the_difference_of_the_probabilities() -> None:
    logits, target = torch.randn(2, 6, 10, generator=torch.Generator().manual_seed(0)).double()
    expected = (logits.softmax(1) - target.softmax(1)) / 6
    torch.testing.assert_close(gradient("cross_entropy", logits, target), expected)


def test_for_equal_logits_the_symmetric_loss_is_half_of_tent() -> None:
    logits = torch.randn(6, 10, generator=torch.Generator().manual_seed(0)).double()
    p, entropy = logits.softmax(1), softmax_entropy(logits).unsqueeze(1)
    expected = -0.5 * p * (p.log() + entropy) / 6
    torch.testing.assert_close(gradient("symmetric", logits, logits), expected)


def test_the_soft_cross_entropy_is_that_of_the_two_softmaxes() -> None:
    third = torch.tensor([[math.log(3.0), 0.0]])
    uniform = torch.zeros(1, 2)
    # p = (3/4, 1/4), q = (1/2, 1/2).
    expected = -0.5 * (math.log(0.75) + math.log(0.25))
    assert soft_cross_entropy(third, uniform).item() == pytest.approx(expected)
    assert soft_cross_entropy(uniform, third).item() == pytest.approx(math.log(2))
    assert soft_cross_entropy(third.bfloat16(), uniform.bfloat16()).dtype == torch.float32


def test_without_views_the_first_batch_has_no_gradient_and_takes_no_step() -> None:
    ours = build("cotta", lr=0.01, restore_probability=0.0, **NEVER)
    start = snapshot(ours)
    ours(pictures(8))
    assert plain(snapshot(ours)) == plain(start)
    assert ours.counters["skipped_updates"] == 0


def test_only_faithful_lets_adam_step_on_rounding_noise() -> None:
    arguments = {"lr": 0.01, "restore_probability": 0.0, **NEVER, "views": 1}
    official = build("cotta", faithful=True, **arguments)
    start = snapshot(official)
    official(pictures(8))
    moves = [float((p.detach() - start[n]).abs().max()) for n, p in official.trainable.items()]
    assert max(moves) > 0.1 * 0.01


# -- teacher and restoration -----------------------------------------------------------------------


def test_teacher_anchor_and_student_start_as_the_source() -> None:
    method = build("cotta")
    source = tensors(method.model)
    assert plain(tensors(method.teacher)) == plain(tensors(method.anchor)) == plain(source)
    assert not any(p.requires_grad for p in method.teacher.parameters())


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_the_teacher_averages_the_student_before_it_is_restored(probability: float) -> None:
    stepped = build("cotta", restore_probability=0.0, **MOVING, **DOUBLE)
    method = build(
        "cotta", restore_probability=probability, teacher_momentum=0.9, **MOVING, **DOUBLE
    )
    source = snapshot(method)
    stepped(pictures(8).double())
    method(pictures(8).double())
    teacher = dict(method.teacher.network.named_parameters())
    for name, student in stepped.trainable.items():
        expected = 0.9 * source[name] + 0.1 * student.detach()
        torch.testing.assert_close(teacher[name], expected, atol=1e-12, rtol=0)


def test_a_restoration_of_all_leaves_the_source_and_the_moments() -> None:
    restored = build("cotta", restore_probability=1.0, views=2, lr=0.01, **ALWAYS)
    stepped = build("cotta", restore_probability=0.0, views=2, lr=0.01, **ALWAYS)
    source = snapshot(restored)
    for method in (restored, stepped):
        method(pictures(8))
    assert plain(snapshot(restored)) == plain(source) != plain(snapshot(stepped))
    states = [plain(m.optimizer.state_dict()["state"]) for m in (restored, stepped)]
    assert states[0] == states[1] != {}


@pytest.mark.parametrize("probability", [0.01, 0.3])
def test_a_restoration_takes_its_share_of_scalars_and_leaves_the_rest(probability: float) -> None:
    method = build("cotta", restore_probability=probability)
    source = snapshot(method)
    with torch.no_grad():
        for parameter in method.trainable.values():
            parameter += 1
    before = snapshot(method)
    method.stochastic_restore()
    count = restored = 0
    for name, parameter in method.trainable.items():
        back, kept = parameter == source[name], parameter == before[name]
        assert bool((back ^ kept).all())
        count, restored = count + back.numel(), restored + int(back.sum())
    deviation = math.sqrt(count * probability * (1 - probability))
    assert abs(restored - count * probability) < 4 * deviation


def test_a_batch_that_is_not_finite_moves_neither_student_nor_teacher() -> None:
    method = build("cotta", restore_probability=0.5, **MOVING)
    method(pictures(8))
    student, teacher = tensors(method.model), tensors(method.teacher)
    method(torch.full((4, 3, 16, 16), torch.nan))
    assert changed(student, method.model) == changed(teacher, method.teacher) == set()
    assert method.counters["skipped_updates"] == 1


def streamed(seed: int, network: str) -> list[Any]:
    method = build("cotta", network, seed=seed, views=2, lr=0.01, **ALWAYS)
    return [method(images).tolist() for images in pictures(24).split(8)]


@pytest.mark.parametrize("network", ["toy_vit", "toy_cnn"])
def test_one_seed_gives_the_same_bits_and_another_gives_others(network: str) -> None:
    assert streamed(0, network) == streamed(0, network) != streamed(1, network)


def test_on_batchnorm_all_three_networks_use_the_batch_and_keep_no_statistics() -> None:
    method = build("cotta", "toy_cnn", views=2, lr=0.01, **ALWAYS)
    for images in pictures(80).split(8):
        method(images)
    for copy in (method.model, method.teacher, method.anchor):
        assert [name for name, _ in copy.network.named_buffers()] == []
        with torch.no_grad():
            alone = torch.cat([copy(image) for image in pictures(4).split(1)])
            assert (copy(pictures(4)) - alone).abs().max() > 0.01


# -- views and what is scored ----------------------------------------------------------------------


def test_without_views_the_teacher_from_before_the_update_is_scored() -> None:
    method = build("cotta", teacher_momentum=0.5, **MOVING)
    for images in pictures(24).split(8):
        with torch.no_grad():
            before = method.teacher(images)
        assert torch.equal(method(images), before)
        with torch.no_grad():
            assert (method.teacher(images) - before).abs().max() > 1e-4


@pytest.mark.parametrize("network", ["toy_vit", "toy_cnn"])
def test_with_views_the_mean_of_their_logits_is_scored(network: str) -> None:
    method = build("cotta", network, views=3, lr=0.01, **ALWAYS)
    shades = iter((0.9, 0.7, 0.5))
    method.augment = lambda images, size: images * next(shades)
    images = pictures(8)
    with torch.no_grad():
        expected = sum(method.teacher(images * shade) for shade in (0.9, 0.7, 0.5)) / 3
    torch.testing.assert_close(method(images), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("together", [1, 6, 64])
def test_views_that_pass_together_give_the_same_mean(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "IMAGES_PER_PASS", together)
    method = build("cotta", views=5, **DOUBLE)
    shades = iter((0.9, 0.8, 0.7, 0.6, 0.5))
    method.augment = lambda images, size: images * next(shades)
    images = pictures(2).double()
    with torch.no_grad():
        expected = sum(method.teacher(images * s) for s in (0.9, 0.8, 0.7, 0.6, 0.5)) / 5
    torch.testing.assert_close(method.average_over_views(images), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "forward"),
    [
        (NEVER, 3),
        (ALWAYS, 2 + 4),
        ({**NEVER, "faithful": True}, 3 + 4),
        ({**ALWAYS, "faithful": True}, 3 + 4),
        ({**NEVER, "faithful": True, "loss": "symmetric"}, 3),
        ({**ALWAYS, "faithful": True, "loss": "symmetric"}, 3 + 4),
    ],
)
def test_only_faithful_makes_passes_that_are_not_used(
    arguments: dict[str, Any], forward: int
) -> None:
    method = build("cotta", views=4, **arguments)
    method(pictures(5))
    assert method.passes.forward_images == 5 * forward
    assert method.passes.backward_images == 5


@pytest.mark.parametrize("loss", ["cross_entropy", "symmetric"])
def test_leaving_out_unused_passes_changes_no_logits(loss: str) -> None:
    source = build("source")
    confidences = [source(i).softmax(1).amax(1).mean().item() for i in pictures(48).split(8)]
    middle = sorted(confidences)[3]
    methods = [
        build("cotta", loss=loss, views=2, confidence_threshold=middle, faithful=f, **SGD)
        for f in (True, False)
    ]
    for method in methods:
        method.augment = darker
    for images in pictures(48).split(8):
        official, ours = (method(images) for method in methods)
        torch.testing.assert_close(ours, official, atol=1e-5, rtol=0)


def test_the_whole_batchs_mean_confidence_decides_strictly() -> None:
    images = pictures(8)
    with torch.no_grad():
        confidence = build("cotta").anchor(images).softmax(1).amax(1).mean().item()
    for threshold, seen in ((confidence, 3), (math.nextafter(confidence + 1e-6, 2), 2 + 4)):
        method = build("cotta", views=4, confidence_threshold=threshold)
        method(images)
        assert method.passes.forward_images == 8 * seen


def test_views_are_made_at_the_networks_input_size() -> None:
    method = build("cotta", views=1, **ALWAYS)
    sizes = []
    method.augment = lambda images, size: sizes.append(size) or images
    method(pictures(2)[..., :8, :8])
    assert sizes == [(16, 16)]


def test_the_threshold_for_a_model_is_a_quantile_of_its_confidence_on_source_images() -> None:
    model = build("source").model
    with torch.no_grad():
        confidence = model(pictures(41)).softmax(1).amax(1).sort().values
    # Of 41 values the third smallest has two below and 38 above: 2 / 40 = 5 %.
    expected = float(confidence[2]) - 0.05
    found = module.calibrated_threshold(model, pictures(41).split(10))
    assert found == pytest.approx(expected, abs=1e-6)


def test_window_mode_scores_the_teacher() -> None:
    method = build("cotta", window=4, **MOVING)
    for image in pictures(6).split(1):
        with torch.no_grad():
            expected = method.teacher(image)
        torch.testing.assert_close(method(image), expected, atol=1e-5, rtol=0)
