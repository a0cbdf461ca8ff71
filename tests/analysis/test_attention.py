"""Attention matrices, their rollout, and what becomes of them on the patches."""

import numpy as np
import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from ctta_bench.analysis.kept_models.attention import (
    RolloutSettings,
    attention_maps,
    patch_maps,
    rollout,
    spread,
)
from ctta_bench.errors import ConfigError, MethodError
from ctta_bench.model.inside import recorded_matrices

PLAIN = RolloutSettings("mean", discard=0.0)


def vit(**settings):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = VisionTransformer(
            **{
                "img_size": 16,
                "patch_size": 4,
                "embed_dim": 24,
                "depth": 3,
                "num_heads": 3,
                "num_classes": 5,
            }
            | settings
        )
        for parameter in network.parameters():
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return network.eval()


def images(n=2, size=16):
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(1))


def switches(network):
    return [m.fused_attn for m in network.modules() if hasattr(m, "fused_attn")]


def test_maps_of_a_fused_network_are_averages_and_leave_the_logits_alone():
    network, inputs = vit(), images()
    for block in network.blocks:
        block.attn.fused_attn = True
    with torch.no_grad():
        expected = network(inputs)
    maps, logits = attention_maps(network, inputs)
    assert [tuple(m.shape) for m in maps] == [(2, 3, 17, 17)] * 3
    for matrix in maps:
        torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 3, 17))
        assert float(matrix.min()) >= 0
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)


def test_the_maps_are_those_of_queries_and_keys():
    network, inputs = vit(), images()
    maps, _ = attention_maps(network, inputs)
    with torch.no_grad():
        tokens = network.norm_pre(network._pos_embed(network.patch_embed(inputs)))
        attention = network.blocks[0].attn
        q, k, _ = attention.qkv(network.blocks[0].norm1(tokens)).view(2, 17, 3, 3, 8).unbind(2)
        expected = torch.einsum("nqhd,nkhd->nhqk", q, k).div(8**0.5).softmax(-1)
    torch.testing.assert_close(maps[0], expected)


def test_the_fused_switch_is_as_it_was_even_after_an_error():
    network = vit()
    mixed = [True, False, True]
    for block, fused in zip(network.blocks, mixed, strict=True):
        block.attn.fused_attn = fused
    with recorded_matrices(network):
        assert switches(network) == [False] * 3
    assert switches(network) == mixed
    with pytest.raises(ZeroDivisionError), recorded_matrices(network):
        raise ZeroDivisionError
    assert switches(network) == mixed
    assert not any(m._forward_pre_hooks for m in network.modules())
    with pytest.raises(RuntimeError):
        attention_maps(network, torch.rand(1, 5, 16, 16))
    assert switches(network) == mixed


def test_the_mode_of_the_network_is_kept():
    network = vit().train()
    attention_maps(network, images())
    assert network.training


def test_rollout_of_two_layers_by_hand():
    # Two tokens. Residual 0.5: A = (attention + I) / 2, rows sum to 1 already.
    first = torch.tensor([[[[0.0, 1.0], [0.5, 0.5]]]])  # -> [[.5, .5], [.25, .75]]
    second = torch.tensor([[[[0.2, 0.8], [1.0, 0.0]]]])  # -> [[.6, .4], [.5, .5]]
    expected = torch.tensor([[[0.4, 0.6], [0.375, 0.625]]], dtype=torch.float64)
    torch.testing.assert_close(rollout([first, second], PLAIN), expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    ("fusion", "expected"), [("mean", [0.5, 0.5]), ("max", [0.9, 0.9]), ("min", [0.1, 0.1])]
)
def test_heads_are_fused_by_mean_max_or_min_and_rows_scaled(fusion, expected):
    heads = torch.tensor([[[[0.9, 0.1], [0.1, 0.9]], [[0.1, 0.9], [0.9, 0.1]]]])
    found = rollout([heads], RolloutSettings(fusion, discard=0.0, residual=0.5))
    a, b = (0.5 * expected[0] + 0.5, 0.5 * expected[1])
    by_hand = torch.tensor([[a, b], [b, a]], dtype=torch.float64) / (a + b)
    torch.testing.assert_close(found[0], by_hand, atol=1e-7, rtol=0)


def test_the_smallest_values_are_discarded_in_every_image_but_never_the_first():
    # Of four values half go: in image 0 the diagonal, whose first one is spared; in image 1 b.
    maps = torch.tensor([[[[0.1, 0.9], [0.8, 0.2]]], [[[0.7, 0.3], [0.4, 0.6]]]])
    found = rollout([maps], RolloutSettings("mean", discard=0.5, residual=0.5))
    first = torch.tensor([[0.55, 0.45], [0.4, 0.5]], dtype=torch.float64)
    second = torch.tensor([[0.85, 0.0], [0.0, 0.8]], dtype=torch.float64)
    for row, expected in enumerate((first, second)):
        torch.testing.assert_close(
            found[row], expected / expected.sum(-1, keepdim=True), atol=1e-7, rtol=0
        )


def test_rows_of_a_rollout_sum_to_one_whatever_is_discarded():
    maps, _ = attention_maps(vit(), images())
    for settings in (RolloutSettings("max", 0.95, 0.0), RolloutSettings("min", 0.5, 0.3)):
        sums = rollout(maps, settings).sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_a_class_token_is_read_by_its_row_without_class_and_register_tokens():
    network = vit(reg_tokens=2)
    rolled = torch.rand(2, 19, 19, dtype=torch.float64)
    found = patch_maps(network, rolled)
    expected = rolled[:, 0, 3:] / rolled[:, 0, 3:].sum(-1, keepdim=True)
    torch.testing.assert_close(found, expected.view(2, 4, 4))


def test_a_pooling_head_is_read_by_the_mean_over_patches():
    network = vit(class_token=False, global_pool="avg")
    rolled = torch.rand(2, 16, 16, dtype=torch.float64)
    expected = rolled.mean(1) / rolled.mean(1).sum(-1, keepdim=True)
    torch.testing.assert_close(patch_maps(network, rolled), expected.view(2, 4, 4))


def test_a_picture_that_is_not_square_keeps_its_grid():
    network = vit(img_size=(16, 8))
    maps, _ = attention_maps(network, torch.rand(1, 3, 16, 8))
    assert patch_maps(network, rollout(maps)).shape == (1, 4, 2)


def test_a_map_that_is_all_discarded_is_an_error_and_not_nan():
    rolled = torch.eye(17, dtype=torch.float64)[None]
    with pytest.raises(MethodError, match="choose a lower value"):
        patch_maps(vit(), rolled)


def test_patches_without_a_grid_are_refused():
    with pytest.raises(MethodError, match="14 patches form no square"):
        patch_maps(nn.Identity(), torch.rand(1, 14, 14))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("convnext_atto", {}, "no attention"),
        ("swin_tiny_patch4_window7_224", {"img_size": 56, "depths": (1, 1, 1, 1)}, "windows"),
        ("vit_dlittle_patch16_reg1_gap_256", {"img_size": 32, "depth": 1}, "differential"),
    ],
)
def test_a_network_without_one_attention_over_all_tokens_is_refused(name, options, words):
    network = timm.create_model(name, num_classes=3, **options).eval()
    size = options.get("img_size", 32)
    with pytest.raises(MethodError, match=words):
        attention_maps(network, torch.rand(1, 3, size, size))
    assert not any(m._forward_pre_hooks for m in network.modules())


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("deit_tiny_distilled_patch16_224", 2 + 4),
        ("vit_little_patch16_reg4_gap_256", 4 + 4),
        ("beit_base_patch16_224", 1 + 4),
        ("eva02_tiny_patch14_224", None),
    ],
)
def test_every_kind_of_timm_s_plain_transformers_gives_its_maps(name, tokens):
    options = {"embed_dim": 48, "depth": 1, "num_heads": 3}
    if name.startswith("eva02"):
        options["num_heads"] = 3
    size = 28 if name.startswith("eva02") else 32
    network = timm.create_model(name, img_size=size, num_classes=3, **options).eval()
    inputs = torch.rand(2, 3, size, size)
    with torch.no_grad():
        expected = network(inputs)
    maps, logits = attention_maps(network, inputs)
    assert tokens is None or maps[0].shape[-1] == tokens
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    assert patch_maps(network, rollout(maps, PLAIN)).shape == (2, 2, 2)


def test_torch_s_own_attention_gives_its_maps():
    from torchvision.models import VisionTransformer as TorchvisionViT

    network = TorchvisionViT(16, 4, 2, 2, 24, 48, num_classes=5).eval()
    with torch.no_grad():
        expected = network(images())
    maps, logits = attention_maps(network, images())
    assert [tuple(m.shape) for m in maps] == [(2, 2, 17, 17)] * 2
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    assert patch_maps(network, rollout(maps, PLAIN)).shape == (2, 4, 4)


def test_spread_is_zero_for_one_patch_and_one_for_all_alike():
    one = torch.zeros(4, 4, dtype=torch.float64)
    one[1, 2] = 1
    alike = torch.full((4, 4), 1 / 16, dtype=torch.float64)
    np.testing.assert_allclose(spread(torch.stack([one, alike])), [0, 1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("median",), "fusion 'median'"), (("mean", 1.0), "discard 1.0"), (("mean", 0, -1), "resid")],
)
def test_a_setting_out_of_range_is_named(arguments, words):
    with pytest.raises(ConfigError, match=words):
        RolloutSettings(*arguments)
