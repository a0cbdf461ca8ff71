"""The embedded source models: a small ViT and a small BatchNorm CNN trained on Fashion-MNIST.

`ctta-bench train-source fashion_c` makes the weights, by the recipes in `recipes.yaml`;
`embedded/CARD.md` lists their accuracy. Both take float images [n, 3, 32, 32] in [0, 1], normalised
with `MEAN` and `STD`.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ctta_bench.registry import MODELS

EMBEDDED = Path(__file__).parent / "embedded"
NUM_CLASSES = 10
MEAN = STD = (0.5, 0.5, 0.5)


def with_cfg(network: Any, file: str) -> nn.Module:
    """`network` with timm's record of a checkpoint: input size, normalisation, file."""
    network.pretrained_cfg = {
        "file": str(EMBEDDED / file),
        "mean": MEAN,
        "std": STD,
        "input_size": (3, 32, 32),
        "interpolation": "bilinear",
        "num_classes": NUM_CLASSES,
    }
    return network


class ConvStem(PatchEmbed):
    """Patch embedding by 3x3 convolutions of stride 2 (Xiao et al., 2021, arXiv:2106.14881).

    Two for patches of 4 pixels, three for 8. With a plain patch embedding, a transformer of this
    size learns little from 60,000 images.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        width = self.proj.out_channels
        halvings = int(math.log2(self.patch_size[0])) - 1
        layers: list[nn.Module] = [nn.Conv2d(3, width >> halvings, 3, stride=2, padding=1)]
        for left in reversed(range(halvings)):
            wide = width >> left
            layers += [nn.GELU(), nn.Conv2d(wide // 2, wide, 3, stride=2, padding=1)]
        self.proj = nn.Sequential(*layers)  # type: ignore[assignment]


@MODELS.register_module("fashion_vit", display_name="ViT (Fashion-MNIST)")
def fashion_vit() -> nn.Module:
    """ViT with patch 4, width 96, depth 4 and 4 heads (65 tokens, 0.50 M parameters)."""
    network = VisionTransformer(
        img_size=32,
        patch_size=4,
        embed_dim=96,
        depth=4,
        num_heads=4,
        num_classes=NUM_CLASSES,
        embed_layer=ConvStem,
    )
    return with_cfg(network, "fashion_vit.safetensors")


class FashionCNN(nn.Module):
    """Six convolutions, each with `norm(channels)`, in three stages; pooling; one linear layer."""

    def __init__(
        self,
        widths: tuple[int, int, int] = (32, 64, 128),
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in widths:
            for stride in (2, 1):
                layers += [
                    nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False),
                    norm(width),
                    nn.ReLU(inplace=True),
                ]
                channels = width
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(channels, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images [n, 3, H, W] to logits [n, 10]."""
        return self.fc(
            torch.flatten(nn.functional.adaptive_avg_pool2d(self.features(images), 1), 1)
        )


@MODELS.register_module("fashion_cnn", display_name="CNN (Fashion-MNIST)")
def fashion_cnn() -> nn.Module:
    """BatchNorm CNN of six 3x3 convolutions in three stages (0.29 M parameters)."""
    return with_cfg(FashionCNN(), "fashion_cnn.safetensors")
