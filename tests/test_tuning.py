"""Tuning: equal budgets, on hold-out domains only, reproducible from a seed."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ctta_bench.analysis.read.collect import load
from ctta_bench.cli import app
from ctta_bench.config import presets
from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.config.presets import (
    preset_note,
    preset_values,
    preset_with_search,
    presets_of,
    search_behind,
)
from ctta_bench.config.validation import parse_assignments
from ctta_bench.errors import ConfigError
from ctta_bench.methods.roid import ROID
from ctta_bench.methods.tent import Tent
from ctta_bench.record.owner import BusyError
from ctta_bench.registry import METHODS
from ctta_bench.tuning.plan import Plan, hold_out
from ctta_bench.tuning.trials import published, trials


def values(method: str, **plan: Any) -> list[dict[str, Any]]:
    return [trial.values for trial in trials(method, Plan(benchmark="fashion_c", **plan))]


# -- trials


def test_trial_0_has_the_published_values_and_not_those_chosen_for_the_embedded_benchmark() -> None:
    assert presets_of("tent")["default"]["any"]["lr"] == 1e-3
    assert presets_of("tent")["default"]["fashion_c"]["lr"] == 2.3e-5
    assert values("tent")[0] == {"lr": 1e-3}
    # What is not searched stays as the suite set it for ten classes.
    assert published("sar", Plan(benchmark="fashion_c"))["recovery_threshold"] == 0.067


def test_where_papers_have_values_trial_0_has_those_of_the_benchmark() -> None:
    (first, *_) = trials("eta", Plan(benchmark="cifar100_c"))
    assert first.values == {"lr": 1e-3, "max_similarity": 0.1}


def test_every_method_gets_the_same_number_of_different_trials_inside_its_ranges() -> None:
    for method in ("tent", "roid", "paid", "foa"):
        (first, *drawn) = values(method, budget=8)
        assert len({json.dumps(v, sort_keys=True) for v in (first, *drawn)}) == 8
        for key, options in METHODS.get(method).search_space.items():
            for value in (v[key] for v in drawn):
                if isinstance(options, list):
                    assert value in options
                else:
                    assert options[0] <= value <= options[1]


def test_the_same_seed_draws_the_same_and_a_larger_budget_keeps_the_trials_of_a_smaller() -> None:
    assert values("roid", budget=6) == values("roid", budget=6)
    assert values("roid", budget=9)[:6] == values("roid", budget=6)
    assert values("roid", budget=6, seed=1)[1:] != values("roid", budget=6)[1:]


def test_draws_are_even_on_a_log_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tent, "search_space", {"lr": (1e-4, 1e-0)})
    drawn = [math.log10(v["lr"]) for v in values("tent", budget=401)[1:]]
    for decade in range(-4, 0):  # 100 are expected in each; 4 standard deviations are 35
        assert 65 < sum(decade <= value < decade + 1 for value in drawn) < 135


def test_a_grid_spreads_over_the_range_with_both_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tent, "search_space", {"lr": (2e-4, 2e-1)})
    grid = [v["lr"] for v in values("tent", search="grid", budget=5)]
    assert grid == [1e-3, 2e-4, 2e-3, 2e-2, 2e-1]


def test_a_larger_grid_than_the_budget_is_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ROID, "search_space", {"prior": ["logits", "off"], "lr": (1e-3, 1e-1)})
    # Two priors times three rates are the coarsest grid of five points or more.
    grid = [(v["prior"], v["lr"]) for v in values("roid", search="grid", budget=6)[1:]]
    assert grid == [
        ("logits", 1e-3), ("logits", 1e-2), ("logits", 1e-1), ("off", 1e-2), ("off", 1e-1),
    ]  # fmt: skip


def test_a_space_of_fewer_points_than_the_budget_is_run_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ROID, "search_space", {"prior": ["logits", "probabilities", "off"]})
    for search in ("random", "grid"):
        found = [v["prior"] for v in values("roid", budget=10, search=search)]
        assert found[0] == "logits"
        assert sorted(found) == ["logits", "off", "probabilities"]


def test_what_set_fixes_is_not_searched() -> None:
    assert set(values("roid", set={"prior": "off"})[1]) == {"lr"}
    with pytest.raises(ConfigError, match="nothing to search besides --set"):
        values("tent", set={"method.lr": 0.1})


def test_a_method_that_declares_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="'source' has nothing to search"):
        values("source")


@pytest.mark.parametrize("method", sorted(set(METHODS.names()) - {"source", "finetune"}))
def test_what_a_method_declares_are_valid_values_of_its_hyper_parameters(method: str) -> None:
    fields = METHODS.get(method).Hyperparameters
    assert METHODS.get(method).search_space
    for key, options in METHODS.get(method).search_space.items():
        for value in options:
            fields(**{key: value})
        assert isinstance(options, list) or (len(options) == 2 and options[0] < options[1])


# -- domains


def test_all_hold_out_domains_decide_unless_some_are_named() -> None:
    four = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    assert hold_out(Plan(benchmark="fashion_c")) == four
    named = {"benchmark.domains": ["spatter"]}
    assert hold_out(Plan(benchmark="fashion_c", set=named)) == ("spatter",)


@pytest.mark.parametrize("key", ["domains", "benchmark.domains"])
def test_a_test_domain_can_t_be_named(key: str) -> None:
    with pytest.raises(ConfigError, match=r"'fog' is a test domain of fashion_c.*speckle_noise"):
        hold_out(Plan(benchmark="fashion_c", set={key: ["spatter", "fog"]}))


def test_a_benchmark_that_holds_nothing_out_is_refused() -> None:
    with pytest.raises(ConfigError, match="'imagenet_r' has no hold-out domains"):
        hold_out(Plan(benchmark="imagenet_r"))


# -- the command


@pytest.fixture
def tune(toy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`ctta-bench tune` on the toy benchmark, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Any:
        words = ["tune", *arguments, "--benchmark", "toy", "--quiet"]
        return CliRunner().invoke(app, words, catch_exceptions=False)

    return call


def test_the_best_trial_becomes_a_preset_that_a_run_takes(tune: Any) -> None:
    done = tune("tent", "--budget", "3", "--format", "json")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["methods"]
    means = [trial["error"] for trial in found["trials"]]
    cells = [
        json.loads(file.read_text("utf-8")) for file in Path("runs/tune_toy").glob("*/result.json")
    ]
    assert sorted(means) == sorted(round(cell["mean"], 4) for cell in cells)
    assert {d["domain"] for cell in cells for d in cell["rounds"][0]["domains"]} == {"grey"}
    assert found["values"]["lr"] == found["trials"][means.index(min(means))]["lr"]
    run = ["run", "tent", "toy", "--preset", "runs/tune_toy/tuned.yaml", "--format", "json"]
    ran = CliRunner().invoke(app, run, catch_exceptions=False)
    (record,) = Path("runs/single").glob("*/cell.yaml")
    written = yaml.safe_load(record.read_text("utf-8"))
    method = written["method"]
    assert ran.exit_code == 0
    assert written["tuned"] == {
        "command": "ctta-bench tune tent --benchmark toy --budget 3 --seed 0",
        "domains": ["grey"],
        "images": "the scored ones",
        "trials": 3,
    }
    assert load(Path("runs/single")).cells["tuned"].tolist() == [
        "`ctta-bench tune`, 3 trials on grey; images: the scored ones"
    ]
    assert method["hyperparameters"]["lr"] == found["values"]["lr"]
    assert method["preset"] == "tuned"


def test_a_search_on_one_part_has_not_seen_the_other(tune: Any) -> None:
    done = tune("tent", "--budget", "1")
    assert "show the photographs of its test domains" not in done.stderr  # --quiet
    done = CliRunner().invoke(app, ["tune", "tent", "--benchmark", "toy", "--budget", "1"])
    assert "show the photographs of its test domains; --set part=tuning here" in done.stderr
    assert tune("tent", "--budget", "1", "--set", "part=tuning").exit_code == 0
    seen = [yaml.safe_load(f.read_text()) for f in Path("runs/tune_toy").glob("*/cell.yaml")]
    assert sorted(str(record["benchmark"].get("part")) for record in seen) == ["None", "tuning"]

    def images(**set: str) -> str:
        request = CellRequest(method="tent", benchmark="toy", preset=file, set=set)
        return str((resolve(request).tuned or {})["images"])

    file = "runs/tune_toy/tuned.yaml"
    assert images(part="scoring") == "others than the scored ones"
    assert images() == images(part="tuning") == "the scored ones"


def test_a_file_tuned_for_a_model_is_not_noted_as_made_for_another(tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    file.write_text("tent: {fashion_c@fashion_cnn: {values: {lr: 0.1}, published: {}}}\n", "utf-8")
    assert preset_note("tent", str(file), "fashion_c", "fashion_cnn", "fashion_vit") == ""
    assert "no preset for" in preset_note("tent", str(file), "fashion_c", "other", "fashion_vit")


def test_a_value_set_by_hand_is_not_called_tuned() -> None:
    for preset, benchmark in (("default", "fashion_c"), ("holdout", "fashion_c")):
        found, values = (
            get("tent", preset, benchmark) for get in (preset_with_search, preset_values)
        )
        assert search_behind(found, values)
        assert search_behind(found, values | {"lr": 0.5}) is None
    assert search_behind(preset_with_search("tent", "default", "imagenet_c"), {}) is None
    streets = preset_with_search("tent", "default", "streets_acdc")
    behind = search_behind(streets, preset_values("tent", "default", "streets_acdc"))
    assert behind == {"command": "ctta-bench grid holdout_streets"}


def test_the_stored_command_finds_the_same_values_again(tune: Any) -> None:
    assert tune("tent", "--budget", "3", "--seed", "5", "--set", "momentum=0.5").exit_code == 0
    first = Path("runs/tune_toy/tuned.yaml").read_text("utf-8")
    words = yaml.safe_load(first)["tent"]["toy"]["record"]["command"].split()[1:]
    again = CliRunner().invoke(app, [*words, "--out", "again", "--quiet"], catch_exceptions=False)
    assert again.exit_code == 0, again.output
    assert Path("again/tuned.yaml").read_text("utf-8") == first


def test_the_best_trials_of_a_search_run_again_on_a_longer_stream(tune: Any) -> None:
    file = Path("runs/tune_toy/tuned.yaml")
    assert tune("tent", "--budget", "6").exit_code == 0
    short = yaml.safe_load(file.read_text("utf-8"))["tent"]["toy"]["record"]
    again = ("--earlier", str(file), "--finalists", "3", "--set", "benchmark.examples=10")
    assert tune("tent", *again).exit_code == 0
    text = file.read_text("utf-8")
    record = yaml.safe_load(text)["tent"]["toy"]["record"]
    rates = [{k: v for k, v in trial.items() if k != "error"} for trial in record["trials"]]
    others = sorted(short["trials"][1:], key=lambda trial: trial["error"])[:2]
    assert rates[0] == {"lr": short["trials"][0]["lr"]}
    assert sorted(r["lr"] for r in rates[1:]) == sorted(other["lr"] for other in others)
    assert record["earlier"] == short
    assert "--earlier" in record["command"] and "--budget" not in record["command"]
    assert record["error"] == min(trial["error"] for trial in record["trials"])
    assert tune("tent", *again).exit_code == 0  # its own result still has the whole search
    assert file.read_text("utf-8") == text
    assert preset_with_search("tent", str(file), "toy")["tuned"]["trials"] == 6


def test_a_file_without_the_search_has_no_best_trials(tune: Any) -> None:
    file = Path("mine.yaml")
    entry = {"values": {"lr": 0.1}, "published": {"lr": 0.1}, "record": {"command": "by hand"}}
    file.write_text(yaml.safe_dump({"tent": {"toy": entry}}), "utf-8")
    done = tune("tent", "--earlier", str(file))
    assert done.exit_code == 2
    assert "mine.yaml has no search of 'tent' on toy" in " ".join(done.output.split())


def test_equals_leave_the_published_values(tune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tent, "search_space", {"betas": [(0.9, 0.99), (0.8, 0.99)]})  # SGD has none
    done = tune("tent", "--budget", "3", "--format", "json")
    (found,) = json.loads(done.stdout)["methods"]
    assert len({trial["error"] for trial in found["trials"]}) == 1
    assert found["values"]["betas"] == [0.9, 0.999]


def test_the_same_call_runs_nothing_again_and_the_file_keeps_other_methods(tune: Any) -> None:
    first = tune("tent", "--budget", "2")
    before = {f: f.stat().st_mtime_ns for f in Path("runs/tune_toy").glob("*/result.json")}
    second = tune("tent", "pseudo_label", "--budget", "2")
    assert first.exit_code == second.exit_code == 0
    assert {f: f.stat().st_mtime_ns for f in before} == before
    assert len(list(Path("runs/tune_toy").glob("*/result.json"))) == 4
    assert set(yaml.safe_load(Path("runs/tune_toy/tuned.yaml").read_text())) == {
        "pseudo_label",
        "tent",
    }


def test_trials_may_be_run_by_a_grid_and_chosen_afterwards(tune: Any) -> None:
    assert tune("tent", "--budget", "2", "--dry-run").exit_code == 0
    assert not list(Path("runs/tune_toy").glob("*/result.json"))
    grid = ["grid", "runs/tune_toy/trials.yaml", "--quiet"]
    assert CliRunner().invoke(app, grid, catch_exceptions=False).exit_code == 0
    done = {f: f.stat().st_mtime_ns for f in Path("runs/tune_toy").glob("*/result.json")}
    assert len(done) == 2
    assert tune("tent", "--budget", "2").exit_code == 0
    assert {f: f.stat().st_mtime_ns for f in done} == done


def test_nothing_is_chosen_while_another_process_has_a_trial(
    tune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(cell: Any, *_: Any, **__: Any) -> None:
        raise BusyError("has it")

    monkeypatch.setattr("ctta_bench.launch.running.run_cell", busy)
    done = tune("tent", "--budget", "2")
    assert done.exit_code == 2
    assert "another process is running 2 trials" in done.stderr
    assert not Path("runs/tune_toy/tuned.yaml").exists()


def test_a_method_whose_trials_all_fail_is_reported_and_the_others_are_written(tune: Any) -> None:
    done = tune("norm", "tent", "--budget", "2")  # a ViT has no BatchNorm
    assert done.exit_code == 1
    assert "norm: every trial failed" in done.stderr
    assert list(yaml.safe_load(Path("runs/tune_toy/tuned.yaml").read_text())) == ["tent"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tent", "--set", "domains=[dark]"], "'dark' is a test domain of toy"),
        (["tent", "--search", "bayes"], "search"),
        (["tent", "--budget", "0"], "budget"),
        (["tent", "--seeds", "one"], "write numbers"),
        (["source"], "has nothing to search"),
    ],
)
def test_a_wrong_call_is_refused_in_a_sentence(tune: Any, arguments: list[str], words: str) -> None:
    done = tune(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.output


def test_a_file_that_tune_has_not_written_is_no_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("tent: {lr: 1}\n")
    with pytest.raises(
        ConfigError, match=r"mine\.yaml: tent: is not an entry of `ctta-bench tune`"
    ):
        preset_values("tent", str(file), "toy")
    file.write_text("sar: {toy: {values: {lr: 1}, published: {lr: 2}}}\n")
    with pytest.raises(ConfigError, match=r"of 'tent' has no values for 'toy'"):
        preset_values("tent", str(file), "toy")
    assert preset_values("source", str(file), "toy") == {}


def test_a_file_of_the_package_is_the_presets_tuned_and_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = {"values": {"lr": 0.2}, "published": {"lr": 0.1}, "record": {"command": "..."}}
    monkeypatch.setattr(presets, "_tuned_here", lambda: {"tent": {"toy": entry}})
    presets_of.cache_clear()
    try:
        assert preset_values("tent", "tuned", "toy") == {"lr": 0.2}
        assert preset_values("tent", "published", "toy") == {"lr": 0.1}
        assert preset_values("source", "tuned", "toy") == {}
        with pytest.raises(ConfigError, match="'sar' has no preset 'tuned'"):
            preset_values("sar", "tuned", "toy")
        with pytest.raises(ConfigError, match="has values for toy"):
            preset_values("tent", "tuned", "cifar10_c")
    finally:
        presets_of.cache_clear()


def test_a_model_of_its_own_has_a_key_of_its_own() -> None:
    assert Plan(benchmark="fashion_c", model="fashion_vit").key == "fashion_c"
    assert Plan(benchmark="fashion_c", model="fashion_cnn").key == "fashion_c@fashion_cnn"


def test_the_command_of_a_plan_makes_the_same_plan() -> None:
    plan = Plan(
        benchmark="toy", budget=4, seed=3, search="grid", seeds=(0, 1),
        set={"benchmark.domains": ["grey"], "momentum": 0.5},
    )  # fmt: skip
    words = plan.command("tent").split()
    assert words[:5] == ["ctta-bench", "tune", "tent", "--benchmark", "toy"]
    options = dict(zip(words[5:-4:2], words[6:-4:2], strict=True))
    assert options == {"--search": "grid", "--budget": "4", "--seed": "3", "--seeds": "0,1"}
    assert words[-4::2] == ["--set", "--set"]
    assert parse_assignments(words[-3::2]) == plan.set
