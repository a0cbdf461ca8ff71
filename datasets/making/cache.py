"""A cache of corrupted images: shards on disk, made once by worker processes."""

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

# From stored images uint8 [n, H, W] or [n, H, W, 3] and their numbers int64 [n] to the clean images
# uint8 [n, side, side, 3]; picklable.
Draw = Callable[[np.ndarray, np.ndarray], np.ndarray]
SHARD = 250  # images per file; small, so that a short stream makes few images


@dataclass(frozen=True)
class CorruptedCache:
    """Corrupted versions of clean images, under one folder.

    stored: an .npz with `images` uint8 [n, H, W] or [n, H, W, 3]. draw: makes the clean images of
    these; by default they are zero-padded to `side` x `side`. drawn: name and version of `draw`.
    The folder's name contains a hash of everything that determines a pixel, so outdated images are
    never read.
    """

    stored: Path
    root: Path
    side: int
    parameters: str = "cifar"
    seed: int = 0
    draw: Draw | None = None
    drawn: str = ""

    @functools.cached_property
    def folder(self) -> Path:
        """The folder of this version's shards; the clean images are hashed once."""
        digest = hashlib.sha256(self.stored.read_bytes())
        digest.update(
            f"{self.side} {self.parameters} {self.seed} {SHARD} {corruptions.VERSION}".encode()
        )
        digest.update(self.drawn.encode())
        stem = f"{self.stored.stem}-{self.drawn}" if self.drawn else self.stored.stem
        return self.root / f"{stem}-{digest.hexdigest()[:12]}"

    def shard(self, corruption: str, severity: int, number: int) -> Path:
        """The file that starts with image SHARD * number: uint8 [<= SHARD, 3, side, side]."""
        return self.folder / f"{corruption}-{severity}-{number:03d}.npy"

    def make(
        self,
        wanted: Sequence[tuple[str, int]],
        count: int,
        *,
        workers: int,
        report: Callable[[int, int], None] | None = None,
    ) -> None:
        """Make the missing shards of the first `count` images for each (corruption, severity).

        `report(done, total)` is called while shards are made. Raises DataError if a worker fails or
        the folder cannot be written.
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
        _mapped.cache_clear()  # new shards must not be read through old memory maps
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"{self.folder}: corrupted images cannot be written here ({error.strerror}); "
                "set CTTA_BENCH_DATA or --data-root to a writable folder."
            ) from error
        try:
            run_workers(self.write_shard, tasks, workers=workers, report=report)
        except DataError as error:
            raise DataError(
                f"{self.folder}: corrupted images could not be made: {error}"
            ) from error

    def load(self, corruption: str, severity: int, index: np.ndarray) -> np.ndarray:
        """Images uint8 [k, 3, side, side] by number; `make` must have made them."""
        out = np.empty((len(index), 3, self.side, self.side), np.uint8)
        for number in np.unique(index // SHARD):
            shard = _mapped(self.shard(corruption, severity, int(number)))
            where = np.flatnonzero(index // SHARD == number)
            out[where] = shard[index[where] - number * SHARD]
        return out

    def write_shard(self, task: tuple[str, int, int]) -> None:
        """Make one shard (corruption, severity, number); it gets its name once it is complete."""
        corruption, severity, number = task
        with np.load(self.stored, allow_pickle=False) as arrays:
            stored = arrays["images"][number * SHARD : (number + 1) * SHARD]
        indices = np.arange(number * SHARD, number * SHARD + len(stored))
        clean = self.draw(stored, indices) if self.draw else padded(stored, self.side)
        images = corruptions.corrupt_batch(
            clean,
            corruption,
            severity,
            parameters=self.parameters,
            seed=self.seed,
            indices=indices,
        )
        with atomic(self.shard(*task)) as temporary, temporary.open("wb") as stream:
            np.save(stream, np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


@functools.lru_cache(maxsize=32)
def _mapped(file: Path) -> np.ndarray:
    """A shard as a memory map; cached, since opening one takes longer than reading a batch."""
    return np.load(file, mmap_mode="r", allow_pickle=False)


def padded(images: np.ndarray, side: int) -> np.ndarray:
    """Images as uint8 [n, side, side, 3]: zero-padded evenly, grey repeated to RGB."""
    if images.ndim == 3:
        images = np.repeat(images[..., None], 3, axis=-1)
    before = [(side - images.shape[axis]) // 2 for axis in (1, 2)]
    after = [side - images.shape[axis] - before[axis - 1] for axis in (1, 2)]
    return np.pad(images, ((0, 0), *zip(before, after, strict=True), (0, 0)))


def is_whole(file: Path, side: int) -> bool:
    """Whether a shard exists and is readable; a damaged one is made again."""
    try:
        shape = np.load(file, mmap_mode="r", allow_pickle=False).shape
    except (OSError, ValueError, EOFError):
        return False
    return shape[1:] == (3, side, side)
