"""A plug-in: the model `class_reader`, right about every picture of `layouts.colour`.

Its logits tell the class that the picture's colour spells, so that an error of 0 proves that labels
are ImageNet's class numbers, and any other order of classes shows.
"""

import torch
from torch import nn

from ctta_bench.registry import MODELS


class ClassReader(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.norm = nn.LayerNorm(classes)  # something that TENT may adapt
        self.head = nn.Linear(classes, classes, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        digits = (images.mean((2, 3)) * 255 / 25).round().long()
        number = digits @ torch.tensor([100, 10, 1])
        spelt = nn.functional.one_hot(number.clamp(max=self.classes - 1), self.classes)
        return self.head(self.norm(spelt.to(images.dtype)))


@MODELS.register_module("class_reader")
def class_reader() -> nn.Module:
    """1,000 classes."""
    return ClassReader(1000)


@MODELS.register_module("class_reader_10")
def class_reader_10() -> nn.Module:
    """10 classes."""
    return ClassReader(10)
