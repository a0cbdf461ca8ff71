"""Sets of labelled images: one class number per image or, for segmentation, one label map."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor


class ImageSet(Protocol):
    """Labelled images, loaded by number: labels int64 [n], images uint8 or float [k, 3, H, W]."""

    @property
    def labels(self) -> np.ndarray:
        """Class numbers int64 [n]."""
        ...

    def load(self, index: np.ndarray) -> Tensor:
        """The images with these numbers [k]: uint8, or float in [0, 1]."""
        ...


@runtime_checkable
class MapSet(Protocol):
    """Images with one label map each, for segmentation.

    An image has no single class: `labels` is all zeros and only gives the number of images.
    """

    @property
    def labels(self) -> np.ndarray:
        """Zeros int64 [n]."""
        ...

    def load(self, index: np.ndarray) -> Tensor:
        """The images with these numbers [k]: uint8, or float in [0, 1]."""
        ...

    def maps(self, index: np.ndarray) -> Tensor:
        """Class of each pixel, uint8 [k, H_l, W_l]; 255: ignored. May be larger than the images."""
        ...


@dataclass(frozen=True, repr=False)
class ArrayImages:
    """Images in memory or memory-mapped: uint8 [n, 3, H, W], or grey [n, H, W]; labels int64 [n].

    Example: `ArrayImages(np.zeros((10, 3, 32, 32), np.uint8), np.arange(10))`
    """

    images: np.ndarray
    labels: np.ndarray

    def __repr__(self) -> str:
        return _in_words(self, self.images)

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, H, W]; grey images get three equal channels without a copy."""
        chosen = torch.from_numpy(np.ascontiguousarray(self.images[index]))
        return chosen.unsqueeze(1).expand(-1, 3, -1, -1) if chosen.ndim == 3 else chosen


@dataclass(frozen=True, repr=False)
class ArrayMaps:
    """Images uint8 [n, 3, H, W] and their label maps uint8 [n, H_l, W_l], in memory.

    Example: `ArrayMaps(np.zeros((4, 3, 32, 64), np.uint8), np.zeros((4, 64, 128), np.uint8))`
    """

    images: np.ndarray
    label_maps: np.ndarray

    def __repr__(self) -> str:
        return _in_words(self, self.images)

    @property
    def labels(self) -> np.ndarray:
        """Zeros int64 [n]."""
        return np.zeros(len(self.images), np.int64)

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, H, W]."""
        return torch.from_numpy(np.ascontiguousarray(self.images[index]))

    def maps(self, index: np.ndarray) -> Tensor:
        """uint8 [k, H_l, W_l]."""
        return torch.from_numpy(np.ascontiguousarray(self.label_maps[index]))


def _in_words(images: object, array: np.ndarray) -> str:
    shape = "x".join(map(str, array.shape[1:]))
    return f"<{type(images).__name__}: {len(array):,} images {array.dtype} {shape}>"


def labels_of(images: ImageSet | MapSet, index: np.ndarray) -> Tensor:
    """The labels of these images: class numbers int64 [k], or maps uint8 [k, H_l, W_l]."""
    maps = getattr(images, "maps", None)  # isinstance of a protocol would cost more than the labels
    if maps is not None:
        return maps(index)
    return torch.from_numpy(np.asarray(images.labels)[index].astype(np.int64))


def first_images(images: ImageSet, count: int) -> ImageSet:
    """The first `count` images of a set."""
    return _FirstMaps(images, count) if isinstance(images, MapSet) else _First(images, count)


def chosen_images(images: ImageSet, numbers: Sequence[int]) -> ImageSet:
    """The images of a set with these numbers, in this order."""
    chosen = np.asarray(numbers, np.int64)
    return _ChosenMaps(images, chosen) if isinstance(images, MapSet) else _Chosen(images, chosen)


def whole_set(images: ImageSet) -> ImageSet:
    """The set of which `first_images` gave the first images; other sets as they are."""
    return images.images if isinstance(images, _First) else images


class _First:
    def __init__(self, images: ImageSet, count: int) -> None:
        self.images, self.labels = images, images.labels[:count]

    def load(self, index: np.ndarray) -> Tensor:
        return self.images.load(index)


class _FirstMaps(_First):
    images: MapSet

    def maps(self, index: np.ndarray) -> Tensor:
        return self.images.maps(index)


class _Chosen:
    def __init__(self, images: ImageSet, numbers: np.ndarray) -> None:
        self.images, self.numbers, self.labels = images, numbers, images.labels[numbers]

    def load(self, index: np.ndarray) -> Tensor:
        return self.images.load(self.numbers[index])


class _ChosenMaps(_Chosen):
    images: MapSet

    def maps(self, index: np.ndarray) -> Tensor:
        return self.images.maps(self.numbers[index])
