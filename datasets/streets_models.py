"""The embedded segmentation model: a small SegFormer trained on the clear scenes of streets_acdc.

`ctta-bench train-source streets_acdc` makes the weights, by its recipe in `recipes.yaml`;
`embedded/streets_segformer.md` tells how well. The extra [seg] brings mmsegmentation, which defines
SegFormer's layers.
"""

from pathlib import Path

from torch import nn

from ctta_bench.registry import MODELS

EMBEDDED = Path(__file__).parent / "embedded"


@MODELS.register_module("streets_segformer")
def streets_segformer() -> nn.Module:
    """SegFormer of half B0's widths, 16 to 128 (880,259 parameters), for streets_acdc."""
    from ctta_bench.source_models.segformer import SegFormer, Size

    network = SegFormer(Size(16, (2, 2, 2, 2), decoder=64))
    network.pretrained_cfg["file"] = str(EMBEDDED / "streets_segformer.safetensors")
    return network
