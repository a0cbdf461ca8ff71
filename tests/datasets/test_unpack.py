"""Archives of the true layout, and such as nobody should unpack."""

import hashlib
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from ctta_bench.datasets.fetching.unpack import unpack
from ctta_bench.datasets.io.files import TreeDigest, digest_of
from ctta_bench.errors import DataError

FILES = {
    "fog/1/n01440764/a.JPEG": b"one",
    "fog/1/n15075141/b.JPEG": b"two",
    "fog/2/n01440764/a.JPEG": b"three" * 1000,
}


def tar_of(path: Path, mode: str = "w", **members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o4777
            archive.addfile(info, io.BytesIO(content))
        for info in members.values():
            archive.addfile(info, io.BytesIO(b"x" * info.size))
    return path


def zip_of(path: Path, name: str | None = None, mode: int = stat.S_IFREG) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fog/", b"")
        for file, content in FILES.items():
            archive.writestr(file, content)
        if name is not None:
            info = zipfile.ZipInfo(name)
            info.external_attr = (mode | 0o644) << 16
            archive.writestr(info, b"/etc/passwd")
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = 4 if kind == tarfile.REGTYPE else 0
    return info


def contents(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def packed(path: Path, kind: str) -> Path:
    return zip_of(path) if kind == "zip" else tar_of(path, kind)


@pytest.mark.parametrize("kind", ["w", "w:gz", "w:xz", "zip"])
def test_the_members_stand_in_the_target_as_they_were(kind: str, tmp_path: Path) -> None:
    archive = packed(tmp_path / "archive", kind)
    unpack(archive, tmp_path / "out")
    assert contents(tmp_path / "out") == FILES


def test_modes_of_the_archive_are_not_taken_over(tmp_path: Path) -> None:
    unpack(tar_of(tmp_path / "a.tar"), tmp_path / "out")
    mode = (tmp_path / "out" / "fog/1/n01440764/a.JPEG").stat().st_mode
    assert mode & 0o7111 == 0


def test_progress_ends_at_the_size_of_the_archive(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    archive = tar_of(tmp_path / "a.tar")
    unpack(archive, tmp_path / "out", report=lambda *state: told.append(state))
    assert 0 < told[-1][0] <= told[-1][1] == archive.stat().st_size


@pytest.mark.parametrize("group", [0, 2])
def test_checksums_by_folder_are_those_of_what_stands_on_the_disk(
    group: int, tmp_path: Path
) -> None:
    sums = unpack(tar_of(tmp_path / "a.tar"), tmp_path / "out", group=group)
    assert list(sums) == [[""], ["fog/1", "fog/2"]][group // 2]
    for name, digest in sums.items():
        assert digest_of(tmp_path / "out" / name) == (digest.files, digest.hex)


def test_a_checksum_of_a_folder_is_the_sum_of_hashes_of_names_and_contents() -> None:
    digest = TreeDigest()
    lines = [(n, hashlib.md5(c).hexdigest()) for n, c in FILES.items()]
    for line in reversed(lines):
        digest.add(*line)
    parts = [int(hashlib.md5(f"{n}\0{m}".encode()).hexdigest(), 16) for n, m in lines]
    assert digest.hex == f"{sum(parts) % 2**128:032x}"
    assert digest.files == 3


@pytest.mark.parametrize(
    ("info", "what"),
    [
        (member("../evil"), "a path outside the target"),
        (member("fog/../../evil"), "a path outside the target"),
        (member("/tmp/evil"), "a path outside the target"),
        (member("C:\\evil"), "a path outside the target"),
        (member("link", tarfile.SYMTYPE, "/etc/passwd"), "a link"),
        (member("hard", tarfile.LNKTYPE, "fog/1/n01440764/a.JPEG"), "a link"),
        (member("device", tarfile.CHRTYPE), "not a regular file"),
        (member("pipe", tarfile.FIFOTYPE), "not a regular file"),
    ],
)
def test_a_tar_with_a_dangerous_member_is_refused_by_its_name(
    info: tarfile.TarInfo, what: str, tmp_path: Path
) -> None:
    archive = tar_of(tmp_path / "a.tar", evil=info)
    (tmp_path / "in").mkdir()
    with pytest.raises(DataError, match=f"which is {what}; the archive was not unpacked") as caught:
        unpack(archive, tmp_path / "in" / "out")
    assert repr(info.name) in str(caught.value)
    assert [file.name for file in tmp_path.rglob("*evil*")] == []


@pytest.mark.parametrize(
    ("name", "mode", "what"),
    [
        ("../evil", stat.S_IFREG, "a path outside the target"),
        ("/tmp/evil", stat.S_IFREG, "a path outside the target"),
        ("evil", stat.S_IFLNK, "a link"),
        ("evil", stat.S_IFCHR, "not a regular file"),
    ],
)
def test_a_zip_with_a_dangerous_member_is_refused_by_its_name(
    name: str, mode: int, what: str, tmp_path: Path
) -> None:
    archive = zip_of(tmp_path / "a.zip", name, mode)
    with pytest.raises(DataError, match=f"holds '{name}', which is {what}"):
        unpack(archive, tmp_path / "in" / "out")
    assert [file.name for file in tmp_path.rglob("*evil*")] == []


def test_a_member_that_comes_twice_is_refused(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar", again=member("fog/1/n01440764/a.JPEG"))
    with pytest.raises(DataError, match=r"holds 'a\.JPEG' twice"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("kind", ["w", "w:gz", "zip"])
def test_half_an_archive_is_reported(kind: str, tmp_path: Path) -> None:
    whole = packed(tmp_path / "whole", kind).read_bytes()
    (tmp_path / "half").write_bytes(whole[: len(whole) // 3])
    with pytest.raises(DataError, match="half: is damaged or incomplete"):
        unpack(tmp_path / "half", tmp_path / "out")


def test_a_page_that_was_saved_as_an_archive_is_reported(tmp_path: Path) -> None:
    (tmp_path / "page.tar").write_bytes(b"<html>sorry</html>")
    with pytest.raises(DataError, match="is damaged or incomplete"):
        unpack(tmp_path / "page.tar", tmp_path / "out")
