"""Pre-processing of images in [0, 1] for the network: resizing, then normalisation.

Regime `true` is the checkpoint's own normalisation; regime `lineage` is none, raw [0, 1], as in
the published tables of earlier papers with the same weights:

    true      x -> (resize(x, size) - mean) / std     mean, std, size as recorded with the weights
    lineage   x -> resize(x, size)                    for networks of 224 pixels
                                                      centre_crop(resize(x, short side 256), 224)

The crop of `lineage` enlarges images of 224 x 224 pixels by 8/7 and removes their border, as the
loaders of CoTTA, ViDA, DPCore and PAID do. All resizing is bilinear.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torchvision.transforms.functional import center_crop

from ctta_bench.errors import ConfigError

Regime = Literal["true", "lineage", "own"]
# torchvision's Resize(256), CenterCrop(224), for every network of 224 pixels.
LINEAGE_CROP, LINEAGE_SHORT_SIDE = (224, 224), 256
# A key of pretrained_cfg: mean and std are part of the network, and are used in both regimes.
BUILT_IN = "built_in_normalisation"


@dataclass(frozen=True)
class Preprocessing:
    """The pre-processing of a model's images; it belongs to the identity of a result.

        Preprocessing("true", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), size=(224, 224))

    `mean` and `std` are for images in [0, 1]; `size` is (height, width) of the network's input,
    None for any size. With `enlarge`, images are resized so that the short side has that many
    pixels, and `size` is cut from the centre. `transform` is a function of one's own from images
    [n, 3, H, W] in [0, 1] to the network's input, with a name for the record (see
    `own_preprocessing`).
    """

    regime: Regime = "true"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    size: tuple[int, int] | None = None
    interpolation: str = "bilinear"
    enlarge: int | None = None
    transform: Callable[[Tensor], Tensor] | None = None
    transform_name: str = ""

    def record(self) -> dict[str, Any]:
        """Plain values for cell.yaml; `enlarge` and `transform` (its name) only if they are set."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        plain |= {"transform": plain.pop("transform_name") or None}
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}
        optional = ("enlarge", "transform")
        return {k: v for k, v in values.items() if k not in optional or v is not None}

    def resize(self, images: Tensor) -> Tensor:
        """Images [n, 3, H, W] resized to the network's input, [n, 3, *size]."""
        if self.transform is not None:
            return self.transform(images)
        if self.size is None:
            return images
        if self.enlarge is not None:
            return center_crop(_short_side(images, self.enlarge), list(self.size))
        if tuple(images.shape[-2:]) == self.size:
            return images
        return interpolate(images, size=self.size, mode="bilinear", align_corners=False)

    def __str__(self) -> str:
        """As text, e.g. `true (mean 0.5, std 0.5, 224x224)`."""
        if self.transform_name:
            return f"{self.regime} ({self.transform_name})"
        parts = ["raw [0, 1]"]
        if (self.mean, self.std) != ((0.0,) * 3, (1.0,) * 3):
            parts = [f"mean {_channels(self.mean)}", f"std {_channels(self.std)}"]
        if self.enlarge is not None:
            parts.append(f"short side {self.enlarge}")
        if self.size is not None:
            parts.append(f"{self.size[0]}x{self.size[1]}")
        return f"{self.regime} ({', '.join(parts)})"


def own_preprocessing(
    transform: Callable[[Tensor], Tensor], size: tuple[int, int] | None = None
) -> Preprocessing:
    """The pre-processing of a function or module from images [n, 3, H, W] in [0, 1].

    size: (height, width) of the network's input, if it is known; nothing is resized to it. The name
    for the record ends with a hash of its output for one image, so that two functions of one name
    are told apart. Raises ConfigError if it does not return images.
    """
    name = getattr(transform, "__name__", None) or " ".join(repr(transform).split())
    shown = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            output = transform(shown)
            again = transform(shown)
    except Exception as error:
        raise ConfigError(
            f"preprocessing {name}: fails on images [1, 3, 64, 64] in [0, 1] ({error}); give a "
            "function of a batch of images as a tensor."
        ) from error
    if not isinstance(output, Tensor) or output.ndim != 4 or not torch.equal(output, again):
        raise ConfigError(
            f"preprocessing {name}: must return images [n, 3, H, W], and the same for every call."
        )
    values = output.detach().double().contiguous().numpy().tobytes()
    digest = hashlib.sha256(f"{tuple(output.shape)}".encode() + values).hexdigest()[:8]
    made = (int(output.shape[2]), int(output.shape[3]))
    return Preprocessing(
        "own",
        size=size if made == tuple(shown.shape[2:]) else made,
        transform=transform,
        transform_name=f"{name[:80]} {digest}",
    )


def _short_side(images: Tensor, pixels: int) -> Tensor:
    short = min(images.shape[-2:])
    height, width = (int(pixels * side / short) for side in images.shape[-2:])
    # Antialiased as in Pillow, which matters only if images shrink.
    return interpolate(
        images, size=(height, width), mode="bilinear", align_corners=False, antialias=True
    )


def _channels(values: tuple[float, ...]) -> str:
    distinct = dict.fromkeys(values)
    return "/".join(f"{v:g}" for v in (distinct if len(distinct) == 1 else values))


def recorded_cfg(network: nn.Module) -> dict[str, Any]:
    """timm's record of a checkpoint: mean, std, input size, ...; {} if there is none."""
    cfg = getattr(network, "pretrained_cfg", None) or {}
    return cfg if isinstance(cfg, dict) else cfg.to_dict()


def built_size(network: nn.Module) -> tuple[int, int] | None:
    """The only (height, width) that a timm transformer accepts, None if it accepts others."""
    embed = getattr(network, "patch_embed", None)
    size = getattr(embed, "img_size", None)
    return tuple(size) if size and getattr(embed, "strict_img_size", False) else None


def input_size(network: nn.Module) -> tuple[int, int] | None:
    """(height, width) of a network's input, from its record or its patch embedding, if known."""
    recorded = recorded_cfg(network).get("input_size")
    return (int(recorded[1]), int(recorded[2])) if recorded else built_size(network)


def recorded_preprocessing(
    network: nn.Module, regime: str, size: tuple[int, int] | None = None
) -> Preprocessing:
    """The pre-processing of a network in a regime, from the record of its weights.

    `size` replaces the recorded input size. Raises ConfigError for an unknown regime.
    """
    if regime not in ("true", "lineage"):
        raise ConfigError(f"preprocessing {regime!r}: choose 'true' or 'lineage'.")
    cfg = recorded_cfg(network)
    size = size or input_size(network)
    enlarge = LINEAGE_SHORT_SIDE if regime == "lineage" and size == LINEAGE_CROP else None
    if "mean" not in cfg or (regime == "lineage" and not cfg.get(BUILT_IN)):
        return Preprocessing(regime, size=size, enlarge=enlarge)  # type: ignore[arg-type]
    mean, std = tuple(cfg["mean"]), tuple(cfg["std"])
    return Preprocessing(regime, mean, std, size=size, enlarge=enlarge)  # type: ignore[arg-type]
