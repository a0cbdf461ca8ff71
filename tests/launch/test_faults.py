"""Faults of disks, clocks and launchers: each ends in the right result or in a clear state.

The others of their kind: a killed run of each method, damaged checkpoints (test_engine.py); dead
owners, races, clocks of other hosts (test_locks.py); what cells do to a pool, a killed launcher, a
second one, no memory (test_local.py); nodes, time-outs and signals (tests/slurm).
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.launch.plan import Launch, launches
from ctta_bench.record.folder import RunFolder
from ctta_bench.run.engine import run_cell
from ctta_bench.run.loggers import Logger
from ctta_bench.run.options import RunOptions
from tests.launches import PLUGINS, batches, call, grid, slow, start, states, until, without_times
from tests.launches import write_grid as write

TESTS = Path(__file__).parents[1]
pytestmark = [pytest.mark.usefixtures("toy", "undrawn"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The slow cell without a pause or a fault."""
    folder = tmp_path_factory.mktemp("whole")
    done = grid(write(folder, slow(0.0)), "--executor", "debug", "--out", folder / "runs")
    assert done.exit_code == 0, done.output
    (cell,) = (folder / "runs").glob("slow-*")
    return without_times(cell)


def mount(*words: object) -> None:
    """Mount something, or skip the test where this user may not."""
    try:
        subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("file systems cannot be mounted by this user")


def unmount(place: Path) -> None:
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 200 kB, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=200k", "tmpfs", place)
    yield place
    unmount(place)


def assert_nothing_half_written(runs: Path) -> None:
    assert not [file for file in runs.rglob("*") if file.name.endswith(".tmp")]
    assert not list(runs.glob("slow-*/result.json"))


def fill(disk: Path, name: str) -> Path:
    """A file that takes all the room that is left."""
    file = disk / name
    with pytest.raises(OSError, match="No space"), file.open("wb", buffering=0) as filling:
        while True:
            filling.write(bytes(1024))
    return file


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_disk_that_fills_up_is_one_sentence_and_the_same_command_resumes(
    jobs: int,
    disk: Path,
    tmp_path: Path,
    whole: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = disk / "runs"
    file = write(tmp_path, slow(0.2), slow(0.2, lr=0.01))
    options = ("--checkpoint", 2, "--out", runs)
    launcher = start("grid", file, *PLUGINS, "--device", "cpu", "--jobs", jobs, *options)
    cell = until(lambda: next((c for c in runs.glob("slow-*") if batches(c) >= 4), None))
    filling = [fill(disk, "first")]
    output, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 1, output + errors
    assert "No space left on device" in errors and "Traceback" not in errors
    assert_nothing_half_written(runs)
    filling.append(fill(disk, "second"))  # what was half-written has made room
    refused = grid(file, *options)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "No space left on device" in refused.stderr
    for rest in filling:
        rest.unlink()
    mount("-o", "remount,size=4m", disk)
    monkeypatch.setenv("CTTA_NO_PAUSE", "1")
    assert grid(file, "--executor", "debug", *options).exit_code == 0
    assert states(runs) == ["done"] * 2
    first = next(c for c in runs.glob("slow-*") if "lr: 0.01" not in (c / "cell.yaml").read_text())
    assert without_times(first) == whole
    assert "resumed after" in (cell / "log.txt").read_text()


@pytest.mark.slow
def test_output_that_becomes_read_only_fails_the_cell_and_the_same_command_resumes(
    tmp_path: Path, whole: dict[str, Any]
) -> None:
    file, runs = write(tmp_path, slow(0.2)), tmp_path / "runs"
    options = ("--checkpoint", 2, "--out", runs)
    launcher = start("grid", file, *PLUGINS, "--device", "cpu", *options)
    # After an odd batch: no checkpoint is being written while the disk turns read-only.
    cell = until(lambda: next((c for c in runs.glob("slow-*") if batches(c) >= 5), None))
    mount("--bind", runs, runs)
    try:
        mount("-o", "remount,ro,bind", runs)
        output, errors = launcher.communicate(timeout=120)
        assert launcher.returncode == 1, output + errors
        assert "Read-only file system" in errors and "Traceback" not in errors
        refused = grid(file, *options)
        assert (refused.exit_code, "Read-only file system" in refused.stderr) == (2, True)
    finally:
        unmount(runs)
    assert_nothing_half_written(runs)
    assert grid(file, *options).exit_code == 0
    assert without_times(cell) == whole


def test_a_folder_that_cannot_be_written_is_refused_before_anything_begins(tmp_path: Path) -> None:
    refused = grid(write(tmp_path, "source"), "--out", "/proc/runs")
    assert refused.exit_code == 2
    assert "/proc/runs: cannot be written" in refused.stderr


def test_a_grid_that_is_killed_in_its_third_cell_leaves_the_first_two_alone(
    tmp_path: Path, whole: dict[str, Any]
) -> None:
    entries = ("source", "tent", slow(0.2), "{name: tent, set: {lr: 0.1}}")
    file, runs = write(tmp_path, *entries), tmp_path / "runs"
    options = ("--checkpoint", "1s", "--out", runs)
    launcher = start("grid", file, *PLUGINS, "--device", "cpu", *options)
    cell = until(lambda: next((c for c in runs.glob("slow-*") if batches(c) >= 9), None))
    launcher.kill()
    launcher.communicate()
    done = {f: f.stat().st_mtime_ns for c in runs.iterdir() if RunFolder(c).is_done
            for f in c.iterdir()}  # fmt: skip
    assert len({file.parent for file in done}) == 2
    assert "2 cells run, 2 were done before" in grid(file, *options).stdout
    assert {f: f.stat().st_mtime_ns for f in done} == done
    assert "taken over from" in (cell / "log.txt").read_text()
    assert "resumed after" in (cell / "log.txt").read_text()
    assert without_times(cell) == whole


class JumpingClock(Logger):
    """Moves the clock at every batch: a day ahead, two days back, and so on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.real = patch, time.time

    def batch(self, record: dict[str, Any]) -> None:
        hours = (24, -48, 0, 1, -1)[record["batch"] % 5]
        self.patch.setattr(time, "time", lambda: self.real() + 3600 * hours)
        if record["batch"] == 7:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_clock_that_jumps_changes_no_number_and_no_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, *loggers: Logger) -> dict[str, Any]:
        cell = resolve(CellRequest(method="tent", benchmark="toy", model="toy_vit"))
        return run_cell(
            cell, RunFolder(tmp_path / name), RunOptions(loggers=loggers, checkpoint="1")
        )

    run("whole")
    clock = JumpingClock(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run("jumping", clock)
    result = run("jumping", clock)
    assert without_times(tmp_path / "jumping") == without_times(tmp_path / "whole")
    assert 0 < result["cost"]["seconds"] < 60


def test_the_newest_launch_is_the_last_one_even_if_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch() -> Path:
        return Launch.create(tmp_path, [], [], executor="local", shared=True).folder

    made = [launch()]
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((2001, 1, 1, 0, 0, 0, 0, 1, 0)))
    made += [launch(), launch()]
    assert [found.folder for found in launches(tmp_path)] == made


def test_a_living_run_of_this_host_is_running_whatever_the_clock_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "cell")
    with folder.locked():
        folder.plan(resolve(CellRequest(method="tent", benchmark="toy", model="toy_vit")).record)
        now = time.time()
        for hours in (-48, 48):
            monkeypatch.setattr(time, "time", lambda moved=now + 3600 * hours: moved)
            assert states(tmp_path) == ["running"]
    assert call("status", tmp_path).exit_code == 1


def test_every_fault_of_the_docs_names_a_test_that_exists() -> None:
    """Third column: `FILE`: words, words; each in the name of a test of that file."""
    text = (TESTS.parent / "docs/slurm.md").read_text("utf-8").partition("## Faults")[2]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    found = {fault: tests.split("; ") for fault, _, tests in rows[2:]}
    assert len(found) > 15
    for fault, tests in found.items():
        for file, words in (re.fullmatch("`(.+)`: (.+)", test).groups() for test in tests):  # type: ignore[union-attr]
            names = re.findall(r"^def test_(\w+)", (TESTS / file).read_text("utf-8"), re.M)
            spaced = " ".join(names).replace("_", " ")
            missing = [each for each in words.split(", ") if each not in spaced]
            assert not missing, f"{fault}: {file} has no test of {missing}"
