"""A grid is checked whole before anything of it begins: all problems in one message."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ctta_bench.measuring.estimate import Speeds, kind_of_record
from ctta_bench.measuring.plan import memory_shortages
from tests.launches import call
from tests.launches import write_grid as write

pytestmark = pytest.mark.usefixtures("toy", "undrawn")

EVERY_KIND = """\
methods:
  - tent
  - tnet
  - {name: tent, set: {lr: fast}}
  - {name: sar, set: {rate: 1}}
  - {name: source, benchmarks: [fashion_c, fashon_c]}
  - {name: source, models: [fashion_vitt], benchmarks: [fashion_c]}
benchmarks: [cifar10_c]
models: [fashion_vit]
exclude: [{method: cotta}]
cells:
  - {method: source, benchmark: fashion_c}
  - {method: paid, benchmark: fashion_c, seed: -1}
  - {method: paid, benchmark: fashion_c, wieght: x}
"""
TOLD = (
    "did you mean 'tent'",
    "'fast'",
    "unknown key 'rate'",
    "did you mean 'fashion_c'",
    "did you mean 'fashion_vit'",
    "exclude[0]: {'method': 'cotta'} matches no cell",
    "repeats the cell source-fashion_c-fashion_vit-seed0",
    "seed: -1",
    "unknown key 'wieght'; did you mean 'weights'",
    "cifar10_c: no folder",
)


@pytest.fixture
def refused(tmp_path: Path) -> str:
    """What is said of a file with a mistake of every kind."""
    file = tmp_path / "wrong.yaml"
    file.write_text(EVERY_KIND)
    root, out = tmp_path / "data", tmp_path / "runs"
    result = call("grid", file, "--root", root, "--out", out, "--profile", profile(tmp_path))
    assert result.exit_code == 2
    assert list(out.iterdir()) == []
    return result.stderr


def profile(folder: Path) -> Path:
    file = folder / "profile.yaml"
    file.write_text("partition: main\n")
    return file


def test_mistakes_of_every_kind_come_in_one_message_and_nothing_is_submitted(refused: str) -> None:
    assert refused.count("error: ") == 1
    assert [words for words in TOLD if words not in refused] == []


def test_each_problem_is_reported_once_with_its_place(refused: str) -> None:
    lines = [line.strip() for line in refused.splitlines()]
    assert len(lines) == len(set(lines)) == len(TOLD)
    assert sum(line.partition("methods[1]: ")[1] != "" for line in lines) == 1


def test_a_dry_run_reports_what_is_missing_in_addition_to_the_cells(tmp_path: Path) -> None:
    file = tmp_path / "right.yaml"
    file.write_text("methods: [tent]\nbenchmarks: [cifar10_c]\nmodels: [fashion_vit]\n")
    result = call("grid", file, "--root", tmp_path / "data", "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].startswith(
        "tent\t0.3\t–\ttent-cifar10_c-fashion_vit-seed0-"
    )
    assert "missing: cifar10_c: no folder" in result.stderr


def test_a_source_set_that_a_method_needs_is_missed_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ctta_bench.registry import BENCHMARKS

    monkeypatch.setattr(BENCHMARKS.get("toy"), "source", lambda self: None)
    refused = call("grid", write(tmp_path, "source", "eata"), "--out", tmp_path / "runs")
    assert refused.exit_code == 2
    assert "EATA reads unlabelled source data, but toy has no source set" in refused.stderr


def test_a_method_that_refuses_its_model_is_refused_before_anything_waits_in_a_queue(
    tmp_path: Path,
) -> None:
    file, out = write(tmp_path, "norm", "source"), tmp_path / "runs"
    refused = call("grid", file, "--out", out, "--profile", profile(tmp_path))
    assert refused.exit_code == 2
    assert "norm on toy_vit: BN adapt re-estimates the stored statistics" in refused.stderr
    assert list(out.iterdir()) == []
    dry = call("grid", file, "--out", out, "--dry-run")
    assert (dry.exit_code, "norm on toy_vit" in dry.stderr) == (2, True)


def test_results_that_do_not_fit_the_disk_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: used._replace(free=1000))
    file = tmp_path / "own.yaml"
    file.write_text("methods: [source]\nbenchmarks: [fashion_c]\n")
    refused = call("grid", file, "--out", tmp_path / "runs")
    assert refused.exit_code == 2
    assert "are free; make room or choose another --out" in refused.stderr


def test_a_model_that_does_not_fit_the_gpu_is_refused(tmp_path: Path) -> None:
    small = tmp_path / "small.yaml"
    small.write_text("gpus: 1\ngpu_memory_gb: 0.000001\n")
    refused = call("grid", write(tmp_path, "source"), "--out", tmp_path / "r", "--profile", small)
    assert refused.exit_code == 2
    assert "source on toy_vit: needs 1 MB of GPU memory (for its weights alone)" in refused.stderr


def test_measured_memory_counts_more_than_the_weights() -> None:
    def record(method: str) -> dict[str, Any]:
        return {"method": {"name": method}, "benchmark": {"name": "toy"}, "model": {"name": "vit"}}

    records = [record("tent"), record("cotta"), record("source")]
    seen = {kind_of_record(records[0]): 3_000_000_000, kind_of_record(records[1]): 9_000_000_000}
    speeds = Speeds({}, memory=seen)
    found = memory_shortages(records, speeds, {"vit": 10_000}, 8_000_000_000)
    assert found == [
        "cotta on vit: needs 9 GB of GPU memory (as measured), and a cell has 8 GB; use larger "
        "GPUs or fewer cells per GPU."
    ]


def test_a_dry_run_asks_slurm_whether_it_would_take_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, lines in {
        "srun": "exit 1",
        "scontrol": "echo 'MaxArraySize = 4'",
        "sbatch": 'test "$1" = --test-only && grep -q "partition=main" "$2" || exit 9\n'
        'if [ -e refuse ]; then echo "allocation failure: Invalid partition" >&2; exit 1; fi\n'
        'echo "sbatch: Job 7 to start at noon" >&2',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{lines}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    options = ("--out", tmp_path / "runs", "--dry-run", "--profile", profile(tmp_path))
    dry = call("grid", write(tmp_path, "source"), *options)
    assert (dry.exit_code, "Slurm: Job 7 to start at noon" in dry.stderr) == (0, True)
    Path("refuse").touch()
    dry = call("grid", write(tmp_path, "source"), *options)
    assert "Slurm: would refuse such a job (allocation failure: Invalid partition)" in dry.stderr
