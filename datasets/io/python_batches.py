"""CIFAR's own files ("python version"): pickles, read without executing their code.

A pickle is a program that can call any function. CIFAR's pickles only build dictionaries, lists,
strings, numbers and numpy arrays. The reader below builds arrays of plain numbers and refuses every
other call, so a file with other content raises an error.
"""

import functools
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ctta_bench.errors import DataError

SIDE = 32
LARGEST = 400_000_000  # bytes; the largest of CIFAR's files has 155 million


class _ArraysAlone(pickle.Unpickler):
    """Builds only plain values and numpy arrays of numbers."""

    def find_class(self, module: str, name: str) -> Any:
        # numpy wrote its module as numpy.core before 2.0, numpy._core since.
        match module.replace("._core", ".core"), name:
            case "numpy.core.multiarray", "_reconstruct":
                return _empty_array
            case "numpy", "ndarray":
                return np.ndarray
            case "numpy", "dtype":
                return _number_type
            case "_codecs", "encode":
                return _latin1
        raise pickle.UnpicklingError(f"it calls {module}.{name}")


def _empty_array(kind: Any, shape: Any, code: Any) -> np.ndarray:
    """As numpy's own `_reconstruct`: an empty array, which the following state fills."""
    if kind is not np.ndarray:
        raise pickle.UnpicklingError("it builds something other than an array")
    return np.ndarray.__new__(np.ndarray, (0,), "b")


def _number_type(code: str | bytes, *_: Any) -> np.dtype[Any]:
    text = code.decode("ascii") if isinstance(code, bytes) else str(code)
    if text.lstrip("<>|=")[:1] not in tuple("uifb"):
        raise pickle.UnpicklingError(f"it holds an array of type {text!r}")
    return np.dtype(text)


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """The bytes of a string that Python 3 wrote for Python 2's pickles."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


def read_batch(file: Path, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [n, 3, 32, 32] and labels int64 [n] of one file.

    Raises DataError for a file that is missing, damaged, or calls other functions.
    """
    try:
        if file.stat().st_size > LARGEST:
            raise DataError(f"{file}: is larger than any file of CIFAR.")
        with file.open("rb") as stream:
            content = _ArraysAlone(stream, encoding="bytes").load()
    except FileNotFoundError:
        raise DataError(f"no file {file}; extract CIFAR's python version there.") from None
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{file}: is refused, since CIFAR's files hold only arrays ({error})."
        ) from None
    except (OSError, EOFError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{file}: is not a complete file of CIFAR ({error}).") from None
    return _checked(file, content, label_key)


def _checked(file: Path, content: Any, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    values = {}
    if isinstance(content, dict):
        values = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in content.items()}
    images, labels = values.get("data"), values.get(label_key)
    width = 3 * SIDE * SIDE
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2:
        raise DataError(f"{file}: holds no array `data` of uint8 [n, {width}].")
    numbers = np.asarray(labels)
    if images.shape[1] != width or numbers.shape != (len(images),):
        raise DataError(
            f"{file}: holds data {list(images.shape)} and {label_key} {list(numbers.shape)}, "
            f"expected [n, {width}] and [n]."
        )
    if numbers.dtype.kind not in "iu":
        raise DataError(f"{file}: {label_key} are not integers.")
    return images.reshape(-1, 3, SIDE, SIDE), numbers.astype(np.int64)


@functools.lru_cache(maxsize=4)
def read_batches(files: tuple[Path, ...], label_key: str) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of several files, one after another."""
    batches = [read_batch(file, label_key) for file in files]
    return np.concatenate([i for i, _ in batches]), np.concatenate([n for _, n in batches])
