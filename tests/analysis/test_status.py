import os
import subprocess
import sys
import time

import pytest

from ctta_bench.errors import RunError
from ctta_bench.record.schema import OWNER_FILE
from ctta_bench.record.status import status

RATES = {"gaussian_noise": 0.4, "fog": 0.2}


def lock(folder, age, content='{"host": "node1", "pid": 1}'):
    """An owner on another host, whose last sign of life is so many seconds old."""
    file = folder / OWNER_FILE
    file.write_text(content)
    os.utime(file, (time.time() - age,) * 2)


def test_a_finished_cell_is_done(cell, runs_dir):
    folder = cell("tent", RATES, seed=2)
    row = status(runs_dir)[0]
    assert (row.experiment, row.cell, row.method) == ("trial", folder.name, "tent")
    assert (row.benchmark, row.seed, row.state, row.progress) == ("mini_c", 2, "done", "10/10")


def test_a_fresh_heartbeat_means_running(cell, runs_dir):
    lock(cell("tent", RATES, unfinished=True), age=5)
    row = status(runs_dir)[0]
    assert (row.state, row.progress, row.reason) == ("running", "5/10", "at batch 5 of 10")


def test_an_old_heartbeat_means_incomplete(cell, runs_dir):
    lock(cell("tent", RATES, unfinished=True), age=61)
    row = status(runs_dir)[0]
    assert (row.state, row.reason) == ("incomplete", "stopped after batch 5 of 10")


@pytest.mark.parametrize("content", ["", "{}", '{"heartbeat": null}', "[]"])
@pytest.mark.parametrize(("age", "state"), [(5, "running"), (61, "incomplete")])
def test_the_file_of_an_owner_counts_whatever_it_holds(cell, runs_dir, content, age, state):
    """It is empty for a moment when a run begins."""
    lock(cell("tent", RATES, unfinished=True), age, content)
    assert status(runs_dir)[0].state == state


def test_a_failed_cell_tells_its_reason(cell, runs_dir):
    (cell("tent", RATES, unfinished=True) / "failed.json").write_text('{"reason": "out of memory"}')
    row = status(runs_dir)[0]
    assert (row.state, row.reason) == ("failed", "out of memory")


def test_a_failed_cell_that_runs_again_is_running(cell, runs_dir):
    folder = cell("tent", RATES, unfinished=True)
    (folder / "failed.json").write_text('{"reason": "out of memory"}')
    lock(folder, age=1)
    assert status(runs_dir)[0].state == "running"


def test_a_cell_without_batches_has_not_started(cell, runs_dir):
    (cell("tent", RATES, unfinished=True) / "batches.jsonl").unlink()
    row = status(runs_dir)[0]
    assert (row.state, row.progress, row.reason) == ("incomplete", "0/10", "not started")


def test_a_torn_last_line_does_not_count(cell, runs_dir):
    with (cell("tent", RATES, unfinished=True) / "batches.jsonl").open("a") as file:
        file.write('{"batch": 5, "round"')
    assert status(runs_dir)[0].progress == "5/10"


def test_unreadable_and_stray_folders_are_rows_too(cell, runs_dir):
    (cell("tent", RATES) / "cell.yaml").write_text("")
    (runs_dir / "trial" / "junk").mkdir()
    found = {row.cell.split("-")[0]: (row.state, row.reason) for row in status(runs_dir)}
    assert found == {
        "tent": ("incomplete", "half-written: cell.yaml is empty or cut"),
        "junk": ("incomplete", "not a run folder: it holds no cell.yaml"),
    }


def test_a_missing_directory_is_one_sentence(tmp_path):
    with pytest.raises(RunError, match="no such folder"):
        status(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("record.status", {"pandas", "matplotlib", "torch"}),
        ("analysis.report.write", {"torch", "timm", "mmengine"}),
    ],
)
def test_what_is_not_needed_is_not_imported(module, heavy):
    code = f"import sys, ctta_bench.{module}; print({heavy} & set(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "set()"
