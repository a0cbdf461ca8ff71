"""Unpack third-party archives: only regular files inside the target folder.

An archive with a link, a device, or a path outside the target is refused, and the error names the
member. Permissions and owners are not taken over. The data filter of tarfile is less strict: it
accepts links inside the target and strips the slash of absolute names. It does not support zip, and
Python 3.10.0 to 3.10.11 and 3.11.0 to 3.11.3 do not have it.
"""

import hashlib
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from ctta_bench.datasets.io.files import CHUNK, Report, TreeDigest, writing
from ctta_bench.errors import DataError

# What reading a damaged archive raises.
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError)


def unpack(
    archive: Path, target: Path, *, group: int = 0, report: Report | None = None
) -> dict[str, TreeDigest]:
    """Unpack a tar (plain or compressed) or zip into the folder `target`.

    Returns checksums by folder: the first `group` levels of the members' paths (0: one checksum
    under ""). `report(bytes of the archive read, its size)` is called after each file. Raises
    DataError for an archive that is damaged or holds a refused member.
    """
    sums: dict[str, TreeDigest] = {}
    size = archive.stat().st_size
    try:
        for name, stream, position in _members(archive):
            path = _inside(archive, name)
            if stream is None:
                with writing(target):
                    (target / path).mkdir(parents=True, exist_ok=True)
                continue
            md5 = _store(archive, stream, target / path)
            parts = path.parts[: group if len(path.parts) > group else 0]
            digest = sums.setdefault("/".join(parts), TreeDigest())
            digest.add("/".join(path.parts[len(parts) :]), md5)
            if report is not None:
                report(position, size)
    except _DAMAGED as error:
        raise DataError(
            f"{archive}: is damaged or incomplete ({error}); delete it and download it again."
        ) from error
    return sums


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None, int]]:
    """An archive's members: name, stream (None: a folder), and position in the archive's file."""
    if zipfile.is_zipfile(archive) and not tarfile.is_tarfile(archive):
        yield from _zip_members(archive)
    else:
        yield from _tar_members(archive)


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None, int]]:
    with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r:*") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined] # else a million entries stay in memory
            if not (member.isreg() or member.isdir()):
                raise _special(archive, member.name, member.issym() or member.islnk())
            yield member.name, tar.extractfile(member) if member.isreg() else None, file.tell()


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None, int]]:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            mode = stat.S_IFMT(member.external_attr >> 16)
            if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _special(archive, member.filename, mode == stat.S_IFLNK)
            if member.flag_bits & 1:
                raise _refusal(archive, member.filename, "encrypted")
            if member.is_dir():
                yield member.filename, None, member.header_offset
                continue
            with packed.open(member) as stream:
                yield member.filename, stream, member.header_offset


def _inside(archive: Path, name: str) -> PurePosixPath:
    """The relative path of a member. Raises DataError if it leads outside."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not name:
        raise _refusal(archive, name, "a path outside the target")
    return path


def _special(archive: Path, name: str, is_link: bool) -> DataError:
    return _refusal(archive, name, "a link" if is_link else "not a regular file")


def _refusal(archive: Path, name: str, what: str) -> DataError:
    return DataError(
        f"{archive}: holds {name!r}, which is {what}; the archive was not unpacked: delete it and "
        "get it from a place that you trust."
    )


def _store(archive: Path, stream: IO[bytes], path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("xb", buffering=0)
        except FileExistsError:
            raise DataError(f"{archive}: holds {path.name!r} twice; download it again.") from None
    with stream, file:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            rest = memoryview(chunk)
            with writing(path):
                while rest:
                    rest = rest[file.write(rest) :]
    return digest.hexdigest()
