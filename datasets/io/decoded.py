"""A cache of decoded images: a second pass over a stream reads bytes instead of decoding files.

A set of n images becomes CACHE/SET-KEY/ with images.npy (uint8 [n, 3, H, W]), checksums.npy (CRC-32
of each image) and, written last, manifest.json. KEY is the hash of everything that determines a
byte: names, sizes and times of the files, the geometry, and the decoding libraries. After an
interruption, the images already written are checked and reused.
"""

import functools
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from filelock import FileLock
from PIL import __version__ as pillow
from PIL import features
from torch import Tensor

from ctta_bench.datasets.io.file_images import FileImages
from ctta_bench.datasets.io.files import atomic, write_json, writing
from ctta_bench.errors import DataError, expanded
from ctta_bench.stream.loading import load_ahead

DECODING = 2  # raised when the same file is decoded to other values
CHUNK = 64  # images decoded and written at a time


class DecodedImages:
    """The images of a set of files, read from the cache that `fill` makes."""

    def __init__(self, images: FileImages, cache: Path) -> None:
        self.images, self.labels, self.cache = images, images.labels, expanded(cache)
        self.names = images.names

    def fingerprint(self, count: int) -> dict[str, str]:
        """What tells the first `count` images from others: that of their files."""
        return self.images.fingerprint(count)

    def load(self, index: np.ndarray) -> Tensor:
        """uint8 [k, 3, size, size]. Raises DataError if the cache is missing or damaged."""
        stored, sums = _opened(self.folder)
        chosen = np.ascontiguousarray(stored[index])
        for number, image in zip(index, chosen, strict=True):
            if zlib.crc32(image) != sums[number]:
                raise DataError(
                    f"{self.folder}: cached image {number} is damaged; remove the folder, and the "
                    "next run decodes its images again."
                )
        return torch.from_numpy(chosen)

    @functools.cached_property
    def folder(self) -> Path:
        """The folder of this set's decoded images."""
        names = self.images.folder.parts[-3:]
        key = hashlib.sha256(json.dumps(self._facts(), sort_keys=True).encode()).hexdigest()
        return self.cache / f"{'-'.join(name.strip('/') for name in names)}-{key[:12]}"

    def _facts(self) -> dict[str, Any]:
        files = hashlib.sha256()
        for name in self.images.names:
            try:
                stat = (self.images.folder / name).stat()
            except OSError:
                raise DataError(f"{self.images.folder / name}: no such image.") from None
            files.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return {
            "files": files.hexdigest(),
            "count": len(self.images.names),
            "geometry": asdict(self.images.geometry),
            "decoding": DECODING,
            "pillow": pillow,
            "libjpeg": features.version_feature("libjpeg_turbo") or features.version("jpg"),
        }

    def fill(self, report: Callable[[int, int], None], workers: int) -> None:
        """Decode missing images in `workers` processes; after an interruption this resumes.

        Raises DataError if an image cannot be decoded or the cache cannot be written.
        """
        if (self.folder / "manifest.json").is_file():
            return
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        # A second process waits and then finds the finished cache.
        with FileLock(self.folder.with_name(f".{self.folder.name}.lock")):
            if not (self.folder / "manifest.json").is_file():
                self._make(report, workers)

    def _make(self, report: Callable[[int, int], None], workers: int) -> None:
        part, sums_part = self.folder / "images.part", self.folder / "checksums.part"
        header, total = self._header(), len(self.images.names)
        sums = self._intact(part, sums_part, len(header))
        starts = range(len(sums), total, CHUNK)
        with writing(part), _open(part) as file, _open(sums_part) as sums_file:
            file.seek(0)
            file.write(header)
            _start_at(file, len(header) + len(sums) * self._bytes)
            _start_at(sums_file, 4 * len(sums))
            for images in load_ahead(partial(_load_chunk, self.images), starts, workers):
                new = [zlib.crc32(image) for image in images.numpy()]
                file.write(images.numpy().tobytes())
                file.flush()
                sums_file.write(np.asarray(new, np.uint32).tobytes())
                sums_file.flush()
                sums += new
                report(len(sums), total)
            os.fsync(file.fileno())
        with atomic(self.folder / "checksums.npy") as temporary, temporary.open("wb") as whole:
            np.save(whole, np.asarray(sums, np.uint32))
        with writing(part):
            part.replace(self.folder / "images.npy")
            sums_part.unlink()
        write_json(self.folder / "manifest.json", self._facts())

    def _intact(self, part: Path, sums_part: Path, header: int) -> list[int]:
        """Checksums of the images that an interrupted call has written completely."""
        if not part.is_file() or not sums_part.is_file():
            return []
        written = sums_part.read_bytes()
        intact = []
        with part.open("rb") as file:
            file.seek(header)
            for expected in np.frombuffer(written[: len(written) // 4 * 4], np.uint32).tolist():
                if zlib.crc32(file.read(self._bytes)) != expected:
                    break
                intact.append(expected)
        return intact

    def _header(self) -> bytes:
        size = self.images.geometry.size
        shape = (len(self.images.names), 3, size, size)
        text = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            text, {"descr": "|u1", "fortran_order": False, "shape": shape}
        )
        return text.getvalue()

    @property
    def _bytes(self) -> int:
        return 3 * self.images.geometry.size**2


def _open(path: Path) -> BinaryIO:
    return path.open("r+b" if path.exists() else "w+b")


def _start_at(file: BinaryIO, position: int) -> None:
    """Write from `position` on; later content is removed."""
    file.seek(position)
    file.truncate()


def _load_chunk(images: FileImages, start: int) -> Tensor:
    return images.load(np.arange(start, min(start + CHUNK, len(images.names))))


@functools.lru_cache(maxsize=64)
def _opened(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images as a memory map, and their checksums."""
    try:
        images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        return images, np.load(folder / "checksums.npy", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{folder}: the cache of decoded images cannot be read ({error}); remove the folder, "
            "and the next run makes it again."
        ) from None
