"""The invariants of EcoTTA. Names as in its file: a scale, b shift, c gate, W linear."""

import copy
import math
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.method import Method, softmax_entropy
from ctta_bench.model import SourceModel
from ctta_bench.registry import METHODS
from ctta_bench.stream import SourceData
from tests.methods import build, changed, pictures, plain, snapshot, tensors, toy

ECOTTA = METHODS.get("ecotta")
OPEN = {"lr": 0.05, "margin": 1.1}  # every image is below the margin
DOUBLE = {"dtype": torch.float64, "precision": "float64"}


def opened(**arguments: Any) -> Method:
    """EcoTTA whose gates are open, so that all meta tensors matter."""
    method = build("ecotta", **OPEN | arguments)
    with torch.no_grad():
        for name, parameter in method.trainable.items():
            parameter.add_(0.3 if name.endswith("gate") else 0.0)
    return method


def part_of(name: str) -> str:
    return name.partition(".")[0]


def gradients(method: Method, loss: Tensor) -> dict[str, Tensor]:
    found = torch.autograd.grad(loss, list(method.trainable.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g
        for (name, p), g in zip(method.trainable.items(), found, strict=True)
    }


# -- the meta parts


@pytest.mark.parametrize(("parts", "count"), [(4, 2_374_656), (5, 2_968_320), (6, 3_561_984)])
def test_vit_base_has_the_counted_parameters(parts: int, count: int) -> None:
    with torch.device("meta"):
        model = SourceModel(timm.create_model("vit_base_patch16_224"))
        method = ECOTTA(model, ECOTTA.Hyperparameters(parts=parts))
    assert sum(p.numel() for p in method.trainable.values()) == count
    assert len(method.parts) == parts


@pytest.mark.parametrize("parts", [1, 3, 4, 6])
def test_without_warm_up_the_start_is_the_source_to_the_bit(parts: int) -> None:
    method, source = build("ecotta", parts=parts), build("source")
    with method.measuring(), torch.no_grad():
        assert torch.equal(method.model(pictures(4)), source(pictures(4)))
    assert method.distance() == 0


def test_a_part_is_the_papers_formula() -> None:
    method = opened(parts=2, **DOUBLE)
    images, blocks = pictures(4).double(), method.model.blocks
    seen: list[Tensor] = []
    hook = blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        got = method.model(images)
    hook.remove()

    x, network = seen[0], toy.toy_vit().double().eval()
    for number, run in enumerate((network.blocks[:2], network.blocks[2:])):
        own = {
            n.split(".", 2)[2]: p for n, p in method.trainable.items() if part_of(n) == str(number)
        }
        branch = nn.functional.layer_norm(
            x @ own["linear.weight"].T, (24,), own["norm.weight"], own["norm.bias"]
        )
        x = own["scale"] * run(x) + own["shift"] + own["gate"] * branch.relu()
    expected = network.forward_head(network.norm(x))
    torch.testing.assert_close(got, expected.detach(), atol=1e-10, rtol=0)


def test_a_closed_gate_opens_and_a_norm_of_nought_in_its_place_never_would() -> None:
    method = build("ecotta", **OPEN)
    closed = build("ecotta", **OPEN)
    with torch.no_grad():
        for name in ("gate", "norm.weight", "norm.bias"):
            closed.trainable[f"0.meta.{name}"].fill_(1.0 if name == "gate" else 0.0)
    start = {m: snapshot(m) for m in (method, closed)}
    for images in pictures(24).split(8):
        method(images)
        closed(images)
    weight = "0.meta.linear.weight"
    assert not torch.equal(method.trainable[weight], start[method][weight])
    assert torch.equal(closed.trainable[weight], start[closed][weight])


@pytest.mark.parametrize("steps", ["joint", "two"])
def test_the_frozen_encoder_stays_to_the_bit(steps: str) -> None:
    method = opened(steps=steps)
    before, start = tensors(method.model), snapshot(method)
    for images in pictures(24).split(8):
        method(images)
    assert changed(before, method.model) == set()
    moved = {name for name in start if not torch.equal(start[name], method.trainable[name])}
    assert moved == set(start)


# -- the losses


def test_the_distance_moves_its_own_part_alone_in_both_forms() -> None:
    method, images = opened(parts=4, **DOUBLE), pictures(4).double()
    found = []
    for grad in (True, False):
        with method.measuring(), torch.set_grad_enabled(grad):
            method.model(images)
        distances = [part.distance for part in method.parts]
        found.append([gradients(method, d) for d in distances])
        for number, by_name in enumerate(found[-1]):
            touched = {part_of(n) for n, g in by_name.items() if g.abs().max() > 0}
            assert touched == {str(number)}
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=0)


def test_the_distance_is_a_mean_of_absolute_differences() -> None:
    method = build("ecotta", parts=1, regularizer=2.0)
    with torch.no_grad():
        method.trainable["0.meta.shift"].copy_(torch.arange(24) - 12.0)
    with method.measuring(), torch.no_grad():
        method.model(pictures(4))
    # |-12| + ... + |11| = 144 over 24 features, the same for each token.
    assert method.distance().item() == pytest.approx(2.0 * 144 / 24, rel=1e-5)


def test_one_step_follows_entropy_and_distances() -> None:
    method = opened(momentum=0.0, lr=0.1, margin=0.8, regularizer=0.3, **DOUBLE)
    images, start, limit = pictures(16).double(), snapshot(method), 0.8 * math.log(10)
    with method.measuring():
        logits = method.model(images)
    entropy = softmax_entropy(logits)
    assert 0 < (entropy < limit).sum() < 16
    expected = gradients(method, entropy[entropy < limit].mean() + method.distance())
    torch.testing.assert_close(method(images), logits.detach(), atol=1e-12, rtol=0)
    for name, parameter in method.trainable.items():
        step = start[name] - 0.1 * expected[name]
        torch.testing.assert_close(parameter.detach(), step, atol=1e-12, rtol=0)


def test_two_steps_score_the_model_between_them() -> None:
    method, images = opened(steps="two", momentum=0.0), pictures(8)
    between = copy.deepcopy(method)
    with between.measuring(), torch.no_grad():
        before = between.model(images)
    between.update(between.distance())
    with torch.no_grad():
        expected = between.model(images)
    scored = method(images)
    torch.testing.assert_close(scored, expected, atol=1e-6, rtol=0)
    assert (scored - before).abs().max() > 1e-3
    with torch.no_grad():
        assert (scored - method.model(images)).abs().max() > 1e-3


def test_two_steps_share_one_momentum() -> None:
    """With λ = 0 the first step has no gradient of its own and goes on with the momentum."""
    method = opened(steps="two", regularizer=0.0, **DOUBLE)
    start = snapshot(method)
    method(pictures(8).double())
    first = {n: p.detach() - start[n] for n, p in method.trainable.items()}
    middle, method.margin = snapshot(method), 0.0  # nothing is selected any more
    method(pictures(8, seed=1).double())
    for name, parameter in method.trainable.items():
        expected = middle[name] + 0.9 * first[name]
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-12, rtol=0)


def test_two_steps_count_two_passes_each_way() -> None:
    method = opened(steps="two")
    method(pictures(8))
    assert (method.passes.forward_images, method.passes.backward_images) == (16, 16)


def test_half_precision_scores_with_the_weights_after_the_first_step() -> None:
    """Autocast keeps the cast weights, but the second pass must not see those from before."""
    method, images = opened(steps="two", precision="bfloat16", regularizer=50.0), pictures(8)
    between = copy.deepcopy(method)
    with torch.autocast("cpu", dtype=torch.bfloat16), between.measuring():
        between.model(images)
    between.update(between.distance())
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        expected = between.model(images)
    assert torch.equal(method(images), expected.float())


@pytest.mark.parametrize("faithful", [False, True])
def test_an_empty_selection_moves_only_the_momentum_of_faithful(faithful: bool) -> None:
    method = opened(faithful=faithful, regularizer=0.0, **DOUBLE)
    start = snapshot(method)
    method(pictures(8).double())
    step = {name: p.detach() - start[name] for name, p in method.trainable.items()}
    middle, method.margin = snapshot(method), 0.0
    method(pictures(8, seed=1).double())
    for name, parameter in method.trainable.items():
        expected = middle[name] + 0.9 * faithful * step[name]
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-12, rtol=0)
    assert method.counters["skipped_updates"] == (not faithful)


def test_gradients_kept_out_of_frozen_blocks_travel_along_the_meta_parts() -> None:
    """Against a graph written out by hand, whose frozen blocks get detached inputs."""
    method, images = opened(parts=2, grad_through_frozen=False, **DOUBLE), pictures(4).double()
    loss = softmax_entropy(method.model(images)).mean()
    network, metas = toy.toy_vit().double().eval(), [part.meta for part in method.parts]
    with torch.no_grad():
        x = network._pos_embed(network.patch_embed((images - 0.5) / 0.5))
    for run, meta in zip((network.blocks[:2], network.blocks[2:]), metas, strict=True):
        x = meta(run(x.detach()), x)
    by_hand = softmax_entropy(network.forward_head(network.norm(x))).mean()
    got, expected = gradients(method, loss), gradients(method, by_hand)
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    whole = opened(parts=2, **DOUBLE)
    other = gradients(whole, softmax_entropy(whole.model(images)).mean())
    assert (got["0.meta.shift"] - other["0.meta.shift"]).abs().max() > 1e-3


# -- convolutional networks


class Stages(nn.Module):
    """Two convolutional stages and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.two = nn.Sequential(nn.Conv2d(8, 12, 3, 1, 1), nn.BatchNorm2d(12), nn.ReLU())
        self.head = nn.Linear(12, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.two(self.one(images)).mean((2, 3)))


def test_a_stage_gets_a_convolution_of_its_stride_and_widths() -> None:
    method = ECOTTA(SourceModel(Stages()))
    convolutions = [part.meta.conv for part in method.parts]
    assert [tuple(c.weight.shape) for c in convolutions] == [(8, 3, 3, 3), (12, 8, 3, 3)]
    assert [c.stride for c in convolutions] == [(2, 2), (1, 1)]
    assert method.batch_dependent
    # 9 weights a pair of channels, and two affine norms of two values a channel.
    assert sum(p.numel() for p in method.trainable.values()) == 9 * (24 + 96) + 4 * (8 + 12)


@pytest.mark.parametrize("faithful", [False, True])
def test_only_faithful_moves_stored_statistics(faithful: bool) -> None:
    method = ECOTTA(SourceModel(Stages()), ECOTTA.Hyperparameters(faithful=faithful, **OPEN))
    before = tensors(method.model)
    method(pictures(8))
    assert bool(changed(before, method.model)) == faithful
    assert ("running_mean" in " ".join(method.parts.state_dict())) == faithful


def test_the_stages_of_a_resnet_are_its_parts() -> None:
    network = timm.create_model("resnet10t", pretrained=False, num_classes=10)
    method = ECOTTA(SourceModel(network), ECOTTA.Hyperparameters(**OPEN))
    assert len(method.parts) == 4
    assert method(pictures(4)).shape == (4, 10)


def test_a_network_without_blocks_or_stages_is_refused() -> None:
    with pytest.raises(MethodError, match="EcoTTA does not support toy_cnn"):
        build("ecotta", "toy_cnn")


# -- the warm-up


def labelled_source() -> SourceData:
    cpu = torch.device("cpu")
    return SourceData(toy.Toy().source(), labelled=True, seed=0, device=cpu, dtype=torch.float32)


def test_source_labels_are_read_only_for_a_warm_up() -> None:
    method = ECOTTA(SourceModel(toy.toy_vit()))
    method(pictures(4))
    warmed = ECOTTA(SourceModel(toy.toy_vit()), ECOTTA.Hyperparameters(warmup_epochs=1))
    with pytest.raises(MethodError, match="reads labelled source data"):
        warmed(pictures(4))


def test_a_warm_up_trains_the_meta_parts_and_a_reset_returns_to_its_end() -> None:
    options = {"warmup_epochs": 2, "warmup_batch_size": 10, "warmup_lr": 1e-2}
    method = ECOTTA(SourceModel(toy.toy_vit()), ECOTTA.Hyperparameters(**options, **OPEN))
    gates = [p.detach() for name, p in method.trainable.items() if name.endswith("gate")]
    torch.testing.assert_close(torch.stack(gates), torch.full((4, 24), 0.01))
    start, before = snapshot(method), tensors(method.model)
    method.start(labelled_source())
    warmed = snapshot(method)
    assert all(not torch.equal(start[name], warmed[name]) for name in start)
    assert changed(before, method.model) == set()
    assert method.passes.forward_images == 0
    method(pictures(8))
    assert plain(snapshot(method)) != plain(warmed)
    method.reset()
    assert plain(snapshot(method)) == plain(warmed)
    assert method.optimizer.state_dict()["state"] == {}
