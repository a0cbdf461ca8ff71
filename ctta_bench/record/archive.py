"""Zip archives: written with the same bytes each time, and read without trust in them."""

import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from ctta_bench.errors import RunError
from ctta_bench.record.folder import atomic

MAX_MEMBERS = 500_000
MAX_MEMBER_BYTES = 2**29  # unpacked
MAX_BYTES = 2**31  # of all members, unpacked
_DATE = (1980, 1, 1, 0, 0, 0)  # the first that the format can have
_KINDS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_FORBIDDEN = set('\\:*?"<>|')  # of names: no file of Windows may have these


def write_archive(path: Path, members: Mapping[str, bytes]) -> None:
    """Write members in their order. The same members give the same bytes, with the same zlib."""
    with atomic(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, date_time=_DATE)
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            info.create_system = 3  # Unix, on any system
            archive.writestr(info, content, zipfile.ZIP_DEFLATED, compresslevel=9)


def read_archive(path: Path) -> dict[str, bytes]:
    """The members of an archive by name, in their order.

    Raises RunError, before anything is unpacked, for a file that is no archive, for names that lead
    out of a folder or that two members share, for links, encryption, other compressions, and for
    more members or bytes than a bundle may have.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check(path, members)
            return {member.filename: _read(path, archive, member) for member in members}
    except FileNotFoundError:
        raise RunError(f"{path}: no such file.") from None
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise RunError(f"{path}: is damaged or no zip archive ({error}).") from error


def _check(path: Path, members: list[zipfile.ZipInfo]) -> None:
    size = sum(member.file_size for member in members)
    if len(members) > MAX_MEMBERS or size > MAX_BYTES:
        raise RunError(
            f"{path}: has {len(members):,} members of {size:,} bytes; a bundle has at most "
            f"{MAX_MEMBERS:,} and {MAX_BYTES:,}. Nothing was read."
        )
    seen: set[str] = set()
    for member in members:
        if problem := _problem(member, seen):
            shown = repr(member.filename[:80])
            raise RunError(f"{path}: the member {shown} {problem}. Nothing was read.")
        seen.add(member.filename.casefold())


def _problem(member: zipfile.ZipInfo, seen: set[str]) -> str:
    """Why a member is refused, as the end of a sentence; "" if it is not."""
    name, mode = member.filename, member.external_attr >> 16
    parts = PurePosixPath(name).parts
    if name != "/".join(parts) or not parts or parts[0] == "/" or set(parts) & {".", ".."}:
        return "has a name that is no path inside a folder"
    if _FORBIDDEN & set(name) or any(ord(sign) < 32 for sign in name) or len(name) > 400:
        return "has a name that is no plain path"
    if name.casefold() in seen:
        return "has the name of another one"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "is a link or a device"
    if member.flag_bits & 0x1 or member.compress_type not in _KINDS:
        return "is encrypted or has another compression than deflate"
    if member.file_size > MAX_MEMBER_BYTES:
        return f"has {member.file_size:,} bytes; the most is {MAX_MEMBER_BYTES:,}"
    return ""


def _read(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """The content, at most as many bytes as the archive states; the checksum is compared."""
    with archive.open(member) as stream:
        content = stream.read(member.file_size + 1)
    if len(content) != member.file_size:
        raise RunError(f"{path}: {member.filename} has another size than the archive states.")
    return content
