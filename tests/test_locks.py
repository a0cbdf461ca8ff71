"""Who has a cell: dead owners, owners that only look so, and clocks that jump."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ctta_bench.record import owner as locks
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.owner import BusyError, FileClock, is_owned, seems_owned, this_process
from ctta_bench.record.progress import progress
from ctta_bench.record.schema import CELL_FILE, OWNER_FILE
from ctta_bench.record.status import status
from tests.launch.conftest import CELL

ELSEWHERE = {"host": "another-host", "pid": 1, "token": "theirs"}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "WATCH_SECONDS", 0.3)
    monkeypatch.setattr(locks, "STALE_SECONDS", 0.6)
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.05)


def owned_by(folder: Path, owner: dict[str, Any], age: float = 0.0) -> Path:
    file = folder / OWNER_FILE
    file.write_text(json.dumps(owner))
    then = time.time() - age
    os.utime(file, (then, then))
    return file


def ended_process() -> dict[str, Any]:
    """The owner's file of a process that has ended."""
    code = (
        "import json; from ctta_bench.record.owner import this_process; "
        "print(json.dumps(this_process()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def test_a_dead_process_of_this_host_is_replaced_at_once_with_a_line_in_the_log(
    tmp_path: Path,
) -> None:
    owner = ended_process()
    owned_by(tmp_path, owner)
    with RunFolder(tmp_path).locked():
        assert json.loads((tmp_path / OWNER_FILE).read_text())["pid"] == os.getpid()
    assert f"taken over from process {owner['pid']}" in (tmp_path / "log.txt").read_text()
    (attempt,) = RunFolder(tmp_path).attempts()
    assert (attempt["outcome"], attempt["pid"]) == ("lost", owner["pid"])


def test_a_pid_that_is_used_again_is_no_owner(tmp_path: Path) -> None:
    owned_by(tmp_path, this_process() | {"born": "1"})
    with RunFolder(tmp_path).locked():
        pass


def test_a_living_process_of_this_host_keeps_its_cell_however_old_its_file(tmp_path: Path) -> None:
    owned_by(tmp_path, this_process(), age=1e6)
    with pytest.raises(BusyError, match=f"process {os.getpid()}"), RunFolder(tmp_path).locked():
        pass


def test_an_owner_on_another_host_keeps_its_cell_while_its_heart_beats(tmp_path: Path) -> None:
    owned_by(tmp_path, ELSEWHERE)
    with pytest.raises(BusyError, match="another-host"), RunFolder(tmp_path).locked():
        pass


def test_an_owner_on_another_host_is_replaced_once_it_is_silent(tmp_path: Path) -> None:
    owned_by(tmp_path, ELSEWHERE, age=100)
    with RunFolder(tmp_path).locked():
        pass
    assert "another-host" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("age", [-1e6, 1e6])
def test_a_clock_that_jumps_ends_no_living_run(tmp_path: Path, age: float) -> None:
    """The file is renewed with a wrong time, and renewed it is."""
    file = owned_by(tmp_path, ELSEWHERE, age)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.05):
            then = time.time() - age + time.monotonic() % 1
            os.utime(file, (then, then))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(BusyError), RunFolder(tmp_path).locked():
            pass
    finally:
        stop.set()
        thread.join()


def test_a_dead_owner_from_the_future_is_replaced_once_it_was_watched(tmp_path: Path) -> None:
    owned_by(tmp_path, ELSEWHERE, age=-1e6)
    with RunFolder(tmp_path).locked():
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}'])
def test_an_unreadable_owner_is_waited_for_and_then_replaced(tmp_path: Path, text: str) -> None:
    file = tmp_path / OWNER_FILE
    file.write_text(text)
    with pytest.raises(BusyError), RunFolder(tmp_path).locked():
        pass
    os.utime(file, (0, 0))
    with RunFolder(tmp_path).locked():
        pass


def test_the_file_is_renewed_while_nothing_else_happens(tmp_path: Path) -> None:
    with RunFolder(tmp_path).locked():
        first = (tmp_path / OWNER_FILE).stat().st_mtime_ns
        deadline = time.monotonic() + 10
        while (tmp_path / OWNER_FILE).stat().st_mtime_ns == first:
            assert time.monotonic() < deadline


def test_who_has_lost_its_cell_hears_of_it_and_leaves_the_new_owner_alone(tmp_path: Path) -> None:
    with RunFolder(tmp_path).locked() as heartbeat:
        owned_by(tmp_path, ELSEWHERE)
        heartbeat._checked = 0.0  # as after a long sleep
        with pytest.raises(BusyError, match=r"another-host.*took this cell over"):
            heartbeat.beat()
    assert json.loads((tmp_path / OWNER_FILE).read_text()) == ELSEWHERE


def test_a_race_for_a_cell_has_one_winner(tmp_path: Path) -> None:
    """Even where the file system's lock lets everybody in."""
    code = (
        "import sys, time, pathlib\n"
        "from ctta_bench.record import folder as record\n"
        "class Lying:\n"
        "    def __init__(self, path): pass\n"
        "    def acquire(self, timeout): pass\n"
        "    def release(self): pass\n"
        "record.FileLock = Lying\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n"
        "    with record.RunFolder(pathlib.Path(sys.argv[1])).locked():\n"
        "        print('won', flush=True); sys.stdin.readline()\n"
        "except record.BusyError:\n"
        "    print('lost', flush=True); sys.stdin.readline()\n"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    streams = [(racer.stdin, racer.stdout) for racer in racers]
    assert [out.readline() for _, out in streams if out] == ["ready\n"] * 4
    for send, _ in streams:
        assert send
        send.write("go\n")
        send.flush()
    outcomes = sorted(out.readline() for _, out in streams if out)
    for racer in racers:
        racer.communicate("end\n", timeout=30)
    assert outcomes == ["lost\n"] * 3 + ["won\n"]


@pytest.mark.parametrize("ours", [-600.0, 0.0, 600.0])
@pytest.mark.parametrize("theirs", [-600.0, 0.0, 600.0])
@pytest.mark.parametrize("lives", [True, False])
def test_status_and_takeover_agree_whatever_the_clocks_of_two_hosts_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: float, theirs: float, lives: bool
) -> None:
    """The file's time is from the file system; its content has times of the owner's clock."""
    folder = tmp_path / "trial" / "tent-toy"
    folder.mkdir(parents=True)
    silence, now = 0.0 if lives else 100.0, time.time()
    owned_by(folder, ELSEWHERE | {"heartbeat": now - silence + theirs}, age=silence)
    monkeypatch.setattr(time, "time", lambda: now + ours)
    assert progress(folder, 10).state == ("running" if lives else "incomplete")
    assert is_owned(folder) == lives
    with pytest.raises(BusyError) if lives else nullcontext(), RunFolder(folder).locked():
        assert progress(folder, 10).state == "running"


@pytest.mark.parametrize("age", [0.0, 100.0])
def test_where_nothing_may_be_written_our_clock_is_the_best_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float
) -> None:
    def read_only(**_: object) -> None:
        raise PermissionError(30, "Read-only file system")

    owned_by(tmp_path, ELSEWHERE, age)
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", read_only)
    assert seems_owned(tmp_path, FileClock(tmp_path)) == (not age)


def test_the_clock_of_a_file_system_is_read_once_for_many_cells_and_only_if_it_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    real = tempfile.NamedTemporaryFile

    def counted(**options: Any) -> Any:
        read.append(options["dir"])
        return real(**options)

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", counted)
    for name in "abc":
        (tmp_path / name).mkdir()
        values = {"name": name, "experiment": "trial", "seed": 0, "digest": "0" * 64}
        (tmp_path / name / CELL_FILE).write_text(CELL.format(**values))
        owned_by(tmp_path / name, this_process(), age=1e6)
    assert [row.state for row in status(tmp_path)] == ["running"] * 3
    assert read == []
    for name in "abc":
        owned_by(tmp_path / name, ELSEWHERE)
    assert [row.state for row in status(tmp_path)] == ["running"] * 3
    assert read == [tmp_path]


def test_an_owner_records_where_it_runs() -> None:
    assert this_process()["host"] == socket.gethostname()
    assert locks.describe({}) == "another process"
