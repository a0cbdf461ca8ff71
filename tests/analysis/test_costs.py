"""The cost table of a group."""

import json

import numpy as np

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.tables.cost import cost_table

RATES = {"noise": 0.2, "blur": 0.4}


def the_table(runs_dir):
    (group,) = load(runs_dir).groups()
    return cost_table(group)


def test_time_is_relative_to_tent_over_the_means_of_seeds(runs_dir, cell):
    cell("source", RATES, cost={"seconds": 2.0, "backward_per_image": 0.0})
    cell("tent", RATES, seed=0, cost={"seconds": 8.0})
    cell("tent", RATES, seed=1, cost={"seconds": 12.0})
    cell("cotta", RATES, cost={"seconds": 35.0, "forward_per_image": 11.7})
    table = the_table(runs_dir)
    assert table.frame["time"].to_dict() == {"source": 0.2, "tent": 1.0, "cotta": 3.5}
    assert table.frame.loc["cotta", "forward"] == 11.7
    printed = dict(table.lines)
    assert [entry.text for entry in printed["CoTTA"]] == [
        "864",
        "0 B",
        "11.70",
        "1.00",
        "3.50",
        "–",
    ]


def test_without_tent_the_time_is_missing_and_a_footnote_says_why(runs_dir, cell):
    cell("source", RATES)
    table = the_table(runs_dir)
    assert np.isnan(table.frame.loc["source", "time"])
    assert any("no finished run of TENT" in note for note in table.footnotes)


def test_times_of_two_devices_are_told_apart(runs_dir, cell):
    cell("source", RATES, env={"device": "cpu"})
    cell("tent", RATES, env={"device": "Some GPU"})
    assert "Times were measured on several devices: Some GPU, cpu." in the_table(runs_dir).footnotes


def test_state_is_printed_in_readable_units(runs_dir, cell):
    cell("tent", RATES, cost={"extra_state_bytes": 1_500_000, "trainable_parameters": 38_400})
    ((_, entries),) = the_table(runs_dir).lines
    assert [entry.text for entry in entries[:2]] == ["38,400", "1.5 MB"]


def test_what_is_read_of_the_source_data_ends_each_line(runs_dir, cell):
    for method, access in (("source", "none"), ("eata", "unlabelled")):
        file = cell(method, RATES) / "result.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"source_access": access}))
    table = the_table(runs_dir)
    assert table.header[-1] == "source data"
    assert {label: entries[-1].text for label, entries in table.lines} == {
        "Source": "–", "EATA": "unlabelled",
    }  # fmt: skip


def test_a_group_without_finished_cells_has_no_cost_table(runs_dir, cell):
    cell("tent", RATES, unfinished=True)
    assert the_table(runs_dir) is None
