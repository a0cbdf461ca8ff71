"""Downloads from a local server that truncates files and sends wrong answers."""

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctta_bench.datasets.fetching import fetch as module
from ctta_bench.datasets.fetching.fetch import Remote, fetch
from ctta_bench.errors import DataError
from tests.datasets.local_server import Behaviour, local_server

CONTENT = bytes(range(256)) * 1000  # 256,000 bytes
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Behaviour]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with local_server() as behaviour:
        behaviour.files["set.tar"] = CONTENT
        yield behaviour


def remote(server: Behaviour, name: str = "set.tar", **facts: object) -> Remote:
    known = {"size": len(CONTENT), "md5": MD5} | facts
    return Remote(f"{server.url}/{name}?download=1", **known)  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_file_arrives_whole_under_its_name_and_its_bytes_are_reported(
    server: Behaviour, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    fetch(remote(server), tmp_path / "set.tar", report=lambda *state: told.append(state))
    assert (tmp_path / "set.tar").read_bytes() == CONTENT
    assert names(tmp_path) == ["set.tar"]
    assert told[-1] == (len(CONTENT), len(CONTENT))


def test_a_cut_download_resumes_where_it_was_cut(server: Behaviour, tmp_path: Path) -> None:
    server.cut_after = [100_000, 50_000]
    fetch(remote(server), tmp_path / "set.tar", pause=0)
    assert (tmp_path / "set.tar").read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, "bytes=100000-", "bytes=150000-"]


def test_what_an_earlier_process_left_is_resumed(server: Behaviour, tmp_path: Path) -> None:
    (tmp_path / "set.tar.part").write_bytes(CONTENT[:7])
    fetch(remote(server), tmp_path / "set.tar")
    assert server.requests == [("/set.tar?download=1", "bytes=7-")]
    assert (tmp_path / "set.tar").read_bytes() == CONTENT


def test_a_part_that_is_whole_needs_no_request(server: Behaviour, tmp_path: Path) -> None:
    (tmp_path / "set.tar.part").write_bytes(CONTENT)
    fetch(remote(server), tmp_path / "set.tar")
    assert server.requests == []
    assert names(tmp_path) == ["set.tar"]


def test_a_server_that_knows_no_range_sends_it_all_again(server: Behaviour, tmp_path: Path) -> None:
    server.knows_range = False
    server.cut_after = [100_000]
    fetch(remote(server), tmp_path / "set.tar", pause=0)
    assert (tmp_path / "set.tar").read_bytes() == CONTENT


@pytest.mark.parametrize("length", [300_000, len(CONTENT)])
def test_a_part_of_another_file_does_not_stay(
    length: int, server: Behaviour, tmp_path: Path
) -> None:
    (tmp_path / "set.tar.part").write_bytes(b"x" * length)
    fetch(remote(server, size=None), tmp_path / "set.tar", pause=0)
    assert (tmp_path / "set.tar").read_bytes() == CONTENT


def test_a_whole_part_of_a_file_of_unknown_size_is_not_fetched_again(
    server: Behaviour, tmp_path: Path
) -> None:
    (tmp_path / "set.tar.part").write_bytes(CONTENT)
    fetch(remote(server, size=None), tmp_path / "set.tar", pause=0)
    assert [asked for _, asked in server.requests] == [f"bytes={len(CONTENT)}-"]
    assert names(tmp_path) == ["set.tar"]


def test_a_connection_that_always_breaks_ends_with_a_sentence_and_a_part(
    server: Behaviour, tmp_path: Path
) -> None:
    server.cut_after = [1000] + [0] * 20
    with pytest.raises(DataError, match=r"ended early.*1,000 of 256,000 bytes.*--mirror"):
        fetch(remote(server), tmp_path / "set.tar", pause=0)
    assert names(tmp_path) == ["set.tar.part"]
    server.cut_after = []
    fetch(remote(server), tmp_path / "set.tar", pause=0)
    assert (tmp_path / "set.tar").read_bytes() == CONTENT


def test_a_download_that_advances_is_not_given_up(server: Behaviour, tmp_path: Path) -> None:
    server.cut_after = [20_000] * 13
    fetch(remote(server), tmp_path / "set.tar", pause=0)
    assert (tmp_path / "set.tar").read_bytes() == CONTENT


def test_a_file_that_is_not_there_is_reported_with_its_address_and_the_way_out(
    server: Behaviour, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"no\.tar.*answered 404 \(Not Found\).*--mirror"):
        fetch(remote(server, "no.tar"), tmp_path / "no.tar")
    assert names(tmp_path) == []
    assert len(server.requests) == 1


def test_an_overloaded_server_is_asked_again_and_then_named(
    server: Behaviour, tmp_path: Path
) -> None:
    server.status = 503
    with pytest.raises(DataError, match="Service Unavailable"):
        fetch(remote(server), tmp_path / "set.tar", pause=0)
    assert len(server.requests) == module.ATTEMPTS


def test_a_page_in_place_of_the_file_is_refused(server: Behaviour, tmp_path: Path) -> None:
    server.files["set.tar"] = b"<html>Quota exceeded</html>"
    server.content_type = "text/html; charset=utf-8"
    with pytest.raises(DataError, match=r"offers 27 bytes \(text/html\) instead of an archive"):
        fetch(remote(server, size=None, md5=None), tmp_path / "set.tar")
    assert names(tmp_path) == []


def test_another_size_is_refused_before_a_byte_is_stored(server: Behaviour, tmp_path: Path) -> None:
    server.files["set.tar"] = CONTENT + b"x"
    with pytest.raises(DataError, match=r"offers 256,001 bytes .* instead of 256,000 bytes"):
        fetch(remote(server), tmp_path / "set.tar")
    assert names(tmp_path) == []


def test_another_size_that_is_not_announced_is_found_at_the_end(
    server: Behaviour, tmp_path: Path
) -> None:
    server.says_length = False
    server.files["set.tar"] = CONTENT + b"x"
    with pytest.raises(DataError, match=r"256,001 bytes instead of 256,000.*deleted"):
        fetch(remote(server), tmp_path / "set.tar")
    assert names(tmp_path) == []


def test_another_checksum_is_refused_and_the_file_deleted(
    server: Behaviour, tmp_path: Path
) -> None:
    server.files["set.tar"] = CONTENT[::-1]
    with pytest.raises(DataError, match=rf"md5 [0-9a-f]{{32}} instead of {MD5}.*deleted"):
        fetch(remote(server), tmp_path / "set.tar")
    assert names(tmp_path) == []


def test_a_full_disk_is_reported_and_the_download_resumes_once_there_is_space(
    server: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, budget = Path.open, [100_000]

    class FullDisk:
        """A raw file on a disk with so many bytes left."""

        def __init__(self, path: Path, *arguments: object, **options: object) -> None:
            self.file = real(path, *arguments, **options)  # type: ignore[call-overload]

        def __enter__(self) -> "FullDisk":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

        def write(self, data: memoryview) -> int:
            if not budget[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            taken = int(self.file.write(data[: budget[0]]))
            budget[0] -= taken
            return taken

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, *a, **k: FullDisk(path, *a, **k))
        with pytest.raises(DataError, match=r"set\.tar\.part: the disk is full; free some space"):
            fetch(remote(server), tmp_path / "set.tar")
    assert (tmp_path / "set.tar.part").stat().st_size == 100_000
    fetch(remote(server), tmp_path / "set.tar")
    assert server.requests[-1][1] == "bytes=100000-"
    assert (tmp_path / "set.tar").read_bytes() == CONTENT


def test_an_unreachable_address_is_reported(tmp_path: Path, server: Behaviour) -> None:
    nowhere = Remote("http://127.0.0.1:9/set.tar", len(CONTENT), MD5)
    with pytest.raises(
        DataError, match=r"127\.0\.0\.1:9/set\.tar: could not be fetched \(.*refused"
    ):
        fetch(nowhere, tmp_path / "set.tar", pause=0)


def test_the_proxy_of_the_environment_is_used(
    server: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "")
    fetch(Remote("http://data.invalid/set.tar", len(CONTENT), MD5), tmp_path / "set.tar")
    assert server.requests == [("http://data.invalid/set.tar", None)]
    assert (tmp_path / "set.tar").read_bytes() == CONTENT
