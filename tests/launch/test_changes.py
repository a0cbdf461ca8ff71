"""Changing a grid while it runs: cancelled cells, new cells, retries, logs of earlier attempts."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ctta_bench.config.experiment import expand, load_experiment
from ctta_bench.errors import ConfigError, RunError
from ctta_bench.launch.begin import by_attempt, repeats, select
from ctta_bench.launch.plan import Launch
from ctta_bench.launch.profiles import Profile, load_profile
from ctta_bench.launch.steps import schedule, write_planned
from ctta_bench.launch.work import CancelListener
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.schema import BatchLine
from ctta_bench.registry import load_plugin
from tests.launch.conftest import LINE, RESULT, Ask, Make
from tests.launch.test_folder_status import end_launcher, launched, state
from tests.launches import PLUGINS, SLOW, batches, call, slow, start, states, until, write_grid


@pytest.fixture
def two(make: Make, slurm: Ask, tmp_path: Path) -> Launch:
    """Two cells in jobs that wait, and one that is done."""
    make("tent-a")
    make("tent-b")
    make("tent-c", 10, result__json=RESULT)
    launch = launched(tmp_path / "trial", "tent-a", "tent-b")
    slurm("7_0|PENDING|Priority\n7_1|PENDING|Priority")
    (tmp_path / "bin" / "scancel").write_text(f"#!/bin/sh\necho $* >>'{tmp_path / 'ended'}'\n")
    (tmp_path / "bin" / "scancel").chmod(0o755)
    return launch


@pytest.mark.parametrize("which", ["tent-b", "tent-[b-z]"])
def test_cancel_takes_cells_and_patterns_and_leaves_the_others(
    which: str, two: Launch, tmp_path: Path
) -> None:
    shown = call("cancel", tmp_path / "trial", which)
    assert (shown.exit_code, "1 cell cancelled" in shown.stdout) == (0, True)
    assert (tmp_path / "ended").read_text() == "7_1\n"
    assert state(tmp_path / "trial", "tent-b") == ("cancelled", "cancelled before its first batch")
    assert state(tmp_path / "trial")[0] == "queued"


def test_cancel_takes_methods_and_the_folder_of_a_cell(two: Launch, tmp_path: Path) -> None:
    assert "1 cell cancelled" in call("cancel", tmp_path / "trial" / "tent-a").stdout
    assert "1 cell cancelled" in call("cancel", tmp_path / "trial", "tent").stdout
    assert (tmp_path / "ended").read_text() == "7_0\n7_0 7_1\n"
    refused = call("cancel", tmp_path / "trial", "tnet")
    assert (refused.exit_code, "no cell and no method" in refused.stderr) == (2, True)


def test_cells_of_a_cancelled_launch_are_free_at_once(two: Launch, tmp_path: Path) -> None:
    steps: Any = [step("tent-a"), step("tent-b")]
    assert set(select(steps, tmp_path / "trial").queued) == {"tent-a", "tent-b"}
    two.cancel({"tent-b"})
    chosen = select(steps, tmp_path / "trial")
    assert (set(chosen.queued), [s.id for s in chosen.todo]) == ({"tent-a"}, ["tent-b"])
    two.cancel()  # although Slurm still lists their jobs
    chosen = select(steps, tmp_path / "trial")
    assert (chosen.queued, len(chosen.todo)) == ({}, 2)


def step(name: str) -> Any:
    return SimpleNamespace(id=name, needs=None, warms_up=False)


def test_nothing_is_submitted_while_it_is_not_known_what_is_in_the_queue(
    two: Launch, slurm: Ask, tmp_path: Path
) -> None:
    slurm(None, "")
    with pytest.raises(RunError, match="2 cells may be in jobs of Slurm, which does not answer"):
        select([step("tent-a")], tmp_path / "trial")


@pytest.mark.usefixtures("toy")
def test_of_many_cells_that_wait_in_jobs_a_few_are_named(slurm: Ask, tmp_path: Path) -> None:
    file = write_grid(tmp_path, "source", more="seeds: [0, 1, 2, 3, 4, 5, 6, 7]")
    steps, runs = schedule(expand(load_experiment(str(file)))), tmp_path / "runs"
    write_planned(steps, runs)
    launched(runs, *(step.id for step in steps))
    slurm("7_[0-7]|PENDING|Priority")
    again = call("grid", file, *PLUGINS, "--out", runs, "--executor", "debug")
    lines = again.stderr.splitlines()
    assert sum("is in job 7_" in line for line in lines) == 5
    assert "not submitted again: 3 more cells" in lines


def test_a_running_cell_hears_of_a_cancel_on_whatever_machine_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = launched(tmp_path, "tent-a", executor="shell")
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append(number))
    monkeypatch.setattr("ctta_bench.launch.work.LOOK_AGAIN_SECONDS", 0.0)
    listener, batch = CancelListener(launch, "tent-a"), cast(BatchLine, LINE)
    listener.batch(batch)
    assert signals == []
    launch.cancel()
    listener.batch(batch)
    assert signals == [signal.SIGTERM]


@pytest.mark.slow
def test_a_cell_that_was_cancelled_stops_and_its_worker_takes_the_next(tmp_path: Path) -> None:
    file, runs = write_grid(tmp_path, slow(0.5), "source", "tent"), tmp_path / "runs"
    options = ("--device", "cpu", "--jobs", 2, "--out", runs)
    launcher = start("grid", file, *PLUGINS, *options)
    cell = until(lambda: next((c for c in runs.glob("slow-*") if batches(c) >= 2), None))
    assert "1 cell cancelled" in call("cancel", runs, "slow").stdout
    launcher.communicate(timeout=120)
    assert states(runs) == ["cancelled", "done", "done"]
    assert (cell / "state.pt").is_file()


# -- retries


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        ({"type": "ValueError", "reason": "the fourth batch is too much"}, True),
        ({"type": "MethodError", "reason": "norm re-estimates statistics"}, True),
        ({"type": "RunError", "reason": "its process ended with signal SIGKILL"}, False),
        ({"type": "OutOfMemoryError", "reason": "CUDA out of memory"}, False),
        ({"type": "RuntimeError", "reason": "CUDA error: device-side assert triggered"}, False),
        ({"type": "RuntimeError", "reason": "shapes do not match"}, True),
        (None, False),  # its job ended before it began
        ("damaged", False),
    ],
)
def test_deterministic_failures_are_told_apart(
    failure: object, expected: bool, tmp_path: Path
) -> None:
    if failure is not None:
        (tmp_path / "failed.json").write_text(json.dumps(failure))
    assert repeats(RunFolder(tmp_path)) == expected


@pytest.mark.usefixtures("toy")
def test_a_deterministic_failure_is_not_run_again_without_a_word(tmp_path: Path) -> None:
    load_plugin(str(SLOW))
    file, runs = write_grid(tmp_path, slow(0.0, fate="raise")), tmp_path / "runs"
    steps = schedule(expand(load_experiment(str(file))))
    folder = RunFolder(runs / steps[0].id)
    folder.plan(steps[0].record)
    folder.write_failure(ValueError("too much"))
    launch = Launch.create(runs, steps, [(0, 1)], executor="local", shared=True)
    launch.journal(0).write(step=steps[0].id, state="failed", reason="too much")
    end_launcher(launch)
    options = (*PLUGINS, "--out", runs, "--executor", "debug")
    refused = call("grid", file, *options, "--retry", "failed")
    assert refused.exit_code == 1
    assert "too much (would fail again; after a change, --force-retry runs it)" in refused.stderr
    again = call("grid", file, *options, "--retry", "failed", "--force-retry")
    assert "failed before, runs again" in again.stderr and "1 failed" in again.stdout
    wrong = call("grid", file, *options, "--force-retry")
    assert (wrong.exit_code, "--force-retry is for --retry" in wrong.stderr) == (2, True)


@pytest.mark.usefixtures("toy")
def test_without_a_failed_cell_a_retry_says_so(tmp_path: Path) -> None:
    file, runs = write_grid(tmp_path, "source"), tmp_path / "runs"
    result = call("grid", file, *PLUGINS, "--out", runs, "--executor", "debug", "--retry", "failed")
    assert (result.exit_code, result.stdout) == (0, f"{runs}: no cell has failed.\n")


def test_logs_of_earlier_attempts_are_shown(make: Make, slurm: Ask, tmp_path: Path) -> None:
    folder = make("tent-a", 4, failed__json={"reason": "no memory"})
    for word in ("first", "second"):
        launch = launched(tmp_path / "trial", "tent-a")
        launch.journal(0).write(step="tent-a", state="running")
        launch.journal(0).write(step="tent-a", state="failed", reason=f"{word} reason")
        launch.log(0).write_text(f"the {word} worker printed this\n")
    shown = call("logs", folder, "--attempt", 1).stdout
    assert "attempt 1: failed: first reason" in shown and "the first worker printed" in shown
    assert "second worker" not in shown
    assert "the second worker printed" in call("logs", folder).stdout
    refused = call("logs", folder, "--attempt", 3)
    assert (refused.exit_code, "has 2 attempts in launches" in refused.stderr) == (2, True)


# -- memory and time by attempt


def test_memory_and_time_grow_by_attempt(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("memory_gb: [8, 16, 32]\ntime_minutes: [60, 120]\ncpus: 2\n")
    profile = load_profile(str(file)).model_copy(update={"parallel": 3})
    found = [(p.memory_gb, p.time_minutes, p.parallel) for p in map(profile.at, range(5))]
    assert found == [(8, 60, 3), (16, 120, 3), (32, 120, 3), (32, 120, 3), (32, 120, 3)]
    assert Profile(memory_gb=4).at(7).memory_gb == 4
    file.write_text("memory_gb: [8, much]\n")
    with pytest.raises(ConfigError, match=r"memory_gb.*'much'"):
        load_profile(str(file))


def test_an_attempt_is_a_launch_that_began_the_cell_and_was_not_cancelled(tmp_path: Path) -> None:
    cells: Any = [step("tent-a"), step("tent-b"), step("tent-c")]
    made = [launched(tmp_path, "tent-a", "tent-b", "tent-c") for _ in range(4)]
    first, second, third, fourth = made
    for launch, began in ((first, "tent-a"), (second, "tent-a"), (second, "tent-b")):
        launch.journal(0).write(step=began, state="running")
        launch.journal(0).write(step=began, state="interrupted", reason="SIGTERM")
    third.journal(0).write(step="tent-c", state="running")
    third.cancel()
    fourth.journal(1).write(step="tent-b", state="running")
    fourth.cancel({"tent-b"})
    found = by_attempt(cells, tmp_path)
    assert {n: [s.id for s in group] for n, group in found.items()} == {
        0: ["tent-c"],
        1: ["tent-b"],
        2: ["tent-a"],
    }
