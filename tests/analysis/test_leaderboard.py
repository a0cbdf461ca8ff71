"""The leaderboard of a group: ranks, gains with intervals and marks, time, memory, source data."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.table.compared import compared_with
from ctta_bench.analysis.table.rows import metric_of, rows
from ctta_bench.analysis.tables.leaderboard import leaderboard
from ctta_bench.analysis.tables.main import significance_table
from ctta_bench.analysis.tables.pairs import pair_table
from ctta_bench.analysis.tables.ranks import all_ranks
from ctta_bench.cli.terminal.console import leaderboard_table


def board(runs_dir):
    (group,) = load(runs_dir).groups()
    return leaderboard(group)


def column(table, head):
    place = table.header.index(head) - 1
    return {label: entries[place].text for label, entries in table.lines}


def test_rows_go_from_the_best_to_the_worst_with_source_among_them_and_without_a_rank(
    cell, runs_dir
):
    for method, rate in (("source", 0.5), ("tent", 0.2), ("sar", 0.6), ("cotta", 0.4)):
        cell(method, {"fog": rate}, n=400)
    cell("eata", {"fog": 0.1}, unfinished=True, n=400)
    table = board(runs_dir)
    assert list(table.frame.index) == ["tent", "cotta", "source", "sar", "eata"]
    assert list(column(table, "rank").values()) == ["1", "2", "–", "3", "–"]
    assert column(table, "error %")["EATA"] == "–"
    assert column(table, "seeds") == dict.fromkeys(
        ["TENT", "CoTTA", "Source", "SAR"], "1"
    ) | {"EATA": "0/1"}  # fmt: skip


def test_gain_interval_and_mark_are_those_of_the_table_of_significance(cell, runs_dir):
    for seed in (0, 1):
        cell("source", {"fog": 0.5, "snow": 0.3}, n=400, seed=seed)
        cell("tent", {"fog": 0.2, "snow": 0.3}, n=400, seed=seed, shuffle_errors=True)
        cell("sar", {"fog": 0.5025, "snow": 0.3}, n=400, seed=seed)
        cell("cotta", {"fog": 0.7, "snow": 0.5}, n=400, seed=seed)
    (group,) = load(runs_dir).groups()
    table, tested = leaderboard(group), significance_table(group).frame
    for name, row in table.frame.drop(index="source").iterrows():
        assert row["gain"] == pytest.approx(-tested.loc[name, "difference"])
        assert (row["low"], row["high"]) == pytest.approx(
            (-tested.loc[name, "high"], -tested.loc[name, "low"])
        )
        assert row["p_holm"] == tested.loc[name, "p_holm"]
    gains = column(table, "gain (95 % interval)")
    assert gains["TENT"].startswith("+15.0 [+1") and gains["TENT"].endswith("] ↑")
    assert gains["CoTTA"].startswith("−20.0 [−2") and gains["CoTTA"].endswith("] ↓")
    assert gains["SAR"].endswith("]")
    assert gains["Source"] == "–"


def test_a_gain_over_fewer_seeds_than_source_has_is_noted(cell, runs_dir):
    for seed in range(3):
        cell("source", {"fog": 0.5}, n=400, seed=seed)
    for seed in (0, 2):
        cell("tent", {"fog": 0.2}, n=400, seed=seed)
    assert "Gain over fewer seeds than Source has: TENT (2 of 3)." in board(runs_dir).footnotes


def test_equal_printed_means_share_a_rank_and_what_is_like_the_best_is_marked(cell, runs_dir):
    cell("source", {"fog": 0.5}, n=400)
    for method, rate in (("tent", 0.2), ("sar", 0.2025), ("cotta", 0.2025), ("eata", 0.4)):
        cell(method, {"fog": rate}, n=400)
    table = board(runs_dir)
    assert list(column(table, "rank").values()) == ["1", "2 ≈", "2 ≈", "4", "–"]
    bold = [label for label, entries in table.lines if entries[1].best]
    assert sorted(bold) == ["CoTTA", "SAR", "TENT"]


def test_ties_everywhere_have_one_rank_and_no_winner(cell, runs_dir):
    for method in ("source", "tent", "sar", "cotta", "eata", "rdumb"):
        cell(method, {"fog": 0.3}, n=400)
    table = board(runs_dir)
    assert set(column(table, "rank").values()) == {"1", "–"}
    assert not any(entry.best for _, entries in table.lines for entry in entries)


def test_time_is_a_multiple_of_source_s_on_the_same_device(cell, runs_dir):
    cpu, other = {"device": "cpu", "threads": 1}, {"device": "cpu", "threads": 8}
    cell("source", {"fog": 0.5}, cost={"seconds": 10.0}, env=cpu)
    cell("tent", {"fog": 0.2}, cost={"seconds": 79.0}, env=cpu)
    cell("sar", {"fog": 0.3}, cost={"seconds": 1234.0}, env=cpu)
    cell("cotta", {"fog": 0.4}, cost={"seconds": 20.0}, env=other)
    table = board(runs_dir)
    assert column(table, "time × Source") == {
        "TENT": "7.9",
        "SAR": "123",
        "CoTTA": "–",
        "Source": "1.0",
    }
    assert "No time, because Source ran on another device: CoTTA." in table.footnotes


def test_memory_is_that_of_a_gpu_and_missing_on_a_cpu(cell, runs_dir, tmp_path):
    gpu = {"device": "Some GPU"}
    cell("source", {"fog": 0.5}, cost={"peak_memory_mb": 100.0}, env=gpu)
    cell("tent", {"fog": 0.2}, cost={"peak_memory_mb": 250.0}, env=gpu)
    assert column(board(runs_dir), "memory × Source") == {"TENT": "2.5", "Source": "1.0"}
    for file in runs_dir.rglob("env.json"):
        file.write_text('{"device": "cpu"}')
    table = board(runs_dir)
    assert column(table, "memory × Source") == {"TENT": "–", "Source": "–"}
    assert any("Memory is not recorded by runs on a CPU" in note for note in table.footnotes)


def test_time_and_memory_that_were_measured_are_taken_for_the_same_protocol_alone(cell, runs_dir):
    cpu = {"device": "cpu", "threads": 1}
    cell("source", {"fog": 0.5}, cost={"seconds": 10.0}, env=cpu)
    cell("tent", {"fog": 0.2}, hyperparameters={"lr": 0.1}, cost={"seconds": 90.0}, env=cpu)
    cell("sar", {"fog": 0.3}, hyperparameters={"lr": 0.1}, cost={"seconds": 90.0}, env=cpu)
    cost = dict.fromkeys(
        ["trainable_parameters", "extra_parameters", "extra_state_bytes", "forward_per_image",
         "backward_per_image", "to_reference", "to_bound", "images_per_second",
         "gflops_per_image"], 1,
    ) | {"to_reference": None, "to_bound": None}  # fmt: skip
    half, whole = ({"median": m, "low": m, "high": m} for m in (0.5, 1.0))
    methods = [
        cost | {"method": "source", "hyperparameters": {}, "memory_to_source": 1.0,
                "to_reference": half},
        cost | {"method": "tent", "hyperparameters": {"lr": 0.1}, "memory_to_source": 3.2,
                "to_reference": whole},
        cost | {"method": "sar", "hyperparameters": {"lr": 0.2}, "memory_to_source": 5.0},
    ]  # fmt: skip
    record = {
        "schema_version": 1, "kind": "cost", "benchmark": "mini_c", "random": False,
        "model": {"name": "mini_vit", "sha256": "a" * 64}, "precision": "float32",
        "batch_size": 20, "input": [32, 32], "repeats": 3, "methods": methods, "left_out": {},
        "environment": {"ctta_bench": "0.2.0", "torch": "2.6.0", "device": "cpu", "threads": 1},
    }  # fmt: skip
    file = runs_dir / "trial" / "cost-mini.json"
    file.write_text(json.dumps(record))
    assert column(board(runs_dir), "memory × Source") == {
        "TENT": "3.2",
        "SAR": "–",
        "Source": "1.0",
    }
    assert column(board(runs_dir), "time × Source") == {"TENT": "2.0", "SAR": "–", "Source": "1.0"}
    elsewhere = record["environment"] | {"device": "Some GPU"}
    file.write_text(json.dumps(record | {"environment": elsewhere}))
    assert column(board(runs_dir), "time × Source") == {
        "TENT": "9.0",
        "SAR": "9.0",
        "Source": "1.0",
    }
    file.write_text(json.dumps(record | {"batch_size": 64}))
    assert set(column(board(runs_dir), "memory × Source").values()) == {"–"}


def test_what_a_method_needs_of_the_source_data_is_said(cell, runs_dir, edit_json):
    for method, access in (("source", "none"), ("eata", "unlabelled"), ("rmt", "labelled")):
        cell_of = cell(method, {"fog": 0.2})
        edit_json(cell_of / "result.json", lambda r, a=access: r.update(source_access=a))
    cell("tent", {"fog": 0.3})  # an older record
    assert column(board(runs_dir), "source data") == {
        "EATA": "images", "RMT": "labels", "Source": "none", "TENT": "–",
    }  # fmt: skip


def without_adaptation(folder):
    """Make a cell one that scores what its warm-up leaves."""
    file = folder / "cell.yaml"
    file.write_text(file.read_text() + "adapt: false\nwarmup: warmup-1\n")


def test_what_a_warm_up_leaves_has_no_rank_and_is_in_no_pair(cell, runs_dir):
    domains = ("fog", "snow", "frost", "rain", "night")
    for method, rate in (("source", 0.5), ("tent", 0.3), ("sar", 0.35)):
        cell(method, dict.fromkeys(domains, rate), n=400)
    without_adaptation(cell("rmt", dict.fromkeys(domains, 0.2), n=400))
    (group,) = load(runs_dir).groups()
    assert column(leaderboard(group), "rank")["RMT (warm-up only)"] == "–"
    assert column(leaderboard(group), "rank")["TENT"] == "1"
    assert "RMT (warm-up only)" not in pair_table(group).header
    (ranks,) = all_ranks(load(runs_dir))
    assert sorted(ranks.ranks.index) == ["sar", "source", "tent"]


def test_without_source_there_are_ranks_and_no_gains(cell, runs_dir):
    cell("tent", {"fog": 0.3}, n=400)
    cell("sar", {"fog": 0.5}, n=400)
    table = board(runs_dir)
    assert table.header == ("method", "rank", "error %", "source data", "fog")
    assert np.isnan(table.frame["gain"]).all()


def test_comparisons_are_made_once_and_again_after_a_change(cell, runs_dir):
    cell("source", {"fog": 0.5}, n=400)
    folder = cell("tent", {"fog": 0.3}, n=400)
    (group,) = load(runs_dir).groups()
    source, tent = rows(group)
    (first,) = compared_with(source, [tent], metric_of(group))
    (same,) = compared_with(source, [tent], metric_of(group))
    assert same.estimate is first.estimate
    other = cell("tent", {"fog": 0.1}, n=400, experiment="other")
    (folder / "predictions.npz").write_bytes((other / "predictions.npz").read_bytes())
    (changed,) = compared_with(source, [tent], metric_of(group))
    assert changed.estimate.mean == pytest.approx(-40)


@pytest.mark.parametrize("width", [60, 80, 160, 400])
def test_a_terminal_of_any_width_shows_rank_error_gain_and_time(cell, runs_dir, width):
    for method, rate in (("source", 0.5), ("tent", 0.2), ("pseudo_label", 0.6)):
        cell(method, {f"domain_{place}": rate for place in range(20)}, n=400)
    console = Console(file=io.StringIO(), width=width)
    shown, left_out = leaderboard_table(board(runs_dir), console)
    console.print(shown)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert all(
        head in text for head in ("rank", "error %", "gain (95 % interval)", "time × Source")
    )
    assert bool(left_out) == (width < 400)
    assert not any(head in text for head in left_out)
