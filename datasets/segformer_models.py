"""SegFormer B0 to B5 with a decode head for Cityscapes' 19 classes.

The package contains none of their weights; docs/models.md lists where they come from. The extra
[seg] installs mmsegmentation, which defines the networks.
"""

from torch import nn

from ctta_bench.registry import MODELS

ORIGIN = "SegFormer trained on Cityscapes, by its authors or by mmsegmentation"


def segformer(size: str) -> nn.Module:
    """SegFormer of one of the published sizes ("b0" to "b5"), with random weights."""
    from ctta_bench.source_models.segformer import SIZES, SegFormer

    network = SegFormer(SIZES[size])
    network.pretrained_cfg["origin"] = ORIGIN
    return network


@MODELS.register_module("segformer_b0", display_name="SegFormer-B0", extra="seg")
def segformer_b0() -> nn.Module:
    """SegFormer-B0: widths 32 to 256, 8 blocks (3,720,051 parameters)."""
    return segformer("b0")


@MODELS.register_module("segformer_b1", display_name="SegFormer-B1", extra="seg")
def segformer_b1() -> nn.Module:
    """SegFormer-B1: widths 64 to 512, 8 blocks (13,683,155 parameters)."""
    return segformer("b1")


@MODELS.register_module("segformer_b2", display_name="SegFormer-B2", extra="seg")
def segformer_b2() -> nn.Module:
    """SegFormer-B2: widths 64 to 512, 16 blocks (24,728,019 parameters)."""
    return segformer("b2")


@MODELS.register_module("segformer_b3", display_name="SegFormer-B3", extra="seg")
def segformer_b3() -> nn.Module:
    """SegFormer-B3: widths 64 to 512, 28 blocks (44,603,859 parameters)."""
    return segformer("b3")


@MODELS.register_module("segformer_b4", display_name="SegFormer-B4", extra="seg")
def segformer_b4() -> nn.Module:
    """SegFormer-B4: widths 64 to 512, 41 blocks (61,374,419 parameters)."""
    return segformer("b4")


@MODELS.register_module("segformer_b5", display_name="SegFormer-B5", extra="seg")
def segformer_b5() -> nn.Module:
    """SegFormer-B5: widths 64 to 512, 52 blocks (81,974,739 parameters)."""
    return segformer("b5")
