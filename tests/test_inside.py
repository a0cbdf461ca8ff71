"""Hooks inside a transformer: what they record, what they change, and that they leave no trace."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.model import SourceModel
from ctta_bench.source_models.tiny import tiny_segmentor
from tests.methods import pictures, scenes, toy
from tests.test_model import tiny_vit

DEPTH, PATCHES = 4, 4


@pytest.fixture
def model() -> SourceModel:
    return SourceModel(toy.toy_vit(), name="toy_vit").eval()


def hooks(network: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules())


@torch.no_grad()
def test_attention_is_shares_that_sum_to_one_and_leaves_the_logits_alone() -> None:
    model, images = SourceModel(tiny_vit()).eval(), torch.rand(2, 3, 16, 16)
    expected = model(images)
    with model.attention() as all_of_them:
        torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)
    with model.attention(layers=(-1, 0)) as two:
        model(images)
    assert [tuple(m.shape) for m in all_of_them] == [(2, 2, 5, 5)] * DEPTH
    for ours, place in zip(two, (0, -1), strict=True):
        torch.testing.assert_close(ours, all_of_them[place])
    for matrix in all_of_them:
        torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 2, 5))
    assert hooks(model.network) == 0


@torch.no_grad()
def test_matrices_are_the_softmax_of_queries_times_keys() -> None:
    for model, images in (
        (SourceModel(tiny_vit()).eval(), torch.rand(2, 3, 16, 16)),
        (SourceModel(tiny_segmentor()).eval(), scenes()),
    ):
        with model.attention() as matrices, model.queries_keys_values() as projections:
            model(images)
        assert len(matrices) == len(projections) == 4
        for matrix, (q, k, v) in zip(matrices, projections, strict=True):
            torch.testing.assert_close(matrix, (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1))
            assert v.shape == k.shape
        assert hooks(model.network) == 0


def test_only_the_chosen_layers_lose_their_fused_kernel_and_only_for_a_while(
    model: SourceModel,
) -> None:
    def fused() -> list[bool]:
        return [block.attn.fused_attn for block in model.network.blocks]

    for block in model.network.blocks:
        block.attn.fused_attn = True
    with pytest.raises(ZeroDivisionError), model.attention(layers=(-1,)):
        assert fused() == [True, True, True, False]
        raise ZeroDivisionError
    assert fused() == [True] * DEPTH


def test_gradients_reach_the_recorded_matrices(model: SourceModel) -> None:
    with model.attention() as matrices:
        model(pictures(2))
    weight = model.network.blocks[0].attn.qkv.weight
    (gradient,) = torch.autograd.grad(matrices[0][:, :, 0, 1].sum(), weight)
    assert float(gradient.abs().sum()) > 0


@torch.no_grad()
def test_tokens_are_those_after_each_block_and_after_the_final_norm(model: SourceModel) -> None:
    images = pictures(3)
    with model.block_tokens() as seen:
        tokens, logits = model.tokens_and_logits(images)
    assert len(seen) == DEPTH and tuple(seen[0].shape) == (3, 1 + PATCHES, 24)
    assert torch.equal(tokens, model.network.norm(seen[-1]))
    assert torch.equal(logits, model(images))
    assert torch.equal(model.class_token(tokens), model.features(images))
    assert model.prefix_tokens == 1
    assert hooks(model.network) == 0


@torch.no_grad()
def test_dropped_tokens_are_gone_and_all_of_them_in_any_order_change_nothing(
    model: SourceModel,
) -> None:
    images = pictures(2)
    keep = torch.tensor([[2, 0], [1, 3]])
    with model.block_tokens() as whole:
        logits = model(images)
    with model.drop_tokens(keep=keep), model.block_tokens() as seen:
        shortened = model(images)
    assert tuple(seen[0].shape) == (2, 3, 24) and not torch.equal(shortened, logits)
    everything = torch.stack([torch.randperm(PATCHES) for _ in images])
    with model.drop_tokens(keep=everything), model.block_tokens() as permuted:
        torch.testing.assert_close(model(images), logits)
    expected = whole[0][:, 1:].gather(1, everything.unsqueeze(-1).expand(-1, -1, 24))
    torch.testing.assert_close(permuted[0][:, 1:], expected)


@torch.no_grad()
def test_patch_embeddings_and_tokens_can_be_changed(model: SourceModel) -> None:
    images = pictures(2)
    seen: list[tuple[int, ...]] = []

    def hide(embedded: Tensor) -> Tensor:
        seen.append(tuple(embedded.shape))
        return torch.zeros_like(embedded)

    def more(tokens: Tensor) -> Tensor:
        return torch.cat([tokens, tokens[:, -2:]], dim=1)

    with model.change_patch_embeddings(hide):
        one, other = model(images)
    assert seen == [(2, PATCHES, 24)] and torch.equal(one, other)
    with model.change_tokens(more, block=2), model.block_tokens() as tokens:
        model(images)
    assert [t.shape[1] for t in tokens] == [5, 5, 7, 7]
    assert hooks(model.network) == 0


@torch.no_grad()
def test_torch_attention_is_read_too() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.MultiheadAttention(4, 2, batch_first=True)
            self.head = nn.Linear(4, 5)

        def forward(self, images: Tensor) -> Tensor:
            rows = images.mean(1)
            return self.head(self.layer(rows, rows, rows)[0].mean(1))

    model = SourceModel(Encoder()).eval()
    with model.attention() as matrices:
        model(torch.rand(2, 3, 6, 4))
    assert tuple(matrices[0].shape) == (2, 2, 6, 6)
    torch.testing.assert_close(matrices[0].sum(-1), torch.ones(2, 2, 6))


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda m: m.attention(), "cnn: no attention layer with readable matrices"),
        (lambda m: m.queries_keys_values(), "cnn: no attention layer"),
        (lambda m: m.block_tokens(), "cnn: it has not the tokens of a timm VisionTransformer"),
        (lambda m: m.drop_tokens(keep=torch.zeros(1, 1).long()), "choose a ViT"),
        (lambda m: m.change_patch_embeddings(torch.relu), "choose a ViT"),
    ],
)
def test_a_network_without_these_places_is_refused(ask: Any, said: str) -> None:
    model = SourceModel(toy.toy_cnn(), name="cnn")
    with pytest.raises(MethodError, match=said), ask(model):
        pass


def test_a_layer_that_is_not_there_and_a_missing_class_token_are_refused(
    model: SourceModel,
) -> None:
    said = "layer 4 was asked for, but it has 4; choose -4 to 3"
    with pytest.raises(MethodError, match=said), model.attention(layers=(0, 4)):
        pass
    without = SourceModel(tiny_vit(class_token=False, global_pool="avg"), name="pooled")
    with pytest.raises(MethodError, match=r"pooled: it has no class token"):
        without.class_token(torch.zeros(1, 4, 8))
