"""Arrays with one entry per scored image: reading .npz files, and arrays in bytes."""

import functools
import io
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ctta_bench.record.read import UnusableCellError, read_bytes

Arrays = dict[str, npt.NDArray[Any]]
# What zipfile, zlib and numpy raise for missing or changed bytes (a changed flag means encryption
# or an unknown compression, RuntimeError; a changed shape means too much memory).
DAMAGE = (
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


def read_all_arrays(folder: Path, file: str) -> Arrays:
    """All arrays of a plain .npz file in a folder by name, or UnusableCellError."""
    try:
        with zipfile.ZipFile(folder / file) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    except DAMAGE as error:
        raise UnusableCellError(f"corrupted: {file} cannot be read") from error
    return dict(zip(names, read_arrays(folder, file, *names), strict=True))


def read_arrays(folder: Path, file: str, *names: str) -> list[npt.NDArray[Any]]:
    """The named arrays of a plain .npz file in a folder, or UnusableCellError."""
    try:
        # Not by np.load, which parses every header again: a report of many cells spends most of
        # its time here.
        content = read_bytes(folder, file)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [archive.getinfo(f"{name}.npy") for name in names]
        return [array_in(_unpacked(content, member)) for member in members]
    except FileNotFoundError as error:
        raise UnusableCellError(f"half-written: {file} is missing") from error
    except DAMAGE as error:
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


def array_in(member: bytes) -> npt.NDArray[Any]:
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
