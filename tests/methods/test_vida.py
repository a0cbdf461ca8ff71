"""The invariants of ViDA."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from ctta_bench.authoring.parity import collect, replay_case
from ctta_bench.errors import MethodError
from ctta_bench.method import Method, softmax_entropy
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from ctta_bench.stream import SourceData
from tests.methods import build, changed, make, pictures, plain, snapshot, tensors, toy

VIDA = METHODS.get("vida")
FAST = {"lr": 0.01, "lr_adapters": 0.01, "views": 2}
SMALL = {"rank_high": 4, "views": 2}
DOUBLE = {"dtype": torch.float64, "precision": "float64"}
LAYER = "blocks.1.attn.qkv"  # 24 inputs, 72 outputs
GOLDEN = collect([Path(__file__).parents[1] / "parity"])


def grown(**arguments: Any) -> Method:
    """ViDA whose adapters have left their start, so that all of them matter."""
    method = build("vida", **SMALL | arguments)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in method.adapters.values():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    method.ema_update_teacher(0.0, 0.0)
    return method


def teacher_of(method: Method) -> dict[str, Tensor]:
    return dict(method.teacher.network.named_parameters())


class Alike(VIDA):
    """The uncertainty is given."""

    given = 0.0

    def uncertainty(self, images: Tensor) -> float:
        return self.given


# -- the adapters


@pytest.mark.slow
def test_vit_base_gets_24_layers_of_the_counted_parameters() -> None:
    with torch.device("meta"):
        method = VIDA(SourceModel(timm.create_model("vit_base_patch16_224")))
    assert len(method.adapters) == 4 * 24
    assert sum(p.numel() for p in method.adapters.values()) == 7_133_184
    assert sum(p.numel() for p in method.trainable.values()) == 93_700_840
    assert {name.split(".")[3] for name in method.adapters} == {"qkv", "proj"}


def test_the_start_is_the_source_model_to_the_bit() -> None:
    method, source = build("vida"), build("source")
    assert torch.equal(method(pictures(4)), source(pictures(4)))


def test_downs_start_normal_with_one_over_the_squared_rank_and_ups_at_nought() -> None:
    method = build("vida", rank_high=16)
    downs = torch.cat([p.flatten() for n, p in method.adapters.items() if "high_down" in n])
    assert downs.std().item() == pytest.approx(1 / 256, rel=0.05)
    low = torch.cat([p.flatten() for n, p in method.adapters.items() if "low_down" in n])
    assert low.std().item() == pytest.approx(1.0, rel=0.15)
    assert all(not p.any() for n, p in method.adapters.items() if n.endswith("_up"))


def test_at_the_start_only_the_ups_have_a_gradient() -> None:
    method = build("vida", **SMALL)
    softmax_entropy(method.model(pictures(4))).mean().backward()
    for name, parameter in method.adapters.items():
        assert bool(parameter.grad.any()) == name.endswith("_up")


def test_a_layer_is_the_sum_of_its_branches_weighed() -> None:
    method = grown(**DOUBLE)
    method.scales.low, method.scales.high = 0.7, 1.3
    layer, x = method.model.network.get_submodule(LAYER), pictures(2).double().reshape(-1, 24)
    low = x @ layer.low_down.T @ layer.low_up.T
    high = x @ layer.high_down.T @ layer.high_up.T
    expected = x @ layer.weight.T + layer.bias + 0.7 * low + 1.3 * high
    torch.testing.assert_close(layer(x), expected, atol=1e-12, rtol=0)


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(MethodError, match=r"ViDA does not support toy_cnn: .* attention"):
        build("vida", "toy_cnn")


# -- homeostatic knowledge allotment


@pytest.mark.parametrize(
    ("uncertainty", "low", "high"), [(0.3, 0.7, 1.3), (0.2, 0.8, 1.2), (0.1, 1.1, 0.9), (0, 1, 1)]
)
@pytest.mark.parametrize("faithful", [False, True])
def test_uncertain_batches_weigh_the_high_rank_and_only_faithful_leaves_it_at_one(
    uncertainty: float, low: float, high: float, faithful: bool
) -> None:
    method = build("vida", uncertainty_threshold=0.2, faithful=faithful, **SMALL)
    method.scale_by_uncertainty(uncertainty)
    expected = (low, 1.0) if faithful else (low, high)
    assert (method.scales.low, method.scales.high) == pytest.approx(expected)


def test_student_and_teacher_share_the_scales() -> None:
    method = build("vida", **SMALL)
    for network in (method.model, method.teacher):
        assert network.network.get_submodule(LAYER).scales is method.scales


def test_the_uncertainty_is_a_tenth_of_the_unbiased_variance_over_views() -> None:
    method = grown(views=3, **DOUBLE)
    factors = iter((1.0, 0.8, 0.5))
    method.augment = lambda images, size: images * next(factors)
    images = pictures(4).double()
    with torch.no_grad():
        logits = [method.teacher(images * factor) for factor in (1.0, 0.8, 0.5)]
    mean = sum(logits) / 3
    variance = sum((x - mean) ** 2 for x in logits) / 2
    assert method.uncertainty(images) == pytest.approx(0.1 * float(variance.mean()))


def test_equal_views_are_certain() -> None:
    method = grown()
    method.augment = lambda images, size: images
    assert method.uncertainty(pictures(4)) == pytest.approx(0.0, abs=1e-12)


def test_one_view_has_no_variance_and_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        build("vida", views=1)


@pytest.mark.parametrize("size", [1, 5, 64, 100])
def test_views_are_drawn_one_for_the_whole_batch(size: int) -> None:
    method = build("vida", **SMALL | {"views": 5})
    drawn: list[int] = []

    def augment(images: Tensor, _: Any) -> Tensor:
        drawn.append(len(images))
        return images

    method.augment = augment
    method.uncertainty(pictures(size))
    assert drawn == [size] * 5


def test_views_are_seen_with_the_scales_of_the_batch_before() -> None:
    seen = []

    class Watched(VIDA):
        def uncertainty(self, images: Tensor) -> float:
            seen.append(self.scales.low)
            return 0.1

    method = make(Watched, **SMALL)
    method(pictures(4))
    method(pictures(4))
    assert seen == [1.0, 1.1]


@pytest.mark.parametrize(("faithful", "scale"), [(False, 1.0), (True, 1.1)])
def test_only_faithful_keeps_the_scale_over_a_reset(faithful: bool, scale: float) -> None:
    method = build("vida", faithful=faithful, **SMALL)
    method(pictures(4))
    method.scale_by_uncertainty(0.1)
    method.reset()
    assert method.scales.low == scale
    assert method.scales.high == 1.0


def test_images_that_are_not_finite_leave_the_scales() -> None:
    method = grown()
    method(pictures(4))
    before = method.scales.low
    method(torch.full((4, 3, 16, 16), torch.nan))
    assert method.scales.low == before
    assert method.counters["skipped_updates"] == 1


@pytest.mark.parametrize("name", ["vida_imagenet", "vida_imagenet_high_uncertainty"])
def test_scales_after_every_batch_equal_the_official_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales, scale_by_uncertainty = [], VIDA.scale_by_uncertainty

    def noted(method: Any, uncertainty: float) -> None:
        scale_by_uncertainty(method, uncertainty)
        scales.append((method.scales.low, method.scales.high))

    monkeypatch.setattr(VIDA, "scale_by_uncertainty", noted)
    replayed = replay_case(GOLDEN[name], torch.float64)
    expected = [(after["scale1"], after["scale2"]) for after in replayed.case["per_batch"]]
    assert scales == [pytest.approx(pair, abs=1e-6) for pair in expected]


# -- the update


def test_the_teachers_logits_from_before_the_update_are_scored() -> None:
    method, probe, images = grown(**FAST), grown(**FAST), pictures(8)
    scored = method(images)
    probe.scales.low, probe.scales.high = method.scales.low, method.scales.high
    with torch.no_grad():
        torch.testing.assert_close(scored, probe.teacher(images), atol=1e-6, rtol=0)
        assert (scored - method.teacher(images)).abs().max() > 1e-5


@pytest.mark.parametrize(("loss", "share"), [("symmetric", 0.5), ("cross_entropy", 0.0)])
def test_against_an_equal_teacher_the_gradient_is_a_share_of_tents(loss: str, share: float) -> None:
    method = make(Alike, loss=loss, **SMALL, **DOUBLE)
    logits = method.model(pictures(4).double()).detach().requires_grad_()
    (ours,) = torch.autograd.grad(method.total_loss(logits, logits.detach()), logits)
    (tents,) = torch.autograd.grad(softmax_entropy(logits).mean(), logits)
    torch.testing.assert_close(ours, share * tents, atol=1e-12, rtol=0)


@pytest.mark.parametrize("faithful", [False, True])
def test_only_faithful_lets_adam_step_on_rounding_noise(faithful: bool) -> None:
    """Teacher and student are equal at first, so the cross-entropy has no gradient but noise."""
    method = build("vida", loss="cross_entropy", optimizer="adam", faithful=faithful, **SMALL)
    before = tensors(method.model)
    method(pictures(8))
    assert bool(changed(before, method.model)) == faithful
    assert method.counters["skipped_updates"] == 0


def test_every_parameter_is_in_one_group_of_its_own_rate() -> None:
    method = build("vida", lr=0.3, lr_adapters=0.7, **SMALL)
    groups = {
        id(p): group["lr"] for group in method.optimizer.param_groups for p in group["params"]
    }
    assert len(groups) == len(list(method.model.parameters()))
    for name, parameter in method.model.network.named_parameters():
        assert groups[id(parameter)] == (0.7 if "low_" in name or "high_" in name else 0.3)
    assert {"cls_token", "pos_embed", "head.weight", f"{LAYER}.weight"} <= set(method.weights)


def test_the_teacher_follows_weights_and_adapters_at_their_own_pace() -> None:
    method = grown(teacher_momentum=0.9, adapter_momentum=0.4, **FAST | DOUBLE)
    before = {name: p.clone() for name, p in teacher_of(method).items()}
    method(pictures(8).double())
    for name, parameter in method.trainable.items():
        momentum = 0.4 if name in method.adapters else 0.9
        expected = momentum * before[name] + (1 - momentum) * parameter.detach()
        torch.testing.assert_close(teacher_of(method)[name], expected, atol=1e-14, rtol=0)


def test_learning_rates_of_nought_are_the_source_model() -> None:
    method, source = build("vida", **FAST | {"lr": 0.0, "lr_adapters": 0.0}), build("source")
    before = tensors(method.model)
    for images in pictures(24).split(8):
        torch.testing.assert_close(method(images), source(images), atol=1e-5, rtol=0)
    assert changed(before, method.model) == set()


def test_a_skipped_update_leaves_the_teacher() -> None:
    method = grown(**FAST)
    method(pictures(4))
    before = tensors(method.teacher)
    method(torch.full((4, 3, 16, 16), torch.nan))
    assert changed(before, method.teacher) == set()


def test_restoration_reaches_every_tensor_after_the_teacher_has_followed() -> None:
    # All restored: the student is at its start after each batch, the teacher is not.
    method = grown(restore_probability=1.0, **FAST)
    method.source = [p.detach().clone() for p in method.trainable.values()]
    before, teacher = tensors(method.model), tensors(method.teacher)
    method(pictures(8))
    assert changed(before, method.model) == set()
    moved = changed(teacher, method.teacher)
    assert {"network.cls_token", "network.pos_embed", f"network.{LAYER}.low_up"} <= moved


def test_a_share_of_all_scalars_is_restored() -> None:
    method = build("vida", restore_probability=0.1, **SMALL)
    with torch.no_grad():
        for parameter in method.trainable.values():
            parameter.add_(1.0)
    method.stochastic_restore()
    back = torch.cat(
        [(p == s).flatten() for p, s in zip(method.trainable.values(), method.source, strict=True)]
    )
    deviation = (0.1 * 0.9 / len(back)) ** 0.5
    assert back.double().mean().item() == pytest.approx(0.1, abs=4 * deviation)


def test_without_restoration_no_third_copy_is_kept() -> None:
    bytes_of_one = 4 * sum(p.numel() for p in build("vida").trainable.values())
    # The teacher: all parameters, and mean and deviation of its input.
    assert build("vida").extra_state_bytes == bytes_of_one + 2 * 3 * 4
    assert build("vida", restore_probability=0.1).extra_state_bytes == 2 * bytes_of_one + 24


# -- the warm-up


def labelled_source() -> SourceData:
    cpu = torch.device("cpu")
    return SourceData(toy.Toy().source(), labelled=True, seed=0, device=cpu, dtype=torch.float32)


def test_source_labels_are_read_only_for_a_warm_up() -> None:
    VIDA(SourceModel(toy.toy_vit()))(pictures(4))
    warmed = VIDA(SourceModel(toy.toy_vit()), VIDA.Hyperparameters(warmup_epochs=1))
    with pytest.raises(MethodError, match="reads labelled source data"):
        warmed(pictures(4))


def test_a_warm_up_trains_the_adapters_alone_and_is_what_a_reset_returns_to() -> None:
    options = {"warmup_epochs": 2, "warmup_batch_size": 10, "warmup_lr": 1e-2}
    hyperparameters = VIDA.Hyperparameters(restore_probability=0.1, **options, **FAST)
    method = VIDA(SourceModel(toy.toy_vit()), hyperparameters)
    before = tensors(method.model)
    method.start(labelled_source())
    assert changed(before, method.model) == {f"network.{name}" for name in method.adapters}
    warmed = snapshot(method)
    assert plain(dict(zip(warmed, method.source, strict=True))) == plain(warmed)
    assert plain({n: teacher_of(method)[n].detach() for n in warmed}) == plain(warmed)
    method(pictures(8))
    method.reset()
    assert plain(snapshot(method)) == plain(warmed)
    assert method.passes.forward_images == 4 * 8
