"""Components of SegFormer that differ from mmsegmentation's classes: blocks and decode heads."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate, scaled_dot_product_attention


def unpack(block: Any) -> None:
    """Replace the block's packed attention and 1x1 convolutions by linear layers."""
    block.attn = Attention(block.attn)
    block.ffn = MixMLP(block.ffn)


class Attention(nn.Module):
    """Multi-head attention of all tokens to those of a map reduced by a strided convolution.

    Equal to mmsegmentation's EfficientMultiheadAttention, with its weights.
    """

    def __init__(self, packed: Any) -> None:
        super().__init__()
        inner: nn.MultiheadAttention = packed.attn
        self.num_heads = inner.num_heads
        rows, biases = inner.in_proj_weight.chunk(3), inner.in_proj_bias.chunk(3)
        self.q, self.k, self.v = (
            linear_of(weight, bias) for weight, bias in zip(rows, biases, strict=True)
        )
        self.proj = linear_of(inner.out_proj.weight, inner.out_proj.bias)
        self.reduced = packed.sr_ratio > 1
        if self.reduced:
            self.sr, self.norm = packed.sr, packed.norm
        self.drop_path = packed.dropout_layer

    def forward(self, x: Tensor, hw_shape: tuple[int, int], identity: Tensor) -> Tensor:
        """Tokens [n, h*w, C], plus `identity`."""
        seen = self.norm(as_tokens(self.sr(as_map(x, hw_shape)))) if self.reduced else x
        q, k, v = (
            layer(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer, tokens in ((self.q, x), (self.k, seen), (self.v, seen))
        )
        mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return identity + self.drop_path(self.proj(mixed))


class MixMLP(nn.Module):
    """Two linear layers with a depthwise 3x3 convolution and GELU between them.

    Equal to mmsegmentation's MixFFN, with its weights.
    """

    def __init__(self, packed: Any) -> None:
        super().__init__()
        fc1, self.dwconv, self.act, _, fc2, _ = packed.layers
        self.fc1 = linear_of(fc1.weight.flatten(1), fc1.bias)
        self.fc2 = linear_of(fc2.weight.flatten(1), fc2.bias)
        self.drop_path = packed.dropout_layer

    def forward(self, x: Tensor, hw_shape: tuple[int, int], identity: Tensor) -> Tensor:
        """Tokens [n, h*w, C], plus `identity`."""
        inner = self.act(self.dwconv(as_map(self.fc1(x), hw_shape)))
        return identity + self.drop_path(self.fc2(as_tokens(inner)))


class Head(nn.Module):
    """mmsegmentation's decode head, with its layers; maps are fused before they are enlarged."""

    def __init__(self, packed: Any) -> None:
        super().__init__()
        self.convs, self.fusion_conv = packed.convs, packed.fusion_conv
        self.dropout, self.conv_seg = packed.dropout, packed.conv_seg

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Logits [n, classes, h, w] at the first map's size."""
        projected = [conv(features) for conv, features in zip(self.convs, maps, strict=True)]
        fused = self.fusion_conv.norm(fuse(projected, self.fusion_conv.conv.weight))
        return self.conv_seg(self.dropout(self.fusion_conv.activate(fused)))


class AuthorsHead(nn.Module):
    """The decode head of the authors' code, with its names.

    Unlike mmsegmentation's, it has no norm after its linear layers, and the deepest map is first.
    """

    def __init__(self, widths: Sequence[int], channels: int, num_classes: int) -> None:
        super().__init__()
        for number, width in enumerate(widths, 1):
            self.add_module(
                f"linear_c{number}", nn.ModuleDict({"proj": nn.Linear(width, channels)})
            )
        mixing = nn.Conv2d(channels * len(widths), channels, 1, bias=False)
        self.linear_fuse = nn.ModuleDict({"conv": mixing, "bn": nn.BatchNorm2d(channels)})
        self.dropout = nn.Dropout2d(0.1)
        self.linear_pred = nn.Conv2d(channels, num_classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Logits [n, classes, h, w] at the first map's size."""
        projected = []
        for number, features in enumerate(maps, 1):
            tokens = self.get_submodule(f"linear_c{number}.proj")(as_tokens(features))
            projected.append(as_map(tokens, features.shape[2:]))
        weight = self.get_parameter("linear_fuse.conv.weight")
        fused = self.linear_fuse["bn"](fuse(projected, weight, deepest_first=True))
        return self.linear_pred(self.dropout(torch.relu(fused)))


def fuse(maps: Sequence[Tensor], weight: Tensor, *, deepest_first: bool = False) -> Tensor:
    """A 1x1 convolution of maps [n, c, h, w], resized to the first one's size and stacked.

    The convolution combines channels and resizing combines pixels, so they commute. Each map is
    first multiplied by its share of the weight [out, channels of all, 1, 1] at its own size, with a
    fourth, a sixteenth and so on of the pixels.
    """
    shares = weight.split([features.shape[1] for features in maps], 1)
    pairs = zip(maps, shares[::-1] if deepest_first else shares, strict=True)
    first, *others = [conv2d(features, share) for features, share in pairs]
    for other in others:
        first = first + interpolate(other, first.shape[2:], mode="bilinear")
    return first


@torch.no_grad()
def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A linear layer with these values."""
    shape = weight.shape[1], weight.shape[0]
    layer = nn.utils.skip_init(nn.Linear, *shape, device=weight.device, dtype=weight.dtype)
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
    return layer


def as_map(tokens: Tensor, shape: Sequence[int]) -> Tensor:
    """Tokens [n, h*w, C] as [n, C, h, w], without a copy."""
    return tokens.transpose(1, 2).unflatten(2, tuple(shape))


def as_tokens(features: Tensor) -> Tensor:
    """A map [n, C, h, w] as tokens [n, h*w, C]."""
    return features.flatten(2).transpose(1, 2)
