"""The measured cost table: records of `ctta-bench cost` in a report."""

import json

import numpy as np
import pytest

from ctta_bench.analysis.report.write import write_report
from ctta_bench.analysis.tables.measured_cost import find_records, measured_table
from ctta_bench.errors import RunError

pytestmark = pytest.mark.usefixtures("undrawn")


def spread(median: float) -> dict[str, float]:
    return {"median": median, "low": median - 0.1, "high": median + 0.1}


def row(method: str, **changes) -> dict:
    return {
        "method": method,
        "preset": "default",
        "hyperparameters": {},
        "source_access": "unlabelled",
        "trainable_parameters": 38400,
        "extra_parameters": 0,
        "extra_state_bytes": 1_500_000,
        "forward_per_image": 1.0,
        "backward_per_image": 1.0,
        "milliseconds_per_image": spread(8.0),
        "images_per_second": 125.0,
        "to_reference": spread(1.0),
        "to_bound": spread(1.05),
        "gflops_per_image": 9.2,
        "resting_bytes": 100,
        "peak_bytes": 100,
        "memory_to_source": 3.25,
    } | changes


def record(**changes) -> dict:
    return {
        "schema_version": 1,
        "kind": "cost",
        "benchmark": "mini_c",
        "model": {"name": "mini_vit", "sha256": "a" * 64, "parameters": 10},
        "random": False,
        "precision": "float32",
        "batch_size": 16,
        "images": [32, 32],
        "input": [32, 32],
        "repeats": 5,
        "reference": "tent",
        "methods": [row("tent"), row("source", to_reference=None)],
        "left_out": {"norm": "no BatchNorm"},
        "environment": {"device": "cpu", "threads": 1, "torch": "2.6.0", "ctta_bench": "0.1.0"},
    } | changes


def test_a_row_tells_medians_and_how_far_they_lie_apart() -> None:
    table = measured_table(record())

    assert table.frame.loc["tent", "to_bound"] == 1.05
    assert np.isnan(table.frame.loc["source", "to_reference"])
    tent = dict(zip(table.header[1:], dict(table.lines)["TENT"], strict=True))
    assert {head: entry.text for head, entry in tent.items()} == {
        "learnable": "38,400",
        "extra": "0",
        "state": "1.5 MB",
        "FP": "1.00",
        "BP": "1.00",
        "time / TENT": "1.00 (0.90–1.10)",
        "time / bound": "1.05 (0.95–1.15)",
        "memory / Source": "3.25",
        "images/s": "125.0",
        "GFLOPs": "9.20",
        "source data": "unlabelled",
    }
    assert "1 thread" in table.caption
    assert any("BN adapt" in note for note in table.footnotes)


def test_a_record_from_before_source_data_was_noted_is_read() -> None:
    old = row("tent")
    del old["source_access"]
    assert dict(measured_table(record(methods=[old])).lines)["TENT"][-1].text == "–"


def test_random_weights_are_told() -> None:
    made = record(random=True, model={"name": "m", "sha256": None, "parameters": 1})

    assert "random weights" in measured_table(made).caption


def test_a_report_shows_records_beside_runs_and_alone(runs_dir, cell, tmp_path) -> None:
    cell("source", {"noise": 0.2})
    (runs_dir / "cost-a.json").write_text(json.dumps(record()))
    (runs_dir / "cost-b.json").write_text('{"kind": "other"}')
    report = write_report(runs_dir)
    assert "Measured cost" in report.page.read_text()
    assert [path.name for path, _ in report.left_out] == ["cost-b.json"]
    assert any(path.name.startswith("measured-cost") for path in report.table_files)

    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "cost-a.json").write_text(json.dumps(record()))
    assert write_report(alone).tables[0].name.startswith("measured-cost")


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps(record(schema_version=2)), "\xff"])
def test_what_is_no_record_is_named(text, tmp_path) -> None:
    (tmp_path / "cost-x.json").write_bytes(text.encode("latin-1"))

    found, left_out = find_records(tmp_path)

    assert found == []
    ((file, why),) = left_out
    assert file.name == "cost-x.json"
    assert "no record" in why


def test_a_folder_without_cells_and_records_is_no_report(tmp_path) -> None:
    with pytest.raises(RunError, match="no cell"):
        write_report(tmp_path)
