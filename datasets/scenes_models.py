"""The source models of scenes_c: a small ViT, and a small CNN with BatchNorm or GroupNorm.

`ctta-bench train-source scenes_c --model NAME` makes the weights, by the recipes in `recipes.yaml`.
All take float images [n, 3, 32, 32] in [0, 1], normalised with mean and std 0.5.
"""

from timm.models.vision_transformer import VisionTransformer
from torch import nn

from ctta_bench.datasets.fashion_models import NUM_CLASSES, ConvStem, FashionCNN, with_cfg
from ctta_bench.registry import MODELS

WIDTHS = (40, 80, 160)
GROUPS = 8


@MODELS.register_module("scenes_vit", display_name="ViT (Scenes)")
def scenes_vit() -> nn.Module:
    """ViT of 17 tokens, width 128, depth 4 and 4 heads, with LayerNorm (0.89 M parameters)."""
    network = VisionTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=128,
        depth=4,
        num_heads=4,
        num_classes=NUM_CLASSES,
        embed_layer=ConvStem,
    )
    return with_cfg(network, "scenes_vit.safetensors")


@MODELS.register_module("scenes_cnn", display_name="CNN (Scenes)")
def scenes_cnn() -> nn.Module:
    """CNN of six 3x3 convolutions in three stages, with BatchNorm (0.45 M parameters)."""
    return with_cfg(FashionCNN(WIDTHS), "scenes_cnn.safetensors")


@MODELS.register_module("scenes_cnn_gn", display_name="CNN-GN (Scenes)")
def scenes_cnn_gn() -> nn.Module:
    """`scenes_cnn` with GroupNorm of 8 groups in place of BatchNorm (0.45 M parameters)."""
    network = FashionCNN(WIDTHS, lambda channels: nn.GroupNorm(GROUPS, channels))
    return with_cfg(network, "scenes_cnn_gn.safetensors")
