"""`ctta-bench audit`: whatever was changed by hand in runs or their report is found."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from ctta_bench.analysis.report.audit import audit
from ctta_bench.analysis.report.write import write_report
from ctta_bench.cli import app
from ctta_bench.config.cell import resolve
from ctta_bench.config.request import CellRequest
from ctta_bench.errors import RunError
from ctta_bench.record.folder import RunFolder
from ctta_bench.run.engine import run_cell

pytestmark = pytest.mark.usefixtures("undrawn")

STORED = Path(__file__).parent / "stored" / "first"  # finished cells, as the engine left them


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Cells with their report; copied for each test."""
    root = tmp_path_factory.mktemp("clean") / "first"
    shutil.copytree(STORED, root)
    write_report(root)
    return root


@pytest.fixture
def runs(clean, tmp_path):
    return Path(shutil.copytree(clean, tmp_path / "first"))


def folder_of(runs, method):
    (folder,) = runs.glob(f"{method}-*")
    return folder


def forge(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def forge_arrays(folder, change):
    with np.load(folder / "predictions.npz") as stored:
        arrays = dict(stored)
    change(arrays)
    np.savez_compressed(folder / "predictions.npz", **arrays)


def findings(runs):
    return audit(runs).findings


def test_what_the_engine_and_the_report_wrote_all_holds(runs):
    found = audit(runs)
    assert found.findings == []
    assert (found.cells, found.report, found.not_checked) == (2, runs / "report", [])
    assert found.numbers > 100


@pytest.mark.parametrize("release", ["finished", "whole"])
def test_cells_of_an_earlier_release_hold(release, tmp_path):
    stored = Path(__file__).parents[1] / "stored" / "0.1.0" / release
    assert findings(shutil.copytree(stored, tmp_path / "runs")) == []


def test_a_forged_prediction_is_found(runs):
    folder = folder_of(runs, "tent")

    def change(arrays):
        wrong = np.flatnonzero(arrays["prediction"] != arrays["label"])[0]
        arrays["prediction"][wrong] = arrays["label"][wrong]

    forge_arrays(folder, change)
    assert any(text.startswith(f"{folder}: contradictory: ") for text in findings(runs))


def test_another_wrong_class_which_changes_no_error_is_found_too(toy, tmp_path):
    cell = resolve(CellRequest(method="source", benchmark="toy"))
    folder = tmp_path / cell.id
    run_cell(cell, RunFolder(folder))
    assert findings(tmp_path) == []

    def change(arrays):
        wrong = np.flatnonzero(arrays["prediction"] != arrays["label"])[0]
        other = {*range(10)} - {int(arrays["prediction"][wrong]), int(arrays["label"][wrong])}
        arrays["prediction"][wrong] = min(other)

    forge_arrays(folder, change)
    assert any(
        "is not the file that result.json was made from" in text for text in findings(tmp_path)
    )


@pytest.mark.parametrize("name", ["confidence", "nll", "brier"])
def test_a_forged_score_of_an_image_is_found(runs, name):
    folder = folder_of(runs, "tent")
    forge_arrays(folder, lambda arrays: arrays[name].__setitem__(0, 0.123))
    measure = {"confidence": "ece"}.get(name, name)
    assert any(f"result.json: round 0, clean: {measure} is " in text for text in findings(runs))


def test_a_forged_mean_is_found_even_if_it_is_close(runs):
    folder = folder_of(runs, "tent")
    forge(folder / "result.json", lambda r: r.update(mean=r["mean"] - 0.03))
    (finding,) = findings(runs)
    assert finding.startswith(f"{folder}: result.json: the mean is ")
    assert finding.endswith(" from predictions.npz.")


def test_a_forged_error_of_a_domain_is_found(runs):
    folder = folder_of(runs, "tent")
    forge(folder / "result.json", lambda r: r["rounds"][0]["domains"][0].update(error=55.5))
    assert any("result.json" in text for text in findings(runs))


def test_a_forged_number_of_results_csv_is_found(runs):
    file = runs / "report" / "results.csv"
    head, first, *others = file.read_text().splitlines(keepends=True)
    assert head.endswith(",value\n")
    file.write_text("".join([head, first.rpartition(",")[0], ",1.5\n", *others]))
    (finding,) = findings(runs)
    assert finding.startswith(f"{file}: source-toy")
    assert ": value is 1.5, but " in finding


def test_a_forged_number_of_a_table_is_found(runs):
    (file,) = (runs / "report" / "tables").glob("*-significance.csv")
    file.write_text(file.read_text().replace("tent,", "tent,9"))
    (finding,) = findings(runs)
    assert finding.startswith(f"{file}: tent: difference is 9")


def test_a_forged_bold_or_footnote_is_found(runs):
    shutil.rmtree(runs / "report")
    (folder_of(runs, "tent") / "result.json").unlink()
    report = write_report(runs)
    assert findings(runs) == []
    (file,) = (f for f in report.table_files if f.name == f"{report.tables[0].name}.md")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if "Missing cells" not in line))
    (finding,) = findings(runs)
    assert finding.startswith(f'{file}: lacks the line "- – Missing cells: TENT, seed 0 (')


def test_a_forged_name_of_a_cell_is_found(runs):
    folder = folder_of(runs, "tent")
    name = folder.name[:-8] + "00000000"
    record = yaml.safe_load((folder / "cell.yaml").read_text()) | {"id": name}
    (folder / "cell.yaml").write_text(yaml.safe_dump(record))
    forge(folder / "result.json", lambda r: r.update(cell=name))
    renamed = folder.rename(folder.with_name(name))
    text = f"{renamed}: cell.yaml has values of the cell {folder.name}, not of {name}: "
    assert any(finding.startswith(text) for finding in findings(runs))


def test_a_forged_hyperparameter_is_found(runs):
    folder = folder_of(runs, "tent")
    record = yaml.safe_load((folder / "cell.yaml").read_text())
    record["method"]["hyperparameters"]["lr"] = 0.5
    (folder / "cell.yaml").write_text(yaml.safe_dump(record))
    assert any("a value or the name was changed" in finding for finding in findings(runs))


def test_a_forged_hash_of_the_order_is_found(runs):
    folder = folder_of(runs, "tent")
    forge(folder / "result.json", lambda r: r.update(order_sha256="0" * 64))
    texts = " ".join(findings(runs))
    assert "order_sha256 is 00000000..., but" in texts
    assert "saw the images in another order than source-toy" in texts


def test_images_in_another_order_are_found(runs):
    def swap(arrays):
        for values in arrays.values():
            values[[0, 1]] = values[[1, 0]]

    forge_arrays(folder_of(runs, "tent"), swap)
    assert any("the images came in another order" in text for text in findings(runs))


def test_a_forged_line_of_a_batch_is_found(runs):
    folder = folder_of(runs, "tent")
    first, *others = (folder / "batches.jsonl").read_text().splitlines(keepends=True)
    line = json.loads(first)
    line["errors"] += 1
    (folder / "batches.jsonl").write_text(json.dumps(line) + "\n" + "".join(others))
    assert any("batches.jsonl: batch 0 has" in text for text in findings(runs))


def test_other_weights_are_found(runs):
    forge(folder_of(runs, "tent") / "result.json", lambda r: r.update(model_sha256="0" * 64))
    assert any("have different weights (model_sha256)" in text for text in findings(runs))


def test_a_report_older_than_its_runs_is_found(runs):
    tent = folder_of(runs, "tent")
    kept = tent.rename(runs.parent / tent.name)
    shutil.rmtree(runs / "report")
    write_report(runs)
    shutil.move(kept, tent)
    texts = findings(runs)
    assert any(
        text.startswith(f"{runs / 'report' / 'results.csv'}: has no row {tent.name}")
        and "the report is older than its runs" in text
        for text in texts
    )
    assert len(texts) < 30


def test_a_row_and_a_table_that_no_run_gives_are_found(runs):
    tables = runs / "report" / "tables"
    shutil.copy(next(tables.glob("*-cost.csv")), tables / "mine.csv")
    shutil.copy(tables / "mine.csv", tables / "geometry-toy_vit-00000000.csv")
    shutil.rmtree(folder_of(runs, "tent"))
    assert audit(runs).not_checked == ["tables/geometry-toy_vit-00000000.csv"]
    texts = " ".join(findings(runs))
    assert "mine.csv: no run gives this table" in texts
    assert "which the runs do not have" in texts


def test_the_command_lists_findings_and_exits_with_1(runs):
    run = CliRunner().invoke
    whole = run(app, ["audit", str(runs)])
    assert whole.exit_code == 0
    assert whole.stdout.startswith("2 run folders, ") and whole.stdout.endswith(": all hold\n")
    forge(folder_of(runs, "tent") / "result.json", lambda r: r.update(mean=r["mean"] - 0.03))
    forged = run(app, ["audit", str(runs)])
    assert forged.exit_code == 1
    assert forged.stdout.endswith(": 1 do not hold\n")
    as_json = run(app, ["audit", str(runs), "--format", "json"])
    assert as_json.exit_code == 1
    assert len(json.loads(as_json.stdout)["findings"]) == 1


def test_without_a_report_the_cells_are_checked_and_a_note_says_so(runs):
    shutil.rmtree(runs / "report")
    result = CliRunner().invoke(app, ["audit", str(runs)])
    assert result.exit_code == 0
    assert "there is no report, so only cells were checked" in result.output


def test_a_folder_without_cells_or_report_is_one_sentence(runs, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="no cell to check"):
        audit(tmp_path / "empty")
    with pytest.raises(RunError, match="is no report"):
        audit(runs, tmp_path / "empty")
