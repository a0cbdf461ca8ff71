import copy
from pathlib import Path

import pytest
import torch
import torchvision
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.errors import MethodError
from ctta_bench.model import SourceModel
from ctta_bench.parts.adapters.injected import InjectedLinear
from ctta_bench.parts.adapters.injection import (
    adapters_disabled,
    bare_weights,
    inject,
    merge,
    role_layers,
)
from ctta_bench.parts.adapters.weights import LowRankWeight, WeightAdapter
from tests.conftest import TOY
from tests.methods import pictures, tensors, toy

WIDTH, DEPTH = 24, 4


class Scaled(WeightAdapter):
    """A weight times one number that learns."""

    def __init__(self, weight: Tensor, factor: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("start", weight.clone(), persistent=False)
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self) -> Tensor:
        return self.factor * self.start


def doubled(weight: Tensor) -> WeightAdapter:
    return Scaled(weight, 2.0)


@pytest.fixture
def model() -> SourceModel:
    return SourceModel(toy.toy_vit(), name="toy_vit").eval()


def test_layers_are_found_by_role_in_the_order_of_the_blocks(model: SourceModel) -> None:
    layers = role_layers(model)
    assert [layer.roles for layer in layers[:4]] == ["qkv", "o", "m", "m"]
    assert [layer.block for layer in layers] == [b for b in range(DEPTH) for _ in range(4)]
    assert layers[0].name == "blocks.0.attn.qkv"


@pytest.mark.parametrize(("skipped", "blocks"), [(0, 4), (1, 3), (4, 0), (5, 0)])
def test_the_last_blocks_can_be_left_out(model: SourceModel, skipped: int, blocks: int) -> None:
    assert {layer.block for layer in role_layers(model, skip_last_blocks=skipped)} == set(
        range(blocks)
    )


@pytest.mark.parametrize("names", [("query", "key", "value"), ("q_proj", "k_proj", "v_proj")])
def test_separate_projections_have_a_role_each(names: tuple[str, ...]) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in names:
                self.add_module(name, nn.Linear(4, 4))
            self.out_proj = nn.Linear(4, 4)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attention = nn.LayerNorm(4), Attention()

    network = nn.ModuleDict({"layers": nn.ModuleList([Block(), Block()]), "head": nn.Linear(4, 2)})
    assert [layer.roles for layer in role_layers(SourceModel(network))] == [*"qkvo", *"qkvo"]


@pytest.mark.parametrize("role", ["q", "k", "v"])
def test_of_separate_projections_the_chosen_one_alone_changes(role: str) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(4, 4) for _ in "qkv")

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attention = nn.LayerNorm(4), Attention()

    network = nn.ModuleDict({"layers": nn.ModuleList([Block(), Block()]), "head": nn.Linear(4, 2)})
    model, source = SourceModel(network), tensors(network)
    trainable = inject(model, role, lambda weight: LowRankWeight(weight, 2))
    assert sum(p.numel() for p in trainable.values()) == 2 * 2 * (4 + 4)
    with torch.no_grad():
        for parameter in trainable.values():
            parameter.fill_(0.5)
    merge(model)
    after = tensors(network)
    word = {"q": "query", "k": "key", "v": "value"}[role]
    assert {name for name in after if not torch.equal(after[name], source[name])} == {
        f"layers.{i}.attention.{word}.weight" for i in (0, 1)
    }


@pytest.mark.parametrize("roles", ["q", "kv", "qkvom"])
def test_only_the_rows_of_the_chosen_roles_are_adapted(model: SourceModel, roles: str) -> None:
    source = tensors(model.network)
    inject(model, roles, doubled)
    merge(model)
    for block in range(DEPTH):
        names = {"qkv": f"blocks.{block}.attn.qkv", "o": f"blocks.{block}.attn.proj"}
        after = model.network.get_submodule(names["qkv"]).weight.chunk(3)
        before = source[f"{names['qkv']}.weight"].chunk(3)
        for role, new, old in zip("qkv", after, before, strict=True):
            assert torch.equal(new, (1 + (role in roles)) * old)
        new, old = model.network.get_submodule(names["o"]).weight, source[f"{names['o']}.weight"]
        assert torch.equal(new, (1 + ("o" in roles)) * old)


def test_adapters_are_independent_for_query_key_and_value(model: SourceModel) -> None:
    trainable = inject(model, "qkv", Scaled)
    names = {f"blocks.{b}.attn.qkv.{r}.factor" for b in range(DEPTH) for r in "qkv"}
    assert set(trainable) == names
    assert len(set(map(id, trainable.values()))) == 3 * DEPTH
    assert set(inject(SourceModel(toy.toy_vit()), "o", Scaled)) == {
        f"blocks.{b}.attn.proj.factor" for b in range(DEPTH)
    }


def test_a_fused_projection_is_one_product(
    model: SourceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []

    def counted(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        shapes.append(tuple(weight.shape))
        return torch.nn.functional.linear(x, weight, bias)

    inject(model, "qkv", Scaled)
    monkeypatch.setattr("ctta_bench.parts.adapters.injected.linear", counted)
    model(pictures(2))
    assert shapes == [(3 * WIDTH, WIDTH)] * DEPTH


def test_merging_gives_the_same_logits_and_a_plain_network(model: SourceModel) -> None:
    keys = list(model.network.state_dict())
    inject(model, "qkvom", doubled)
    with torch.no_grad():
        adapted = model(pictures(8))
        merge(model)
        torch.testing.assert_close(model(pictures(8)), adapted, atol=1e-5, rtol=0)
    assert list(model.network.state_dict()) == keys
    assert not any(isinstance(m, InjectedLinear) for m in model.network.modules())
    fresh = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=WIDTH, depth=DEPTH, num_heads=2, num_classes=10
    )
    fresh.load_state_dict(model.network.state_dict(), strict=True)
    with torch.no_grad():
        again = SourceModel(fresh.eval(), preprocessing=model.preprocessing)(pictures(8))
    torch.testing.assert_close(again, adapted, atol=1e-5, rtol=0)


def test_a_layer_without_bias_is_merged_without_one() -> None:
    network = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=8, depth=2, num_heads=2, num_classes=3, qkv_bias=False
    )
    model = SourceModel(network.eval())
    inject(model, "qkvo", doubled)
    merge(model)
    assert network.blocks[0].attn.qkv.bias is None
    assert network.blocks[0].attn.proj.bias is not None


def test_bypassed_computes_with_the_source_weights(model: SourceModel) -> None:
    with torch.no_grad():
        source = model(pictures(4))
        inject(model, "qkvom", doubled)
        adapted = model(pictures(4))
        with adapters_disabled(model):
            assert torch.equal(model(pictures(4)), source)
        assert torch.equal(model(pictures(4)), adapted)
    assert not torch.equal(adapted, source)


def test_bypassed_ends_with_an_exception_too(model: SourceModel) -> None:
    inject(model, "o", doubled)
    with torch.no_grad():
        adapted = model(pictures(4))
        with pytest.raises(ZeroDivisionError), adapters_disabled(model):
            raise ZeroDivisionError
        assert torch.equal(model(pictures(4)), adapted)


def test_a_role_that_the_model_lacks_is_refused_by_name() -> None:
    with pytest.raises(MethodError, match=r"does not support toy_cnn: .* of role q, m \(q,"):
        inject(SourceModel(toy.toy_cnn(), name="toy_cnn"), "qm", Scaled)


def test_an_adapter_that_computes_no_weight_says_so(model: SourceModel) -> None:
    inject(model, "q", lambda weight: WeightAdapter())
    with pytest.raises(MethodError, match=r"WeightAdapter: define factors\(\) or"):
        model(pictures(1))


def test_a_copy_of_an_injected_model_adapts_on_its_own(model: SourceModel) -> None:
    trainable = inject(model, "o", Scaled)
    teacher = copy.deepcopy(model)
    with torch.no_grad():
        before = teacher(pictures(2))
        for factor in trainable.values():
            factor.mul_(2)
        assert torch.equal(teacher(pictures(2)), before)
        assert not torch.equal(model(pictures(2)), before)


# -- torch's MultiheadAttention --------------------------------------------------------------------


@pytest.fixture
def bare() -> SourceModel:
    """torchvision's ViT, in whose attention the weights are bare parameters."""
    torch.manual_seed(0)
    network = torchvision.models.VisionTransformer(
        image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=32
    )
    for parameter in network.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return SourceModel(network.eval(), name="bare").requires_grad_(False)


def test_bare_projections_are_found_by_role(bare: SourceModel) -> None:
    weights = bare_weights(bare)
    assert [weight.roles for weight in weights] == ["qkv", "o"] * 2
    # Nothing calls the projection of the output either: it is no layer to replace.
    assert [layer.roles for layer in role_layers(bare)] == ["m", "m"] * 2
    assert [weight.block for weight in bare_weights(bare, skip_last_blocks=1)] == [0, 0]


def test_only_the_rows_of_the_chosen_role_of_a_bare_projection_change(bare: SourceModel) -> None:
    source = tensors(bare.network)
    trainable = inject(bare, "v", lambda weight: LowRankWeight(weight, 2))
    # A row for each input and each output of rank 2, in two blocks.
    assert sum(p.numel() for p in trainable.values()) == 2 * 2 * (8 + 8)
    with torch.no_grad():
        for parameter in trainable.values():
            parameter.fill_(0.5)
    merge(bare)
    after = tensors(bare.network)
    assert after.keys() == source.keys()
    moved = {name for name in after if not torch.equal(after[name], source[name])}
    assert moved == {
        f"encoder.layers.encoder_layer_{i}.self_attention.in_proj_weight" for i in (0, 1)
    }
    for name in moved:
        assert torch.equal(after[name][:16], source[name][:16])
        torch.testing.assert_close(after[name][16:], source[name][16:] + 0.5)


@pytest.mark.parametrize("roles", ["q", "o", "qkvom"])
def test_every_adapter_of_a_bare_projection_takes_part(bare: SourceModel, roles: str) -> None:
    with torch.no_grad():
        source = bare(pictures(4))
    trainable = inject(bare, roles, doubled)
    logits = bare(pictures(4))
    logits.square().sum().backward()
    assert all(float(p.grad.abs()) > 0 for p in trainable.values())
    with torch.no_grad():
        # Without gradients torch takes another path through the same weights.
        torch.testing.assert_close(bare(pictures(4)), logits, atol=1e-4, rtol=1e-4)
        with adapters_disabled(bare):
            assert torch.equal(bare(pictures(4)), source)
        merge(bare)
        torch.testing.assert_close(bare(pictures(4)), logits, atol=1e-4, rtol=1e-4)


def test_a_copy_of_bare_projections_adapts_on_its_own(bare: SourceModel) -> None:
    trainable = inject(bare, "qo", Scaled)
    teacher = copy.deepcopy(bare)
    with torch.no_grad():
        before = teacher(pictures(2))
        for factor in trainable.values():
            factor.mul_(2)
        assert torch.equal(teacher(pictures(2)), before)
        assert not torch.equal(bare(pictures(2)), before)


def test_bare_projections_of_other_widths_have_a_role_each() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)
            self.cross = nn.MultiheadAttention(4, 1, kdim=6, vdim=5)

    network = nn.ModuleDict({"layers": nn.ModuleList([Block(), Block()]), "head": nn.Linear(4, 2)})
    weights = bare_weights(SourceModel(network))
    assert [weight.roles for weight in weights] == [*"qkvo", *"qkvo"]
    names = set(inject(SourceModel(network), "qkvo", Scaled))
    assert {name for name in names if "layers.0" in name} == {
        f"layers.0.cross.{part}.factor" for part in ("q", "k", "v", "out_proj")
    }


def test_a_resnet_has_no_role_v() -> None:
    network = torchvision.models.resnet18(num_classes=10)
    with pytest.raises(MethodError, match=r"does not support plain: .* of role v"):
        inject(SourceModel(network, name="plain"), "v", Scaled)


def test_a_role_that_the_model_lacks_ends_a_run_with_one_sentence(tmp_path: Path) -> None:
    words = ["run", "lora", "toy", "--plugin", str(TOY), "--model", "toy_cnn", "--set", "layers=v"]
    told = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert told.exit_code == 2
    assert "adapts linear layers of role v" in told.stderr.replace("\n", " ")
