"""What an experiment costs: passes from what is declared, hours from runs that are there."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.config.experiment import Experiment, experiment_files, load_experiment
from ctta_bench.datasets.imagenet_variants import Variant
from ctta_bench.measuring.estimate import (
    cost_of,
    earlier_runs,
    estimate,
    images_of,
    known_streams,
    measured,
    read_throughput,
)
from ctta_bench.measuring.plan import labels
from ctta_bench.registry import BENCHMARKS, METHODS

VIT = "timm_vit_base_patch16_224.augreg"  # as the names of folders cut it


def experiment(**values: Any) -> Experiment:
    return Experiment(**{"methods": ["tent"], "benchmarks": ["imagenet_c"]} | values)


def run(root: Path, folder: str, rate: float) -> None:
    (root / "one" / folder).mkdir(parents=True)
    content = {"cost": {"images_per_second": rate}}
    (root / "one" / folder / "result.json").write_text(json.dumps(content))


def values(**settings: Any) -> dict[str, Any]:
    return {"benchmark": "fashion_c", "set": {f"benchmark.{k}": v for k, v in settings.items()}}


@pytest.mark.parametrize(
    ("settings", "images"),
    [
        ({}, 15 * 2000),
        ({"examples": 10, "domains": ["fog", "snow"], "rounds": 3}, 10 * 2 * 3),
        ({"examples": 10, "setting": "gradual"}, 15 * 10 * 9),
        ({"examples": 10, "setting": "gradual", "severity": 3}, 15 * 10 * 5),
        ({"examples": 10, "setting": "gradual", "severities": [1, 5]}, 15 * 10 * 2),
        ({"examples": 10, "setting": "label_shift"}, 15 * 10 * 2),
        ({"examples": 10, "setting": "label_shift", "draws": 0.5}, 15 * 10 // 2),
    ],
)
def test_images_of_a_stream_follow_from_its_settings(settings: dict[str, Any], images: int) -> None:
    assert images_of(values(**settings)) == images


def test_passes_are_images_times_what_the_methods_declare() -> None:
    cost = cost_of(experiment(methods=["source", "tent", "sar", "cotta"]), {})
    assert cost.passes == 75_000 * (1 + 2 + 4 + 4)  # 1+0, 1+1, 2+2, 3+1
    assert (cost.passes_text, cost.time_text) == ("0.825", "–")
    assert cost.record() == {
        "image_passes_millions": 0.825,
        "warmup_passes_millions": 0.0,
        "cells_counted": 4,
        "hours": None,
        "cells_timed": 0,
    }


def test_what_nobody_declares_is_said_to_be_left_out() -> None:
    cost = cost_of(experiment(benchmarks=["image_folder", "fashion_c"]), {})
    assert (cost.cells, cost.counted, cost.passes_text) == (2, 1, ">= 0.06")
    assert cost_of(experiment(benchmarks=["image_folder"]), {}).passes_text == "–"


def test_hours_are_those_of_runs_of_the_same_method_benchmark_and_model(tmp_path: Path) -> None:
    for seed, rate in enumerate([50.0, 100.0, 400.0]):  # the median is 100
        run(tmp_path, f"tent-paper-imagenet_c-reset-{VIT}-seed{seed}-1234abcd", rate)
    run(tmp_path, f"warmup-sar-imagenet_c-{VIT}-seed0-1234abcd", 1.0)
    run(tmp_path, f"sar-imagenet_c-{VIT}-seed0-noadapt-1234abcd", 1.0)
    run(tmp_path, "sar-imagenet_c-timm_resnet50-seed0-1234abcd", 1.0)
    run(tmp_path, "sar-cifar10_c-cifar10_vit_base-seed0-1234abcd", 1.0)
    (tmp_path / "one" / "broken-imagenet_c-x-seed0-1").mkdir()
    (tmp_path / "one" / "broken-imagenet_c-x-seed0-1" / "result.json").write_text("{")
    cost = cost_of(experiment(methods=["tent", "sar"], seeds=[0, 1]), measured(tmp_path))
    assert (cost.timed, cost.cells) == (2, 4)
    assert cost.hours == pytest.approx(2 * 75_000 / 100 / 3600)
    assert cost.time_text == "0.42 h (2 of 4 cells)"


# -- plans


def test_steps_are_named_by_what_distinguishes_them() -> None:
    def cell(**hyperparameters: Any) -> dict[str, Any]:
        common = {"preprocessing": {"regime": "true"}, "seed": 0}
        return (
            common
            | record("paid")
            | {"method": {"name": "paid"} | {"hyperparameters": hyperparameters}}
        )

    steps = [cell(rank=2, lr=1e-3), cell(rank=4, lr=1e-3)]
    steps += [steps[0] | {"adapt": False}, steps[0] | {"kind": "warm-up"}]
    steps += [steps[0] | {"method": {"name": "source", "hyperparameters": {}}}]
    assert labels(steps) == [
        "paid rank=2",
        "paid rank=4",
        "paid, warm-up only",
        "warm-up of paid",
        "source",
    ]


def cost_record(folder: Path, **changes: Any) -> Path:
    content = {
        "kind": "cost",
        "model": {"name": "fashion_vit"},
        "environment": {"device": "Some GPU"},
        "batch_size": 64,
        "precision": "float32",
        "methods": [
            {"method": m, "images_per_second": rate, "resting_bytes": 10, "peak_bytes": size}
            for m, rate, size in (("source", 200.0, 1), ("paid", 100.0, 5))
        ],
    }
    file = folder / "cost.json"
    file.write_text(json.dumps(content | changes))
    return file


def test_hours_and_memory_are_those_that_were_measured_on_a_named_gpu(tmp_path: Path) -> None:
    speeds = read_throughput([cost_record(tmp_path)])
    warmup = record("paid") | {"kind": "warm-up"}
    warmup["method"] = {"name": "paid", "hyperparameters": {"warmup_epochs": 36}}
    only = record("paid") | {"adapt": False}
    found = estimate([record("paid"), only, warmup, record("tent")], speeds)
    # 900 images at 100 and at 200, and 36,000 images of the warm-up, with as many passes as PAID's.
    assert found.hours == pytest.approx((9 + 4.5 + 360) / 3600)
    assert str(found).endswith(
        "as measured on Some GPU (batches of 64, float32), plus 1 steps without measurement"
    )
    assert speeds.memory[("paid", "fashion_c", "fashion_vit")] == 15


@pytest.mark.parametrize("changes", [{"methods": [{}]}, {"model": None}, {"methods": 3}])
def test_what_is_no_record_of_a_cost_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = str(cost_record(tmp_path, **changes))
    result = CliRunner().invoke(app, ["list", "experiments", "--throughput", file])
    assert (result.exit_code, "is no record of `ctta-bench cost`" in result.stderr) == (2, True)


@pytest.mark.parametrize("name", [n for n in experiment_files() if n.startswith("paper/")])
def test_a_plan_of_the_paper_needs_neither_weights_nor_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctta_bench.source_models.hub.cached", lambda network: None)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["grid", name, "--dry-run", "--root", "nothing"])
    assert result.exit_code == 0, result.stderr
    head, *lines = (line.split("\t") for line in result.stdout.splitlines())
    assert head == ["cell", "passes (M)", "hours", "folder"]
    names = [line[0] for line in lines]
    assert len(set(names)) == len(names)
    assert all(float(line[1]) > 0 and line[2:] == ["–", "–"] for line in lines)
    assert "needs its weights" in result.stderr and "no comparable earlier runs" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in experiment_files() if n.startswith("paper/")])
def test_a_plan_of_the_paper_takes_seconds_on_a_bare_machine(name: str, tmp_path: Path) -> None:
    bare = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CTTA_BENCH_DATA": str(tmp_path)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "ctta_bench", "grid", name, "--dry-run"]
    done = subprocess.run(
        words,
        env=bare | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert "passes of cells: " in done.stderr
    # Of the processor: the tests share it. Nearly all of it is the import of torch, torchvision and
    # timm: 5 s, or up to 15 where many programs share the cores.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 25


# -- hours of resolved cells, by the same runs


def record(method: str = "tent", model: str = "fashion_vit", **benchmark: Any) -> dict[str, Any]:
    settings = {"name": "fashion_c", "domains": ["fog", "snow"], "examples": 450, "rounds": 1}
    return {
        "method": {"name": method},
        "benchmark": settings | benchmark,
        "model": {"name": model},
    }


def test_a_grid_takes_as_long_as_earlier_runs_of_its_kind_did_by_the_image(tmp_path: Path) -> None:
    run(tmp_path, "tent-fashion_c-fashion_vit-seed3-1234abcd", 10.0)
    found = estimate([record()] * 40, earlier_runs(tmp_path / "another"))  # 900 images each
    assert (found.hours, found.known, found.unknown) == (pytest.approx(1.0), 40, 0)
    assert str(found) == "about 1.0 h on one worker, from earlier runs"
    longer = record(examples=None, rounds=3, setting="gradual", severities=[1, 5])
    assert estimate([longer], earlier_runs(tmp_path / "one")).hours == pytest.approx(
        2 * 2000 * 2 * 3 / 10.0 / 3600
    )


def test_what_has_no_like_is_counted_and_not_guessed(tmp_path: Path) -> None:
    run(tmp_path, "tent-fashion_c-fashion_vit-seed3-1234abcd", 10.0)
    others = [record(model="another"), record("sar"), record(name="fashion_rotation")]
    found = estimate([*others, record()], earlier_runs(tmp_path / "one"))
    assert (found.known, found.unknown) == (1, 3)
    assert "plus 3 steps without" in str(found)
    assert (
        str(estimate(others, earlier_runs(tmp_path / "one")))
        == "hours unknown: no comparable earlier runs (or --throughput, a record of "
        "`ctta-bench cost` on your GPU)"
    )


def test_a_warm_up_takes_as_long_as_one_did_and_what_does_not_adapt_as_long_as_source(
    tmp_path: Path,
) -> None:
    run(tmp_path, "source-fashion_c-fashion_vit-seed0-1234abcd", 900.0)
    run(tmp_path, "warmup-lora-fashion_c-seed0-1234abcd", 0.0)
    file = tmp_path / "one" / "warmup-lora-fashion_c-seed0-1234abcd" / "result.json"
    file.write_text(json.dumps({"seconds": 7199.0}))
    steps = [record("lora") | {"kind": "warm-up"}, record("lora") | {"adapt": False}]
    assert estimate(steps, earlier_runs(tmp_path / "one")).hours == pytest.approx(2.0)


@pytest.mark.parametrize("content", ["[1]", "{", '{"cost": {"images_per_second": "fast"}}'])
def test_damaged_results_are_skipped(tmp_path: Path, content: str) -> None:
    run(tmp_path, "tent-fashion_c-fashion_vit-seed3-1234abcd", 10.0)
    next(tmp_path.rglob("result.json")).write_text(content)
    assert estimate([record()], earlier_runs(tmp_path / "one")).known == 0


def test_images_of_a_benchmark_that_is_not_in_the_table_are_those_of_its_settings(
    tmp_path: Path, toy: None
) -> None:
    run(tmp_path, "tent-toy-toy_vit-seed0-1234abcd", 10.0)
    assert (
        estimate([record(name="toy", model="toy_vit")], earlier_runs(tmp_path / "one")).hours
        == 900 / 36000
    )


def test_a_semantic_shift_costs_what_its_own_benchmark_has() -> None:
    shift = experiment(
        methods=[{"name": "finetune", "semantic_shift": True}], benchmarks=["fashion_c"]
    )
    assert cost_of(shift, {}).passes == 8000


def test_every_experiment_of_the_package_has_a_cost() -> None:
    rank = cost_of(load_experiment("paper/rank"), {})
    assert rank.counted == rank.cells == 27
    # Source and eight ranks over 75,000 images of ImageNet-C and twice 150,000 of CIFAR's.
    assert rank.passes == (75_000 + 2 * 150_000) * (1 + 8 * 2)
    # A warm-up for each rank: three epochs of ImageNet, ten of CIFAR's 50,000, twice.
    assert rank.warmup_passes == 8 * (3 * 1_281_167 + 2 * 10 * 50_000) * 2
    assert rank.passes_text == "6.38 + 77.5"


def test_cells_that_differ_only_in_the_stream_share_a_warm_up() -> None:
    paid = {"name": "paid", "preset": "paper"}
    once = cost_of(experiment(methods=[paid]), {}).warmup_passes
    swept = paid | {"sweep": {"std_weight": [0, 0.1], "lr": [1e-4, 1e-3]}}
    assert cost_of(experiment(methods=[swept]), {}).warmup_passes == once == 3 * 1_281_167 * 2
    rank = paid | {"sweep": {"rank": [2, 4]}}
    assert cost_of(experiment(methods=[rank]), {}).warmup_passes == 2 * once


def test_what_the_text_of_a_method_says_of_its_warm_up_is_what_it_declares() -> None:
    for name, entry in METHODS.entries().items():
        if "stream_only" in entry.attributes:
            assert entry.attributes["stream_only"] == METHODS.get(name).stream_only
        else:
            assert not METHODS.get(name).stream_only
        fields = METHODS.get(name).Hyperparameters.model_fields
        for key, value in entry.defaults.items():
            assert fields[key].default == value


@pytest.mark.parametrize("name", sorted(known_streams()))
def test_the_table_of_streams_is_that_of_the_benchmarks(name: str) -> None:
    stream, entry = known_streams()[name], BENCHMARKS.get(name)
    assert stream["model"] == entry.default_model
    built = entry(None, Path("nowhere"))
    assert stream["domains"] == len(built.domain_names())


def test_the_table_of_streams_has_every_benchmark_of_the_package() -> None:
    package = {n for n, e in BENCHMARKS.entries().items() if e.module.startswith("ctta_bench.")}
    assert package - {"image_folder"} == set(known_streams())
    embedded = ("fashion_c", "fashion_rotation", "scenes_c", "scenes_rotation")
    for name in embedded:
        built = BENCHMARKS.get(name)()
        count = len(built.domain(built.domain_names()[0], 5).labels)
        assert known_streams()[name]["images"] == count
        assert known_streams()[name]["source"] == len(built.source().labels)
    assert issubclass(BENCHMARKS.get("imagenet_v2"), Variant)


def test_declared_passes_are_known_without_an_import() -> None:
    for name, entry in METHODS.entries().items():
        if entry.module.startswith("ctta_bench."):
            assert entry.attributes["passes_per_image"] == METHODS.get(name).passes_per_image


def test_the_list_shows_the_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(tmp_path / "runs", "tent-scenes_c-scenes_vit-seed0-1234abcd", 100.0)
    text = CliRunner().invoke(app, ["list", "experiments"]).stdout
    assert "passes" in text
    result = CliRunner().invoke(app, ["list", "experiments", "--format", "json"]).stdout
    rows = {row["name"]: row for row in json.loads(result)}
    assert rows["quickstart"]["cells"] == 14
    assert rows["quickstart"]["cells_timed"] == 1
    assert rows["quickstart"]["hours"] == pytest.approx(15 * 500 / 100 / 3600, abs=1e-4)
    assert rows["paper/rank"]["hours"] is None


def test_the_list_loads_no_torch() -> None:
    code = (
        "import sys; from ctta_bench.measuring.estimate import rows; from pathlib import Path; "
        "from ctta_bench.config.experiment import experiment_files, load_experiment; "
        "list(rows({n: load_experiment(n) for n in experiment_files()}, Path('runs'))); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
