"""The invariants of DoRA as a control of PAID. m magnitude, V the weight before normalisation."""

import copy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.parts.adapters.injection import merge
from ctta_bench.registry import METHODS
from tests.methods import build, pictures, snapshot, source_images, toy

DORA = METHODS.get("dora")
DOUBLE = {"dtype": torch.float64, "precision": "float64"}
LAYER = "blocks.1.mlp.fc1"  # 24 inputs, 96 neurons


def adapted(**arguments: Any) -> Method:
    method = build("dora", **{"lr": 0.01} | arguments)
    for images in pictures(24).split(8):
        method(images.to(method.model.mean.dtype))
    return method


def parts(method: Method) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W, A, B and m of one layer."""
    weight = method.model.network.get_submodule(LAYER).weight.detach()
    names = ("down", "up", "magnitude")
    a, b, m = (method.trainable[f"{LAYER}.{name}"].detach() for name in names)
    return weight, a, b, m


def effective(method: Method) -> Tensor:
    return method.model.network.get_submodule(LAYER).effective_weight().detach()


def test_the_start_is_the_source_model_to_the_bit() -> None:
    assert torch.equal(build("dora")(pictures(8)), build("source")(pictures(8)))


def test_the_weight_is_the_magnitude_times_the_unit_rows_of_v() -> None:
    method = adapted(scale=0.5, **DOUBLE)
    weight, a, b, m = parts(method)
    v = weight + 0.5 * b @ a
    length = (v * v).sum(1, keepdim=True).sqrt()
    torch.testing.assert_close(effective(method), m * v / length, atol=1e-12, rtol=0)
    assert (effective(method) - weight).abs().max() > 1e-3


def test_the_norm_of_each_neuron_is_its_magnitude() -> None:
    method = adapted()
    norms = effective(method).norm(dim=1, keepdim=True)
    torch.testing.assert_close(norms, parts(method)[3], atol=0, rtol=1e-5)


def test_with_b_held_at_zero_only_the_lengths_of_neurons_change() -> None:
    method = build("dora", lr=0.01, **DOUBLE)
    learning = {n: p for n, p in method.trainable.items() if n.endswith("magnitude")}
    method.adapt_only(learning)
    method.optimizer = method.build_optimizer()
    for images in pictures(24).split(8):
        method(images.double())
    magnitude = build("paid", lr=0.01, component="magnitude", **DOUBLE)
    for images in pictures(24).split(8):
        magnitude(images.double())
    torch.testing.assert_close(effective(method), effective(magnitude), atol=1e-9, rtol=0)


def test_angles_between_neurons_change() -> None:
    method = adapted()
    before, after = (w / w.norm(dim=1, keepdim=True) for w in (parts(method)[0], effective(method)))
    assert (before @ before.T - after @ after.T).abs().max() > 1e-3


@pytest.mark.parametrize("detach", [True, False])
def test_the_gradient_passes_through_the_norm_only_on_request(detach: bool) -> None:
    adapter = DORA.adapter(
        torch.tensor([[3.0, 4.0]]), DORA.Hyperparameters(rank=1, detach_norm=detach)
    )
    with torch.no_grad():
        adapter.down.copy_(torch.tensor([[1.0, 0.0]]))
    # Along the first axis: d(m V1 / ‖V‖)/dV1 = 1 with ‖V‖ held, 1 - (3/5)² with its derivative.
    adapter()[0, 0].backward()
    assert adapter.up.grad.item() == pytest.approx(1.0 if detach else 0.64)


@pytest.mark.parametrize(("rank", "count"), [(6, 1_078_272), (7, 1_244_160)])
def test_half_of_paids_rank_has_as_many_parameters(rank: int, count: int) -> None:
    with torch.device("meta"):
        model = SourceModel(timm.create_model("vit_base_patch16_224"))
        method = DORA(model, DORA.Hyperparameters(rank=rank))
    assert sum(p.numel() for p in method.trainable.values()) == count


@pytest.mark.parametrize(
    ("precision", "detach", "place", "value"),
    [
        ("float32", True, 3, 0.0),
        ("float32", False, 3, 0.0),
        ("float32", False, 3, 1e-30),
        ("bfloat16", True, 3, 0.0),
        ("float16", False, 3, 0.0),
        ("float16", True, 3, 1e-8),  # gone in half precision
        ("float32", False, (slice(None), 3), 0.0),
        ("float32", False, slice(None), 0.0),
    ],
)
def test_neurons_of_zeros_do_no_harm(
    precision: Any, detach: bool, place: Any, value: float
) -> None:
    network = toy.toy_vit()
    for layer in ("blocks.0.attn.qkv", "blocks.1.attn.proj"):
        network.get_submodule(layer).weight.data[place] = value
    hyperparameters = DORA.Hyperparameters(lr=0.01, detach_norm=detach)
    method = DORA(SourceModel(copy.deepcopy(network)), hyperparameters, precision=precision)
    source = METHODS.get("source")(SourceModel(network), precision=precision)
    method.start(source_images())
    assert torch.equal(method(pictures(8)), source(pictures(8)))
    for images in pictures(32, seed=1).split(8):
        assert bool(method(images).isfinite().all())
    assert method.counters["skipped_updates"] == 0
    assert all(bool(p.isfinite().all()) for p in snapshot(method).values())
    merge(method.model)
    assert all(bool(p.isfinite().all()) for p in method.model.network.parameters())
