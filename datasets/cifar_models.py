"""Source models for CIFAR-10 and CIFAR-100: ViT-B/16 at 384 pixels, and RobustBench's networks.

The package contains none of their weights; docs/models.md lists where they come from. Modules of
the convolutional networks have the names used in the checkpoints.
"""

from collections import OrderedDict
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, relu

from ctta_bench.registry import MODELS

VIT = "vit_base_patch16_384.augreg_in21k_ft_in1k"
HALVES = (0.5, 0.5, 0.5)


def with_cfg(network: Any, num_classes: int, origin: str, **recorded: Any) -> nn.Module:
    """`network` with a record of its input and of the origin of its weights."""
    network.pretrained_cfg = {
        "input_size": (3, 32, 32),
        "num_classes": num_classes,
        "origin": origin,
        **recorded,
    }
    return network


# -- ViT-B/16


def vit_base(num_classes: int) -> nn.Module:
    """ViT-B/16 for 384 pixels with a head for CIFAR; its input images are enlarged to 384."""
    network: Any = timm.create_model(VIT, num_classes=num_classes)
    cfg = network.pretrained_cfg
    recorded = {k: cfg[k] for k in ("mean", "std", "input_size", "architecture", "classifier")}
    return with_cfg(network, num_classes, f"fine-tuned from timm:{VIT}", **recorded)


@MODELS.register_module("cifar10_vit_base", display_name="ViT-B/16 (CIFAR-10)")
def cifar10_vit_base() -> nn.Module:
    """ViT-B/16 at 384 pixels fine-tuned on CIFAR-10 (86,098,186 parameters)."""
    return vit_base(10)


@MODELS.register_module("cifar100_vit_base", display_name="ViT-B/16 (CIFAR-100)")
def cifar100_vit_base() -> nn.Module:
    """ViT-B/16 at 384 pixels fine-tuned on CIFAR-100 (86,167,396 parameters)."""
    return vit_base(100)


# -- wide residual networks


class WideBlock(nn.Module):
    """Two 3x3 convolutions, each after BatchNorm and ReLU (Zagoruyko & Komodakis, 2016)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.convShortcut = (
            nn.Conv2d(channels, width, 1, stride, bias=False) if channels != width else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Channels to width; a shortcut with convolution starts after the first activation."""
        active = relu(self.bn1(x))
        residual = self.conv2(relu(self.bn2(self.conv1(active))))
        return residual + (x if self.convShortcut is None else self.convShortcut(active))


class WideResNet(nn.Module):
    """WRN-depth-factor for CIFAR: three groups of (depth - 4) / 6 blocks, pooling, linear layer."""

    def __init__(self, depth: int, factor: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        channels = 16
        for number, (width, stride) in enumerate(((16, 1), (32, 2), (64, 2)), 1):
            group, strides = [], (stride, *[1] * ((depth - 4) // 6 - 1))
            for step in strides:
                group.append(WideBlock(channels, width * factor, step))
                channels = width * factor
            self.add_module(
                f"block{number}", nn.Sequential(OrderedDict(layer=nn.Sequential(*group)))
            )
        self.bn1 = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, num_classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Images [n, 3, 32, 32] to logits [n, classes]."""
        x = self.get_submodule("block3")(
            self.get_submodule("block2")(self.get_submodule("block1")(self.conv1(images)))
        )
        return self.fc(torch.flatten(adaptive_avg_pool2d(relu(self.bn1(x)), 1), 1))


# -- ResNeXt


class NeXtBlock(nn.Module):
    """1x1, grouped 3x3 and 1x1 convolutions with BatchNorm (Xie et al., 2017, block C)."""

    def __init__(self, channels: int, planes: int, stride: int, groups: int, base: int) -> None:
        super().__init__()
        inner, outer = planes * base // 64 * groups, 4 * planes
        self.conv_reduce = nn.Conv2d(channels, inner, 1, bias=False)
        self.bn_reduce = nn.BatchNorm2d(inner)
        self.conv_conv = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(inner)
        self.conv_expand = nn.Conv2d(inner, outer, 1, bias=False)
        self.bn_expand = nn.BatchNorm2d(outer)
        self.downsample = None
        if stride != 1 or channels != outer:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Channels to four times the planes."""
        y = relu(self.bn_reduce(self.conv_reduce(x)))
        y = relu(self.bn(self.conv_conv(y)))
        y = self.bn_expand(self.conv_expand(y))
        return relu(y + (x if self.downsample is None else self.downsample(x)))


class CifarResNeXt(nn.Module):
    """ResNeXt-29 for CIFAR as in AugMix: 4 groups of base width 32, three stages of 3 blocks."""

    def __init__(self, num_classes: int, groups: int = 4, base: int = 32) -> None:
        super().__init__()
        self.conv_1_3x3 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn_1 = nn.BatchNorm2d(64)
        channels = 64
        for number, (planes, stride) in enumerate(((64, 1), (128, 2), (256, 2)), 1):
            blocks = []
            for step in (stride, 1, 1):
                blocks.append(NeXtBlock(channels, planes, step, groups, base))
                channels = 4 * planes
            self.add_module(f"stage_{number}", nn.Sequential(*blocks))
        self.classifier = nn.Linear(channels, num_classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Images [n, 3, 32, 32] to logits [n, classes]."""
        x = relu(self.bn_1(self.conv_1_3x3(images)))
        for number in (1, 2, 3):
            x = self.get_submodule(f"stage_{number}")(x)
        return self.classifier(torch.flatten(adaptive_avg_pool2d(x, 1), 1))


def initialise(network: nn.Module) -> None:
    """Initialise the convolutions for ReLU (He et al., 2015), for training from scratch."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


# -- RobustBench's models


def augmix(network: nn.Module, num_classes: int, name: str) -> nn.Module:
    """A network of AugMix: RobustBench normalises by mean and std 0.5 inside its forward pass."""
    return with_cfg(
        network,
        num_classes,
        f"RobustBench's {name} for CIFAR-{num_classes}",
        mean=HALVES,
        std=HALVES,
        built_in_normalisation=True,
    )


@MODELS.register_module("cifar10_wrn28_10", display_name="WRN-28-10 (CIFAR-10)")
def cifar10_wrn28_10() -> nn.Module:
    """WideResNet-28-10, RobustBench's `Standard` for CIFAR-10 (raw images, 36.5 M parameters)."""
    return with_cfg(WideResNet(28, 10, 10), 10, "RobustBench's Standard for CIFAR-10")


@MODELS.register_module("cifar10_wrn40_2", display_name="WRN-40-2 AugMix (CIFAR-10)")
def cifar10_wrn40_2() -> nn.Module:
    """WideResNet-40-2, RobustBench's `Hendrycks2020AugMix_WRN` for CIFAR-10 (2.2 M parameters)."""
    return augmix(WideResNet(40, 2, 10), 10, "Hendrycks2020AugMix_WRN")


@MODELS.register_module("cifar10_resnext29", display_name="ResNeXt-29 AugMix (CIFAR-10)")
def cifar10_resnext29() -> nn.Module:
    """ResNeXt-29, RobustBench's `Hendrycks2020AugMix_ResNeXt` for CIFAR-10 (6.8 M parameters)."""
    return augmix(CifarResNeXt(10), 10, "Hendrycks2020AugMix_ResNeXt")


@MODELS.register_module("cifar100_wrn40_2", display_name="WRN-40-2 AugMix (CIFAR-100)")
def cifar100_wrn40_2() -> nn.Module:
    """WideResNet-40-2, RobustBench's `Hendrycks2020AugMix_WRN` for CIFAR-100 (2.3 M parameters)."""
    return augmix(WideResNet(40, 2, 100), 100, "Hendrycks2020AugMix_WRN")


@MODELS.register_module("cifar100_resnext29", display_name="ResNeXt-29 AugMix (CIFAR-100)")
def cifar100_resnext29() -> nn.Module:
    """ResNeXt-29, RobustBench's `Hendrycks2020AugMix_ResNeXt` for CIFAR-100 (6.9 M parameters)."""
    return augmix(CifarResNeXt(100), 100, "Hendrycks2020AugMix_ResNeXt")
