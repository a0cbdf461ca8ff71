"""The embedded benchmark's defaults are what `ctta-bench tune` has found, and finds again."""

from importlib import resources
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.config.experiment import load_experiment
from ctta_bench.config.presets import preset_values, read_tuned
from ctta_bench.tuning.plan import Plan
from ctta_bench.tuning.trials import first_search, trials

FOLDER = resources.files("ctta_bench.methods") / "presets" / "tuned"
KEYS = {
    "fashion_c": ("fashion_c", "fashion_vit"),
    "fashion_c@fashion_cnn": ("fashion_c", "fashion_cnn"),
    "scenes_c": ("scenes_c", "scenes_vit"),
    "scenes_c@scenes_cnn": ("scenes_c", "scenes_cnn"),
    "scenes_c@scenes_cnn_gn": ("scenes_c", "scenes_cnn_gn"),
}
BUDGETS = {"fashion_c": 8, "scenes_c": 16}
TUNED = [
    pytest.param(method, *KEYS[key], entry, id=f"{method}-{KEYS[key][1]}")
    for file in sorted(Path(str(FOLDER)).glob("*.yaml"))
    for method, entries in read_tuned(file).items()
    for key, entry in entries.items()
]
searched = pytest.mark.parametrize(("method", "benchmark", "model", "entry"), TUNED)


@pytest.mark.parametrize(
    ("experiment", "model"),
    [("scenes", "scenes_vit"), ("scenes_cnn", "scenes_cnn"), ("scenes_cnn", "scenes_cnn_gn")],
)
def test_the_ranking_has_only_methods_that_were_searched(experiment: str, model: str) -> None:
    found = {method for method, _, of, _ in (p.values for p in TUNED) if of == model}
    ranked = load_experiment(experiment).methods
    planned = {entry.name for entry in ranked if not entry.models or model in entry.models}
    assert planned == found | {"source"}


@searched
def test_default_holds_on_the_embedded_benchmark_what_tune_has_found(
    method, benchmark, model, entry
):
    for preset in ("default", "tuned"):
        assert preset_values(method, preset, benchmark, model) == entry["values"]
    assert preset_values(method, "published", benchmark, model) == entry["published"]


@searched
def test_every_method_had_the_same_budget_and_its_best_trial_won(method, benchmark, model, entry):
    record = entry["record"]
    errors = [t["error"] for t in record["trials"] if t["error"] is not None]
    whole = first_search(record)
    assert f"--budget {BUDGETS[benchmark]} --seed 0 " in whole["command"]
    assert all(trial in _values(whole) for trial in _values(record))
    assert _values(record)[0] == _values(whole)[0]
    if record != whole:
        others = sorted(whole["trials"][1:], key=lambda trial: trial["error"] or 100.0)
        worst = max(t["error"] for t in others[: len(record["trials"]) - 1])
        chosen = [t for t in whole["trials"][1:] if _plain(t) in _values(record)]
        assert all(trial["error"] <= worst for trial in chosen)
    assert record.get("images", "the scored ones") == (
        "the scored ones" if benchmark == "fashion_c" else "others than the scored ones"
    )
    assert record["domains"] == ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
    assert record["error"] == min(errors)
    won = next(t for t in record["trials"] if t["error"] == min(errors))
    assert {k: entry["values"][k] for k in won if k != "error"} == {
        k: v for k, v in won.items() if k != "error"
    }
    assert record["published_error"] == record["trials"][0]["error"]


def _plain(trial):
    return {k: v for k, v in trial.items() if k != "error"}


def _values(record):
    return [_plain(trial) for trial in record["trials"]]


@searched
def test_the_stored_seed_gives_the_stored_trials(method, benchmark, model, entry):
    stored = _values(first_search(entry["record"]))
    plan = Plan(benchmark=benchmark, model=model, budget=BUDGETS[benchmark], seed=0)
    assert [trial.values for trial in trials(method, plan)] == stored


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("method", "model"), [("t3a", "scenes_vit"), ("lame", "scenes_vit")])
def test_tune_finds_an_embedded_default_again_from_its_stored_command(
    method: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (entry,) = (e for m, _, n, e in (p.values for p in TUNED) if (m, n) == (method, model))
    record = entry["record"]
    for command in dict.fromkeys([first_search(record)["command"], record["command"]]):
        words = command.split()[1:]
        assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    (file,) = Path("runs").glob("tune_*/tuned.yaml")
    (again,) = read_tuned(file)[method].values()
    assert again["values"] == entry["values"]
    assert again["record"] == record
    assert preset_values(method, "default", "scenes_c", model) == again["values"]
