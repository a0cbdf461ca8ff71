"""The experiment files of PAID's motivation: the cells that they name, and the controls."""

import pytest

from ctta_bench.experiment import expand, load_experiment

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
        tuned = [entry for entry in experiment.methods if entry.name == "finetune"]
        assert all(entry.benchmarks == ("cifar100_c",) for entry in tuned)
        assert all(entry.set["labels"] == 100 for entry in tuned)


def test_the_rates_of_the_settings_are_swept():
    cells = expand(load_experiment("controls/settings_rate"), benchmarks=("fashion_c",))
    pairs = {(cell.hyperparameters.component, cell.hyperparameters.lr) for cell in cells}
    assert pairs == {(name, lr) for name in COMPONENTS for lr in (1e-5, 5e-5, 2e-4)}


def test_a_method_s_own_benchmarks_stand_whatever_the_command_line_says(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "methods: [source, {name: finetune, benchmarks: [fashion_rotation]}]\n"
        "benchmarks: [imagenet_c]\n"
    )
    cells = expand(load_experiment(str(file)), benchmarks=("fashion_c",))
    pairs = [(cell.request.method, cell.request.benchmark) for cell in cells]
    assert pairs == [("source", "fashion_c"), ("finetune", "fashion_rotation")]
