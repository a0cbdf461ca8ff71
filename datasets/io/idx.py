"""Reading idx files (MNIST format): images and labels of a split, plain or gzipped."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from ctta_bench.errors import DataError

SPLITS = {"train": "train", "test": "t10k"}


def read_split(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [n, h, w] and labels int64 [n] of the split "train" or "test" in a folder.

    Raises DataError that names a missing or damaged file.
    """
    stem = SPLITS[split]
    images = read_idx(folder / f"{stem}-images-idx3-ubyte")
    labels = read_idx(folder / f"{stem}-labels-idx1-ubyte").astype(np.int64)
    if len(images) != len(labels):
        raise DataError(f"{folder}: {stem} has {len(images)} images and {len(labels)} labels.")
    return images, labels


def read_idx(file: Path) -> np.ndarray:
    """One idx file of bytes as an array; FILE.gz is read if it exists. Raises DataError."""
    packed = file.with_name(f"{file.name}.gz")
    try:
        raw = gzip.decompress(packed.read_bytes()) if packed.exists() else file.read_bytes()
        axes = raw[3]  # the header: two zeros, the type (8: bytes), axes, then a size each
        shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
        if raw[:3] != b"\0\0\x08":
            raise ValueError("not an idx file of bytes")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except FileNotFoundError:
        raise DataError(f"{file}: no such file, nor {packed.name}.") from None
    except (OSError, EOFError, zlib.error, ValueError, IndexError) as error:
        raise DataError(f"{file}: is not a complete idx file ({error}).") from error
