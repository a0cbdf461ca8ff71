"""The invariants of LoRA as a control of PAID."""

import copy

import pytest
import timm
import torch

from ctta_bench.errors import MethodError
from ctta_bench.method import Method
from ctta_bench.model import SourceModel
from ctta_bench.parts.adapters.injection import merge
from ctta_bench.parts.families.alignment import AlignmentMethod
from ctta_bench.registry import METHODS
from tests.methods import build, changed, make, pictures, snapshot, tensors

DOUBLE = {"dtype": torch.float64, "precision": "float64"}
LAYER = "blocks.1.mlp.fc1"  # 24 inputs, 96 neurons


def adapted(**arguments: object) -> Method:
    method = build("lora", lr=0.01, **arguments)
    for images in pictures(24).split(8):
        method(images.to(method.model.mean.dtype))
    return method


def test_the_start_is_the_source_model_to_the_bit() -> None:
    assert torch.equal(build("lora")(pictures(8)), build("source")(pictures(8)))


@pytest.mark.parametrize(("rank", "scale"), [(1, 1.0), (6, 0.5)])
def test_a_layer_multiplies_with_the_weight_and_the_scaled_product(rank: int, scale: float) -> None:
    method = adapted(rank=rank, scale=scale, **DOUBLE)
    layer = method.model.network.get_submodule(LAYER)
    a, b = (method.trainable[f"{LAYER}.{name}"].detach() for name in ("down", "up"))
    x = torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = x @ layer.weight.T + layer.bias + scale * (x @ a.T) @ b.T
    torch.testing.assert_close(layer(x).detach(), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("rank", [1, 2, 6])
def test_the_change_of_a_weight_has_at_most_the_rank(rank: int) -> None:
    layer = adapted(rank=rank, **DOUBLE).model.network.get_submodule(LAYER)
    change = (layer.effective_weight() - layer.weight).detach()
    assert change.norm() > 1e-3
    assert int(torch.linalg.matrix_rank(change, atol=1e-10, rtol=0)) == rank


def test_the_first_step_moves_b_alone_and_the_second_both() -> None:
    method = build("lora", lr=0.01)
    source = tensors(method.model)
    method(pictures(8))
    assert {name.rsplit(".", 1)[1] for name in changed(source, method.model)} == {"up"}
    method(pictures(8))
    assert {name.rsplit(".", 1)[1] for name in changed(source, method.model)} == {"up", "down"}


def test_an_adapter_of_the_last_release_without_a_step_of_its_own_takes_the_same() -> None:
    own = METHODS.get("lora")
    old = type("Old", (AlignmentMethod,), {k: vars(own)[k] for k in ("Hyperparameters", "adapter")})
    method, images = make(old), pictures(8)
    with pytest.warns(FutureWarning, match="Old inherits adapt from AlignmentMethod"):
        method(images)
    with pytest.warns(FutureWarning):
        logits = method(images)
    new = build("lora")
    new(images)
    assert torch.equal(logits, new(images))


def test_angles_between_neurons_change() -> None:
    weight = adapted().model.network.get_submodule(LAYER)
    before, after = (
        w / w.norm(dim=1, keepdim=True) for w in (weight.weight, weight.effective_weight())
    )
    assert (before @ before.T - after @ after.T).abs().max() > 1e-3


def test_a_merged_network_gives_the_same_logits() -> None:
    method = adapted()
    network = copy.deepcopy(method.model)
    merge(network)
    with torch.no_grad():
        difference = network(pictures(8)) - method.model(pictures(8))
    assert difference.abs().max() <= 1e-5


def test_the_objective_of_the_first_step_is_that_of_paid() -> None:
    methods = [build(name, lr=0.0, std_weight=0.3) for name in ("lora", "paid")]
    for method in methods:
        method(pictures(8))
    torch.testing.assert_close(methods[0].loss, methods[1].loss)


@pytest.mark.parametrize(
    ("rank", "count"), [(4, 663_552), (6, 995_328), (8, 1_327_104), (12, 1_990_656)]
)
def test_vit_base_has_the_published_numbers_of_parameters(rank: int, count: int) -> None:
    kind = METHODS.get("lora")
    with torch.device("meta"):
        model = SourceModel(timm.create_model("vit_base_patch16_224"))
        method = kind(model, kind.Hyperparameters(rank=rank))
    assert sum(p.numel() for p in method.trainable.values()) == count


def test_a_starts_within_the_root_of_its_inputs_and_b_at_zero() -> None:
    for name, parameter in snapshot(build("lora", rank=6)).items():
        inputs = 96 if name.endswith("fc2.down") else 24
        limit = 0.0 if name.endswith("up") else inputs**-0.5
        assert 0.8 * limit <= parameter.abs().max() <= limit, name


def test_a_model_without_linear_roles_is_refused() -> None:
    with pytest.raises(MethodError, match=r"LoRA does not support toy_cnn: .* role q, k, v, o, m"):
        build("lora", "toy_cnn")
