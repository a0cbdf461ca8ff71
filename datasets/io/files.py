"""Data files: checksums, locks, atomic writing, and messages for full disks."""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ctta_bench.errors import DataError

CHUNK = 1 << 20  # bytes read at a time
Report = Callable[[int, int], None]  # (done, total); total 0: unknown


def md5_of(path: Path, report: Report | None = None) -> str:
    """MD5 of a file, in hex. `report(bytes read, bytes in total)`."""
    digest, done, size = hashlib.md5(usedforsecurity=False), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if report is not None:
                report(done, size)
    return digest.hexdigest()


class TreeDigest:
    """A checksum of many files that does not depend on their order: the sum of their checksums.

    The checksum of a file includes its relative name, so swapped files are noticed.
    """

    def __init__(self) -> None:
        self.files = self._total = 0

    def add(self, name: str, md5: str) -> None:
        """Add a file."""
        own = hashlib.md5(f"{name}\0{md5}".encode(), usedforsecurity=False)
        self._total = (self._total + int(own.hexdigest(), 16)) % 2**128
        self.files += 1

    @property
    def hex(self) -> str:
        """The sum as 32 hex digits."""
        return f"{self._total:032x}"


def digest_of(path: Path) -> tuple[int, str]:
    """Number of files and checksum of a file (its md5) or of a folder (a TreeDigest)."""
    if path.is_file():
        return 1, md5_of(path)
    tree = TreeDigest()
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder, name)
            tree.add(file.relative_to(path).as_posix(), md5_of(file))
    return tree.files, tree.hex


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating system's error while writing `path` into a DataError of one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"{path}: the disk is full; free some space and run the same command again, which "
                "resumes from here."
            ) from error
        raise DataError(f"{path}: cannot be written ({error.strerror or error}).") from error


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path next to `path`; renamed to it if the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock `path` for this process. Raises DataError if another process has locked it."""
    lock = path.with_name(f".{path.name}.lock")  # never deleted: else two processes could lock it
    with writing(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(lock)
        try:
            held.acquire(timeout=0)
        except Timeout:
            raise DataError(
                f"{path}: another process is working on it; wait until it has ended."
            ) from None
    try:
        yield
    finally:
        held.release()
