"""predictions.npz of a cell: arrays with an entry for each scored image, in stream order."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ctta_bench.analysis.folders import UnusableCellError

# What zipfile, zlib and numpy raise on cut or flipped bytes (a flipped flag reads as encryption or
# an unknown compression, RuntimeError; a flipped shape as too much memory; no zip at all as an
# array, which is no context manager).
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    RuntimeError,
    MemoryError,
    TypeError,
    AttributeError,
    zipfile.BadZipFile,
    zlib.error,
)
_AXES = {"confusion": 3}  # of the others one


def read_predictions(folder: Path, *names: str) -> list[npt.NDArray[Any]]:
    """The named arrays of predictions.npz, equally long, or UnusableCellError."""
    arrays = read_arrays(folder / "predictions.npz", *names)
    wanted = [_AXES.get(name, 1) for name in names]
    if [a.ndim for a in arrays] != wanted or len({len(a) for a in arrays}) != 1:
        raise UnusableCellError("corrupted: the arrays of predictions.npz differ in length")
    return arrays


def read_arrays(file: Path, *names: str) -> list[npt.NDArray[Any]]:
    """The named arrays of a plain .npz file, or UnusableCellError."""
    try:
        # Opened here, for np.load leaves a damaged file open.
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return [arrays[name] for name in names]
    except FileNotFoundError as error:
        raise UnusableCellError(f"half-written: {file.name} is missing") from error
    except _DAMAGE as error:
        raise UnusableCellError(f"corrupted: {file.name} cannot be read") from error
