"""Archives of others: what is not safe is refused before anything is read."""

import stat
import zipfile

import pytest

from ctta_bench.errors import RunError
from ctta_bench.record import archive
from ctta_bench.record.archive import read_archive, write_archive
from ctta_bench.record.bundle import Bundle


def made(path, *members, kind=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


@pytest.mark.parametrize(
    "name", ["../a", "/a", "a/../b", "a//b", "./a", "a\\b", "C:a", "a\nb", "a" * 500]
)
def test_a_name_that_leads_out_of_the_folder_is_refused(name, tmp_path):
    with pytest.raises(RunError, match="Nothing was read"):
        read_archive(made(tmp_path / "x.zip", (zipfile.ZipInfo(name), b".")))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("a", "a"), ("a", "A")])
def test_two_members_of_one_name_are_refused(names, tmp_path):
    with pytest.raises(RunError, match="has the name of another one"):
        read_archive(made(tmp_path / "x.zip", *((name, b".") for name in names)))


def test_a_link_is_refused(tmp_path):
    link = zipfile.ZipInfo("a")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(RunError, match="is a link"):
        read_archive(made(tmp_path / "x.zip", (link, "/etc/passwd")))


def test_a_bomb_is_refused_by_its_stated_size(tmp_path, monkeypatch):
    file = made(tmp_path / "x.zip", ("a", bytes(50_000)))
    assert file.stat().st_size < 500
    monkeypatch.setattr(archive, "MAX_BYTES", 10_000)
    with pytest.raises(RunError, match="a bundle has at most"):
        read_archive(file)
    monkeypatch.undo()
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 10_000)
    with pytest.raises(RunError, match="the most is 10,000"):
        read_archive(file)


def test_a_size_that_is_not_the_stated_one_is_refused(tmp_path):
    file = made(tmp_path / "x.zip", ("a", bytes(50_000)))
    content = file.read_bytes()
    size = (50_000).to_bytes(4, "little")
    file.write_bytes(content.replace(size, (100).to_bytes(4, "little")))
    with pytest.raises(RunError, match=r"damaged|another size"):
        read_archive(file)


def test_another_compression_and_other_files_are_refused(tmp_path):
    with pytest.raises(RunError, match="another compression"):
        read_archive(made(tmp_path / "x.zip", ("a", b"."), kind=zipfile.ZIP_BZIP2))
    (tmp_path / "y.zip").write_text("no archive")
    with pytest.raises(RunError, match="no zip archive"):
        read_archive(tmp_path / "y.zip")
    with pytest.raises(RunError, match="no such file"):
        read_archive(tmp_path / "z.zip")
    with pytest.raises(RunError, match="is no bundle"):
        Bundle.read(made(tmp_path / "x.zip", ("a", b".")))


def test_the_same_members_give_the_same_bytes(tmp_path):
    for name in ("a.zip", "b.zip"):
        write_archive(tmp_path / name, {"a/b": b"1" * 100, "c": b""})
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert read_archive(tmp_path / "a.zip") == {"a/b": b"1" * 100, "c": b""}
