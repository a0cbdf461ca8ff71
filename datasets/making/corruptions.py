"""The image corruptions of Hendrycks & Dietterich (ICLR 2019, arXiv:1903.12261): the fifteen of
CIFAR-C and ImageNet-C and the four hold-out ones, for RGB images of at least 8 x 8 pixels.

The released files were made without a seed: images made here agree in distribution, but are not
bit-identical.
"""

import difflib
import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from ctta_bench.datasets.making.effects import EFFECTS, U8, to_bytes
from ctta_bench.datasets.making.strengths import CORRUPTIONS, HOLD_OUT, PARAMETERS
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.registry import CORRUPTION_SETS

__all__ = [
    "CORRUPTIONS",
    "HOLD_OUT",
    "PARAMETERS",
    "U8",
    "VERSION",
    "corrupt",
    "corrupt_batch",
    "stable_seed",
]

# Increase whenever an output changes; part of cache keys, manifests and the identity of cells.
# 2: motion blur and snow round to 8 bits where version 1 truncated.
VERSION: int = 2


def corrupt(
    image: U8, corruption: str, severity: int, *, parameters: str = "cifar", seed: int, index: int
) -> U8:
    """A corrupted copy of an image, uint8 [H, W, 3]; it depends only on the arguments.

    `index`, the image's number in its data set, gives each image its own random numbers.
    `parameters` is `cifar` (made for 32 pixels), `imagenet` (for 224) or `mixed` (cifar's values,
    but imagenet's for noise, snow, brightness, pixelate, JPEG, spatter and Gaussian blur); all work
    for any size. If an image is larger than the frost picture, the picture is enlarged with its
    aspect ratio kept.

    Example: `corrupt(image, "fog", 5, seed=0, index=0)`

    Raises ConfigError for an unknown name or a severity outside 1 to 5, DataError for another kind
    of image or missing frost pictures (`imagenet` needs the full-size ones).
    """
    level = _level(parameters, corruption, severity)
    dtype, shape = getattr(image, "dtype", type(image).__name__), np.shape(image)
    if dtype != np.uint8 or len(shape) != 3 or shape[2] != 3 or min(shape[:2]) < 8:
        wanted = "uint8 [H, W, 3] (RGB) with H and W from 8 up"
        raise DataError(f"an image to corrupt is {wanted}, not {dtype} {list(shape)}; convert it")
    rng = RandomState(stable_seed(seed, corruption, severity, index))
    result = EFFECTS[corruption](np.ascontiguousarray(image), rng, *level)
    return np.asarray(result if result.dtype == np.uint8 else to_bytes(result))


def corrupt_batch(
    images: U8,
    corruption: str,
    severity: int,
    *,
    parameters: str = "cifar",
    seed: int,
    indices: Sequence[int] | NDArray[np.integer[Any]],
) -> U8:
    """`corrupt` for each image of [n, H, W, 3]; `indices` are their n numbers."""
    if len(images) != len(indices):
        raise DataError(f"{len(images)} images but {len(indices)} indices; give one for each image")
    one = functools.partial(corrupt, parameters=parameters, seed=seed)
    result = np.empty_like(images)
    for row, index in enumerate(indices):
        result[row] = one(images[row], corruption, severity, index=int(index))
    return result


def stable_seed(seed: int, corruption: str, severity: int, index: int) -> int:
    """Seed in [0, 2**32) for one image's random numbers, equal in every process."""
    text = f"{int(seed)}/{corruption}/{int(severity)}/{int(index)}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def _level(parameters: str, corruption: str, severity: int) -> tuple[float, ...]:
    if parameters not in PARAMETERS:
        raise ConfigError(f"unknown parameters {parameters!r}; choose {', '.join(PARAMETERS)}")
    if corruption not in EFFECTS:
        close = difflib.get_close_matches(str(corruption), EFFECTS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"unknown corruption {corruption!r}.{hint} Known: {', '.join(EFFECTS)}")
    if severity not in range(1, 6):
        raise ConfigError(f"severity {severity!r} of {corruption} is not one of 1, 2, 3, 4, 5")
    level = PARAMETERS[parameters][corruption][int(severity) - 1]
    return level if isinstance(level, tuple) else (level,)


@CORRUPTION_SETS.register_module("hendrycks")
class Hendrycks:
    """The corruptions of Hendrycks and Dietterich, for benchmarks made of a user's images."""

    names = CORRUPTIONS
    known = (*CORRUPTIONS, *HOLD_OUT)
    moves_pixels = ("elastic_transform",)  # by more than their neighbours: label maps do not fit
    version = VERSION
    corrupt = staticmethod(corrupt)
