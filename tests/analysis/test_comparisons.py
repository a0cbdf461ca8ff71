"""Ranks, pairs, rounds, orders, calibration, trade-offs: values by hand or as published."""

import numpy as np
import pandas as pd
import pytest

from ctta_bench.analysis.figures.ranks import rank_figure
from ctta_bench.analysis.figures.rounds import round_figure
from ctta_bench.analysis.figures.tradeoff import on_front, tradeoff_figure
from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.tables.calibration import calibration_table
from ctta_bench.analysis.tables.forgetting import forgetting_table
from ctta_bench.analysis.tables.order_sensitivity import order_of, order_tables
from ctta_bench.analysis.tables.pairs import pair_table
from ctta_bench.analysis.tables.protocol import protocol_table, seed_table
from ctta_bench.analysis.tables.ranks import (
    all_ranks,
    critical_difference,
    rank_table,
    ranks_of,
)
from ctta_bench.analysis.tables.stability import stability_table

FIVE = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_is_the_published_one(methods, q):
    """q at level 0.05 of Demsar (2006), table 5a."""
    expected = q * np.sqrt(methods * (methods + 1) / (6 * 14))
    assert critical_difference(methods, 14) == pytest.approx(expected, rel=5e-4)


def test_ranks_share_ties_and_average_over_domains():
    rows = [[1, 1, 1, 1, 1], [2, 2, 2, 1, 3], [3, 3, 3, 9, 2]]
    values = pd.DataFrame(rows, index=["x", "y", "z"])
    ranks = ranks_of("g", "title", values.astype(float))
    assert ranks.ranks.to_dict() == pytest.approx({"x": 1.1, "y": (6 + 1.5 + 3) / 5, "z": 2.8})
    assert ranks.blocks == 5


def test_methods_that_are_all_alike_have_no_small_p():
    assert ranks_of("g", "t", pd.DataFrame(np.ones((3, 5)))).p == 1.0


def test_two_methods_or_four_domains_have_no_ranks():
    assert ranks_of("g", "t", pd.DataFrame(np.ones((2, 9)))) is None
    assert ranks_of("g", "t", pd.DataFrame(np.ones((9, 4)))) is None


def test_ranks_go_over_the_benchmarks_that_share_their_methods(cell, runs_dir, tmp_path):
    for sha in ("a" * 64, "b" * 64):
        for place, method in enumerate(("source", "tent", "cotta")):
            cell(method, dict.fromkeys(FIVE, 0.1 * place + 0.1), sha=sha, n=20)
    *_, together = all_ranks(load(runs_dir))
    assert (together.name, together.blocks) == ("all", 10)
    assert together.ranks.to_dict() == {"source": 1, "tent": 2, "cotta": 3}
    lines = dict(rank_table(together).lines)
    assert lines["Source"][0].best
    assert not lines["CoTTA"][0].best  # critical: 2.344 * sqrt(12 / 60) = 1.05
    drawn = pd.read_csv(rank_figure(together, tmp_path / "ranks")[2])
    assert drawn["mean_rank"].tolist() == [1, 2, 3]
    assert drawn["critical_difference"].iloc[0] == pytest.approx(1.048, abs=1e-3)


def test_each_pair_has_its_difference_and_clear_ones_are_bold(cell, runs_dir):
    cell("source", {"fog": 0.8, "snow": 0.6}, n=200)
    cell("tent", {"fog": 0.2, "snow": 0.2}, n=200)
    cell("sar", {"fog": 0.2, "snow": 0.2}, n=200)
    table = pair_table(load(runs_dir))
    assert table.frame.loc["tent", "source"] == pytest.approx(-50)
    assert table.frame.loc["source", "tent"] == pytest.approx(50)
    entries = {label: dict(zip(table.header[1:], line, strict=True)) for label, line in table.lines}
    assert entries["TENT"]["Source"].best
    assert not entries["TENT"]["SAR"].best
    assert entries["TENT"]["TENT"].text == ""


def test_a_round_is_told_by_transfer_forgetting_and_the_worst(cell, runs_dir):
    cell("tent", [{"a": 0.4, "b": 0.4}, {"a": 0.2, "b": 0.5}, {"a": 0.3, "b": 0.8}], n=20)
    table = stability_table(load(runs_dir))
    values = table.frame.loc["tent"].to_dict()
    assert values["first"] == pytest.approx(40)
    assert values["last"] == pytest.approx(55)
    assert values["transfer"] == pytest.approx(((40 - 30) + (40 - 80)) / 2)
    assert values["forgetting"] == pytest.approx(((30 - 20) + (80 - 40)) / 2)
    assert values["std"] == pytest.approx(np.std([40, 35, 55], ddof=1))
    assert dict(table.lines)["TENT"][-1].text == "55.0 (3)"


def test_clean_images_in_the_stream_show_what_was_forgotten(cell, runs_dir):
    cell("tent", [{"clean": 0.1, "fog": 0.4}, {"clean": 0.3, "fog": 0.4}], n=20)
    table = stability_table(load(runs_dir))
    assert table.header[-2:] == ("clean, first round", "clean, last round")
    assert [entry.text for entry in dict(table.lines)["TENT"][-2:]] == ["10.0", "30.0"]


def probe(step, domain, accuracy):
    return {"batches": 0, "round": step, "domain": domain, "accuracy": accuracy}


def test_accuracy_on_source_images_is_told_before_along_and_after(cell, runs_dir):
    for seed, shift in ((0, 0.0), (1, 2.0)):
        probes = [probe(None, None, 90), probe(0, "fog", 80 + shift), probe(0, "snow", 84 + shift)]
        cell("tent", {"fog": 0.4, "snow": 0.4}, n=20, seed=seed, probes=probes)
    cell("source", {"fog": 0.5, "snow": 0.5}, n=20)
    table = forgetting_table(load(runs_dir))
    assert table.header == ("method", "before", "after fog", "after snow", "lowest", "forgotten")
    texts = {label: [entry.text for entry in line] for label, line in table.lines}
    assert texts == {"TENT": ["90.0", "81.0", "85.0", "81.0", "+5.0"]}


def test_forgetting_is_of_held_out_images_if_every_run_has_them(cell, runs_dir):
    def both(step, domain, accuracy, held_out):
        return {**probe(step, domain, accuracy), "held_out_accuracy": held_out}

    cell("tent", {"snow": 0.4}, n=20, probes=[both(None, None, 94, 90), both(0, "snow", 92, 85)])
    table = forgetting_table(load(runs_dir))
    assert table.frame.loc["tent", "forgotten"] == 5
    assert "on source images (held-out images), before" in table.caption
    cell("cotta", {"snow": 0.4}, n=20, probes=[probe(None, None, 94), probe(0, "snow", 91)])
    table = forgetting_table(load(runs_dir))
    assert table.frame["forgotten"].tolist() == [3, 2]
    assert "on source images (training images), before" in table.caption


def test_rounds_that_were_probed_stand_one_by_one(cell, runs_dir):
    probes = [probe(None, None, 90), probe(0, "snow", 80), probe(1, "snow", 91)]
    cell("tent", [{"fog": 0.4, "snow": 0.4}] * 2, n=20, probes=probes)
    table = forgetting_table(load(runs_dir))
    assert table.header[1:4] == ("before", "after round 1", "after round 2")
    assert table.frame.loc["tent", ["lowest", "forgotten"]].tolist() == [80, -1]


def test_runs_without_probes_have_no_such_table(cell, runs_dir):
    cell("tent", {"fog": 0.4})
    assert forgetting_table(load(runs_dir)) is None


def test_one_round_has_no_stability(cell, runs_dir):
    cell("tent", {"fog": 0.4})
    assert stability_table(load(runs_dir)) is None


def test_rounds_are_drawn_with_their_spread_over_seeds(cell, runs_dir, tmp_path):
    cell("tent", [{"x": 0.2}, {"x": 0.3}, {"x": 0.4}], n=20, seed=0)
    cell("tent", [{"x": 0.4}, {"x": 0.3}, {"x": 0.2}], n=20, seed=1)
    drawn = pd.read_csv(round_figure(load(runs_dir), tmp_path / "rounds")[2])
    assert drawn["round"].tolist() == [1, 2, 3]
    assert drawn["mean"].tolist() == pytest.approx([30, 30, 30])
    assert drawn["std"].tolist() == pytest.approx([np.sqrt(200), 0, np.sqrt(200)])


def test_orders_of_the_domains_are_compared_method_by_method(cell, runs_dir):
    cell("tent", {"a": 0.2, "b": 0.4}, n=20)
    cell("tent", {"b": 0.6, "a": 0.2}, n=20, seed=1)
    (table,) = order_tables(load(runs_dir))
    values = table.frame.loc["tent"]
    assert values[["orders", "mean", "best", "worst"]].tolist() == pytest.approx([2, 35, 30, 40])
    assert values["std"] == pytest.approx(np.sqrt(50))


def test_an_order_goes_by_its_name_and_a_drawn_one_by_its_seed():
    assert order_of("order shuffled, domain_order cotta3", ("a",), 0) == "cotta3"
    assert order_of("domain_order random, order shuffled", ("a",), 7) == "random 7"
    assert order_of("order shuffled", ("a", "b"), 0) == "a, b"


def test_runs_in_one_order_have_no_table_of_orders(cell, runs_dir):
    cell("tent", {"a": 0.2}, seed=0)
    cell("tent", {"a": 0.4}, seed=1)
    assert order_tables(load(runs_dir)) == []


def test_calibration_is_averaged_over_domains_and_the_least_is_best(cell, runs_dir, edit_json):
    folder = cell("tent", {"a": 0.2, "b": 0.4})
    cell("sar", {"a": 0.2, "b": 0.4})

    def worse(result):
        result["rounds"][0]["domains"][0]["ece"] = 9.0

    edit_json(folder / "result.json", worse)
    table = calibration_table(load(runs_dir))
    assert table.frame["ece"].to_dict() == {"tent": 7, "sar": 5}
    lines = dict(table.lines)
    assert (lines["SAR"][0].text, lines["SAR"][0].best) == ("5.0", True)
    assert lines["TENT"][1].text == "0.700"


def test_the_protocols_stand_side_by_side(cell, runs_dir):
    cell("tent", {"a": 0.2}, n=20, batch_size=10)
    cell("tent", {"a": 0.2}, n=20, batch_size=20, unfinished=True)
    table = protocol_table(load(runs_dir))
    assert sorted(table.frame["batch size"]) == ["10", "20"]
    assert sorted(table.frame["cells done"]) == ["0/1", "1/1"]
    assert table.header == (
        "protocol", "weights", "batch size", "metric", "seeds", "cells done"
    )  # fmt: skip
    assert (
        "The same in all protocols: benchmark: mini_c; setting: Continual; severity: 5;"
        in table.caption
    )


def test_seeds_stand_one_by_one_and_a_missing_one_is_a_dash(cell, runs_dir):
    cell("tent", {"a": 0.2}, seed=0)
    cell("tent", {"a": 0.4}, seed=1)
    cell("sar", {"a": 0.3}, seed=0)
    lines = dict(seed_table(load(runs_dir)).lines)
    assert [entry.text for entry in lines["TENT"]] == ["20.0", "40.0"]
    assert [entry.text for entry in lines["SAR"]] == ["30.0", "–"]


def test_the_front_holds_what_nothing_beats():
    costs, errors = np.array([1.0, 2.0, 2.0, 3.0, 1.0]), np.array([9.0, 5.0, 6.0, 5.0, 9.0])
    assert on_front(costs, errors).tolist() == [True, True, False, False, True]


def test_accuracy_is_drawn_against_cost_with_its_front(cell, runs_dir, tmp_path):
    for method, rate, seconds in (("source", 0.5, 1.0), ("tent", 0.4, 2.0), ("cotta", 0.45, 9.0)):
        cell(method, {"a": rate}, cost={"seconds": seconds})
    drawn = pd.read_csv(tradeoff_figure(load(runs_dir), tmp_path / "plane")[2])
    front = dict(zip(drawn["method"], drawn["seconds_front"], strict=True))
    assert front == {"source": True, "tent": True, "cotta": False}
