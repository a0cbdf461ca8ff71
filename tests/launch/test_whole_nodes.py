"""Jobs with several workers: each GPU has its workers, and none waits while there are cells."""

import json
import os
import random
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ctta_bench.errors import ConfigError
from ctta_bench.launch.local import Pool, devices_of, divide_resources, environment_of
from ctta_bench.launch.plan import Launch
from ctta_bench.launch.profiles import Profile, load_profile
from ctta_bench.launch.work import _claimed
from tests.launch.test_folder_status import fake
from tests.launches import PLUGINS, call, start, states, write_grid


def job_of(directory: Path, cells: int, workers: int, **facts: Any) -> Launch:
    """A launch with one job of some cells, for several workers."""
    values = {"executor": "shell", "shared": True, "environment": {}, "threads": 2} | facts
    steps = [fake(f"cell{n}") for n in range(cells)]
    return Launch.create(
        directory, steps, [(0, cells)] * workers, workers_per_job=workers, **values
    )


def test_no_fake_gpu_idles_while_cells_wait(tmp_path: Path) -> None:
    """64 cells of 20 to 200 ms on 8 GPUs: at least 90 % of the time of all GPUs is used."""
    launch = job_of(tmp_path, 64, 8)
    seconds = [random.Random(n).uniform(0.02, 0.2) for n in range(64)]
    seconds.sort(reverse=True)  # as `grid` orders them: the longest first
    ran: list[int] = []
    busy = [0.0] * 8

    def work(worker: int) -> None:
        for line in _claimed(launch, worker):
            number, began = int(line["id"].removeprefix("cell")), time.monotonic()
            time.sleep(seconds[number])
            busy[worker] += time.monotonic() - began
            ran.append(number)

    began = time.monotonic()
    threads = [threading.Thread(target=work, args=(n,)) for n in launch.workers_of(0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ran) == list(range(64))
    assert sum(busy) / (8 * (time.monotonic() - began)) >= 0.9


@pytest.mark.parametrize(
    ("visible", "workers", "device", "expected"),
    [
        ("0,1,2,3", 8, None, ["0", "1", "2", "3"] * 2),
        ("MIG-4f1c,MIG-77aa", 2, "cuda", ["MIG-4f1c", "MIG-77aa"]),
        ("0,1", 1, None, None),  # one worker sees what its job has
        ("0,1", 4, "cpu", None),
        ("", 4, None, None),
    ],
)
def test_the_gpus_of_a_job_are_dealt_out_to_its_workers(
    visible: str,
    workers: int,
    device: str | None,
    expected: list[str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices_of(workers, device) == expected


def test_a_worker_has_its_gpu_and_its_share_of_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    launch = job_of(tmp_path, 4, 2)
    seen = environment_of(launch, "1")
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["OMP_NUM_THREADS"]) == ("1", "2")
    assert environment_of(launch, None)["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_a_job_has_its_own_workers_and_ends_with_the_last_of_its_cells(tmp_path: Path) -> None:
    steps = [fake(f"cell{n}") for n in range(4)]
    packs = [(0, 2), (0, 2), (2, 4), (2, 4)]
    facts = {"executor": "shell", "shared": True}
    launch = Launch.create(tmp_path, steps, packs, workers_per_job=2, **facts)
    assert (launch.number_of_jobs, list(launch.workers_of(1))) == (2, [2, 3])
    launch.journal(2).write(step="cell2", state="done")
    assert launch.unfinished(1)
    launch.journal(3).write(step="cell3", state="failed")
    assert not launch.unfinished(1)
    assert launch.unfinished(0)


def run_scripts(launch: Launch, monkeypatch: pytest.MonkeyPatch, *scripts: str) -> Pool:
    """Run a pool of one worker whose processes are shell scripts; `$J` is its journal."""
    left = list(scripts)

    def start(launch: Launch, worker: int, device: str | None) -> "subprocess.Popen[bytes]":
        environment = os.environ | {"J": str(launch.journal(worker).file)}
        with launch.log(worker).open("ab") as log:
            return subprocess.Popen(["sh", "-c", left.pop(0)], env=environment, stdout=log)

    monkeypatch.setattr("ctta_bench.launch.local.start", start)
    pool = Pool(launch, launch.workers_of(0))
    pool.run()
    assert left == []
    return pool


def say(state: str, step: str = "") -> str:
    """A shell line that writes an event."""
    event = {"state": state} | ({"step": step} if step else {})
    return f"echo '{json.dumps(event)}' >>$J; "


def test_a_worker_that_cannot_begin_is_not_started_again_and_its_reason_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = job_of(tmp_path, 2, 1)
    pool = run_scripts(launch, monkeypatch, say("started") + "echo no such plug-in; exit 1")
    reason = "its worker ended with exit code 1 before its first cell: no such plug-in"
    assert pool.broken == [reason] and launch.journal(0).broken() == reason


def test_a_worker_that_is_killed_between_two_cells_continues_with_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = job_of(tmp_path, 2, 1)
    first = say("started") + say("running", "cell0") + say("done", "cell0") + "kill -KILL $$"
    second = say("started") + say("running", "cell1") + say("done", "cell1")
    pool = run_scripts(launch, monkeypatch, first, second)
    assert (pool.broken, launch.unfinished(0)) == ([], False)


def test_a_process_that_dies_at_once_after_one_that_ran_cells_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = job_of(tmp_path, 2, 1)
    first = say("started") + say("running", "cell0") + say("done", "cell0") + "kill -KILL $$"
    pool = run_scripts(launch, monkeypatch, first, "kill -KILL $$")
    assert "signal SIGKILL before its first cell" in pool.broken[0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (1, 1)),
        ({"gpus": 4}, (4, 4)),
        ({"gpus": 4, "cells_per_gpu": 2, "cells_per_job": 64}, (8, 64)),
        ({"workers_per_job": 3}, (3, 3)),
        ({"cells_per_job": 5}, (1, 5)),
    ],
)
def test_a_profile_has_a_worker_for_each_place(
    values: dict[str, int], expected: tuple[int, int]
) -> None:
    profile = Profile(**values)
    assert (profile.workers, profile.cells) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpus: 4\ncells_per_job: 2", "less than the 4 workers"),
        ("gpus: 2\nworkers_per_job: 3\ncells_per_job: 9", "raise cells_per_gpu"),
    ],
)
def test_workers_that_would_idle_or_have_no_place_are_refused(
    text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "p.yaml").write_text(text + "\n")
    with pytest.raises(ConfigError, match=words):
        load_profile(str(tmp_path / "p.yaml"))


def test_a_device_with_a_number_is_not_shared_without_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES=1 and use --device cuda"):
        divide_resources(4, 1, "cuda:1", steps=9)
    assert divide_resources(1, 1, "cuda:1", steps=9).jobs == 1
    profile = tmp_path / "p.yaml"
    profile.write_text("workers_per_job: 4\n")
    options = ("--profile", profile, "--device", "cuda:1", "--emit", "shell")
    refused = call("grid", write_grid(tmp_path, "source"), *PLUGINS, *options)
    assert (refused.exit_code, "4 workers would share" in refused.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.usefixtures("toy")
def test_a_job_of_two_workers_runs_its_cells_on_two_fake_gpus(tmp_path: Path) -> None:
    look = tmp_path / "look.py"
    look.write_text(
        "import os, pathlib, time\n"
        "from ctta_bench.methods.tent import Tent\n"
        "from ctta_bench.registry import METHODS\n"
        "@METHODS.register_module('look')\n"
        "class Look(Tent):\n"
        "    def setup(self):\n"
        "        super().setup()\n"
        f"        file = pathlib.Path({str(tmp_path / 'seen')!r}) / str(os.getpid())\n"
        "        names = 'CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS'\n"
        "        file.write_text(' '.join(os.environ.get(name, '-') for name in names))\n"
        "        time.sleep(1)\n"
    )
    (tmp_path / "seen").mkdir()
    (tmp_path / "p.yaml").write_text("gpus: 2\ncpus: 4\ncells_per_job: 6\n")
    file, runs = write_grid(tmp_path, "look", more="seeds: [0, 1, 2, 3, 4, 5]"), tmp_path / "runs"
    options = ("--plugin", look, "--profile", tmp_path / "p.yaml", "--out", runs)
    assert call("grid", file, *PLUGINS, *options, "--emit", "shell").exit_code == 0
    (tmp_path / "seen" / str(os.getpid())).unlink()  # the check of the grid makes the method, too
    (launch,) = runs.glob(".launch/*")
    working = start("work", launch, 0, env=os.environ | {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"})
    working.communicate(timeout=300)
    assert working.returncode == 0
    assert states(runs) == ["done"] * 6
    seen = sorted(file.read_text() for file in (tmp_path / "seen").iterdir())
    assert seen == ["MIG-a 2", "MIG-b 2"]
