"""From what a user writes to a cell: files, presets, overrides, identity."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from ctta_bench.config import cell as config
from ctta_bench.config import presets
from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.config.experiment import expand, load_experiment
from ctta_bench.config.presets import preset_values
from ctta_bench.config.validation import parse_assignments, route_overrides
from ctta_bench.config.yaml import merge, read_yaml
from ctta_bench.errors import ConfigError
from ctta_bench.registry import METHODS

pytestmark = pytest.mark.usefixtures("toy")


def cell(**values: Any) -> config.Cell:
    return resolve(CellRequest(**({"method": "tent", "benchmark": "toy"} | values)))


def test_base_files_lie_beneath_and_nested_keys_are_merged(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("a: {x: 1, y: 2}\nlist: [1, 2]\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "two.yaml").write_text("_base_: ../one.yaml\na: {y: 3}\nlist: [4]\n")
    assert read_yaml(tmp_path / "sub" / "two.yaml") == {"a": {"x": 1, "y": 3}, "list": [4]}


def test_merging_changes_neither_side() -> None:
    below, above = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge(below, above) == {"a": {"b": 1, "c": 2}}
    assert (below, above) == ({"a": {"b": 1}}, {"a": {"c": 2}})


def test_values_of_assignments_are_read_as_yaml() -> None:
    given = ["lr=0.01", "flag=true", "names=[a, b]", "text=two words", "empty="]
    assert parse_assignments(given) == {
        "lr": 0.01,
        "flag": True,
        "names": ["a", "b"],
        "text": "two words",
        "empty": "",
    }


def test_the_same_assignment_twice_is_no_mistake() -> None:
    assert parse_assignments(["lr=1", "lr=1"]) == {"lr": 1}


class Owner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    lr: float = 0.1
    size: int = 1


class Other(BaseModel):
    size: int = Field(2)
    rounds: int = 1


def test_a_bare_key_goes_to_its_one_owner_and_a_dotted_key_to_the_named_one() -> None:
    routed = route_overrides({"lr": 1, "rounds": 2, "benchmark.size": 3, "seed": 4}, Owner, Other)
    assert routed == {
        "method": {"lr": 1},
        "benchmark": {"rounds": 2, "size": 3},
        "cell": {"seed": 4},
    }


def test_a_bare_key_of_two_owners_is_refused_with_both_spellings() -> None:
    with pytest.raises(ConfigError, match=r"method\.size or benchmark\.size"):
        route_overrides({"size": 1}, Owner, Other)


def test_a_preset_s_own_benchmark_lies_over_any(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {"paper": {"any": {"lr": 1, "steps": 2}, "toy": {"lr": 3}}, "code": {"other": {}}}
    monkeypatch.setattr(presets, "presets_of", lambda method: sections)
    assert preset_values("tent", "paper", "toy") == {"lr": 3, "steps": 2}
    assert preset_values("tent", "default", "toy") == {}
    with pytest.raises(ConfigError, match="no values for 'toy'; it has values for other"):
        preset_values("tent", "code", "toy")


def test_every_preset_of_every_method_is_valid() -> None:
    from ctta_bench.registry import METHODS

    for name in METHODS.names():
        fields = METHODS.get(name).Hyperparameters
        for section in presets.presets_of(name).values():
            for values in section.values():
                fields(**{k: v for k, v in (values or {}).items() if k != presets.TUNED})


def test_equal_requests_have_equal_ids_and_every_decisive_value_changes_the_id() -> None:
    ids = [
        cell().id,
        cell(seed=1).id,
        cell(set={"lr": 0.5}).id,
        cell(set={"batch_size": 3}).id,
        cell(preprocessing="lineage").id,
        cell(precision="bfloat16").id,
        cell(window=4).id,
        cell(method="sar").id,
    ]
    assert cell().id == ids[0]
    assert len(set(ids)) == len(ids)


def test_paths_and_the_experiment_s_name_do_not_change_the_id(tmp_path: Path) -> None:
    assert cell(data_root=tmp_path, experiment="other").id == cell().id


def test_an_override_with_the_default_s_value_is_the_same_cell() -> None:
    assert cell(set={"lr": 0.001}).id == cell().id


def test_the_record_holds_what_was_really_used() -> None:
    record = cell(set={"examples": 8}).record
    assert record["benchmark"]["domains"] == ["clean", "dark", "noise"]
    assert record["benchmark"]["examples"] == 8
    assert record["preprocessing"]["mean"] == [0.5, 0.5, 0.5]
    assert len(record["model"]["sha256"]) == 64


def test_an_experiment_is_the_product_of_its_lists(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(
        "methods: [source, {name: tent, set: {lr: 0.5}}]\nbenchmarks: [toy]\n"
        "preprocessing: [true, lineage]\nseeds: [0, 1, 2]\n"
    )
    cells = expand(load_experiment(str(tmp_path / "e.yaml")))
    assert len(cells) == 2 * 2 * 3
    assert len({c.id for c in cells}) == 12
    assert {c.record["experiment"] for c in cells} == {"e"}


def test_a_cell_that_comes_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("methods: [tent, {name: tent}]\nbenchmarks: [toy]\n")
    with pytest.raises(ConfigError, match="repeats the cell"):
        expand(load_experiment(str(tmp_path / "e.yaml")))


def test_the_quickstart_has_eight_methods_and_one_seed() -> None:
    quickstart = load_experiment("quickstart")
    assert [entry.name for entry in quickstart.methods] == [
        "source", "norm", "t3a", "tent", "cmf", "come_eata", "rmt", "lora",
    ]  # fmt: skip
    assert quickstart.seeds == (0,)


def test_hyper_parameters_are_chosen_on_no_test_corruption() -> None:
    from ctta_bench.datasets.making.corruptions import CORRUPTIONS, HOLD_OUT

    chosen_on = load_experiment("holdout").set["benchmark.domains"]
    assert set(chosen_on) == set(HOLD_OUT)
    assert not set(chosen_on) & set(CORRUPTIONS)


def test_rates_for_the_streets_are_chosen_on_no_test_weather() -> None:
    from ctta_bench.datasets.streets.weather import HELD_OUT, WEATHER

    chosen_on = load_experiment("holdout_streets").set["benchmark.domains"]
    assert set(chosen_on) == set(HELD_OUT)
    assert not set(chosen_on) & set(WEATHER)


def test_an_entry_of_a_method_may_name_its_models(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(
        "methods: [source, {name: paid, models: [toy_vit]}]\nbenchmarks: [toy]\n"
        "models: [toy_vit, toy_cnn]\n"
    )
    cells = expand(load_experiment(str(tmp_path / "e.yaml")))
    pairs = [(c.record["method"]["name"], c.record["model"]["name"]) for c in cells]
    assert pairs == [("source", "toy_vit"), ("source", "toy_cnn"), ("paid", "toy_vit")]


# -- fields that joined a method later


def test_a_newer_field_is_recorded_where_it_is_used_and_no_other_with_it() -> None:
    fields = METHODS.get("paid").Hyperparameters
    plain = fields().record()
    assert {"side", "two_pass", "stats_preproc", "warmup_epochs"}.isdisjoint(plain)
    assert fields(side="output").record() == plain | {"side": "output"}
    assert fields(side="input", warmup_epochs=3).record() == plain | {"warmup_epochs": 3}


def test_a_repeated_cell_is_another_one_of_the_same_configuration(toy: None) -> None:
    first, again = (
        resolve(CellRequest(method="tent", benchmark="toy", repeat=number)).record
        for number in (0, 1)
    )

    assert first["id"] != again["id"]
    assert "repeat" not in first and again["repeat"] == 1  # cells of earlier releases stay the same
    assert {**again, "id": first["id"]} == {**first, "repeat": 1}
