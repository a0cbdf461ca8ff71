"""Worker processes: every caller may have them, and none outlives its caller."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ctta_bench.datasets.making.workers import run_workers
from ctta_bench.errors import ConfigError, DataError

SCRIPT = """
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from ctta_bench.datasets.making.workers import run_workers
from tests.datasets import test_workers
print("the script runs")
work = getattr(test_workers, sys.argv[1])
run_workers(partial(work, Path(sys.argv[2])), ["a", "b"], workers=2)
"""


def note(folder: Path, task: str) -> None:
    """Leave a file that says where the task was done."""
    facts = [str(os.getpid()), os.environ["OMP_NUM_THREADS"], str("torch" in sys.modules)]
    (folder / f".{task}").write_text(" ".join(facts))
    (folder / f".{task}").rename(folder / task)


def stay(folder: Path, task: str) -> None:
    """A task that does not end by itself."""
    note(folder, task)
    time.sleep(600)


def fail(error: Exception, task: str) -> None:
    raise error


def die(task: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_daemon(folder: Path) -> None:
    run_workers(partial(note, folder), ["a", "b"], workers=2)


def noted(folder: Path) -> list[list[str]]:
    return [file.read_text().split() for file in sorted(folder.glob("[!.]*"))]


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    pytest.fail(f"not within a minute: {what}")


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_tasks_are_done_elsewhere_on_one_thread_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    told: list[tuple[int, int]] = []
    run_workers(
        partial(note, tmp_path), ["a", "b", "c"], workers=2, report=lambda *s: told.append(s)
    )
    assert told == [(done, 3) for done in range(4)]
    assert {tuple(facts[1:]) for facts in noted(tmp_path)} == {("1", "False")}
    assert str(os.getpid()) not in {facts[0] for facts in noted(tmp_path)}
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize("how", ["file", "-c", "stdin"])
def test_a_script_needs_no_guard_around_its_main_part(how: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    start = {"file": [str(tmp_path / "script.py")], "-c": ["-c", SCRIPT], "stdin": ["-"]}[how]
    (tmp_path / "out").mkdir()
    ended = subprocess.run(
        [sys.executable, *start, "note", str(tmp_path / "out")],
        input=SCRIPT if how == "stdin" else "",
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "the script runs\n"
    assert len(noted(tmp_path / "out")) == 2


def test_a_daemon_which_may_have_no_children_does_the_tasks_itself(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=in_a_daemon, args=(tmp_path,), daemon=True
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    assert [facts[0] for facts in noted(tmp_path)] == [str(process.pid)] * 2


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConfigError("no such corruption."), "no such corruption."),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_what_a_task_raises_is_reported_in_a_sentence(error: Exception, message: str) -> None:
    with pytest.raises(DataError) as caught:
        run_workers(partial(fail, error), ["a", "b"], workers=1)
    assert str(caught.value) == message


def test_a_killed_worker_is_reported_in_a_sentence() -> None:
    with pytest.raises(DataError, match=r"a worker was killed, .* try fewer --workers\.$"):
        run_workers(die, ["a", "b"], workers=2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_caller(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C goes to the workers, too; a killed caller cannot end them."""
    (tmp_path / "out").mkdir()
    caller = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "stay", str(tmp_path / "out")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with caller:
        wait_until("both tasks have begun", lambda: len(noted(tmp_path / "out")) == 2)
        workers = [facts[0] for facts in noted(tmp_path / "out")]
        assert all(map(is_running, workers))
        (os.killpg if number is signal.SIGINT else os.kill)(caller.pid, number)
        complaint = caller.communicate(timeout=60)[1]
    assert complaint.count("Traceback") == (number is signal.SIGINT)
    wait_until("the workers have ended", lambda: not any(map(is_running, workers)))
