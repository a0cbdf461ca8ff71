"""The experiment files of PAID's motivation: the cells that they name, and the controls."""

import pytest

from ctta_bench.config.experiment import expand, load_experiment, requested
from ctta_bench.errors import ConfigError

COMPONENTS = ["magnitude", "direction", "orthogonal", "magnitude_direction", "magnitude_orthogonal"]


def test_the_embedded_geometry_has_every_control():
    cells = expand(load_experiment("controls/geometry_fashion"))
    told = [
        (
            cell.request.method,
            getattr(
                cell.hyperparameters, "component", getattr(cell.hyperparameters, "adapter", "")
            ),
            cell.request.benchmark,
        )
        for cell in cells
    ]
    assert told == [
        ("source", "", "fashion_c"),
        ("paid", "magnitude_orthogonal", "fashion_c"),
        ("paid", "direction", "fashion_c"),
        ("paid", "magnitude_direction", "fashion_c"),
        ("lora", "", "fashion_c"),
        ("dora", "", "fashion_c"),
        ("finetune", "none", "fashion_rotation"),
        ("finetune", "paid", "fashion_rotation"),
    ]
    assert {cell.settings.setting for cell in cells} == {"reset"}
    assert {cell.request.keep_models for cell in cells} == {"domains"}


@pytest.mark.parametrize("name", ["paper/settings", "paper/attention"])
def test_the_five_settings_differ_in_what_learns_alone(name):
    cells = expand(load_experiment(name), benchmarks=("fashion_c",))
    paid = [cell.hyperparameters.model_dump() for cell in cells if cell.request.method == "paid"]
    assert [values.pop("component") for values in paid] == COMPONENTS
    assert all(values == paid[0] for values in paid)
    assert [cell.request.method for cell in cells] == ["source"] + ["paid"] * 5


def test_the_paper_s_geometry_resets_at_each_domain_and_keeps_the_models():
    for name in ("paper/geometry", "controls/geometry_imagenet"):
        experiment = load_experiment(name)
        assert experiment.set == {"benchmark.setting": "reset"}
        assert experiment.keep_models == "domains"
        assert experiment.benchmarks == ("imagenet_c",)
        tuned = [values for values in requested(experiment) if values["method"] == "finetune"]
        assert {values["shift"]["benchmark"] for values in tuned} == {"cifar100_c"}
        assert {values["shift"]["labels"] for values in tuned} == {100}


@pytest.mark.parametrize(
    "overrides", [{}, {"benchmark.domains": ["fog"], "severity": 3, "benchmark.examples": 7}]
)
def test_the_paper_s_geometry_can_be_pointed_at_another_benchmark(overrides):
    cells = expand(
        load_experiment("paper/geometry"),
        benchmarks=("fashion_c",),
        preset="default",
        overrides=overrides,
    )
    told = [(cell.request.method, cell.request.benchmark, cell.record["model"]) for cell in cells]
    model = told[0][2]
    assert told == [
        ("source", "fashion_c", model),
        ("paid", "fashion_c", model),
        ("finetune", "fashion_rotation", model),
    ]
    assert cells[-1].hyperparameters.labels == 4
    assert cells[-1].settings.domains == ()
    assert cells[-1].settings.examples == overrides.get("benchmark.examples")
    assert {cell.settings.setting for cell in cells} == {"reset"}


def test_a_benchmark_without_another_label_set_is_refused_by_name(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "methods: [{name: finetune, semantic_shift: true}]\nbenchmarks: [fashion_rotation]\n"
    )
    with pytest.raises(ConfigError, match="'fashion_rotation' declares no second label set"):
        expand(load_experiment(str(file)))


def test_the_rates_of_the_settings_are_swept():
    cells = expand(load_experiment("controls/settings_rate"), benchmarks=("fashion_c",))
    pairs = {(cell.hyperparameters.component, cell.hyperparameters.lr) for cell in cells}
    rates = (1e-5, 5e-5, 2e-4, 1e-3, 5e-3)
    assert pairs == {(name, lr) for name in COMPONENTS for lr in rates}


def test_a_method_s_own_benchmarks_stand_whatever_the_command_line_says(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "methods: [source, {name: finetune, benchmarks: [fashion_rotation]}]\n"
        "benchmarks: [imagenet_c]\n"
    )
    cells = expand(load_experiment(str(file)), benchmarks=("fashion_c",))
    pairs = [(cell.request.method, cell.request.benchmark) for cell in cells]
    assert pairs == [("source", "fashion_c"), ("finetune", "fashion_rotation")]
