"""The style of a batch: how much the first layers of VGG19 vary over its images and positions."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ctta_bench.errors import DataError

WEIGHTS = "vgg19-dcbb9e9d.pth"  # torchvision's; the digits begin the SHA-256 of the file
ADDRESS = f"https://download.pytorch.org/models/{WEIGHTS}"
CONVOLUTIONS = (0, 2, 5, 7)  # their places among VGG19's features
MEASURED = (2, 5, 7)
WIDTHS = (64, 64, 128, 128)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PIXELS_AT_ONCE = 4 * 224 * 224  # the first maps are large


class StyleNetwork(nn.Module):
    """Images [n, 3, H, W] in [0, 1] to their common style [d].

    A value is the logarithm of a channel's unbiased variance over images and positions, before the
    ReLU, in the second to fourth convolution. `widths` are the channels of the four; those measured
    add up to d.
    """

    def __init__(self, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        one, two, three, four = widths
        self.features = nn.Sequential(
            nn.Conv2d(3, one, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(one, two, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(two, three, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(three, four, 3, padding=1),
        )
        self.width = two + three + four
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """The style [d] of images [n, 3, H, W] in [0, 1]; some images at a time."""
        shift, scale = (images.new_tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
        few = max(1, PIXELS_AT_ONCE // images[0, 0].numel())
        with torch.autocast(images.device.type, enabled=False):
            parts = [self.moments((some - shift) / scale) for some in images.split(few)]
        counts, means, spreads = zip(*parts, strict=True)
        total = sum(counts)
        mean = sum(n * m for n, m in zip(counts, means, strict=True)) / total
        between = sum(n * (m - mean).square() for n, m in zip(counts, means, strict=True))
        style: Tensor = ((sum(spreads) + between) / (total - 1)).log()
        return style

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each channel: number of values, mean, and sum of squared distances from it, [d]."""
        counts, means, spreads = [], [], []
        for place, layer in enumerate(self.features):
            values = layer(values)
            if place in MEASURED:
                rows = values.transpose(0, 1).flatten(1)
                counts.append(torch.full_like(rows[:, 0], rows.shape[1]))
                means.append(rows.mean(1))
                spreads.append(rows.var(1, unbiased=False) * rows.shape[1])
        return torch.cat(counts), torch.cat(means), torch.cat(spreads)


def random_style_network(seed: int = 0) -> StyleNetwork:
    """VGG19's layers with random weights, the same for equal seeds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = StyleNetwork()
        for place in CONVOLUTIONS:
            layer: Any = network.features[place]
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return network


def vgg19_style_network(*, asked_by: str) -> StyleNetwork:
    """VGG19's layers with torchvision's ImageNet weights, from torch's folder of checkpoints.

    Raises DataError, which names the method `asked_by`, if the file is not there or is another one.
    """
    file = Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS
    if not file.is_file():
        raise DataError(
            f"{asked_by} needs torchvision's VGG19 for the style of batches, and {file} does not "
            f"exist; download {ADDRESS} to it, or set style_network: random, which is not the "
            "published method."
        )
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(2**20):
            digest.update(block)
    found = digest.hexdigest()
    if not found.startswith(WEIGHTS.removesuffix(".pth").rpartition("-")[2]):
        raise DataError(
            f"{file}: not torchvision's file (SHA-256 {found[:8]}); download {ADDRESS}."
        )
    tensors = torch.load(file, map_location="cpu", weights_only=True)
    names = [f"features.{place}.{kind}" for place in CONVOLUTIONS for kind in ("weight", "bias")]
    network = StyleNetwork()
    missing = [name for name in names if name not in tensors]
    if missing:
        raise DataError(f"{file}: has no tensor {missing[0]}; download {ADDRESS}.")
    network.load_state_dict({name: tensors[name] for name in names})
    return network
