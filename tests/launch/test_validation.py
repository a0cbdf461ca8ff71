"""A grid is checked whole before anything of it begins: all problems in one message."""

from pathlib import Path

import pytest

from tests.launches import call
from tests.launches import write_grid as write

pytestmark = pytest.mark.usefixtures("toy")

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
