"""`ctta-bench bundle`: a small file from which every number comes again, and nothing private."""

import getpass
import json
import platform
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.report.audit import audit
from ctta_bench.analysis.report.write import tables_of_group, write_report
from ctta_bench.analysis.sharing.bundle import draft_bundle
from ctta_bench.cli import app
from ctta_bench.errors import RunError
from ctta_bench.record.archive import read_archive
from ctta_bench.record.arrays import read_all_arrays
from ctta_bench.record.bundle import Bundle, write_bundle

pytestmark = pytest.mark.usefixtures("undrawn")

STORED = Path(__file__).parent / "stored" / "first"
OF_SCORES = {"ece", "nll", "brier"}


@pytest.fixture
def runs(tmp_path):
    return Path(shutil.copytree(STORED, tmp_path / "first"))


def bundled(runs, name="runs.zip", **options):
    draft, file = draft_bundle(runs, **options), runs.parent / name
    write_bundle(file, draft.contents, draft.about)
    return file


def results(folder):
    return load(folder).results.reset_index(drop=True)


def test_a_bundle_with_scores_gives_back_every_array_and_number(runs):
    file = bundled(runs, scores=True)
    pd.testing.assert_frame_equal(results(file), results(runs))
    for folder in runs.iterdir():
        there = Path(load(file).cells.set_index("cell").loc[folder.name, "path"])
        ours, theirs = (read_all_arrays(f, "predictions.npz") for f in (folder, there))
        assert [*ours] == [*theirs]
        for name, values in ours.items():
            assert values.dtype == theirs[name].dtype
            np.testing.assert_array_equal(values, theirs[name])
        lines = [
            [json.loads(line) for line in (f / "batches.jsonl").read_text().splitlines()]
            for f in (folder, there)
        ]
        assert lines[0] == lines[1]
        assert yaml.safe_load((folder / "cell.yaml").read_text()) == yaml.safe_load(
            (there / "cell.yaml").read_text()
        )
    assert audit(file).findings == []


def test_without_scores_errors_are_the_same_and_calibration_is_missing(runs):
    file = bundled(runs)
    whole, small = results(runs), results(file)
    assert set(whole["metric"]) >= OF_SCORES
    expected = whole[~whole["metric"].isin(OF_SCORES)].reset_index(drop=True)
    pd.testing.assert_frame_equal(small, expected)
    found = audit(file)
    assert found.findings == []
    assert 0 < found.numbers < audit(runs).numbers
    assert file.stat().st_size < bundled(runs, "all.zip", scores=True).stat().st_size


def test_a_report_of_a_bundle_is_next_to_it_and_holds(runs):
    file = bundled(runs)
    report = write_report(file)
    assert report.page == runs.parent / "runs-report" / "index.html"
    assert "ctta-bench-" not in report.page.read_text("utf-8")  # the temporary folder
    whole = load(runs)
    (group,) = whole.groups()
    made = tables_of_group(group, whole, None)
    for table in (made["leaderboard"].shown[0], made["main"].shown[0]):
        (csv,) = (file for file in report.table_files if file.name == f"{table.name}.csv")
        assert csv.read_text() == table.to_csv()
    found = audit(file)
    assert found.findings == []
    assert found.report == runs.parent / "runs-report"


def test_csv_files_next_to_a_bundle_are_compared_with_its_runs(runs, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    bundled(runs).rename(folder / "runs.zip")
    all_runs = load(folder)
    (group,) = all_runs.groups()
    board = tables_of_group(group, all_runs, None)["leaderboard"].shown[0].to_csv()
    (folder / "board.csv").write_text(board)
    (folder / "tuned.csv").write_text("method,lr\ntent,1\n")
    found = audit(folder)
    assert (found.cells, found.findings, found.not_checked) == (2, [], ["tuned.csv"])
    (folder / "board.csv").write_text(board.replace("\ntent,1,", "\ntent,7,"))
    (finding,) = audit(folder).findings
    assert finding.startswith(f"{folder / 'board.csv'}: tent: rank is 7, but 1 from the runs")


def test_the_same_runs_give_the_same_bytes(runs):
    first = bundled(runs).read_bytes()
    moved = shutil.move(runs, runs.parent / "elsewhere")
    for file in Path(moved).rglob("*"):
        file.touch()
    assert bundled(Path(moved)).read_bytes() == first


@pytest.mark.parametrize("unfinished", [False, True])
def test_a_cell_of_two_experiments_is_bundled_once_and_finished(runs, unfinished):
    both = runs.parent / "both"
    for name in ("first", "second"):
        shutil.copytree(runs, both / name)
    dropped, used = "second", "first"
    if unfinished:
        dropped, used = used, dropped
        for file in both.glob(f"{dropped}/*/result.json"):
            file.unlink()
    draft = draft_bundle(both)
    assert {name.split("/")[1] for name in draft.contents.members if "cell.json" in name} == {used}
    assert len(draft.about["cells"]) == 2
    cells = sorted(folder.name for folder in runs.iterdir())
    reasons = [f"the same cell as {both / used / name}, which is used" for name in cells]
    assert draft.left_out == [(both / dropped / n, r) for n, r in zip(cells, reasons, strict=True)]
    assert audit(bundled(both)).findings == []


def test_cells_of_a_seed_share_labels_and_order(runs):
    columns = {name for name in read_archive(bundled(runs)) if name.startswith("columns/")}
    cells = Bundle.read(runs.parent / "runs.zip").cells()
    assert len(cells) == 2
    used = [
        {name: entry["column"] for name, entry in cell["arrays"].items()} for cell in cells.values()
    ]
    for name in ("index", "domain", "round", "label"):
        assert used[0][name] == used[1][name]
    assert len(columns) < 2 * len(used[0]) + 5  # with those of batches


def test_a_bundle_names_no_home_host_or_user(runs, monkeypatch):
    monkeypatch.setenv("HOME", "/home/jane-doe")
    monkeypatch.setattr(platform, "node", lambda: "lab-node-7")
    for folder in runs.iterdir():
        record = yaml.safe_load((folder / "cell.yaml").read_text())
        record["notes"] = ["read from /home/jane-doe/data/set.npz, 1/2 of it"]
        record["tuned"] = {"command": "ctta-bench tune tent --data-root /scratch/jane-doe/data"}
        (folder / "cell.yaml").write_text(yaml.safe_dump(record))
        env = json.loads((folder / "env.json").read_text())
        env |= {"host": "lab-node-7", "plugins": ["/home/jane-doe/toy.py", "../jane-doe/b.py"]}
        (folder / "env.json").write_text(json.dumps(env))
    (runs / "experiment.json").write_text(
        json.dumps({"name": "first", "title": "First", "file": "~jane-doe/first.yaml"})
    )
    members = read_archive(bundled(runs))
    text = b"\n".join([*map(str.encode, members), *members.values()])
    for private in (b"jane", b"lab-node", b"a-host", b"/home", b"/scratch", b"/tmp"):
        assert private not in text
    if len(getpass.getuser()) > 3 and getpass.getuser() != "root":
        assert getpass.getuser().encode() not in text
    assert b"set.npz, 1/2 of it" in text and b"first.yaml" in text


def test_a_path_in_a_value_of_the_identity_is_refused(runs):
    (folder,) = runs.glob("tent-*")
    record = yaml.safe_load((folder / "cell.yaml").read_text())
    from ctta_bench.record.schema import cell_id

    record["method"]["hyperparameters"]["file"] = "/home/jane/x.npz"
    record["id"] = cell_id(record)
    (folder / "cell.yaml").write_text(yaml.safe_dump(record))
    result = json.loads((folder / "result.json").read_text()) | {"cell": record["id"]}
    (folder / "result.json").write_text(json.dumps(result))
    folder.rename(folder.with_name(record["id"]))
    with pytest.raises(RunError, match="method has a path"):
        draft_bundle(runs)


def test_cells_that_do_not_hold_are_not_bundled(runs):
    (folder,) = runs.glob("tent-*")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"mean": 1.0}))
    with pytest.raises(RunError, match="does not hold, so nothing was bundled"):
        draft_bundle(runs)


def test_unfinished_cells_are_left_out_and_named(runs):
    (folder,) = runs.glob("tent-*")
    (folder / "result.json").unlink()
    draft = draft_bundle(runs)
    assert draft.left_out == [(folder, "is not finished")]
    assert len(draft.about["cells"]) == 1
    (folder / "result.json").write_text("{}")
    for other in runs.glob("source-*"):
        shutil.rmtree(other)
    (folder / "result.json").unlink()
    with pytest.raises(RunError, match="no finished cell"):
        draft_bundle(runs)


def test_the_command_shows_what_it_writes(runs):
    run, file = CliRunner().invoke, runs.parent / "runs.zip"
    arguments = ["bundle", str(runs), "-o", str(file), "--contact", "lab@example.org"]
    shown = run(app, [*arguments, "--dry-run"])
    assert shown.exit_code == 0 and not file.exists()
    done = run(app, arguments)
    assert done.exit_code == 0
    for text in ("cells: 2", "contact: lab@example.org", "licence: not given", "without scores"):
        assert text in shown.output and text in done.output
    again = run(app, arguments)
    assert again.exit_code == 2 and "--force" in again.output
    assert run(app, [*arguments, "--force", "--format", "json"]).exit_code == 0
    checked = run(app, ["audit", str(file)])
    assert checked.exit_code == 0 and checked.stdout.endswith(": all hold\n")


def test_a_changed_member_is_refused(runs):
    file = bundled(runs)
    members = read_archive(file)
    name = next(name for name in members if name.endswith("cell.json"))
    members[name] = members[name].replace(b'"seed":0', b'"seed":1')
    from ctta_bench.record.archive import write_archive

    write_archive(file, members)
    with pytest.raises(RunError, match="SHA-256 differs"):
        load(file)
