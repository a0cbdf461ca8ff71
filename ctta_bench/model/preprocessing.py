"""What happens to images between [0, 1] and the network: geometry, then normalisation.

Regime `true` is what the weights were trained with, regime `lineage` what the published tables of
this field fed to the same weights:

    true      x -> (resize(x, size) - mean) / std     mean, std, size as recorded with the weights
    lineage   x -> resize(x, size)                    no normalisation; a network of 224 pixels gets
                                                      centre_crop(resize(x, short side 256), 224)

The second line of `lineage` enlarges images that are 224 x 224 already by 8/7 and cuts their border
off, as the loaders of CoTTA, ViDA, DPCore and PAID do. All resizing is bilinear.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.functional import interpolate
from torchvision.transforms.functional import center_crop

from ctta_bench.errors import ConfigError

Regime = Literal["true", "lineage"]
# torchvision's Resize(256), CenterCrop(224), in front of every network of 224 pixels.
LINEAGE_CROP, LINEAGE_SHORT_SIDE = (224, 224), 256
# A record's key: mean and std belong to the network itself, and hold under both regimes.
BUILT_IN = "built_in_normalisation"


@dataclass(frozen=True)
class Preprocessing:
    """What happens to images before the network; part of a result's identity.

    `size` is (height, width) of the network's input, None if any will do. With `enlarge`, the short
    side is brought to that many pixels first, and `size` is cut from the centre.
    """

    regime: Regime = "true"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    size: tuple[int, int] | None = None
    interpolation: str = "bilinear"
    enlarge: int | None = None

    def record(self) -> dict[str, Any]:
        """As plain values for cell.yaml; `enlarge` only where it is done."""
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {k: v for k, v in values.items() if k != "enlarge" or v is not None}

    def resize(self, images: Tensor) -> Tensor:
        """Images [n, 3, H, W] at the network's size [n, 3, *size]."""
        if self.size is None:
            return images
        if self.enlarge is not None:
            return center_crop(_short_side(images, self.enlarge), list(self.size))
        if tuple(images.shape[-2:]) == self.size:
            return images
        return interpolate(images, size=self.size, mode="bilinear", align_corners=False)

    def __str__(self) -> str:
        """In words, e.g. `true (mean 0.5, std 0.5, 224x224)`."""
        parts = ["raw [0, 1]"]
        if (self.mean, self.std) != ((0.0,) * 3, (1.0,) * 3):
            parts = [f"mean {_channels(self.mean)}", f"std {_channels(self.std)}"]
        if self.enlarge is not None:
            parts.append(f"short side {self.enlarge}")
        if self.size is not None:
            parts.append(f"{self.size[0]}x{self.size[1]}")
        return f"{self.regime} ({', '.join(parts)})"


def _short_side(images: Tensor, pixels: int) -> Tensor:
    short = min(images.shape[-2:])
    height, width = (int(pixels * side / short) for side in images.shape[-2:])
    # Antialiased, as Pillow does it; that matters only where images shrink.
    return interpolate(
        images, size=(height, width), mode="bilinear", align_corners=False, antialias=True
    )


def _channels(values: tuple[float, ...]) -> str:
    distinct = dict.fromkeys(values)
    return "/".join(f"{v:g}" for v in (distinct if len(distinct) == 1 else values))


def recorded_cfg(network: nn.Module) -> dict[str, Any]:
    """What timm keeps about a checkpoint: mean, std, input size, ...; {} if nothing is recorded."""
    cfg = getattr(network, "pretrained_cfg", None) or {}
    return cfg if isinstance(cfg, dict) else cfg.to_dict()


def built_size(network: nn.Module) -> tuple[int, int] | None:
    """The only (height, width) that a timm transformer takes, None if it is not so bound."""
    embed = getattr(network, "patch_embed", None)
    size = getattr(embed, "img_size", None)
    return tuple(size) if size and getattr(embed, "strict_img_size", False) else None


def recorded_preprocessing(
    network: nn.Module, regime: str, size: tuple[int, int] | None = None
) -> Preprocessing:
    """The pre-processing that belongs to the network's weights, or its lineage form.

    `size` replaces the recorded input size. Raises ConfigError for another regime.
    """
    if regime not in ("true", "lineage"):
        raise ConfigError(f"preprocessing {regime!r}: choose 'true' or 'lineage'.")
    cfg = recorded_cfg(network)
    if size is None:
        size = tuple(cfg["input_size"][1:]) if cfg.get("input_size") else built_size(network)
    enlarge = LINEAGE_SHORT_SIDE if regime == "lineage" and size == LINEAGE_CROP else None
    if "mean" not in cfg or (regime == "lineage" and not cfg.get(BUILT_IN)):
        return Preprocessing(regime, size=size, enlarge=enlarge)  # type: ignore[arg-type]
    mean, std = tuple(cfg["mean"]), tuple(cfg["std"])
    return Preprocessing(regime, mean, std, size=size, enlarge=enlarge)  # type: ignore[arg-type]
