"""The embedded segmentation model: a SegFormer-B0 trained on the clear scenes of streets_acdc.

`ctta-bench train-source streets_acdc` makes the weights, by its recipe in `recipes.yaml`;
`embedded/streets_segformer.md` lists its mIoU. The extra [seg] installs mmsegmentation, which
defines SegFormer's layers.
"""

from pathlib import Path

from torch import nn

from ctta_bench.registry import MODELS

EMBEDDED = Path(__file__).parent / "embedded"


@MODELS.register_module("streets_segformer", display_name="SegFormer-B0 (streets)", extra="seg")
def streets_segformer() -> nn.Module:
    """SegFormer-B0 (3,720,051 parameters) with weights for streets_acdc."""
    from ctta_bench.source_models.segformer import SIZES, SegFormer

    network = SegFormer(SIZES["b0"])
    network.pretrained_cfg["file"] = str(EMBEDDED / "streets_segformer.safetensors")
    return network
