import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from ctta_bench.analysis.read.cells import normalisation_text
from ctta_bench.analysis.read.collect import RESULT_COLUMNS, batches, load
from ctta_bench.errors import RunError
from ctta_bench.record.read import read_cell

RATES = {"gaussian_noise": 0.4, "fog": 0.2}


def reasons(runs_dir: Path) -> dict[str, str]:
    return {folder.name: reason for folder, reason in load(runs_dir).left_out}


def test_results_are_tidy_and_errors_are_in_percent(cell, runs_dir):
    cell("tent", RATES, seed=3)
    results = load(runs_dir).results
    errors = results[results["metric"] == "error"].set_index("domain")["value"]
    assert list(results.columns) == RESULT_COLUMNS
    assert errors.to_dict() == {"gaussian_noise": 40.0, "fog": 20.0}
    assert set(results["metric"]) == {"error", "class_error", "ece", "nll", "brier"}
    assert set(results["seed"]) == {3}
    assert set(results["preprocessing"]) == {"true"}


def test_a_cell_row_holds_protocol_cost_counters_and_versions(cell, runs_dir):
    cell("sar", RATES, hyperparameters={"lr": 0.1}, counters={"resets": 2})
    row = load(runs_dir).cells.iloc[0]
    assert (row["state"], row["benchmark"], row["setting"]) == ("done", "mini_c", "continual")
    assert (row["batch_size"], row["examples"], row["rounds"], row["severity"]) == (20, 100, 1, 5)
    assert (row["resets"], row["trainable_parameters"], row["torch"]) == (2, 864, "2.6.0")
    assert row["normalisation"] == "mean 0.5, std 0.5"
    assert json.loads(row["hyperparameters"]) == {"lr": 0.1}


@pytest.mark.parametrize("level", ["", "trial"])
def test_an_experiment_and_a_folder_of_experiments_are_both_read(cell, runs_dir, level):
    cell("tent", RATES)
    assert len(load(str(runs_dir / level)).cells) == 1


def test_unfinished_cells_are_listed_with_their_state_and_have_no_results(cell, runs_dir):
    folder = cell("tent", RATES, unfinished=True)
    (folder / "failed.json").write_text('{"reason": "out of memory"}')
    cell("sar", RATES, unfinished=True)
    runs = load(runs_dir)
    states = runs.cells.set_index("method")[["state", "reason"]].to_dict("index")
    assert states["tent"] == {"state": "failed", "reason": "out of memory"}
    assert states["sar"] == {"state": "incomplete", "reason": "stopped after batch 5 of 10"}
    assert runs.results.empty


def test_a_missing_directory_is_one_sentence(tmp_path):
    with pytest.raises(RunError, match="no such folder"):
        load(tmp_path / "nowhere")


def test_a_stray_folder_beside_cells_is_named(cell, runs_dir):
    cell("tent", RATES)
    (runs_dir / "trial" / "old stuff").mkdir()
    assert reasons(runs_dir) == {"old stuff": "not a run folder: it holds no cell.yaml"}


@pytest.mark.parametrize("name", ["report", "logs", ".tmp"])
def test_folders_of_our_own_making_are_passed_over(cell, runs_dir, name):
    cell("tent", RATES)
    (runs_dir / "trial" / name).mkdir()
    assert reasons(runs_dir) == {}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("cell.yaml", "", "half-written: cell.yaml is empty or cut"),
        ("cell.yaml", "schema_version: 1\nid: [", "cell.yaml cannot be read (ParserError)"),
        ("cell.yaml", "!!python/object:os.system {}", "cell.yaml cannot be read"),
        ("cell.yaml", "schema_version: 2\n", "newer schema: cell.yaml has schema_version 2"),
        (
            "cell.yaml",
            "schema_version: 1\nid: other\n",
            "contradictory: cell.yaml belongs to cell other",
        ),
        ("result.json", '{"schema_version": 1, "mea', "corrupted: result.json is not valid JSON"),
        ("result.json", '{"schema_version": 7}', "newer schema: result.json has schema_version 7"),
        ("result.json", '{"schema_version": 1}', "half-written: result.json lacks 'cell'"),
        ("predictions.npz", "junk", "corrupted: predictions.npz cannot be read"),
    ],
)
def test_a_damaged_folder_is_left_out_by_name(cell, runs_dir, name, content, reason):
    cell("sar", RATES)
    folder = cell("tent", RATES)
    (folder / name).write_text(content)
    assert reasons(runs_dir)[folder.name].startswith(reason)
    assert set(load(runs_dir).cells["method"]) == {"sar"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cell.yaml", "half-written: cell.yaml is missing"),
        ("predictions.npz", "half-written: predictions.npz is missing"),
    ],
)
def test_a_folder_that_lacks_a_file_is_left_out_by_name(cell, runs_dir, name, reason):
    cell("sar", RATES)
    folder = cell("tent", RATES)
    (folder / name).unlink()
    assert reasons(runs_dir) == {folder.name: reason}


def test_a_cell_yaml_without_a_block_is_left_out(cell, runs_dir):
    folder = cell("tent", RATES)
    content = yaml.safe_load((folder / "cell.yaml").read_text())
    del content["model"]
    (folder / "cell.yaml").write_text(yaml.safe_dump(content))
    assert reasons(runs_dir) == {folder.name: "half-written: cell.yaml lacks 'model'"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: r.update(cell="tent-other"), "result.json is of cell tent-other"),
        (lambda r: r.update(model_sha256="b" * 64), "different weights"),
        (lambda r: r["rounds"][0]["domains"][1].update(errors=19), "19 errors in 100 images"),
        (lambda r: r["rounds"][0]["domains"][1].update(n=99), "20 errors in 99 images"),
        (
            lambda r: r["rounds"][0]["domains"][1].update(error=19.0),
            "error is 19.0 % in result.json",
        ),
        (lambda r: r["rounds"][0]["domains"].pop(), "0 errors in 0 images"),
        (lambda r: r.update(mean=29.0), "the mean is 29.0 in result.json, but 30.00"),
        (lambda r: r.update(mean=float("nan")), "the mean is nan"),
    ],
)
def test_a_contradictory_result_is_left_out_by_name(cell, runs_dir, edit_json, change, reason):
    folder = cell("tent", RATES)
    edit_json(folder / "result.json", change)
    assert reasons(runs_dir)[folder.name].startswith("contradictory: ")
    assert reason in reasons(runs_dir)[folder.name]


def test_a_rounded_result_is_no_contradiction_and_the_recount_is_used(cell, runs_dir, edit_json):
    folder = cell("tent", {"fog": 1 / 3}, n=300)  # 100 of 300
    edit_json(folder / "result.json", lambda r: r.update(mean=33.3))
    edit_json(folder / "result.json", lambda r: r["rounds"][0]["domains"][0].update(error=33.3))
    results = load(runs_dir).results
    assert results.loc[results["metric"] == "error", "value"].tolist() == [100 / 3]


def test_pickled_arrays_are_never_loaded(cell, runs_dir):
    folder = cell("tent", RATES)
    np.savez(folder / "predictions.npz", prediction=np.array([{}], dtype=object))
    assert reasons(runs_dir) == {folder.name: "corrupted: predictions.npz cannot be read"}


def test_a_cell_found_twice_counts_once(cell, runs_dir):
    cell("tent", RATES, experiment="a")
    second = cell("tent", RATES, experiment="b")
    runs = load(runs_dir)
    assert len(runs.cells) == 1
    assert [(folder, reason[:13]) for folder, reason in runs.left_out] == [
        (second, "the same cell")
    ]


def test_a_finished_copy_of_a_cell_is_preferred(cell, runs_dir):
    cell("tent", RATES, experiment="a", unfinished=True)
    cell("tent", RATES, experiment="b")
    assert load(runs_dir).cells["experiment"].tolist() == ["b"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("sha", "b" * 64), ("regime", "lineage"), ("severity", 3), ("batch_size", 10)],
)
def test_another_protocol_is_another_group(cell, runs_dir, key, value):
    cell("tent", RATES)
    cell("sar", RATES, **{key: value})
    assert [list(group.cells["method"]) for group in load(runs_dir).groups()] in (
        [["tent"], ["sar"]],
        [["sar"], ["tent"]],
    )


def test_a_torn_last_batch_is_dropped_and_a_repeated_one_counts_as_run_last(cell):
    folder = cell("tent", RATES)
    with (folder / "batches.jsonl").open("a") as file:
        file.write(
            '{"batch": 9, "round": 0, "domain": "fog", "n": 20, "errors": 7}\n{"batch": 10, "ro'
        )
    frame = batches(folder)
    assert frame["batch"].tolist() == list(range(10))
    assert frame["errors"].iloc[-1] == 7


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        ([0.5] * 3, [0.5] * 3, "mean 0.5, std 0.5"),
        (
            [0.485, 0.456, 0.406],
            [0.229, 0.224, 0.225],
            "mean 0.485 0.456 0.406, std 0.229 0.224 0.225",
        ),
        ([0, 0, 0], [1, 1, 1], "none (inputs in [0, 1])"),
        (None, None, "none (inputs in [0, 1])"),
    ],
)
def test_the_normalisation_is_told_in_words(mean, std, text):
    assert normalisation_text({"mean": mean, "std": std}) == text


@pytest.mark.parametrize(
    "text",
    [
        "a: {x: 1}\nb:\n- 1\n- 2\n",
        "a: &shared [1, 2]\nb: *shared\n",
        "# a note\na: 1\n# another\nb: |\n  two\n\n  lines\n",
        'a: "one\nb: 1"\n',
        "a: {x: 1,\nb: 2}\n",
        "a: 1\na: 2\n",
        'a: 1\n"b": 2\nc: 2001-01-01\n',
        "seed: 0\nnum_batches: 30\n",
        "seed: 012\nnum_batches: 1_000\n",
        "seed: 1:30\nnum_batches: -1\n",
        "warmup: a-b\n",
        "warmup: yes-\n",
        "warmup: 1e-5\n",
        "warmup: ab-c.d_e-0\nseed: 0x1f\n",
    ],
)
def test_a_cell_yaml_read_by_blocks_is_the_one_read_whole(tmp_path, text):
    folder = tmp_path / "cell"
    folder.mkdir()
    whole = f"schema_version: 1\nid: cell\n{text}"
    (folder / "cell.yaml").write_text(whole)
    assert read_cell(folder) == yaml.safe_load(whole)
    assert read_cell(folder) == yaml.safe_load(whole)  # from what is remembered
