"""Grids on a real Slurm: what is asked of it, and what its signals, limits and losses do."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctta_bench.launch.plan import launches
from tests.launches import batches, call, grid, rows, slow, states, until, without_times, write_grid
from tests.slurm.conftest import CLUSTER

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]
# n3 is for the test that loses it, n4 for the one in which it is taken away.
PROFILE = "memory_gb: 0.5\n"
ELSEWHERE = "exclude: n3,n4\n"


def slurm(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


def profile(folder: Path, text: str = "", where: str = ELSEWHERE) -> Path:
    file = folder / "profile.yaml"
    file.write_text(PROFILE + where + text)
    return file


def only(node: str) -> str:
    """The line of a profile that leaves one node."""
    return f"exclude: {','.join(sorted({'n1', 'n2', 'n3', 'n4'} - {node}))}\n"


def submit(folder: Path, file: Path, *arguments: object, text: str = "", **kwargs: Any) -> Path:
    """Submit a grid; returns its folder of runs."""
    out = folder / "runs" / "trial"
    options = ("--profile", profile(folder, text, **kwargs), "--out", out)
    result = grid(file, *options, *arguments)
    assert result.exit_code == 0, result.output
    return out


def jobs_of(runs: Path) -> dict[str, int]:
    return {job: pack for launch in launches(runs) for job, pack in launch.jobs().items()}


def ended(runs: Path) -> bool:
    """Whether no job of a folder is queued or running."""
    roots = {job.partition("_")[0] for job in jobs_of(runs)}
    return not roots & set(slurm("squeue", "-h", "-o", "%A\n%F").split())


def only_cell(runs: Path, method: str = "slow") -> Path:
    (cell,) = runs.glob(f"{method}-*")
    return cell


def test_what_starts_from_a_warm_up_waits_for_it_and_packs_share_a_job(tmp_path: Path) -> None:
    entries = ("source", "tent", "{name: lora, set: {warmup_epochs: 1}}")
    file = write_grid(tmp_path, *entries, more="seeds: [0, 1]")
    runs = submit(tmp_path, file, text="cells_per_job: 2\n")
    # Two warm-ups, four cells without, four that start from one.
    assert sorted(jobs_of(runs).values()) == [0, 1, 2, 3, 4]
    dependencies = slurm("squeue", "-h", "-o", "%F %E")
    until(lambda: states(runs) == ["done"] * 10, what="ten cells and warm-ups")
    assert "afterany" in dependencies
    (launch,) = runs.glob(".launch/*")
    files = launch.glob("workers/*.jsonl")
    events = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    ends = {e["step"]: e["time"] for e in events if e.get("state") == "done"}
    begun = {e["step"]: e["time"] for e in events if e.get("state") == "running"}
    last_warmup = max(ends[step] for step in ends if step.startswith("warmup-"))
    assert min(begun[step] for step in begun if step.startswith("lora-")) >= last_warmup
    assert call("status", runs).exit_code == 0


def test_every_signal_and_a_requeue_are_survived_bit_identically(
    tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    """In so short a job submitit would take each for a time-out, and give up at the fourth."""
    file = write_grid(tmp_path, slow(1.0))
    # Loading workers get the signals, too.
    runs = submit(tmp_path, file, "--workers", 2, text="time_minutes: 5\nsignal_seconds: 20\n")
    (job,) = jobs_of(runs)
    cell = only_cell(runs)

    def is_running() -> bool:
        return slurm("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING"

    def interrupt(*words: str) -> None:
        slurm(*words, job)
        until(lambda: not is_running(), what="the end of an attempt")

    until(is_running)
    slurm("scancel", "--signal=USR2", job)  # before anything of ours has begun
    for number in ("USR2", "TERM", "USR1", "USR2"):
        until(has_grown(cell), what="a further batch")
        interrupt("scancel", f"--signal={number}")
    until(has_grown(cell), what="a further batch")
    interrupt("scontrol", "requeue")
    until(lambda: states(runs) == ["done"], what="the cell")
    log = (cell / "log.txt").read_text()
    assert re.findall(r"interrupted by (\w+)", log) == [
        *("SIGUSR2", "SIGTERM", "SIGUSR1", "SIGUSR2"),
        "SIGTERM",  # what Slurm sends to what it queues again
    ]
    row = rows(runs)[cell.name]
    assert (row["attempt"], row["signal"]) == (6, "SIGTERM")
    assert without_times(cell) == undisturbed


def has_grown(cell: Path) -> Callable[[], bool]:
    """Asks whether a cell has more batches than now."""
    before = batches(cell)
    return lambda: batches(cell) > before


# Time to begin on a busy machine; a test shortens it once its cells are where they should be.
LONG = "time_minutes: 60\nsignal_seconds: 110\n"


def limit(minutes: int, *jobs: str) -> None:
    """Change the wall time of jobs. Slurm checks it every half minute."""
    for job in jobs:
        slurm("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")


def test_a_time_out_is_requeued_and_resumes_bit_identically(
    tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    runs = submit(tmp_path, write_grid(tmp_path, slow(3.0)), text=LONG)
    (job,) = jobs_of(runs)
    cell = only_cell(runs)
    until(lambda: batches(cell) >= 2)
    limit(2, job)
    until(lambda: rows(runs)[cell.name]["state"] == "preempted", what="the end of its time")
    limit(60, job)
    until(lambda: states(runs) == ["done"], what="the cell")
    row = rows(runs)[cell.name]
    assert (row["attempt"], row["signal"]) == (2, "SIGUSR2")
    assert without_times(cell) == undisturbed


def test_cells_beyond_their_time_are_shown_as_such_and_the_others_have_their_results(
    tmp_path: Path,
) -> None:
    """One stops after a checkpoint, one does not come to the end of its batch and is killed."""
    file = write_grid(tmp_path, slow(3.0), slow(500.0), "source", "tent", "lame", "t3a")
    runs = submit(tmp_path, file, text=LONG + "requeue: false\n")
    until(lambda: [r["state"] for r in slow_ones(runs)] == ["running"] * 2, what="both")
    until(lambda: any(r["done"] for r in slow_ones(runs)), what="a batch")
    limit(1, *(row["job"] for row in slow_ones(runs)))
    until(lambda: ended(runs), what="the jobs")
    assert states(runs) == ["done"] * 4 + ["timeout"] * 2
    killed, stopped = sorted(slow_ones(runs), key=lambda row: row["done"])
    assert killed["reason"] == "timeout after 0 of 15 batches; `grid` resumes it"
    assert re.fullmatch(
        r"timeout after [1-9]\d* of 15 batches; `grid` resumes it", stopped["reason"]
    )
    assert (runs / stopped["cell"] / "state.pt").is_file()
    report = call("report", runs, "--format", "json")
    assert report.exit_code == 0
    listed = (runs / "report" / "results.csv").read_text()
    assert all((row["cell"] in listed) == (row["state"] == "done") for row in rows(runs).values())
    assert call("status", runs).exit_code == 1


def slow_ones(runs: Path) -> list[dict[str, Any]]:
    return [row for row in rows(runs).values() if row["method"] == "slow"]


def test_names_with_quotes_and_spaces_and_secrets_of_the_environment_are_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SOME_API_KEY", "s3cr3t-v4lue")
    place = tmp_path / """it's a "place"; touch hacked $(touch hacked) `touch hacked`"""
    place.mkdir()
    file = write_grid(place, "source", slow(0.0, fate="raise"), name="my trial; touch hacked")
    found = []
    for name in ("runs", "100 % \\"):
        out = place / name
        text = 'cells_per_job: 2\nenvironment: {GREETING: "\'; touch hacked #"}\n'
        result = grid(file, "--profile", profile(tmp_path, text), "--out", out)
        assert result.exit_code == 0, result.output
        found.append(out)
    for out in found:
        until(lambda out=out: states(out) == ["done", "failed"], what=str(out))
    assert not list(tmp_path.rglob("hacked"))
    texts = [f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()]
    assert not [text for text in texts if b"s3cr3t" in text]


def test_a_cancelled_grid_keeps_its_checkpoint_and_resumes_when_it_is_run_again(
    tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    file = write_grid(tmp_path, slow(1.0))
    runs = submit(tmp_path, file)
    cell = only_cell(runs)
    until(lambda: batches(cell) >= 3)
    result = call("cancel", runs)
    assert "1 Slurm job " in result.stdout
    until(lambda: ended(runs), what="the end of the job")
    assert (cell / "state.pt").is_file()
    row = rows(runs)[cell.name]
    assert row["state"] == "cancelled"
    assert call("status", runs).exit_code == 1
    again = submit(tmp_path, file)
    until(lambda: states(again) == ["done"], what="the cell")
    assert "resumed after" in (cell / "log.txt").read_text()
    assert without_times(cell) == undisturbed


def test_scancel_is_respected_too(tmp_path: Path) -> None:
    runs = submit(tmp_path, write_grid(tmp_path, slow(1.0)))
    (job,) = jobs_of(runs)
    until(lambda: batches(only_cell(runs)) >= 2)
    slurm("scancel", job)
    until(lambda: ended(runs), what="the end of the job")
    row = rows(runs)[only_cell(runs).name]
    assert (row["state"], row["done"] >= 2) == ("cancelled", True)
    assert (only_cell(runs) / "state.pt").is_file()


FATES = {
    "raise": "ValueError|too much",
    "exit": r"sys\.exit\(0\)",
    "leave": "exit code 0",
    "kill": "SIGKILL",
    "memory": "can't allocate memory",
}


def test_a_packed_job_continues_after_cells_that_raise_exit_or_are_killed(tmp_path: Path) -> None:
    entries = [slow(0.0, fate=fate) for fate in FATES]
    file = write_grid(tmp_path, *entries, slow(0.0), "source")
    runs = submit(tmp_path, file, text="cells_per_job: 7\n")
    assert len(jobs_of(runs)) == 1
    until(lambda: ended(runs), what="the job")
    found = rows(runs)
    assert states(runs) == ["done"] * 2 + ["failed"] * 5
    for row in found.values():
        if row["state"] == "failed":
            text = (runs / row["cell"] / "cell.yaml").read_text()
            fate = re.search(r"fate: (\w+)", text)[1]  # type: ignore[index]
            assert re.search(FATES[fate], row["reason"])
            assert Path(row["log"]).is_file()
    before = {cell: (runs / cell / "result.json").stat().st_mtime_ns
              for cell, row in found.items() if row["state"] == "done"}  # fmt: skip
    again = submit(tmp_path, file, "--retry", "failed", "--force-retry", text="cells_per_job: 7\n")
    last = sorted(again.glob(".launch/*"))[-1]
    assert len((last / "steps.jsonl").read_text().splitlines()) == 5
    call("cancel", runs)
    for cell, time_ns in before.items():
        assert (runs / cell / "result.json").stat().st_mtime_ns == time_ns


def test_a_grid_beyond_the_array_limit_becomes_several_arrays_and_few_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster of the tests takes four jobs an array."""
    calls = tmp_path / "calls"
    (tmp_path / "bin").mkdir()
    for name in ("squeue", "sacct"):
        real = subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout
        wrapper = tmp_path / "bin" / name
        wrapper.write_text(f'#!/bin/sh\necho {name} >>"{calls}"\nexec {real.strip()} "$@"\n')
        wrapper.chmod(0o755)
    file = write_grid(tmp_path, "source", more=f"seeds: [{', '.join(map(str, range(9)))}]")
    runs = submit(tmp_path, file, "--jobs", 2)
    arrays = {job.partition("_")[0] for job in jobs_of(runs)}
    assert (len(arrays), len(jobs_of(runs))) == (3, 9)
    most = 0

    def all_ended() -> bool:
        nonlocal most
        lines = slurm("squeue", "-h", "-r", "-t", "R", "-o", "%F").split()
        most = max(most, sum(line in arrays for line in lines))
        return ended(runs)

    until(all_ended, 800, what="nine jobs")
    assert most == 2
    assert states(runs) == ["done"] * 9
    (runs / "source-toy-toy_vit-seed0-d8108677").rename(tmp_path / "late")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    some = next(iter(runs.glob("source-*")))
    (some / "result.json").rename(tmp_path / "late.json")
    rows(runs)
    assert calls.read_text().split() == ["squeue", "sacct"]


def test_without_accounting_the_folders_show_what_the_queue_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("squeue", "scontrol", "scancel"):
        (bare / name).symlink_to(slurm("which", name).strip())
    file = write_grid(tmp_path, "source", slow(0.0, fate="kill"), slow(2.0))
    runs = submit(tmp_path, file, text="cells_per_job: 3\n")
    monkeypatch.setenv("PATH", str(bare))  # no sacct
    until(lambda: states(runs) == ["done", "failed", "running"], what="the third cell")
    until(lambda: states(runs) == ["done", "done", "failed"], what="its end")


def test_a_lost_node_costs_nothing_but_time(tmp_path: Path, undisturbed: dict[str, object]) -> None:
    runs = submit(tmp_path, write_grid(tmp_path, slow(1.0)), where=only("n3"))
    cell = only_cell(runs)
    seen = until(lambda: batches(cell) >= 3 and batches(cell))
    subprocess.run([CLUSTER, "lose", "n3"], check=True, timeout=60)
    try:
        state = rows(runs)[cell.name]["state"]
    finally:
        subprocess.run([CLUSTER, "bring", "n3"], check=True, timeout=60)
    assert state in ("preempted", "finishing")
    until(lambda: states(runs) == ["done"], what="the cell")
    assert seen >= 3
    assert rows(runs)[cell.name]["attempt"] >= 2
    assert "taken over from" in (cell / "log.txt").read_text()
    assert without_times(cell) == undisturbed


def test_a_job_that_is_preempted_resumes_when_its_place_is_free(
    tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    runs = submit(tmp_path, write_grid(tmp_path, slow(1.0)), where=only("n4"))
    cell = only_cell(runs)
    until(lambda: batches(cell) >= 3)
    urgent = ("--partition=urgent", "--nodelist=n4", "--cpus-per-task=4", "--output=/dev/null")
    slurm("sbatch", *urgent, "--wrap=sleep 8")
    until(lambda: rows(runs)[cell.name]["state"] == "preempted", what="the pre-emption")
    until(lambda: states(runs) == ["done"], what="the cell")
    row = rows(runs)[cell.name]
    assert (row["attempt"], row["signal"]) == (2, "SIGTERM")
    assert without_times(cell) == undisturbed
