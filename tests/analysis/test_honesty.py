"""What could mislead a reader: absent classes, missing cells, smoothing, severities."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from ctta_bench.analysis.figures import stream as module
from ctta_bench.analysis.read.collect import batches, load
from ctta_bench.analysis.report.write import write_report
from ctta_bench.analysis.tables.main import main_table
from ctta_bench.analysis.tables.severities import severity_tables
from ctta_bench.cli import app
from ctta_bench.record.schema import SCHEMA_VERSION

pytestmark = pytest.mark.usefixtures("undrawn")

RATES = {"gaussian_noise": 0.4, "fog": 0.2}


def notes(table):
    return "\n".join(table.footnotes)


# -- absent classes


def test_right_answers_in_a_domain_of_three_classes_are_no_error_in_any_mean(cell, runs_dir):
    cell("source", {"fog": 0.0, "snow": 0.0}, labels={"fog": 3})
    runs = load(runs_dir)
    values = runs.results.set_index(["metric", "domain"])["value"]
    assert values["error"].to_dict() == {"fog": 0.0, "snow": 0.0}
    assert values["class_error"].to_dict() == {"fog": 0.0, "snow": 0.0}
    assert runs.domains.set_index("domain")["classes"].to_dict() == {"fog": 3, "snow": 10}
    table = main_table(runs)
    assert table.frame.loc["source", "mean"] == 0
    assert "Not all 10 classes occur in every domain: fog has 3 (7 absent)." in notes(table)


def test_a_class_mean_weighs_the_classes_that_occur_alike(cell, runs_dir):
    # 8 images of classes 0 1 2 0 1 2 0 1, the first four wrong: 2 of 3, 1 of 3, 1 of 2.
    cell("tent", {"fog": 0.5}, n=8, labels={"fog": 3})
    results = load(runs_dir).results
    found = results.loc[results["metric"] == "class_error", "value"].tolist()
    assert found == pytest.approx([100 * (2 / 3 + 1 / 3 + 1 / 2) / 3])


def test_domains_with_all_classes_need_no_note(cell, runs_dir):
    cell("tent", RATES)
    assert "classes occur" not in notes(main_table(load(runs_dir)))


# -- tuned values


def test_rows_with_tuned_values_are_named_with_how_they_were_tuned(cell, runs_dir):
    cell("source", RATES)
    for method in ("tent", "sar", "eta"):
        file = cell(method, RATES) / "cell.yaml"
        written = yaml.safe_load(file.read_text("utf-8"))
        if method != "eta":
            written["tuned"] = {"command": "ctta-bench tune x", "domains": ["spatter"], "trials": 8}
        file.write_text(yaml.safe_dump(written, sort_keys=False), "utf-8")
    assert (
        "Tuned, hyper-parameters chosen on hold-out domains (`ctta-bench tune`, 8 trials on "
        "spatter; images: the scored ones): SAR, TENT."
    ) in notes(main_table(load(runs_dir)))


# -- missing cells


def test_each_missing_cell_has_a_mark_a_reason_and_its_command_and_junk_is_named(cell, runs_dir):
    cell("source", RATES)
    (cell("tent", RATES, seed=0) / "result.json").unlink()  # deleted: all batches are there
    cell("tent", RATES, seed=1)
    failed = cell("sar", RATES, unfinished=True)
    (failed / "failed.json").write_text('{"reason": "out of memory"}')
    running = cell("cotta", RATES, unfinished=True)
    lock = {"pid": 1, "host": "elsewhere", "heartbeat": 4e9}
    (running / "cell.lock.json").write_text(json.dumps(lock))
    cell("eata", RATES, severity=3)
    (runs_dir / "trial" / "old stuff").mkdir()
    done = CliRunner().invoke(app, ["report", str(runs_dir)])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    for words in (
        "TENT, seed 0 (incomplete: stopped after batch 10 of 10)",
        "SAR, seed 0 (failed: out of memory)",
        "CoTTA, seed 0 (running: at batch 5 of 10)",
        "Source, seed 1 (not run)",
        "Run them with `ctta-bench grid trial.yaml`.",
        "Not in this table, because run under another protocol: EATA (severity).",
        "old stuff: not a run folder",
    ):
        assert words in said
    (group,) = (g for g in load(runs_dir).groups() if "tent" in set(g.cells["method"]))
    lines = {label: [entry.text for entry in line] for label, line in main_table(group).lines}
    assert lines["SAR"] == ["–", "–", "–", "–", "0/1"]
    assert lines["CoTTA"] == ["–", "–", "–", "–", "0/1"]
    assert lines["TENT"][-1] == "1/2"  # its mean is of the seed that is there, and says so
    assert "– Missing cells: " in notes(main_table(group))


def test_missing_cells_are_run_with_the_file_that_the_grid_was_started_with(cell, runs_dir):
    cell("source", RATES)
    cell("tent", RATES, unfinished=True)
    record = {"name": "trial", "file": "my experiments/trial.yaml"}
    (runs_dir / "trial" / "experiment.json").write_text(json.dumps(record))
    (group,) = load(runs_dir).groups()
    assert "`ctta-bench grid 'my experiments/trial.yaml'`" in notes(main_table(group))


# -- what a curve shows


@pytest.fixture
def stream(cell, runs_dir, tmp_path, monkeypatch):
    """Three rounds with one reset: the figure, its numbers, and the folder of the run."""
    rounds = [{"gaussian_noise": 0.5, "fog": 0.25}] * 3
    folder = cell("sar", rounds, n=120, batch_size=10, shuffle_errors=True)
    lines = (folder / "batches.jsonl").read_text().splitlines()
    lines[30] = lines[30].replace("}", ', "resets": 1}')
    (folder / "batches.jsonl").write_text("\n".join(lines) + "\n")
    kept = []
    real = module.save_figure
    monkeypatch.setattr(module, "save_figure", lambda f, *rest: kept.append(f) or real(f, *rest))
    paths = module.stream_figure(load(runs_dir), tmp_path / "stream")
    return kept[0], pd.read_csv(paths[2]), folder


def test_a_point_of_a_curve_is_recomputed_from_the_batches(stream):
    _, drawn, folder = stream
    counted = batches(folder)
    assert drawn["error"].tolist() == (10 * counted["errors"]).tolist()
    for at in (0, 7, 29, 65):  # a window of a sixth of a domain: 2 batches of 12
        first = max(at - 1, at // 12 * 12)  # never across the border of a domain
        window = counted.iloc[first : at + 1]
        expected = 100 * window["errors"].sum() / window["n"].sum()
        assert drawn["smoothed"].iloc[at] == pytest.approx(expected)


def test_a_curve_says_its_window_and_unit_and_marks_borders_and_resets(stream):
    figure, drawn, _ = stream
    (axes,) = figure.axes
    assert axes.get_ylabel() == "error in % (mean of the last 2 batches in the domain)"
    assert figure.get_supxlabel() == "images seen; ring: the method reset itself"
    texts = [text.get_text().strip() for text in axes.texts]
    assert texts.count("gaussian noise") == texts.count("fog") == 3
    assert [text for text in texts if text.startswith("round")] == ["round 1", "round 2", "round 3"]
    assert texts.count("SAR") == 1  # at the end of its line
    drawn_lines = (line for line in axes.lines if len(line.get_xdata()))
    (ring,) = (line for line in drawn_lines if line.get_markerfacecolor() == "white")
    assert ring.get_xdata().tolist() == [310]  # behind the 31st batch of ten images
    assert ring.get_ydata().tolist() == [drawn["smoothed"].iloc[30]]


# -- severities


def test_severities_are_groups_of_their_own_and_a_mean_over_them_says_so(cell, runs_dir):
    for severity in range(1, 6):
        cell("source", {"fog": 0.1 * severity}, severity=severity)
        if severity < 5:
            cell("tent", {"fog": 0.05 * severity}, severity=severity)
    runs = load(runs_dir)
    assert [len(group.cells) for group in runs.groups()] == [2, 2, 2, 2, 1]
    assert "severity 3 – mini_vit" in main_table(runs.groups()[2]).caption
    (table,) = severity_tables(runs)
    assert table.header[1:] == (*(f"severity {k}" for k in range(1, 6)), "severities 1–5")
    assert table.frame.loc["source", "severities 1–5"] == pytest.approx(30)
    assert np.isnan(table.frame.loc["tent", "severities 1–5"])
    assert "mean over severities 1–5" in table.caption


def test_severities_with_a_gap_are_listed(cell, runs_dir):
    for severity in (1, 3, 5):
        cell("source", {"fog": 0.1 * severity}, severity=severity)
    (table,) = severity_tables(load(runs_dir))
    assert table.header[-1] == "severities 1, 3, 5"


def test_a_metric_that_is_not_defined_is_refused_before_anything_runs(tmp_path):
    arguments = ["run", "source", "fashion_c", "--set", "metric=mCE", "--out", str(tmp_path / "r")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "unknown key 'metric'" in done.output
    assert not list((tmp_path / "r").iterdir())


# -- older runs

STORED = Path(__file__).parent / "stored"


def test_runs_of_an_earlier_version_are_read_and_reported(tmp_path):
    """As the first version left them: without what cells, batches and results tell since."""
    shutil.copytree(STORED / "first", tmp_path / "first")
    runs = load(tmp_path)
    assert runs.left_out == []
    row = runs.cells.set_index("method").loc["tent"]
    assert (row["state"], row["starts_from"], row["source_probes"]) == ("done", "", ())
    assert (row["trainable_parameters"], row["source_accuracy"]) == (432, 100)
    values = runs.results.set_index(["method", "metric", "domain"])["value"].sort_index()
    assert values["tent", "error"].to_dict() == {"clean": 0, "dark": 90, "noise": 80}
    report = write_report(tmp_path)
    assert report.tables[0].frame.loc["tent", "mean"] == pytest.approx(170 / 3)
    assert {path.suffix for path in report.figure_files} == {".png", ".pdf", ".svg", ".csv", ".txt"}


def test_every_stored_run_is_of_a_schema_that_is_read():
    cells = [yaml.safe_load(file.read_text()) for file in STORED.rglob("cell.yaml")]
    assert {cell["schema_version"] for cell in cells} == set(range(1, SCHEMA_VERSION + 1))
