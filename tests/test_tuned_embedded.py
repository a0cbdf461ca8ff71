"""The embedded benchmark's defaults are what `ctta-bench tune` has found, and finds again."""

from importlib import resources
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.config.presets import preset_values, read_tuned
from ctta_bench.registry import METHODS
from ctta_bench.tuning.plan import Plan
from ctta_bench.tuning.trials import trials

FOLDER = resources.files("ctta_bench.methods") / "presets" / "tuned"
KEYS = {"fashion_c": "fashion_vit", "fashion_c@fashion_cnn": "fashion_cnn"}
TUNED = [
    pytest.param(method, KEYS[key], entry, id=f"{method}-{KEYS[key]}")
    for name in ("fashion_c.yaml", "fashion_c_cnn.yaml")
    for method, entries in yaml.safe_load((FOLDER / name).read_text("utf-8")).items()
    for key, entry in entries.items()
]
searched = pytest.mark.parametrize(("method", "model", "entry"), TUNED)


def test_every_method_that_supports_the_embedded_vit_and_has_something_to_search_was_searched() -> (
    None
):
    found = {method for method, model, _ in (p.values for p in TUNED) if model == "fashion_vit"}
    able = {
        name
        for name in METHODS.names()
        if METHODS.get(name).search_space and "classification" in METHODS.get(name).tasks
    }
    assert found == able - {"norm", "svdp", "finetune"}


@searched
def test_default_holds_on_the_embedded_benchmark_what_tune_has_found(method, model, entry):
    for preset in ("default", "tuned"):
        assert preset_values(method, preset, "fashion_c", model) == entry["values"]
    assert preset_values(method, "published", "fashion_c", model) == entry["published"]


@searched
def test_every_method_had_the_same_budget_and_its_best_trial_won(method, model, entry):
    record = entry["record"]
    errors = [t["error"] for t in record["trials"] if t["error"] is not None]
    assert "--budget 8 --seed 0 " in record["command"]
    assert record["domains"] == ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
    assert record["error"] == min(errors)
    won = next(t for t in record["trials"] if t["error"] == min(errors))
    assert {k: entry["values"][k] for k in won if k != "error"} == {
        k: v for k, v in won.items() if k != "error"
    }
    assert record["published_error"] == record["trials"][0]["error"]


@searched
def test_the_stored_seed_gives_the_stored_trials(method, model, entry):
    stored = [{k: v for k, v in t.items() if k != "error"} for t in entry["record"]["trials"]]
    plan = Plan(benchmark="fashion_c", model=model, budget=8, seed=0)
    assert [trial.values for trial in trials(method, plan)] == stored


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("method", "model"), [("roid", "fashion_vit"), ("cmf", "fashion_cnn")])
def test_tune_finds_an_embedded_default_again_from_its_stored_command(
    method: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (entry,) = (e for m, n, e in (p.values for p in TUNED) if (m, n) == (method, model))
    words = entry["record"]["command"].split()[1:]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    (file,) = Path("runs").glob("tune_*/tuned.yaml")
    (again,) = read_tuned(file)[method].values()
    assert again["values"] == entry["values"]
    assert again["record"]["trials"] == entry["record"]["trials"]
    assert preset_values(method, "default", "fashion_c", model) == again["values"]
