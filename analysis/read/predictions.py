"""predictions.npz of a cell: arrays with one entry per scored image, in stream order."""

import contextlib
import functools
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ctta_bench.errors import RunError
from ctta_bench.record.read import UnusableCellError, read_bytes
from ctta_bench.record.schema import PREDICTIONS_FILE
from ctta_bench.scoring.confusion import SegmentedImages
from ctta_bench.scoring.miou import Miou

# What zipfile, zlib and numpy raise for missing or changed bytes (a changed flag means encryption
# or an unknown compression, RuntimeError; a changed shape means too much memory).
_DAMAGE = (
    OSError,
    ValueError,
    struct.error,
    KeyError,
    EOFError,
    RuntimeError,
    MemoryError,
    TypeError,
    AttributeError,
    zipfile.BadZipFile,
    zlib.error,
)
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, and the lengths of name and extra field
_ENCRYPTED = 0x1  # of the flags
_VISIT = {"domain": 1, "round": 1}


def read_predictions(folder: Path, axes: Mapping[str, int]) -> dict[str, npt.NDArray[Any]]:
    """Arrays of predictions.npz by name, each with its number of axes, and `domain` and `round`.

    Raises UnusableCellError for another number of axes or if the arrays differ in length.
    """
    axes = {**axes, **_VISIT}
    arrays = dict(zip(axes, read_arrays(folder, PREDICTIONS_FILE, *axes), strict=True))
    is_shaped = all(array.ndim == axes[name] for name, array in arrays.items())
    if not is_shaped or len({len(array) for array in arrays.values()}) != 1:
        raise UnusableCellError(f"corrupted: the arrays of {PREDICTIONS_FILE} differ in length")
    return arrays


def read_segmented(folder: Path) -> SegmentedImages:
    """The images of a finished cell of segmentation, or UnusableCellError."""
    metric = Miou()
    with contradictions_make_unusable():
        return metric.images(read_predictions(folder, metric.arrays))


@contextlib.contextmanager
def contradictions_make_unusable() -> Iterator[None]:
    """Turn the RunError of a metric that cannot count into an UnusableCellError."""
    try:
        yield
    except UnusableCellError:
        raise
    except RunError as error:
        raise UnusableCellError(str(error)) from error


def read_arrays(folder: Path, file: str, *names: str) -> list[npt.NDArray[Any]]:
    """The named arrays of a plain .npz file in a folder, or UnusableCellError."""
    try:
        # Not by np.load, which parses every header again: a report of many cells spends most of
        # its time here.
        content = read_bytes(folder, file)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [archive.getinfo(f"{name}.npy") for name in names]
        return [_array(_unpacked(content, member)) for member in members]
    except FileNotFoundError as error:
        raise UnusableCellError(f"half-written: {file} is missing") from error
    except _DAMAGE as error:
        raise UnusableCellError(f"corrupted: {file} cannot be read") from error


def _unpacked(content: bytes, member: zipfile.ZipInfo) -> bytes:
    """A member of an archive in memory, in a third of the time of the streams of `zipfile`."""
    at = member.header_offset
    signature, name, extra = _LOCAL_HEADER.unpack_from(content, at)
    start = at + _LOCAL_HEADER.size + name + extra
    packed = content[start : start + member.compress_size]
    if signature != b"PK\x03\x04" or member.flag_bits & _ENCRYPTED:
        raise zipfile.BadZipFile("no plain member")
    if member.compress_type == zipfile.ZIP_DEFLATED:
        packed = zlib.decompress(packed, -zlib.MAX_WBITS)
    elif member.compress_type != zipfile.ZIP_STORED:
        raise zipfile.BadZipFile("another compression")
    if len(packed) != member.file_size or zlib.crc32(packed) != member.CRC:
        raise zipfile.BadZipFile("another checksum")
    return packed


def _array(member: bytes) -> npt.NDArray[Any]:
    """The array that np.load would return, read-only; ValueError for one with objects."""
    if member[6:8] != b"\x01\x00":  # another version of the format
        loaded: npt.NDArray[Any] = np.lib.format.read_array(io.BytesIO(member), allow_pickle=False)
        return loaded
    start = 10 + int.from_bytes(member[8:10], "little")
    shape, is_fortran, dtype = _header(member[:start])
    if dtype.hasobject:
        raise ValueError("pickled objects")
    flat = np.frombuffer(member, dtype, math.prod(shape), start)
    return flat.reshape(shape, order="F" if is_fortran else "C")


@functools.lru_cache(maxsize=256)
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype; cached, as all cells of a grid have the same."""
    stream = io.BytesIO(head)
    np.lib.format.read_magic(stream)
    return np.lib.format.read_array_header_1_0(stream)
