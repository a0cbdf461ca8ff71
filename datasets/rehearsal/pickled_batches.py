"""Write files of CIFAR's "python version" as Python 2 pickled them.

For rehearsals: Python 3's pickler would write other instructions for byte strings and arrays than
the published files contain. Nothing is unpickled here.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

Value: TypeAlias = "bytes | int | np.ndarray | Sequence[bytes] | Sequence[int]"


def pickled_batch(entries: Mapping[bytes, Value]) -> bytes:
    """A pickle (protocol 2) of a dictionary of byte strings, integers, lists and uint8 arrays."""
    content = b"".join(_bytes(key) + _value(value) for key, value in entries.items())
    return b"\x80\x02}(" + content + b"u."


def _value(value: Value) -> bytes:
    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, np.ndarray):
        return _array(value)
    return b"](" + b"".join(_value(item) for item in value) + b"e"


def _bytes(text: bytes) -> bytes:
    if len(text) < 256:
        return b"U" + bytes([len(text)]) + text  # SHORT_BINSTRING, a str of Python 2
    return b"T" + struct.pack("<i", len(text)) + text


def _array(array: np.ndarray) -> bytes:
    """An array as old versions of numpy pickled it: _reconstruct, then the state."""
    assert array.dtype == np.uint8
    shape = b"(" + b"".join(_value(int(side)) for side in array.shape) + b"t"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + _value(-1) * 2 + b"K\x00tb"
    # A mark, the version, shape, dtype, "not Fortran's order", the pixels: a tuple, then BUILD.
    return empty + b"(K\x01" + shape + dtype + b"\x89" + _bytes(array.tobytes()) + b"tb"
