"""A finished cell whose files lack an optional key keeps its place in every table."""

import pytest
import yaml

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.report.contents import made_tables
from ctta_bench.analysis.report.write import write_report
from ctta_bench.analysis.tables.cost import cost_table

pytestmark = pytest.mark.usefixtures("undrawn")

RATES = {"gaussian_noise": 0.4, "fog": 0.2}
OPTIONAL = [
    "cost",
    "counters",
    "order_sha256",
    "model_sha256",
    "source_accuracy",
    "source_access",
    "same_images",
    "source_probes",
    "classes",
    "notes",
]


def without(key, *path):
    """A change of a record: the block at `path` loses the key."""

    def change(record):
        for step in path:
            record = record[step]
        record.pop(key, None)

    return change


def entries_of(table, method):
    return [entry.text for label, entries in table.lines if label == method for entry in entries]


@pytest.mark.parametrize(
    ("key", "is_null"),
    [
        *((key, False) for key in OPTIONAL),
        *((key, True) for key in OPTIONAL if key != "model_sha256"),  # null is another hash
    ],
)
def test_a_cell_without_an_optional_key_is_in_every_table(cell, runs_dir, edit_json, key, is_null):
    cell("source", RATES)
    folder = cell("tent", RATES, counters={"resets": 2})
    edit_json(
        folder / "result.json", lambda r: r.update({key: None}) if is_null else r.pop(key, None)
    )
    runs = load(runs_dir)
    assert runs.left_out == []
    tables = [table for made in made_tables(runs).values() for table in made.shown]
    assert tables
    for table in tables:
        assert "TENT" in [label for label, _ in table.lines], table.name


def test_a_dash_stands_where_the_cost_would(cell, runs_dir, edit_json):
    cell("source", RATES)
    folder = cell("tent", RATES)
    edit_json(folder / "result.json", without("cost"))
    table = cost_table(load(runs_dir))
    assert entries_of(table, "TENT") == ["–"] * 6
    assert entries_of(table, "Source")[:4] == ["864", "0 B", "1.00", "1.00"]


@pytest.mark.parametrize("name", ["seconds", "trainable_parameters", "peak_memory_mb"])
def test_a_dash_stands_where_one_cost_would(cell, runs_dir, edit_json, name):
    folder = cell("tent", RATES)
    edit_json(folder / "result.json", without(name, "cost"))
    assert load(runs_dir).left_out == []
    entries = entries_of(cost_table(load(runs_dir)), "TENT")
    assert entries.count("–") == 1 + (name in ("seconds", "trainable_parameters"))


@pytest.mark.parametrize("measure", ["ece", "nll", "brier"])
def test_a_measure_that_one_visit_lacks_is_a_dash(cell, runs_dir, edit_json, measure):
    cell("source", RATES)
    folder = cell("tent", RATES)
    edit_json(folder / "result.json", without(measure, "rounds", 0, "domains", 1))
    runs = load(runs_dir)
    assert runs.left_out == []
    (table,) = made_tables(runs)["calibration"].shown
    assert entries_of(table, "TENT").count("–") == 1


@pytest.mark.parametrize("key", ["preset", "window", "hyperparameters"])
def test_a_method_without_an_optional_key_is_read(cell, runs_dir, key):
    folder = cell("tent", RATES)
    record = yaml.safe_load((folder / "cell.yaml").read_text())
    del record["method"][key]
    (folder / "cell.yaml").write_text(yaml.safe_dump(record))
    assert load(runs_dir).left_out == []


@pytest.mark.parametrize("file", ["env.json", "batches.jsonl"])
def test_a_report_without_an_optional_file_has_the_cell(cell, runs_dir, edit_json, file):
    cell("source", RATES)
    folder = cell("tent", RATES)
    cell("sar", RATES)
    edit_json(folder / "result.json", without("cost"))
    (folder / file).unlink()
    report = write_report(runs_dir)
    assert report.left_out == []
    assert "TENT" in [label for label, _ in report.tables[0].lines]
