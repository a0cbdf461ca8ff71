"""Networks with a few thousand fixed random weights, for checks of methods in seconds.

The segmentor has the components of a SegFormer under the same names, without mmsegmentation.
"""

from collections.abc import Callable, Sequence

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate, scaled_dot_product_attention

CLASSES = 10
SIDE, SEGMENTED_SIDE = 16, 32  # pixels of the images


def fixed(build: Callable[[], nn.Module]) -> nn.Module:
    """The network that `build` makes, always with the same random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return build().eval()


def shaken(network: nn.Module) -> nn.Module:
    """The network with noise added to every parameter, including those of norm layers."""
    for parameter in network.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return network


def tiny_vit() -> nn.Module:
    """A ViT of width 24 and depth 4, for images of 16 pixels."""
    return fixed(
        lambda: shaken(
            VisionTransformer(
                img_size=SIDE, patch_size=8, embed_dim=24, depth=4, num_heads=2, num_classes=CLASSES
            )
        )
    )


def tiny_cnn() -> nn.Module:
    """Two convolutions with BatchNorm, whose statistics are of random images."""

    def build() -> nn.Module:
        network = nn.Sequential(
            nn.Conv2d(3, 12, 3, 2, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, 2, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24 * 9, CLASSES),
        )
        network(torch.rand(64, 3, SIDE, SIDE))
        return network

    return fixed(build)


def tiny_group_norm_cnn() -> nn.Module:
    """Two convolutions with GroupNorm, whose statistics are of each image alone."""
    return fixed(
        lambda: shaken(
            nn.Sequential(
                nn.Conv2d(3, 12, 3, 2, bias=False),
                nn.GroupNorm(3, 12),
                nn.ReLU(),
                nn.Conv2d(12, 24, 3, 2, bias=False),
                nn.GroupNorm(4, 24),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(24 * 9, CLASSES),
            )
        )
    )


def tiny_segmentor() -> nn.Module:
    """A SegFormer of four stages of one block each, widths 8 to 24; logits at stride 4."""

    def build() -> nn.Module:
        network = shaken(TinySegmentor())
        network(torch.rand(16, 3, SEGMENTED_SIDE, SEGMENTED_SIDE))  # statistics of the head's norm
        return network

    return fixed(build)


class TinySegmentor(nn.Module):
    """Images [n, 3, H, W] to logits [n, classes, H / 4, W / 4]."""

    task = "segmentation"
    widths, strides, reductions = (8, 8, 16, 24), (4, 1, 2, 1), (2, 2, 1, 1)

    def __init__(self, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.num_classes = num_classes
        sizes = zip((3, *self.widths), self.widths, self.strides, self.reductions, strict=False)
        self.stages = nn.ModuleList(TinyStage(*of_stage) for of_stage in sizes)
        self.decode_head = TinyHead(self.widths, num_classes)

    @property
    def encoder_stages(self) -> list[nn.Module]:
        """The four stages in order."""
        return list(self.stages)

    def forward_maps(self, images: Tensor) -> list[Tensor]:
        """The stages' outputs [n, C, h, w] after their norms."""
        maps: list[Tensor] = []
        for stage in self.stages:
            images = stage(images)
            maps.append(images)
        return maps

    def decode(self, maps: Sequence[Tensor]) -> Tensor:
        """Logits of the four maps."""
        return self.decode_head(maps)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, classes, h, w]."""
        return self.decode(self.forward_maps(images))


class TinyStage(nn.Module):
    """Patch embedding, one block and a norm: a map to a map."""

    def __init__(self, inputs: int, width: int, stride: int, reduction: int) -> None:
        super().__init__()
        self.embed = TinyEmbedding(inputs, width, stride)
        self.blocks = nn.ModuleList([TinyBlock(width, reduction)])
        self.norm = nn.LayerNorm(width)

    def forward(self, images: Tensor) -> Tensor:
        """The map after the norm."""
        tokens, shape = self.embed(images)
        for block in self.blocks:
            tokens = block(tokens, shape)
        return as_map(self.norm(tokens), shape)


class TinyEmbedding(nn.Module):
    """An overlapping convolution with a norm, to tokens and the shape of their map."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(inputs, width, 3, stride, padding=1)
        self.norm = nn.LayerNorm(width)

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Tokens [n, h·w, width] and (h, w)."""
        embedded = self.projection(images)
        height, width = embedded.shape[2:]
        return self.norm(as_tokens(embedded)), (height, width)


class TinyBlock(nn.Module):
    """Attention and MLP, each after a norm."""

    def __init__(self, width: int, reduction: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.ffn = TinyAttention(width, reduction), TinyMLP(width)

    def forward(self, tokens: Tensor, shape: tuple[int, int]) -> Tensor:
        """Tokens [n, h·w, width]."""
        tokens = tokens + self.attn(self.norm1(tokens), shape)
        return tokens + self.ffn(self.norm2(tokens), shape)


class TinyAttention(nn.Module):
    """Two-head attention to a map reduced by a strided convolution."""

    def __init__(self, width: int, reduction: int) -> None:
        super().__init__()
        self.num_heads = 2
        self.q, self.k, self.v, self.proj = (nn.Linear(width, width) for _ in range(4))
        self.reduced = reduction > 1
        if self.reduced:
            self.sr = nn.Conv2d(width, width, reduction, reduction)
            self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, shape: tuple[int, int]) -> Tensor:
        """Tokens [n, h·w, width]."""
        seen = self.norm(as_tokens(self.sr(as_map(x, shape)))) if self.reduced else x
        q, k, v = (
            layer(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer, tokens in ((self.q, x), (self.k, seen), (self.v, seen))
        )
        return self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TinyMLP(nn.Module):
    """Two linear layers with a depthwise convolution between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dwconv = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)

    def forward(self, x: Tensor, shape: tuple[int, int]) -> Tensor:
        """Tokens [n, h·w, width]."""
        return self.fc2(as_tokens(gelu(self.dwconv(as_map(self.fc1(x), shape)))))


class TinyHead(nn.Module):
    """Fuses the four maps at the first one's size; norm, dropout, and logits of each pixel."""

    def __init__(self, widths: Sequence[int], num_classes: int, channels: int = 12) -> None:
        super().__init__()
        self.fuse = nn.Conv2d(sum(widths), channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout2d(0.1)
        self.predict = nn.Conv2d(channels, num_classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Logits [n, classes, h, w]."""
        size = maps[0].shape[2:]
        same = [interpolate(m, size, mode="bilinear", align_corners=False) for m in maps]
        return self.predict(self.dropout(self.norm(self.fuse(torch.cat(same, 1))).relu()))


def as_map(tokens: Tensor, shape: Sequence[int]) -> Tensor:
    """Tokens [n, h·w, C] as [n, C, h, w]."""
    return tokens.transpose(1, 2).unflatten(2, tuple(shape))


def as_tokens(features: Tensor) -> Tensor:
    """A map [n, C, h, w] as tokens [n, h·w, C]."""
    return features.flatten(2).transpose(1, 2)
