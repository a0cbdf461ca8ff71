"""Fingerprints of image sets: they tell the images of a cell from others without reading them all.

They are recorded with a result and compared before it is used again. They are not in the identity.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ctta_bench.errors import DataError
from ctta_bench.stream.image_sets import ImageSet, labels_of, whole_set

# The most of a set that is looked at, evenly spaced; smaller sets are looked at as a whole.
SIZED_FILES = 10_000  # files whose size is read
READ_FILES = 500  # files of which the first and last bytes are read
LOADED_IMAGES = 16  # images that are loaded where there are no files
_BLOCK = 2**15  # bytes
_DIGITS = 16


def fingerprint(images: ImageSet) -> dict[str, Any]:
    """The number of images, and hashes of their labels and of what else tells them from others.

    An image set may define `fingerprint(count)`: hashes for its first `count` images, such as
    `file_fingerprint`. Of others a few images are loaded.
    """
    count = len(images.labels)
    own = getattr(whole_set(images), "fingerprint", None)
    labels = np.ascontiguousarray(images.labels, "<i8").tobytes()
    facts: dict[str, str] = own(count) if own is not None else {"contents": _loaded(images)}
    return {"images": count, "labels": digest(labels), **facts}


def file_fingerprint(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Hashes of the names, the sizes and the contents of files under a folder.

    Raises DataError for a missing file.
    """
    return {
        "names": digest("\n".join(names).encode()),
        "sizes": digest(*_sizes(folder, names)),
        "contents": digest(*_edges(folder, names)),
    }


def digest(*parts: bytes) -> str:
    """The first digits of the SHA-256 of bytes."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:_DIGITS]


def digest_of(values: Any) -> str:
    """`digest` of plain values."""
    return digest(json.dumps(values, sort_keys=True).encode())


def _spaced(count: int, most: int) -> list[int]:
    """At most `most` numbers below `count`, evenly spaced."""
    return [int(n) for n in np.unique(np.linspace(0, count - 1, min(count, most)).round())]


def _sizes(folder: Path, names: Sequence[str]) -> Iterator[bytes]:
    for number in _spaced(len(names), SIZED_FILES):
        try:
            yield b"%d\n" % (folder / names[number]).stat().st_size
        except OSError as error:
            raise DataError(f"{folder / names[number]}: {error.strerror}.") from None


def _edges(folder: Path, names: Sequence[str]) -> Iterator[bytes]:
    """The first and last bytes of files; files of up to two blocks are read as a whole."""
    for number in _spaced(len(names), READ_FILES):
        try:
            with (folder / names[number]).open("rb") as file:
                yield file.read(_BLOCK)
                file.seek(max(file.tell(), file.seek(0, 2) - _BLOCK))
                yield file.read(_BLOCK)
        except OSError as error:
            raise DataError(f"{folder / names[number]}: {error.strerror}.") from None


def _loaded(images: ImageSet) -> str:
    """The hash of a few images and, for segmentation, of their label maps."""
    index = np.asarray(_spaced(len(images.labels), LOADED_IMAGES), np.int64)
    parts = []
    for number in index:  # one by one: images may have different sizes
        one = np.array([number])
        for values in (images.load(one), labels_of(images, one)):
            values = values.contiguous()
            parts += [f"{values.dtype} {tuple(values.shape)}".encode()]
            parts += [values.view(torch.uint8).numpy().tobytes()]
    return digest(*parts)
