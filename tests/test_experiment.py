"""Experiment files: products, sweeps, and what they refuse."""

import re
from pathlib import Path

import pytest

from ctta_bench.config.experiment import (
    combinations,
    count_cells,
    expand,
    experiment_files,
    load_experiment,
    requested,
)
from ctta_bench.errors import ConfigError

PAGE = Path(__file__).parents[1] / "docs" / "running-the-paper.md"


def write(folder, text):
    file = folder / "mine.yaml"
    file.write_text(text)
    return load_experiment(str(file))


def test_a_sweep_makes_a_cell_for_each_combination():
    assert combinations({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert combinations({}) == [{}]


def test_sweeps_of_a_method_and_of_the_experiment_multiply(tmp_path):
    cells = expand(
        write(
            tmp_path,
            "methods: [source, {name: tent, sweep: {lr: [0.1, 0.2]}}]\n"
            "benchmarks: [fashion_c]\nseeds: [0, 1]\n"
            "sweep: {benchmark.batch_size: [10, 20, 30]}\n",
        )
    )
    tents = [c for c in cells if c.request.method == "tent"]
    assert len(cells) == (1 + 2) * 3 * 2
    assert {(c.hyperparameters.lr, c.settings.batch_size) for c in tents} == {
        (lr, size) for lr in (0.1, 0.2) for size in (10, 20, 30)
    }


def test_a_method_s_sweep_replaces_the_experiment_s_of_the_same_key(tmp_path):
    cells = expand(
        write(
            tmp_path,
            "methods: [{name: tent, sweep: {lr: [0.1]}}, {name: pseudo_label}]\n"
            "benchmarks: [fashion_c]\nsweep: {lr: [0.3, 0.4]}\n",
        )
    )
    assert [(c.request.method, c.hyperparameters.lr) for c in cells] == [
        ("tent", 0.1),
        ("pseudo_label", 0.3),
        ("pseudo_label", 0.4),
    ]


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ("{lr: []}", "at least 1"),
        ("{lr: 0.1}", "valid list"),
        ("{lr: [-1]}", "lr"),
        ("{rate: [1]}", "rate"),
        ("{lr: [0.1, 0.1]}", "repeats the cell"),
    ],
)
def test_a_wrong_sweep_is_refused_with_its_place(tmp_path, sweep, words):
    with pytest.raises(ConfigError, match=words):
        expand(
            write(
                tmp_path,
                f"methods: [{{name: tent, sweep: {sweep}}}]\nbenchmarks: [fashion_c]\n",
            )
        )


OF_SEGMENTATION = {"holdout_streets", "streets", "paper/main_acdc"}


@pytest.mark.parametrize("name", sorted(experiment_files()))
def test_an_experiment_of_the_package_can_be_pointed_at_the_embedded_benchmark(name):
    embedded = "streets_acdc" if name in OF_SEGMENTATION else "fashion_c"
    experiment = load_experiment(name)
    preset = None if experiment.benchmarks == (embedded,) else "default"
    assert expand(experiment, benchmarks=(embedded,), preset=preset)


def test_the_main_tables_on_the_embedded_benchmark_are_cells_of_its_own_experiment():
    """As docs/results/paid.md states, without a second table of them."""
    options = {"benchmarks": ("fashion_c",), "preset": "default"}
    stream = {"benchmark.examples": 100, "benchmark.batch_size": 50}
    here = options | {"seeds": (0,), "overrides": stream, "preprocessing": "true"}
    asked = {c.id for c in expand(load_experiment("paper/main_imagenet_c"), **here)}
    assert asked < {c.id for c in expand(load_experiment("embedded"), seeds=(0,))}
    components = {c.id for c in expand(load_experiment("paper/component"), **options)}
    assert {c.id for c in expand(load_experiment("paper/settings"), **options)} < components


def test_cells_that_an_option_makes_equal_are_run_once(tmp_path):
    swept = "{name: source, sweep: {benchmark.batch_size: [4, 50]}}"
    described = write(
        tmp_path, f"methods: [{swept}]\nbenchmarks: [fashion_c]\npreprocessing: [lineage]\n"
    )
    assert len(expand(described)) == 2
    (cell,) = expand(described, overrides={"benchmark.batch_size": 9}, preprocessing="true")
    assert (cell.settings.batch_size, cell.request.preprocessing) == (9, "true")


def test_a_choice_of_the_suite_is_a_note_of_the_cell_but_not_of_another_preset(tmp_path):
    described = write(
        tmp_path, "methods: [{name: tent, not_in_paper: the rate}]\nbenchmarks: [fashion_c]\n"
    )
    (cell,) = expand(described)
    assert cell.notes == ("not in the paper, a choice of this suite: the rate",)
    (other,) = expand(described, preset="default")
    assert (other.id, other.notes) == (cell.id, ())


def test_an_experiment_of_the_package_is_a_base_by_its_name(tmp_path):
    described = write(tmp_path, "_base_: paper/rank\nname: mine\nseeds: [3]\n")
    assert described == load_experiment("paper/rank").model_copy(
        update={"name": "mine", "seeds": (3,)}
    )
    with pytest.raises(ConfigError, match="_base_: 'paper/rnak' is no experiment of the package"):
        write(tmp_path, "_base_: paper/rnak\n")


def test_the_paper_s_tables_are_run_as_the_published_rows_were():
    for name in ("main_imagenet_c", "main_cifar10_c", "main_cifar100_c"):
        wanted = requested(load_experiment(f"paper/{name}"))
        assert {values["preprocessing"] for values in wanted} == {"lineage"}
        sizes = {(v["method"], v["set"].get("benchmark.batch_size", 64)) for v in wanted}
        # Without Source at its batch size, a row would have no gain.
        assert {("source", size) for _, size in sizes} <= sizes
        fair = requested(load_experiment(f"controls/fair_{name[5:]}"))
        assert {v["method"] for v in fair} == {v["method"] for v in wanted}
        others = {(v["preprocessing"], *v["set"].items()) for v in fair}
        assert others == {("true", ("benchmark.part", "scoring"))}
    assert ("vida", 40) in {
        (v["method"], v["set"].get("benchmark.batch_size"))
        for v in requested(load_experiment("paper/main_cifar10_c"))
    }


def test_the_page_tunes_every_method_of_the_files_on_equal_terms_alike():
    (block,) = re.findall(r"<!-- fair -->\n+```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    found = re.findall(r"tune (.*?) \\\n +--benchmark (\w+) (.*) --root", block)
    assert {options for _, _, options in found} == {"--budget 8 --set part=tuning"}
    files = {f"fair_{benchmark}": methods.split() for methods, benchmark, _ in found}
    assert files == {
        name.rpartition("/")[2]: [
            m.name for m in load_experiment(name).methods if m.name != "source"
        ]
        for name in experiment_files()
        if name.startswith("controls/fair_")
    }


def test_a_preset_replaces_those_of_the_file(tmp_path):
    described = write(
        tmp_path, "methods: [{name: tent, preset: paper}]\nbenchmarks: [imagenet_c]\n"
    )
    (cell,) = expand(described, benchmarks=("fashion_c",), preset="default")
    assert (cell.request.preset, cell.hyperparameters.lr) == ("default", 2.3e-5)
    with pytest.raises(ConfigError, match="no values for 'fashion_c'"):
        expand(described, benchmarks=("fashion_c",))


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("paper/rank", {"rank": [2, 4, 6, 8, 10, 12, 14, 16]}),
        ("paper/lambda", {"std_weight": [0, 0.01, 0.05, 0.1, 0.5, 1, 2]}),
        ("paper/layers", {"layers": ["qv", "qk", "qkv", "qkvo", "qkvom"]}),
        (
            "paper/source_samples",
            {
                "source_samples": [50, 100, 300, 500, 1000, 3000, 5000],
                "entropy_filter": [False, True],
            },
        ),
        ("paper/batch_size", {"benchmark.batch_size": [1, 2, 4, 8, 16, 32, 64, 128, 256]}),
        ("controls/adapter_rate", {"lr": [1e-5, 5e-5, 2e-4, 1e-3, 5e-3]}),
        ("controls/settings_rate", {"lr": [1e-5, 5e-5, 2e-4, 1e-3, 5e-3]}),
        ("controls/warmup", {"warmup_epochs": [0, 3]}),
        ("controls/wrong_side", {"side": ["input", "output"]}),
    ],
)
def test_an_experiment_of_paid_sweeps_over_these_values(name, axes):
    described = load_experiment(name)
    (paid,) = [m for m in described.methods if m.name == "paid" and (m.sweep or described.sweep)][
        :1
    ]
    assert described.sweep | paid.sweep == axes


def test_cells_are_counted_without_data_or_weights():
    """Source, and eight ranks of PAID, on three benchmarks."""
    assert count_cells(load_experiment("paper/rank")) == 3 * (1 + 8)


def test_an_exclusion_leaves_out_the_cells_that_have_all_of_its_values(tmp_path):
    cells = expand(
        write(
            tmp_path,
            "methods: [source, {name: tent, sweep: {lr: [0.1, 0.2]}}]\nbenchmarks: [fashion_c]\n"
            "seeds: [0, 1]\nexclude: [{method: tent, lr: 0.2}, {method: source, seed: [1, 2]}]\n",
        )
    )
    assert [(c.request.method, c.request.seed) for c in cells] == [
        ("source", 0),
        ("tent", 0),
        ("tent", 1),
    ]
    assert {c.hyperparameters.lr for c in cells[1:]} == {0.1}


def test_an_exclusion_of_nothing_is_reported_with_the_other_problems(tmp_path):
    described = write(
        tmp_path,
        "methods: [tnet]\nbenchmarks: [fashion_c]\nexclude: [{method: sar}]\n",
    )
    with pytest.raises(ConfigError, match=r"exclude\[0\].*matches no cell[\s\S]*'tent'"):
        expand(described)


def test_single_cells_are_added_to_the_product_or_replace_it(tmp_path):
    text = "cells: [{method: tent, benchmark: fashion_c, seed: 7, set: {lr: 0.5}}]\n"
    (alone,) = expand(write(tmp_path, text))
    assert (alone.request.seed, alone.hyperparameters.lr) == (7, 0.5)
    both = expand(write(tmp_path, text + "methods: [source]\nbenchmarks: [fashion_c]\n"))
    assert [c.request.method for c in both] == ["source", "tent"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seeds: [0]\n", "at least one method and one benchmark"),
        ("methods: [tent]\n", "at least one method and one benchmark"),
        ("cells: [{method: tent}]\n", r"cells\[0\]: cell.benchmark"),
        ("cells: [{method: tent, benchmark: fashion_c, sede: 1}]\n", "did you mean 'seed'"),
    ],
)
def test_a_file_that_asks_for_nothing_or_wrongly_is_refused(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        expand(write(tmp_path, text))


def test_the_example_of_the_page_on_experiment_files_expands(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "experiments.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert f"has {len(expand(write(tmp_path, example)))} cells" in page


def test_an_experiment_in_a_folder_is_found_by_its_last_name_if_no_other_has_it() -> None:
    names = [full.rpartition("/")[2] for full in experiment_files()]
    for full in experiment_files():
        name = full.rpartition("/")[2]
        assert names.count(name) > 1 or load_experiment(name) == load_experiment(full)
    with pytest.raises(ConfigError, match="unknown experiment 'rnk'; did you mean"):
        load_experiment("rnk")


THREE = "methods: [source, tent, sar]\nbenchmarks: [fashion_c]\n"


@pytest.mark.parametrize(
    ("overrides", "rates"),
    [
        ({"lr": 0.5}, {"tent": 0.5, "sar": 0.5}),
        ({"tent.lr": 0.5}, {"tent": 0.5, "sar": None}),
        ({"lr": 0.5, "SAR.lr": 0.25}, {"tent": 0.5, "sar": 0.25}),
        ({"margin": 0.3}, {"tent": None, "sar": None}),  # of SAR alone
        ({"batch_size": 20}, {"tent": None, "sar": None}),
    ],
)
def test_an_override_goes_to_the_methods_that_have_it(tmp_path, overrides, rates):
    experiment = write(tmp_path, THREE)
    before = {c.request.method: c.hyperparameters for c in expand(experiment)}
    cells = {c.request.method: c for c in expand(experiment, overrides=overrides)}
    for method, rate in rates.items():
        default = before[method].lr
        assert cells[method].hyperparameters.lr == (default if rate is None else rate)
    if "margin" in overrides:
        assert cells["sar"].hyperparameters.margin == 0.3
    sizes = {c.settings.batch_size for c in cells.values()}
    assert sizes == {overrides.get("batch_size", 50)}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"cotta.lr": 0.5}, r"--set cotta\.lr: no cell has the method 'cotta'; choose sar or"),
        ({"tent.learning_rate": 0.5}, "unknown key 'method.learning_rate'; did you mean 'lr'"),
        ({"learning_rate": 0.5}, "--set learning_rate: unknown key .*; did you mean 'lr'"),
    ],
)
def test_an_override_that_no_method_has_is_refused_once(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        expand(write(tmp_path, THREE), overrides=overrides)
    assert str(caught.value).count("unknown key") <= 1


def test_a_wrong_key_is_named_with_its_file_and_line(tmp_path: Path) -> None:
    base, file = tmp_path / "base.yaml", tmp_path / "mine.yaml"
    base.write_text("benchmarks: [fashion_c]\nsedes: [1]\n")
    file.write_text("_base_: base.yaml\nmethods:\n  - source\n  - {name: tent, presett: paper}\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(str(file))
    assert f"{file}:4: unknown key 'methods.1.presett'; did you mean 'preset'?" in str(caught.value)
    assert f"{base}:2: unknown key 'sedes'; did you mean 'seeds'?" in str(caught.value)
