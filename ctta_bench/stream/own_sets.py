"""Image sets of what users have: arrays, Datasets, DataLoaders, Hugging Face data, pairs.

`image_set` reads each of them. Float images must be in [0, 1]: the source model normalises them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from ctta_bench.errors import DataError
from ctta_bench.stream.fingerprint import digest
from ctta_bench.stream.image_sets import ArrayImages, ArrayMaps, ImageSet, MapSet

TAKEN = (
    "a pair (images, labels) of arrays or tensors, a torch Dataset or DataLoader, a Hugging Face "
    "data set, or an iterable of pairs (image, label)"
)
IMAGE_KEYS = ("image", "images", "img", "pixel_values")
LABEL_KEYS = ("label", "labels", "fine_label", "annotation", "mask")
_TWICE = 4  # images that are read twice, to find random transforms


@dataclass(frozen=True)
class GivenSet:
    """An image set that a user gave, and the names of its classes, () if it does not know them."""

    images: ImageSet
    classes: tuple[str, ...] = ()


class _Hashed:
    """Arrays of which every byte counts in the fingerprint, since they are in memory."""

    images: np.ndarray

    def fingerprint(self, count: int) -> dict[str, str]:
        """The hash of the first `count` images and, for segmentation, of their maps."""
        parts = [self.images[:count]]
        parts += [self.label_maps[:count]] if isinstance(self, ArrayMaps) else []
        heads = [f"{part.dtype} {part.shape}".encode() for part in parts]
        return {"contents": digest(*heads, *map(np.ndarray.tobytes, parts))}


class HashedImages(_Hashed, ArrayImages):
    """`ArrayImages` with a fingerprint of all images."""


class HashedMaps(_Hashed, ArrayMaps):
    """`ArrayMaps` with a fingerprint of all images and maps."""


class Items:
    """Images of a Dataset, read item by item when the stream needs them."""

    def __init__(self, source: Any, keys: "_Keys", size: int | None, labels: np.ndarray) -> None:
        self.source, self.keys, self.size, self.labels = source, keys, size, labels

    def __repr__(self) -> str:
        return f"<{len(self.labels):,} images of {self.keys.where}, read from {_kind(self.source)}>"

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 or float [k, 3, H, W]. Raises DataError for images of different sizes."""
        return _stacked(
            [
                as_image(self.keys.split(self.source[int(n)])[0], self.keys.place(n), self.size)
                for n in index
            ],
            self.keys.where,
        )


class ItemMaps(Items):
    """The same for segmentation: each item has a label map."""

    def maps(self, index: np.ndarray) -> Tensor:
        """uint8 [k, H_l, W_l]."""
        found = [
            _as_map(self.keys.split(self.source[int(n)])[1], self.keys.place(n)) for n in index
        ]
        return _stacked(found, self.keys.where)


@dataclass(frozen=True)
class _Keys:
    """Where an item has its image and its label: names of columns, or () for a pair."""

    where: str
    names: tuple[Any, ...] = ()

    def split(self, item: Any) -> tuple[Any, Any]:
        """Image and label of an item. Raises DataError for an item without both."""
        if self.names:
            return item[self.names[0]], item[self.names[1]]
        if isinstance(item, list | tuple) and len(item) == 2:
            return item[0], item[1]
        raise DataError(
            f"{self.where}: an item is {_kind(item)}, not a pair (image, label); give columns="
            "(IMAGE, LABEL) for items with names."
        )

    def place(self, number: Any) -> str:
        """The item in messages."""
        return f"{self.where}, image {int(number)}"


def image_set(
    given: Any, where: str, *, columns: tuple[Any, Any] | None = None, size: int | None = None
) -> GivenSet:
    """The image set of what a user gives for a domain.

    where: names it in messages. columns: the names of image and label, if items have names. size:
    resize images to this square. Datasets are read when the stream needs the images; arrays,
    generators and loaders of iterables are held in memory.

    Example: `image_set((np.zeros((4, 3, 8, 8), np.uint8), [0, 1, 2, 3]), "fog").images.labels`

    Raises DataError, with what is taken, for anything else or for images that cannot be read.
    """
    if isinstance(given, GivenSet):
        return given
    if hasattr(given, "labels") and callable(getattr(given, "load", None)):
        return GivenSet(given)
    if isinstance(given, tuple) and len(given) == 2 and _is_array(given[0]):
        return GivenSet(_in_memory(*given, where, size))
    if isinstance(given, TensorDataset) and len(given.tensors) == 2:
        return GivenSet(_in_memory(*given.tensors, where, size))
    if isinstance(given, DataLoader):
        return _of_loader(given, where, columns, size)
    if _is_map_style(given):
        return _of_items(given, where, columns, size)
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        return GivenSet(_collected(given, _keys(None, where, columns), size))
    raise DataError(f"{where}: is {_kind(given)}; give {TAKEN}.")


# -- arrays


def _kind(value: Any) -> str:
    """The type of a value in messages: `a list`, `an int`."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | Tensor)


def _in_memory(images: Any, labels: Any, where: str, size: int | None) -> ImageSet:
    """Images [n, 3, H, W], [n, H, W, 3] or [n, H, W]; labels [n] or maps [n, H, W]."""
    found, given = _array(images), np.asarray(_array(labels))
    if found.ndim == 4 and found.shape[1] not in (1, 3) and found.shape[3] in (1, 3):
        found = np.moveaxis(found, 3, 1)
    if found.ndim not in (3, 4) or (found.ndim == 4 and found.shape[1] not in (1, 3)):
        raise DataError(
            f"{where}: images of shape {list(found.shape)}; give [n, 3, H, W], [n, H, W, 3] or, "
            "grey, [n, H, W]."
        )
    if found.ndim == 4 and found.shape[1] == 1:
        found = found[:, 0]
    if len(found) != len(given):
        raise DataError(
            f"{where}: {len(found)} images, but {len(given)} labels; give one for each."
        )
    found = np.ascontiguousarray(_values(found, where))
    if found.ndim == 3 and (given.ndim == 3 or size):
        found = np.repeat(found[:, None], 3, axis=1)
    if size:
        found = _resized(torch.from_numpy(found), size).numpy()
    if given.ndim == 3:
        maps = np.ascontiguousarray(_as_map(given, where).numpy())
        return HashedMaps(found, maps)
    return HashedImages(found, _class_numbers(given, where))


def _array(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _values(images: np.ndarray, where: str) -> np.ndarray:
    """uint8 images as they are, floats in [0, 1] as float32; DataError for others."""
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind != "f":
        raise DataError(
            f"{where}: images of {images.dtype}; give uint8 (0 to 255) or floats in [0, 1]."
        )
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    if not (low >= 0 and high <= 1):  # also NaN
        raise DataError(
            f"{where}: floats from {low:.3g} to {high:.3g}; give floats in [0, 1] without "
            "normalisation, which is part of the source model (load_model(..., mean=, std=)), or "
            "uint8."
        )
    return images.astype(np.float32, copy=False)


def _class_numbers(labels: np.ndarray, where: str) -> np.ndarray:
    """Labels as int64 [n]; DataError unless they are whole numbers from 0 on."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    whole = labels.dtype.kind in "iu" or (
        labels.dtype.kind == "f" and bool(np.all(labels == np.round(labels)))
    )
    if labels.ndim != 1 or not whole:
        raise DataError(
            f"{where}: labels of {labels.dtype} and shape {list(labels.shape)}; give one class "
            "number for each image, or for segmentation a map of class numbers [H, W]."
        )
    if len(labels) and labels.min() < 0:
        raise DataError(f"{where}: a label is {int(labels.min())}; class numbers begin at 0.")
    return labels.astype(np.int64)


def _as_map(value: Any, where: str) -> Tensor:
    """Label maps as uint8 of the same shape; 255: ignored."""
    found = np.asarray(value) if hasattr(value, "getpixel") else _array(value)
    if found.dtype.kind not in "iu" or (found.size and not 0 <= found.min() <= found.max() <= 255):
        raise DataError(
            f"{where}: a label map of {found.dtype}; give class numbers from 0 to 254, and 255 for "
            "pixels to ignore."
        )
    return torch.from_numpy(np.ascontiguousarray(found.astype(np.uint8)))


# -- single images


def as_image(value: Any, where: str, size: int | None = None) -> Tensor:
    """One image, uint8 or float in [0, 1] [3, H, W], of a PIL image, an array or a tensor.

    Example: `as_image(PIL.Image.new("L", (8, 6)), "fog").shape` is (3, 6, 8).
    """
    if hasattr(value, "getpixel"):  # PIL
        found = np.moveaxis(np.asarray(value.convert("RGB")), 2, 0)
    elif _is_array(value):
        found = _array(value)
        if found.ndim == 3 and found.shape[0] not in (1, 3) and found.shape[2] in (1, 3):
            found = np.moveaxis(found, 2, 0)
        if found.ndim == 2:
            found = found[None]
    else:
        raise DataError(f"{where}: is {_kind(value)}; give a PIL image, an array or a tensor.")
    if found.ndim != 3 or found.shape[0] not in (1, 3):
        raise DataError(
            f"{where}: shape {list(found.shape)}; give [3, H, W], [H, W, 3] or, grey, [H, W]."
        )
    if found.shape[0] == 1:
        found = np.repeat(found, 3, axis=0)
    image = torch.from_numpy(np.array(_values(found, where)))
    return _resized(image, size) if size else image


def _resized(images: Tensor, size: int) -> Tensor:
    from torchvision.transforms.v2.functional import resize

    return resize(images, [size, size], antialias=True)


def _stacked(images: Sequence[Tensor], where: str) -> Tensor:
    shapes = sorted({tuple(image.shape) for image in images})
    if len(shapes) > 1:
        raise DataError(
            f"{where}: images of different shapes, {list(shapes[0])} and {list(shapes[1])}; give "
            "size=PIXELS to resize them, or a transform that does."
        )
    return torch.stack(list(images))


# -- data sets, loaders and other iterables


def _is_map_style(given: Any) -> bool:
    if isinstance(given, IterableDataset | str | bytes | Mapping | np.ndarray | Tensor):
        return False
    return hasattr(given, "__getitem__") and hasattr(given, "__len__")


def _of_loader(
    loader: "DataLoader[Any]", where: str, columns: tuple[Any, Any] | None, size: int | None
) -> GivenSet:
    """The data of a loader: its Dataset in stored order, or all its batches in memory.

    The stream has batches and an order of its own.
    """
    plain = loader.collate_fn is default_collate
    if _is_map_style(loader.dataset) and plain:
        whole = isinstance(loader.sampler, SequentialSampler | RandomSampler)
        whole &= not getattr(loader.sampler, "replacement", False)
        if not whole or type(loader.batch_sampler) not in (BatchSampler, type(None)):
            raise DataError(
                f"{where}: a DataLoader with a sampler that chooses images; give "
                "torch.utils.data.Subset(dataset, indices) in its place."
            )
        return image_set(loader.dataset, where, columns=columns, size=size)
    if isinstance(loader.sampler, RandomSampler):
        raise DataError(
            f"{where}: a DataLoader with shuffle=True and its own collate_fn, so that every "
            "reading differs; give shuffle=False, the stream has an order of its own."
        )
    keys = _keys(None, where, columns)

    def pairs() -> Iterator[tuple[Any, Any]]:
        for batch in loader:
            images, labels = keys.split(batch)
            if loader.batch_sampler is None:  # the loader gives single items
                yield images, labels
                continue
            yield from zip(images, labels, strict=True)

    found = _collected(pairs(), _Keys(where), size)
    classes = tuple(map(str, getattr(loader.dataset, "classes", ()) or ()))
    return GivenSet(found, () if isinstance(found, MapSet) else classes)


def _of_items(
    given: Any, where: str, columns: tuple[Any, Any] | None, size: int | None
) -> GivenSet:
    if not len(given):
        raise DataError(f"{where}: has no images.")
    keys = _keys(given[0], where, columns)
    _check_repeatable(given, keys, size)
    first = keys.split(given[0])[1]
    if _is_map(first):
        return GivenSet(ItemMaps(given, keys, size, np.zeros(len(given), np.int64)))
    labels = _labels(given, keys)
    return GivenSet(
        Items(given, keys, size, _class_numbers(labels, where)), _class_names(given, keys)
    )


def _keys(item: Any, where: str, columns: tuple[Any, Any] | None) -> _Keys:
    """Where the items of a set have image and label."""
    if columns is not None:
        absent = [name for name in columns if isinstance(item, Mapping) and name not in item]
        if absent:
            raise DataError(
                f"{where}: no column {absent[0]!r}; it has {', '.join(map(str, item))}."
            )
        return _Keys(where, tuple(columns))
    if not isinstance(item, Mapping):
        return _Keys(where)
    found = [[key for key in known if key in item] for known in (IMAGE_KEYS, LABEL_KEYS)]
    if any(len(keys) != 1 for keys in found):
        raise DataError(
            f"{where}: items with the columns {', '.join(map(str, item))}; say which are image and "
            "label: columns=(IMAGE, LABEL)."
        )
    return _Keys(where, (found[0][0], found[1][0]))


def _check_repeatable(given: Any, keys: _Keys, size: int | None) -> None:
    """Raise DataError if an image differs from one reading to the next."""
    for number in sorted({*np.linspace(0, len(given) - 1, _TWICE).astype(int).tolist()}):
        one, other = (
            as_image(keys.split(given[number])[0], keys.place(number), size) for _ in (0, 1)
        )
        if one.shape != other.shape or not torch.equal(one, other):
            raise DataError(
                f"{keys.place(number)}: differs from one reading to the next; leave random "
                "transforms out, so that every method sees the same images."
            )


def _is_map(label: Any) -> bool:
    return hasattr(label, "getpixel") or (_is_array(label) and label.ndim >= 2)


def _labels(given: Any, keys: _Keys) -> np.ndarray:
    """The labels of all items: a stored column where one is known to be that, else read by item."""
    if keys.names and hasattr(given, "column_names"):  # Hugging Face
        return np.asarray(list(given[keys.names[1]]))
    stored = _stored_targets(given)
    if stored is not None and len(stored) == len(given):
        return stored
    found = (keys.split(given[number])[1] for number in range(len(given)))
    return np.asarray([label.item() if _is_array(label) else label for label in found])


def _stored_targets(given: Any) -> np.ndarray | None:
    """`targets` of torchvision's data sets, which its items return unchanged."""
    from torchvision.datasets import VisionDataset

    if isinstance(given, Subset):
        whole = _stored_targets(given.dataset)
        return None if whole is None else whole[np.asarray(given.indices, np.int64)]
    unchanged = (
        isinstance(given, VisionDataset)
        and type(given).__module__.startswith("torchvision.")
        and getattr(given, "target_transform", None) is None
    )
    targets = getattr(given, "targets", None) if unchanged else None
    return None if targets is None else np.asarray(targets)


def _class_names(given: Any, keys: _Keys) -> tuple[str, ...]:
    """Names of classes that a Dataset or a Hugging Face data set declares."""
    features = getattr(given, "features", None)
    if keys.names and isinstance(features, Mapping):
        return tuple(map(str, getattr(features[keys.names[1]], "names", ()) or ()))
    whole = given
    while isinstance(whole, Subset):
        whole = whole.dataset
    if getattr(whole, "target_transform", None) is not None:
        return ()
    return tuple(map(str, getattr(whole, "classes", ()) or ()))


def _collected(pairs: Iterable[Any], keys: _Keys, size: int | None) -> ImageSet:
    """Pairs (image, label) of an iterable, or of its batches, in memory."""
    images, labels = [], []
    for number, item in enumerate(pairs):
        if number == 0 and isinstance(item, Mapping) and not keys.names:
            keys = _keys(item, keys.where, None)
        image, label = keys.split(item)
        images.append(as_image(image, keys.place(number), size))
        labels.append(_array(label) if _is_array(label) else np.asarray(label))
    if not images:
        raise DataError(f"{keys.where}: has no images (a generator can be read only once).")
    shapes = {label.shape for label in labels}
    if len(shapes) > 1:
        raise DataError(f"{keys.where}: labels of different shapes; give one kind for all images.")
    whole = _stacked([image.contiguous() for image in images], keys.where)
    return _in_memory(whole, np.stack(labels), keys.where, None)


def with_classes(given: GivenSet, classes: Sequence[str], where: str) -> ImageSet:
    """The images, with the labels as positions in `classes`, found by name.

    A set without names keeps its numbers. Raises DataError for a class that is not in `classes`.
    """
    if not given.classes or tuple(given.classes) == tuple(classes):
        return given.images
    unknown = [name for name in given.classes if name not in classes]
    if unknown:
        raise DataError(
            f"{where}: has the class {unknown[0]!r}, which is not in classes=[...]; name all "
            "classes in the order of the model's logits."
        )
    numbers = np.asarray([list(classes).index(name) for name in given.classes], np.int64)
    return _Relabelled(given.images, numbers)


class _Relabelled:
    """An image set with other class numbers."""

    def __init__(self, images: ImageSet, numbers: np.ndarray) -> None:
        self.images = images
        self.labels: np.ndarray = numbers[images.labels]

    def load(self, index: np.ndarray) -> Tensor:
        """As the set itself."""
        return self.images.load(index)


def highest_label(images: ImageSet) -> int:
    """The largest class number of a set; of maps, in which it is not known, that of all maps."""
    if isinstance(images, MapSet):
        numbers = (images.maps(np.array([n])) for n in range(len(images.labels)))
        return max((int(m[m != 255].max()) for m in numbers if (m != 255).any()), default=0)
    return int(images.labels.max(initial=0))
