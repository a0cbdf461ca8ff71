"""Corrupted images, made once and kept: shards on disk, made by worker processes on all cores.

A worker is this module run as a program, so that making images never depends on how the caller's
own program was started, and loads neither torch nor a model.
"""

import functools
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctta_bench.datasets import corruptions
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
        self._make_all(tasks, min(workers, len(tasks)), report)

    def _make_all(
        self,
        tasks: list[tuple[str, int, int]],
        workers: int,
        report: Callable[[int, int], None] | None,
    ) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENCV_NUM_THREADS": "1"}
        running = []
        for worker in range(workers):
            job = self._job() | {"tasks": tasks[worker::workers]}
            process = subprocess.Popen(
                [sys.executable, "-m", "ctta_bench.datasets.cache"],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps(job))
            process.stdin.close()
            running.append(process)
        files = [self.shard(*task) for task in tasks]
        try:
            while any(process.poll() is None for process in running):
                if report is not None:
                    report(sum(file.exists() for file in files), len(files))
                time.sleep(0.1)
        finally:
            for process in running:
                process.terminate()
        for process in running:
            assert process.stderr is not None
            complaint = process.stderr.read().strip()
            process.stderr.close()
            if process.wait() != 0:
                last = (
                    complaint.splitlines()[-1] if complaint else f"exit code {process.returncode}"
                )
                raise DataError(f"{self.folder}: corrupted images could not be made: {last}.")
        if report is not None:
            report(len(files), len(files))

    def _job(self) -> dict[str, object]:
        return {
            "clean": str(self.clean),
            "root": str(self.root),
            "side": self.side,
            "parameters": self.parameters,
            "seed": self.seed,
        }

    def load(self, corruption: str, severity: int, index: np.ndarray) -> np.ndarray:
        """Images uint8 [k, 3, side, side] by number; they must have been made."""
        out = np.empty((len(index), 3, self.side, self.side), np.uint8)
        for number in np.unique(index // SHARD):
            shard = _mapped(self.shard(corruption, severity, int(number)))
            where = np.flatnonzero(index // SHARD == number)
            out[where] = shard[index[where] - number * SHARD]
        return out

    def write_shard(self, corruption: str, severity: int, number: int) -> None:
        """Make one shard; it gets its name when it is whole."""
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
        file = self.shard(corruption, severity, number)
        temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as stream:
                np.save(stream, np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)


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


def work() -> None:
    """Make the shards that the job on standard input lists."""
    job = json.load(sys.stdin)
    cache = CorruptedCache(
        Path(job["clean"]), Path(job["root"]), job["side"], job["parameters"], job["seed"]
    )
    for corruption, severity, number in job["tasks"]:
        cache.write_shard(corruption, severity, number)


if __name__ == "__main__":
    work()
