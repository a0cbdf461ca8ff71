"""`grid --emit shell`: one plain command per job, which any scheduler or `xargs` can run."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from ctta_bench.launch.plan import launches
from tests.launches import batches, call, grid, recorded, slow, start, states, until, write_grid

pytestmark = [pytest.mark.usefixtures("toy"), pytest.mark.timeout(600)]
ENTRIES = ("source", slow(0.3), "{name: lora, set: {warmup_epochs: 1}}")
XARGS = "tr '\\n' '\\0' < {} | xargs -0 -P 2 -n 1 sh -c"


def emit(folder: Path, file: Path, text: str, *arguments: object) -> tuple[Path, list[str]]:
    """Emit the commands of a grid; returns their file and its lines."""
    profile = folder / "profile.yaml"
    profile.write_text(text)
    options = ("--emit", "shell", "--profile", profile, "--out", folder / "runs")
    result = grid(file, *options, *arguments)
    assert result.exit_code == 0, result.output
    (found,) = (folder / "runs").glob(".launch/*/shell/jobs.txt")
    return found, found.read_text().splitlines()


def test_each_job_is_a_line_and_the_templates_have_the_resources_of_the_profile(
    tmp_path: Path,
) -> None:
    file = write_grid(tmp_path, "source", "tent", more="seeds: [0, 1]")
    text = "cpus: 3\nmemory_gb: 2\ntime_minutes: 90\ngpus: 1\ncells_per_job: 3\nparallel: 1\n"
    commands, lines = emit(tmp_path, file, text)
    assert [line.split()[-1] for line in lines] == ["0", "1"]
    assert all(" work " in line and str(tmp_path / "runs") in line for line in lines)
    found = {f.name: f.read_text() for f in commands.parent.iterdir()}
    assert "#PBS -J 1-2%1" in found["pbs.sh"] and "walltime=01:30:00" in found["pbs.sh"]
    assert "ncpus=3:ngpus=1:mem=2048mb" in found["pbs.sh"]
    assert '#BSUB -J "ctta-runs[1-2]%1"' in found["lsf.sh"] and "#BSUB -W 90" in found["lsf.sh"]
    assert "#$ -t 1-2\n#$ -tc 1" in found["sge.sh"] and "gpu=1" in found["sge.sh"]
    assert "-P 1" in found["xargs.sh"] and "--jobs 1" in found["parallel.sh"]
    job = yaml.safe_load(found["kubernetes.yaml"])
    assert (job["kind"], job["spec"]["completions"], job["spec"]["parallelism"]) == ("Job", 2, 1)
    for name, text in found.items():
        assert "@" not in text, name
        if name.endswith(".sh"):
            subprocess.run(["sh", "-n", commands.parent / name], check=True)
    assert states(tmp_path / "runs") == ["missing"] * 4


def test_the_templates_run_the_line_of_their_index(tmp_path: Path) -> None:
    file = write_grid(tmp_path, "source", more="seeds: [0, 1]")
    commands, _ = emit(tmp_path, file, "cpus: 1\nsetup: ['echo loaded', 'echo twice']\n")
    commands.write_text("echo first\necho second\n")
    for variable, value, words in (
        ("PBS_ARRAY_INDEX", "2", ["sh", "pbs.sh"]),
        ("LSB_JOBINDEX", "2", ["sh", "lsf.sh"]),
        ("SGE_TASK_ID", "2", ["sh", "sge.sh"]),
    ):
        done = subprocess.run(
            words, cwd=commands.parent, env=os.environ | {variable: value}, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        assert done.stdout == "loaded\ntwice\nsecond\n", variable
    job = yaml.safe_load((commands.parent / "kubernetes.yaml").read_text())
    (line,) = job["spec"]["template"]["spec"]["containers"][0]["args"]
    (tmp_path / "ctta-bench").write_text("#!/bin/sh\necho $*\n")  # that of the image
    (tmp_path / "ctta-bench").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", line], env=os.environ | {"PATH": path, "JOB_COMPLETION_INDEX": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"loaded\ntwice\nwork {commands.parent.parent} 1\n"
    both = subprocess.run(
        ["sh", "xargs.sh"], cwd=commands.parent, capture_output=True, text=True, check=True
    )
    assert sorted(both.stdout.split()) == ["first", "loaded", "second", "twice"]


def test_memory_grows_with_the_attempts_of_the_cells(tmp_path: Path) -> None:
    file, text = write_grid(tmp_path, "source", "tent"), "memory_gb: [1, 3]\n"
    commands, _ = emit(tmp_path, file, text)
    assert "mem=1024mb" in commands.with_name("pbs.sh").read_text()
    (launch,) = launches(tmp_path / "runs")
    launch.journal(0).write(step=launch.ids()[0], state="running")
    again = grid(file, "--emit", "shell", "--profile", tmp_path / "profile.yaml", "--out",
                 tmp_path / "runs")  # fmt: skip
    assert again.exit_code == 0, again.output
    scripts = sorted((tmp_path / "runs").glob(".launch/*/shell/pbs.sh"))
    assert "mem=3072mb" in scripts[-1].read_text()


def test_one_command_is_no_array_of_pbs_which_would_refuse_it(tmp_path: Path) -> None:
    commands, _ = emit(tmp_path, write_grid(tmp_path, "source"), "cpus: 1\n")
    commands.write_text("echo only\n")
    script = commands.with_name("pbs.sh")
    assert "#PBS -J" not in script.read_text() and "ngpus" not in script.read_text()
    done = subprocess.run(["sh", script], capture_output=True, text=True, check=True)
    assert done.stdout == "only\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--emit", "pbs"), "choose shell"),
        (("--emit", "shell", "--executor", "local"), "give one of them"),
    ],
)
def test_what_cannot_be_emitted_is_refused(
    options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    refused = grid(write_grid(tmp_path, "source"), *options)
    assert (refused.exit_code, words in refused.stderr) == (2, True)


def test_a_job_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    commands, _ = emit(tmp_path, write_grid(tmp_path, "source"), "cpus: 1\n")
    refused = call("work", commands.parent.parent, 7)
    assert refused.exit_code == 2
    assert "has no job 7; its jobs are 0 to 0" in refused.stderr


@pytest.mark.slow
def test_a_pool_of_xargs_some_of_it_killed_gives_the_results_of_a_local_run(
    tmp_path: Path,
) -> None:
    file = write_grid(tmp_path, *ENTRIES, more="seeds: [0, 1]")
    alone = grid(file, "--executor", "debug", "--out", tmp_path / "alone")
    assert alone.exit_code == 0, alone.output
    commands, lines = emit(tmp_path, file, "cells_per_job: 2\n", "--checkpoint", "2")
    runs, script = tmp_path / "runs", XARGS.format(commands)
    pool = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    until(lambda: any(batches(cell) >= 4 for cell in runs.glob("slow-*")), what="a slow cell")
    os.killpg(pool.pid, signal.SIGKILL)  # commands, and the workers that they began
    pool.wait()
    assert len(lines) == 5 and set(states(runs)) != {"done"}
    done = subprocess.run(["sh", "-c", script], timeout=500, check=False)
    assert done.returncode == 0
    assert set(states(runs)) == {"done"}
    for cell in (tmp_path / "alone").glob("[!w]*-seed*"):
        assert recorded(runs / cell.name) == recorded(cell)
    (launch,) = launches(runs)
    ends = [e["step"] for _, e in launch.events() if e.get("state") == "done"]
    assert len(ends) == len(set(ends)) == len(list(runs.glob("*/result.json")))


@pytest.mark.slow
def test_a_command_that_is_stopped_ends_with_75_and_resumes(tmp_path: Path) -> None:
    commands, _ = emit(tmp_path, write_grid(tmp_path, slow(0.5)), "cpus: 1\n")
    launch, runs = commands.parent.parent, tmp_path / "runs"
    working = start("work", launch, 0)
    until(lambda: any(batches(cell) >= 2 for cell in runs.glob("slow-*")), what="two batches")
    working.send_signal(signal.SIGTERM)
    working.communicate(timeout=120)
    assert working.returncode == 75
    (row,) = json.loads(call("status", runs, "--format", "json").stdout)
    assert (row["state"], "stopped by SIGTERM" in row["reason"]) == ("missing", True)
    again = start("work", launch, 0)
    again.communicate(timeout=300)
    assert again.returncode == 0
    assert states(runs) == ["done"]
