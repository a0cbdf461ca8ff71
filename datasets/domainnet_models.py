"""Source model for DomainNet-126: ResNet-50 with a bottleneck, as trained by AdaContrast.

The package contains no weights; docs/models.md lists where they come from. Each source domain has
its own checkpoint.
"""

from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from ctta_bench.datasets.cifar_models import with_cfg
from ctta_bench.registry import MODELS

BOTTLENECK = 256


class BottleneckResNet(nn.Module):
    """ResNet-50, a linear layer to 256 values with BatchNorm, and a linear layer to the classes.

    The last layer is stored with weight normalisation (Salimans & Kingma, 2016) in AdaContrast's
    checkpoints. `read_layout` multiplies length and direction once, so it is a plain layer here.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        backbone: Any = timm.create_model("resnet50", num_classes=BOTTLENECK)
        self.encoder = nn.Sequential(backbone, nn.BatchNorm1d(BOTTLENECK))
        self.fc = nn.Linear(BOTTLENECK, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images [n, 3, H, W] to logits [n, classes]."""
        return self.fc(self.encoder(images))

    def read_layout(self, tensors: dict[str, Tensor], _: Path) -> dict[str, Tensor]:
        """The tensors of a checkpoint, with fc.weight_g [C, 1] and fc.weight_v [C, 256] joined."""
        if "fc.weight_g" not in tensors or "fc.weight_v" not in tensors:
            return tensors
        others = {k: v for k, v in tensors.items() if not k.startswith("fc.weight")}
        length, direction = tensors["fc.weight_g"], tensors["fc.weight_v"]
        joined = length * direction / torch.linalg.vector_norm(direction, dim=1, keepdim=True)
        return others | {"fc.weight": joined}


@MODELS.register_module("domainnet126_resnet50", display_name="ResNet-50 (DomainNet-126)")
def domainnet126_resnet50() -> nn.Module:
    """ResNet-50 with a bottleneck of 256, trained on a domain of DomainNet-126 (24.1 M)."""
    return with_cfg(
        BottleneckResNet(126),
        126,
        "AdaContrast's best_SOURCE_2020.pth for DomainNet-126",
        input_size=(3, 224, 224),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )
