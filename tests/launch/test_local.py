"""The pool of this machine: never more than asked for, devices dealt out, and every fault survived.

Processes that load torch take most of the time, so that several tests look at the same pool.
"""

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from ctta_bench.config.experiment import expand, load_experiment
from ctta_bench.errors import ConfigError
from ctta_bench.launch.begin import select
from ctta_bench.launch.local import divide_resources
from ctta_bench.launch.steps import schedule
from ctta_bench.registry import load_plugin
from tests.conftest import _forgetting_plugins
from tests.launches import (
    PLUGINS,
    SLOW,
    batches,
    call,
    grid,
    rows,
    slow,
    start,
    states,
    until,
    without_times,
    write_grid,
)

pytestmark = [pytest.mark.usefixtures("undrawn"), pytest.mark.timeout(600)]
CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def workers_of(runs: Path) -> list[int]:
    """The pids of the living processes that work on a folder of runs."""
    mark = str(runs.resolve() / ".launch").encode()
    parents = {}
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes()
            parent = parent_of(int(file.parent.name))
        except OSError:
            continue
        if mark in words and b"launch.work" in words:
            parents[int(file.parent.name)] = parent
    # A program that a worker begins is a copy of it for a moment.
    return [pid for pid, parent in parents.items() if parent not in parents]


def parent_of(pid: int) -> int:
    """The process that started a process."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def undisturbed(folder: Path) -> dict[str, Any]:
    """The slow cell without a pause or an interruption."""
    file = write_grid(folder, slow(0.0), name="undisturbed")
    assert grid(file, "--executor", "debug", "--quiet").exit_code == 0
    (cell,) = Path("runs/undisturbed").glob("slow-*")
    return without_times(cell)


@pytest.fixture
def memory_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cgroup of 64 MB, where the kernel ends a cell for want of memory."""
    root = next((r for r in (CGROUPS / "memory", CGROUPS) if (r / "cgroup.procs").exists()), None)
    group = CGROUPS if root is None else root / f"ctta-bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("this user may not make a cgroup")
    limit = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
    try:
        (group / limit).write_text(str(64 * 2**20))
        monkeypatch.setenv("CTTA_MEMORY_GROUP", str(group))
        yield
    except OSError:
        pytest.skip("this user may not limit a cgroup's memory")
    finally:
        group.rmdir()


LOOK = """
import os, pathlib
(pathlib.Path({folder!r}) / str(os.getpid())).write_text(
    os.environ["CUDA_VISIBLE_DEVICES"] + " " + os.environ.get("OMP_NUM_THREADS", "")
)
"""
FATES = ("raise", "exit", "leave", "kill", "memory")


@dataclass
class Ran:
    """A grid that a pool on two pretended GPUs has run, with cells of each fate.

    most: workers at the same time. seen: device and threads of each process.
    """

    file: Path
    runs: Path
    result: Result
    most: int
    seen: list[list[str]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("pool")
    look, seen, runs = folder / "look.py", folder / "seen", folder / "runs"
    look.write_text(LOOK.format(folder=str(seen)))
    seen.mkdir()
    file = write_grid(folder, *(slow(0.0, fate=fate) for fate in FATES), "source", "tent")
    counts, stop = [0], threading.Event()

    def sample() -> None:
        while not stop.wait(0.5):
            counts.append(len(workers_of(runs)))

    sampler = threading.Thread(target=sample)
    sampler.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
        with contextlib.contextmanager(_forgetting_plugins)():
            result = call("grid", file, *PLUGINS, "--plugin", look, "--out", runs)
    stop.set()
    sampler.join()
    (seen / str(os.getpid())).unlink()  # this process loads the plug-in, too
    found = [text.read_text().split() for text in seen.iterdir()]
    return Ran(file, runs, result, max(counts), found)


def test_a_pool_holds_its_size_and_gives_each_worker_its_accelerator(ran: Ran) -> None:
    assert ran.most == 2  # without --jobs: one a device
    assert {device for device, _ in ran.seen} == {"2", "5"}
    assert len(ran.seen) == 2 + 2  # one for each that died, of `leave` and `kill`, and no other


@pytest.mark.parametrize(
    ("visible", "jobs", "cells_per_gpu", "device", "expected"),
    [
        ("2,5", None, 1, None, (2, ["2", "5"])),
        ("2,5", 1, 1, None, (1, ["2"])),
        ("2,5", None, 2, None, (4, ["2", "5", "2", "5"])),
        ("2,5", 3, 1, "cpu", (3, None)),
        ("", None, 1, None, (1, None)),
        ("", 6, 1, None, (6, None)),
        ("GPU-a1,GPU-b2", 2, 1, "cuda", (2, ["GPU-a1", "GPU-b2"])),
    ],
)
def test_workers_share_what_there_is(
    visible: str,
    jobs: int | None,
    cells_per_gpu: int,
    device: str | None,
    expected: tuple[int, list[str] | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    share = divide_resources(jobs, cells_per_gpu, device, steps=100)
    assert (share.jobs, share.devices) == expected


def test_more_jobs_than_places_are_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    with pytest.raises(ConfigError, match="--cells-per-gpu 3"):
        divide_resources(5, 1, None, steps=100)
    assert divide_resources(5, 1, None, steps=2).jobs == 2


def test_threads_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctta_bench.run.environment.usable_cores", lambda: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [divide_resources(n, 1, None, 99).threads for n in (1, 3, 8, 16)] == [None, 2, 1, 1]


@pytest.mark.parametrize(
    ("jobs", "load", "words"),
    [
        (2, 0.0, ""),
        (4, 1.0, ""),
        (9, 0.0, "9 workers share 4 cores"),
        (2, 7.5, "load 7.5 on 4 cores"),
        (1, 7.5, ""),
    ],
)
def test_a_pool_warns_if_more_threads_would_run_than_there_are_cores(
    jobs: int, load: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctta_bench.run.environment.usable_cores", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    warning = divide_resources(jobs, 1, "cpu", 99).warning
    assert words in warning and bool(words) == bool(warning)


def test_a_pool_survives_what_its_cells_do(ran: Ran) -> None:
    assert ran.result.exit_code == 1
    assert f"2 cells run, 0 were done before, {len(FATES)} failed" in ran.result.stdout
    found = rows(ran.runs)
    reasons = " ".join(row["reason"] for row in found.values() if row["state"] == "failed")
    assert re.search("too much", reasons) and re.search("can't allocate memory", reasons)
    assert len(re.findall("SIGKILL: it ran out of memory", reasons)) == 1
    assert re.search(r"sys\.exit\(0\)", reasons) and re.search("exit code 0", reasons)
    (raised,) = (cell for cell, row in found.items() if "too much" in row["reason"])
    assert "Traceback" in (ran.runs / raised / "log.txt").read_text()
    # What a process printed last stays with the cell that it died in.
    (gone,) = (cell for cell, row in found.items() if "exit code 0" in row["reason"])
    assert f"{gone}: batch 0 of 15" in (ran.runs / gone / "log.txt").read_text()


@pytest.mark.slow  # what is seen of it is a SIGKILL, as above
def test_a_pool_survives_a_cell_that_the_kernel_ends_for_want_of_memory(
    memory_group: None, tmp_path: Path
) -> None:
    file = write_grid(tmp_path, slow(0.0, fate="oom"), "source")
    assert grid(file, "--jobs", 2).exit_code == 1
    found = {row["state"]: row["reason"] for row in rows(tmp_path / "runs/trial").values()}
    assert set(found) == {"done", "failed"}
    assert "SIGKILL: it ran out of memory" in found["failed"]


def test_the_same_command_and_retry_run_those_cells_again_that_failed(ran: Ran) -> None:
    load_plugin(str(SLOW))
    steps = schedule(expand(load_experiment(str(ran.file))))
    found = rows(ran.runs)
    failed = {cell for cell, row in found.items() if row["state"] == "failed"}
    for alone in (False, True):
        chosen = select(steps, ran.runs, failed_alone=alone, force_retry=alone)
        assert {step.id for step in chosen.todo} == set(chosen.again) == failed
        assert len(chosen.outcome.kept) == (0 if alone else 2)
    # An error of its code would come again; what ended the others may not.
    chosen = select(steps, ran.runs, failed_alone=True)
    (left,) = chosen.outcome.failed
    assert "too much" in found[left]["reason"]
    assert "--force-retry" in chosen.outcome.failed[left]
    assert {step.id for step in chosen.todo} == failed - {left}


def test_a_pool_s_plan_is_text_and_results_are_read_without_it(ran: Ran) -> None:
    (launch,) = ran.runs.glob(".launch/*")
    lines = [json.loads(line) for line in (launch / "steps.jsonl").read_text().splitlines()]
    assert {line["request"]["method"] for line in lines} == {"source", "tent", "slow"}
    assert (launch / "launch.json").stat().st_mode & 0o077 == 0
    before = states(ran.runs)
    launch.parent.rename(ran.runs.parent / "launches")
    try:
        assert states(ran.runs) == before
        assert call("report", ran.runs).exit_code == 0
    finally:
        (ran.runs.parent / "launches").rename(launch.parent)


@pytest.mark.slow
def test_ctrl_c_ends_all_workers_after_a_checkpoint_and_the_same_command_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_grid(tmp_path, slow(1.5), more="seeds: [0, 1]")
    runs = tmp_path / "runs/trial"
    launcher = start("grid", file, *PLUGINS, "--device", "cpu", "--jobs", 2, start_new_session=True)
    cells = until(lambda: len(c := sorted(runs.glob("slow-*"))) == 2 and c)
    until(lambda: all(batches(cell) >= 2 for cell in cells))
    os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does: to every process
    _, errors = launcher.communicate(timeout=60)
    assert "Traceback" not in errors and launcher.returncode == 130, errors
    assert workers_of(runs) == []
    assert all((cell / "state.pt").is_file() for cell in cells)
    assert not list(runs.rglob("*.tmp")) and not list(runs.rglob("result.json"))
    assert states(runs) == ["cancelled"] * 2
    monkeypatch.setenv("CTTA_NO_PAUSE", "1")
    resumed = grid(file, "--executor", "debug")
    assert resumed.exit_code == 0, resumed.output
    assert all("resumed after" in (cell / "log.txt").read_text() for cell in cells)
    first = next(cell for cell in cells if "-seed0-" in cell.name)
    assert without_times(first) == undisturbed(tmp_path)


def test_workers_outlive_a_launcher_that_is_killed_a_second_one_takes_nothing_and_cancel_ends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_grid(tmp_path, slow(1.5), more="seeds: [0, 1]")
    runs = tmp_path / "runs/trial"
    launcher = start("grid", file, *PLUGINS, "--device", "cpu", "--jobs", 2)
    cells = until(lambda: len(c := sorted(runs.glob("slow-*"))) == 2 and c)
    until(lambda: all(batches(cell) >= 1 for cell in cells))
    workers = workers_of(runs)
    # The launcher is the direct parent of the worker processes.
    assert {parent_of(pid) for pid in workers} == {launcher.pid}
    launcher.kill()
    launcher.wait()
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)  # so that they do not end before the second one looks
    try:
        second = grid(file, "--executor", "debug")
        before = [batches(cell) for cell in cells]
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    assert (second.exit_code, "2 run elsewhere" in second.stdout) == (1, True)
    until(lambda: all(batches(c) > n for c, n in zip(cells, before, strict=True)), what="progress")
    assert states(runs) == ["running"] * 2
    assert "2 processes on this machine stopped" in call("cancel", runs).stdout
    until(lambda: workers_of(runs) == [], what="the end of the workers")
    launcher.communicate()
    assert states(runs) == ["cancelled"] * 2
    monkeypatch.setenv("CTTA_NO_PAUSE", "1")
    resumed = grid(file, "--executor", "debug")
    assert resumed.exit_code == 0, resumed.output
    assert all(row["attempt"] == 2 for row in rows(runs).values())


@pytest.mark.slow
def test_names_with_spaces_and_quotes_work_and_secrets_stay_out_of_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cr3t-v4lue")
    place = tmp_path / 'it\'s a "place"; touch hacked'
    place.mkdir()
    file = write_grid(place, "source", slow(0.0, fate="raise"))
    out = place / "$(touch hacked) runs"
    grid(file, "--jobs", 2, "--out", out)
    assert states(out) == ["done", "failed"]
    assert not list(tmp_path.rglob("hacked"))
    texts = [f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()]
    assert not [text for text in texts if b"s3cr3t" in text]
