"""Corrupted images, made once and kept: shards on disk, made by worker processes on all cores."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctta_bench.datasets.io.files import atomic
from ctta_bench.datasets.making import corruptions
from ctta_bench.datasets.making.workers import run_workers
from ctta_bench.errors import DataError

SHARD = 250  # images a file: a short stream makes few images


@dataclass(frozen=True)
class CorruptedCache:
    """Corrupted forms of clean images under one folder.

    clean: an .npz with `images` uint8 [n, H, W] or [n, H, W, 3], zero-padded to `side` x `side`.
    The folder's name holds a hash of all that decides a pixel, so that stale images are never read.
    """

    clean: Path
    root: Path
    side: int
    parameters: str = "cifar"
    seed: int = 0

    @functools.cached_property
    def folder(self) -> Path:
        """Where the shards of this version are (the clean images are hashed once)."""
        digest = hashlib.sha256(self.clean.read_bytes())
        digest.update(
            f"{self.side} {self.parameters} {self.seed} {SHARD} {corruptions.VERSION}".encode()
        )
        return self.root / f"{self.clean.stem}-{digest.hexdigest()[:12]}"

    def shard(self, corruption: str, severity: int, number: int) -> Path:
        """The file of images SHARD * number on, uint8 [<= SHARD, 3, side, side]."""
        return self.folder / f"{corruption}-{severity}-{number:03d}.npy"

    def make(
        self,
        wanted: Sequence[tuple[str, int]],
        count: int,
        *,
        workers: int,
        report: Callable[[int, int], None] | None = None,
    ) -> None:
        """Make what is missing of the first `count` images for each (corruption, severity).

        `report(done, total)` is called while images are made. Raises DataError if a worker fails.
        """
        numbers = range(-(-count // SHARD))
        tasks = [
            (c, s, n)
            for c, s in wanted
            for n in numbers
            if not is_whole(self.shard(c, s, n), self.side)
        ]
        if not tasks:
            return
        _mapped.cache_clear()  # what is made anew must not be read from its old map
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"{self.folder}: the cache of corrupted images cannot be made ({error.strerror}); "
                "set CTTA_BENCH_DATA or --data-root to a writable folder."
            ) from error
        try:
            run_workers(self.write_shard, tasks, workers=workers, report=report)
        except DataError as error:
            raise DataError(
                f"{self.folder}: corrupted images could not be made: {error}"
            ) from error

    def load(self, corruption: str, severity: int, index: np.ndarray) -> np.ndarray:
        """Images uint8 [k, 3, side, side] by number; they must have been made."""
        out = np.empty((len(index), 3, self.side, self.side), np.uint8)
        for number in np.unique(index // SHARD):
            shard = _mapped(self.shard(corruption, severity, int(number)))
            where = np.flatnonzero(index // SHARD == number)
            out[where] = shard[index[where] - number * SHARD]
        return out

    def write_shard(self, task: tuple[str, int, int]) -> None:
        """Make one shard (corruption, severity, number); it gets its name when it is whole."""
        corruption, severity, number = task
        clean = padded(self.clean, self.side)[number * SHARD : (number + 1) * SHARD]
        indices = range(number * SHARD, number * SHARD + len(clean))
        images = corruptions.corrupt_batch(
            clean,
            corruption,
            severity,
            parameters=self.parameters,
            seed=self.seed,
            indices=list(indices),
        )
        with atomic(self.shard(*task)) as temporary, temporary.open("wb") as stream:
            np.save(stream, np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


@functools.lru_cache(maxsize=32)
def _mapped(file: Path) -> np.ndarray:
    """A shard as a memory map; opening one costs more than reading a batch from it."""
    return np.load(file, mmap_mode="r", allow_pickle=False)


def padded(file: Path, side: int) -> np.ndarray:
    """The clean images as uint8 [n, side, side, 3], zero-padded evenly, grey repeated."""
    with np.load(file, allow_pickle=False) as arrays:
        images = arrays["images"]
    if images.ndim == 3:
        images = np.repeat(images[..., None], 3, axis=-1)
    before = [(side - images.shape[axis]) // 2 for axis in (1, 2)]
    after = [side - images.shape[axis] - before[axis - 1] for axis in (1, 2)]
    return np.pad(images, ((0, 0), *zip(before, after, strict=True), (0, 0)))


def is_whole(file: Path, side: int) -> bool:
    """Whether a shard is there and readable; a damaged one is made anew."""
    try:
        shape = np.load(file, mmap_mode="r", allow_pickle=False).shape
    except (OSError, ValueError, EOFError):
        return False
    return shape[1:] == (3, side, side)
