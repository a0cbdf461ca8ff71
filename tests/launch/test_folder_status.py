"""Status of cells by their folders and by Slurm, whose commands are faked on PATH."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctta_bench.launch import status as module
from ctta_bench.launch.plan import Launch
from ctta_bench.launch.scheduler import job_states, neutral_environment
from ctta_bench.launch.status import counts, folder_status
from tests.launch.conftest import LINE, RESULT, Ask, Make
from tests.launches import call


def fake(cell: str) -> Any:
    request = SimpleNamespace(model_dump=lambda mode: {})
    return SimpleNamespace(id=cell, warms_up=False, needs=None, cell=SimpleNamespace(asked=request))


def launched(directory: Path, *cells: str, executor: str = "slurm", **facts: Any) -> Launch:
    """A launch with a job, 7_N, for each cell."""
    values = {"executor": executor, "shared": executor == "local", "device": "cpu"} | facts
    packs = [(n, n + 1) for n in range(len(cells))]
    launch = Launch.create(directory, [fake(cell) for cell in cells], packs, **values)
    if executor == "slurm":
        launch.submissions.write(array=0, state="intended", first=0, stop=max(2, len(cells)),
                                 logs=str(launch.folder / "submitit"))  # fmt: skip
        launch.submissions.write(array=0, state="submitted", job="7")
    return launch


def state(directory: Path, cell: str = "tent-a") -> tuple[str, str]:
    (line,) = (line for line in folder_status(directory).cells if line.cell == cell)
    return line.state, line.reason


@pytest.mark.parametrize(
    ("done", "squeue", "sacct", "expected"),
    [
        (0, "7_0|PENDING|Priority", "", "queued"),
        (0, "7_[0-5%2]|PENDING|JobArrayTaskLimit", "", "queued"),
        (4, "7_0|PENDING|BeginTime", "", "queued"),
        (0, "7_0|RUNNING|None", "", "queued"),
        (4, "", "7_0|TIMEOUT", "timeout"),
        (4, "", "7_0|CANCELLED by 0", "cancelled"),
        (0, "", "7_0|FAILED", "failed"),
        (0, "", "", "missing"),
        (0, "", None, "missing"),
    ],
)
def test_a_cell_without_result_has_the_state_of_its_job(
    done: int,
    squeue: str,
    sacct: str | None,
    expected: str,
    make: Make,
    slurm: Ask,
    tmp_path: Path,
) -> None:
    make("tent-a", done)
    launched(tmp_path / "trial", "tent-a")
    slurm(squeue, sacct)
    assert state(tmp_path / "trial")[0] == expected


@pytest.mark.parametrize(
    ("squeue", "sacct"), [("7_0|PENDING|BeginTime", ""), ("", "7_0|NODE_FAIL")]
)
def test_a_cell_that_its_job_has_begun_is_preempted_while_that_waits(
    squeue: str, sacct: str, make: Make, slurm: Ask, tmp_path: Path
) -> None:
    make("tent-a", 4)
    launched(tmp_path / "trial", "tent-a").journal(0).write(step="tent-a", state="running")
    slurm(squeue, sacct)
    assert state(tmp_path / "trial")[0] == "preempted"


def test_what_a_job_printed_before_python_started_is_the_reason_of_its_cells(
    make: Make, slurm: Ask, tmp_path: Path
) -> None:
    folder = make("tent-a")
    launch = launched(tmp_path / "trial", "tent-a")
    (launch.folder / "submitit").mkdir()
    log = launch.folder / "submitit" / "7_0_0_log.out"
    log.write_text("exec: /env/python: not found\nsrun: error: n1: task 0: Exited with code 127\n")
    slurm("", "7_0|FAILED")
    words = "job 7_0 ended (FAILED) before Python started: exec: /env/python: not found"
    assert state(tmp_path / "trial") == ("failed", words)
    assert "Exited with code 127" in call("logs", folder).stdout


def test_a_refused_submission_is_no_cancel(make: Make, slurm: Ask, tmp_path: Path) -> None:
    make("tent-a")
    launch = launched(tmp_path / "trial", "tent-a")
    launch.submissions.write(array=0, state="refused", reason="Slurm rejected the jobs: QOS.")
    launch.submissions.file.write_text(
        "".join(
            line
            for line in launch.submissions.file.read_text().splitlines(keepends=True)
            if "submitted" not in line
        )
    )
    assert state(tmp_path / "trial") == (
        "missing",
        "not submitted: Slurm rejected the jobs: QOS.",
    )


def test_an_array_whose_launcher_died_is_found_by_the_mark_in_its_comment(
    make: Make, slurm: Ask, tmp_path: Path
) -> None:
    make("tent-a")
    launch = launched(tmp_path / "trial", "tent-a")
    lines = launch.submissions.file.read_text().splitlines(keepends=True)
    launch.submissions.file.write_text(lines[0])  # the intent alone
    slurm(f"99_[0-1]|PENDING|Priority|night shift {launch.mark(0)}\n98|RUNNING|None|other")
    (line,) = folder_status(tmp_path / "trial").cells
    assert (line.state, line.job) == ("queued", "99_0")
    slurm("98|RUNNING|None|other")
    end_launcher(launch)
    (line,) = folder_status(tmp_path / "trial").cells
    assert (line.state, line.job) == ("missing", None)
    assert line.reason == "not submitted: its launcher ended before"
    launch.journal(0).write(state="started", job="99_0")  # it has run since, and left the queue
    (line,) = folder_status(tmp_path / "trial").cells
    assert line.job == "99_0"


def end_launcher(launch: Launch) -> None:
    facts = json.loads((launch.folder / "launch.json").read_text())
    facts["launcher"]["born"] = "1"
    (launch.folder / "launch.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        ("SIGUSR2", ("timeout", "timeout after 4 of 10 batches; `grid` resumes it")),
        ("SIGTERM", ("missing", "stopped by SIGTERM after 4 of 10 batches; `grid` resumes it")),
    ],
)
def test_a_cell_that_was_stopped_and_is_not_requeued_shows_its_progress(
    signal: str, expected: tuple[str, str], make: Make, slurm: Ask, tmp_path: Path
) -> None:
    make("tent-a", 4)
    journal = launched(tmp_path / "trial", "tent-a").journal(0)
    journal.write(step="tent-a", state="running")
    journal.write(step="tent-a", state="interrupted", reason=signal)
    slurm("", "7_0|COMPLETED")
    assert state(tmp_path / "trial") == expected


def test_a_queued_cell_has_slurm_s_reason_and_a_timeout_how_far_it_came(
    make: Make, slurm: Ask, tmp_path: Path
) -> None:
    make("tent-a")
    make("tent-b", 4)
    launched(tmp_path / "trial", "tent-a", "tent-b")
    slurm("7_0|PENDING|QOSMaxJobsPerUserLimit", "7_1|TIMEOUT")
    assert "QOSMaxJobsPerUserLimit" in state(tmp_path / "trial")[1]
    assert state(tmp_path / "trial", "tent-b")[1].startswith("timeout after 4 of 10 batches")


def test_a_result_that_comes_late_is_awaited_then_there_and_never_failed(
    make: Make, slurm: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make("tent-a", 10, result__json=RESULT)
    launch = launched(tmp_path / "trial", "tent-a")
    launch.journal(0).write(step="tent-a", state="running")
    launch.journal(0).write(step="tent-a", state="done", reason="")
    (folder / "result.json").rename(tmp_path / "late")
    slurm("", "7_0|COMPLETED")
    assert state(tmp_path / "trial")[0] == "finishing"
    (tmp_path / "late").rename(folder / "result.json")
    assert state(tmp_path / "trial")[0] == "done"
    (folder / "result.json").rename(tmp_path / "late")
    monkeypatch.setattr(module, "GRACE_SECONDS", -1.0)
    assert state(tmp_path / "trial") == (
        "failed",
        "job 7_0 ended (COMPLETED), but there is no result",
    )


@pytest.mark.parametrize("ours", [-600.0, 600.0])
def test_a_late_result_is_awaited_whatever_the_clocks_of_two_hosts_say(
    ours: float, make: Make, slurm: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("tent-a", 10)
    old = make("tent-b", 4) / "batches.jsonl"
    os.utime(old, (0, 0))
    launch = launched(tmp_path / "trial", "tent-a", "tent-b")
    event = {"time": "2000-01-01T00:00:00Z", "step": "tent-b", "state": "done", "reason": ""}
    launch.journal(1).file.write_text(json.dumps(event) + "\n")
    slurm("", "7_0|COMPLETING\n7_1|COMPLETED")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + ours)
    assert state(tmp_path / "trial")[0] == "finishing"
    assert state(tmp_path / "trial", "tent-b")[0] == "finishing"
    os.utime(launch.journal(1).file, (0, 0))
    assert state(tmp_path / "trial", "tent-b")[0] == "failed"


def test_a_cell_in_which_its_job_died_has_failed(
    make: Make, slurm: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("tent-a", 4)
    launched(tmp_path / "trial", "tent-a").journal(0).write(step="tent-a", state="running")
    slurm("", "7_0|OUT_OF_MEMORY")
    monkeypatch.setattr(module, "GRACE_SECONDS", -1.0)
    assert state(tmp_path / "trial") == ("failed", "job 7_0 ended (OUT_OF_MEMORY) during this cell")


def test_a_failure_is_shown_with_its_first_line_and_the_log(
    make: Make, slurm: Ask, tmp_path: Path
) -> None:
    make("tent-a", 4, failed__json={"reason": "no memory"})
    launch = launched(tmp_path / "trial", "tent-a")
    launch.journal(0).write(state="started", job="7_0")
    slurm("", "7_0|COMPLETED")
    (line,) = folder_status(tmp_path / "trial").cells
    assert (line.state, line.reason) == ("failed", "no memory")
    assert line.log == str(launch.log(0))


def test_attempts_and_the_last_signal_are_shown_for_done_cells_too(
    make: Make, tmp_path: Path
) -> None:
    before = [{"outcome": "interrupted", "signal": "SIGUSR2"}, {"outcome": "lost"}]
    make("tent-a", 10, result__json=RESULT, attempts__json=before)
    (line,) = folder_status(tmp_path / "trial").cells
    assert (line.state, line.attempt, line.signal) == ("done", 3, "SIGUSR2")


def test_a_running_cell_has_the_time_that_is_left(make: Make, tmp_path: Path) -> None:
    make("tent-a", 4, **{"cell__lock__json": {"host": "node", "heartbeat": time.time()}})
    (line,) = folder_status(tmp_path / "trial").cells
    assert (line.state, line.eta_seconds) == ("running", 3.0)  # six batches of half a second


@pytest.mark.parametrize("lives", [True, False])
def test_a_cell_of_a_pool_waits_while_the_launcher_lives(
    lives: bool, make: Make, tmp_path: Path
) -> None:
    make("tent-a")
    launch = launched(tmp_path / "trial", "tent-a", executor="local")
    if not lives:
        end_launcher(launch)
    assert state(tmp_path / "trial")[0] == ("queued" if lives else "missing")


@pytest.mark.parametrize("ended", [False, True])
def test_a_cell_that_the_launcher_runs_itself_waits_until_it_has_ended(
    ended: bool, make: Make, tmp_path: Path
) -> None:
    make("tent-a")
    launch = launched(tmp_path / "trial", "tent-a", executor="debug")
    if ended:
        launch.end()
    assert state(tmp_path / "trial")[0] == ("missing" if ended else "queued")


def test_the_newest_launch_decides(make: Make, slurm: Ask, tmp_path: Path) -> None:
    make("tent-a")
    old = launched(tmp_path / "trial", "tent-a")
    old.folder.rename(old.folder.with_name("20000101-000000-old"))
    new = launched(tmp_path / "trial", "tent-a")
    new.submissions.write(array=0, state="submitted", job="8")
    slurm("8_0|PENDING|Resources", "7_0|CANCELLED")
    assert state(tmp_path / "trial")[0] == "queued"


def test_a_scheduler_that_does_not_answer_is_said_and_stops_nothing(
    make: Make, slurm: Ask, tmp_path: Path
) -> None:
    make("tent-a")
    launched(tmp_path / "trial", "tent-a")
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\necho 'slurm is away' >&2\nexit 1\n")
    found = folder_status(tmp_path / "trial")
    assert found.cells[0].state == "unknown"
    assert found.problems == ["squeue: slurm is away"]


def test_a_controller_that_is_away_for_a_moment_is_tried_again(
    make: Make, slurm: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctta_bench.launch.scheduler.PAUSES", (0.0, 0.0))
    make("tent-a")
    launched(tmp_path / "trial", "tent-a")
    tries = tmp_path / "tries"
    (tmp_path / "bin" / "squeue").write_text(
        f"#!/bin/sh\necho x >>'{tries}'\n"
        f"if [ $(wc -l <'{tries}') = 3 ]; then echo '7_0|RUNNING|None|'; exit 0; fi\n"
        "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n"
    )
    assert state(tmp_path / "trial")[0] == "queued"


def test_jobs_of_a_launch_of_the_last_release_are_known(
    make: Make, slurm: Ask, tmp_path: Path
) -> None:
    make("tent-a")
    launch = launched(tmp_path / "trial", "tent-a")
    launch.submissions.file.unlink()
    (launch.folder / "jobs.json").write_text('{"7_0": 0}')
    slurm("7_0|PENDING|Priority", "")
    assert state(tmp_path / "trial")[0] == "queued"


def test_the_environment_of_the_caller_is_no_option_of_slurm_s_commands(
    slurm: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_NTASKS", "SBATCH_PARTITION", "SRUN_X", "SQUEUE_STATES", "SLURM_CONF"):
        monkeypatch.setenv(name, "2")
    (tmp_path / "bin" / "squeue").write_text(f"#!/bin/sh\nenv >'{tmp_path / 'env'}'\n")
    job_states(["7_0"])
    seen = re.findall(r"^(S[A-Z]+_\w+)=2$", (tmp_path / "env").read_text(), re.M)
    assert seen == ["SLURM_CONF"]
    with neutral_environment():
        assert "SLURM_NTASKS" not in os.environ and os.environ["SLURM_CONF"] == "2"
    assert os.environ["SLURM_NTASKS"] == "2"


def test_experiments_are_counted_apart(make: Make, tmp_path: Path) -> None:
    make("tent-a", 10, result__json=RESULT)
    make("tent-b")
    make("tent-c", experiment="second")
    assert counts(folder_status(tmp_path).cells) == {
        "second": {"missing": 1},
        "trial": {"missing": 1, "done": 1},
    }


def test_status_ends_with_0_only_if_all_are_done(make: Make, tmp_path: Path) -> None:
    make("tent-a", 10, result__json=RESULT)
    assert call("status", tmp_path / "trial").exit_code == 0
    make("tent-b", 3, failed__json={"reason": "no memory"})
    shown = call("status", tmp_path / "trial")
    assert shown.exit_code == 1
    assert "no memory" in shown.stdout and "3/10" in shown.stdout
    assert shown.stdout.splitlines()[0] == "1 of 2 done, 1 failed"
    assert call("status", tmp_path / "trial", "--watch").exit_code == 1


WATCH = (
    "import ctta_bench.cli.status as s; s.WATCH_SECONDS = 0.1\n"
    "from ctta_bench.cli import main; main()"
)


def test_watch_follows_on_a_terminal_until_nothing_is_under_way(make: Make, tmp_path: Path) -> None:
    owner = {"host": "node", "heartbeat": time.time()}
    folder = make("tent-a", 4, **{"cell__lock__json": owner})
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (40, 120))
    watching = subprocess.Popen(
        [sys.executable, "-c", WATCH, "status", str(tmp_path / "trial"), "--watch"],
        stdout=terminal, env=os.environ | {"TERM": "xterm"}, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(terminal)
    shown = read_until(screen, "4/10")  # in the table, which follows the line with the time
    assert "3 s left" in shown  # six batches of half a second
    with (folder / "batches.jsonl").open("a") as lines:
        lines.write("".join(json.dumps(LINE | {"batch": n}) + "\n" for n in (4, 5, 6, 7)))
    assert "1 s left" in read_until(screen, "8/10")
    (folder / "result.json").write_text(json.dumps(RESULT))
    (folder / "cell.lock.json").unlink()
    read_until(screen, "1 of 1 done")
    _, errors = watching.communicate(timeout=60)
    assert (watching.returncode, errors) == (0, b"")
    os.close(screen)


def read_until(screen: int, words: str) -> str:
    """What a terminal shows until words are there, without colours and moves of the cursor."""
    shown, end = b"", time.monotonic() + 120
    while words not in (
        plain := re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode(errors="ignore"))
    ):
        assert time.monotonic() < end, plain
        if select.select([screen], [], [], 1)[0]:
            shown += os.read(screen, 4096)
    return plain


def test_watch_asks_ever_less_often_where_nothing_changes(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("tent-a", 4, **{"cell__lock__json": {"host": "node", "heartbeat": time.time()}})
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    assert call("status", tmp_path / "trial", "--watch").exit_code == 130
    assert pauses[:3] == [5.0, 7.5, 11.25]
    assert pauses[-1] == 60.0


def test_logs_show_what_the_cell_and_its_job_said(make: Make, tmp_path: Path) -> None:
    folder = make("tent-a", 4, failed__json={"reason": "no memory"})
    (folder / "log.txt").write_text("first\nfailed: no memory\n")
    launch = launched(tmp_path / "trial", "tent-a", executor="local")
    launch.log(0).write_text("what the worker printed\n")
    shown = call("logs", folder).stdout
    assert "failed: no memory" in shown and "what the worker printed" in shown
    refused = call("logs", tmp_path)
    assert (refused.exit_code, "is not the folder of a cell" in refused.stderr) == (2, True)


def test_nothing_of_a_run_folder_is_unpickled(
    make: Make, slurm: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pickle

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    make("tent-a", 4)
    launch = launched(tmp_path / "trial", "tent-a")
    (launch.folder / "submitit").mkdir()
    (launch.folder / "submitit" / "7_0_0_result.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    assert len(folder_status(tmp_path / "trial").cells) == 1
