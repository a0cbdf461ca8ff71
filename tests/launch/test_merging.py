"""Folders of runs into one: what is new, what is finished there, and what contradicts."""

import json
import shutil
from pathlib import Path

import pytest

from ctta_bench.errors import RunError
from ctta_bench.record.merging import compare, merge_into
from ctta_bench.record.owner import this_process
from ctta_bench.record.schema import OWNER_FILE
from tests.launch.conftest import RESULT, Make
from tests.launches import call


def two(tmp_path: Path, make: Make) -> tuple[Path, Path]:
    """Two folders of the same experiment: `ours` has a and b, `theirs` b and c."""
    for name in ("a", "b", "c"):
        make(f"tent-{name}", 10, result__json=RESULT | {"cell": name})
    shutil.copytree(tmp_path / "trial", tmp_path / "theirs" / "trial")
    shutil.copytree(tmp_path / "trial", tmp_path / "ours" / "trial")
    shutil.rmtree(tmp_path / "ours" / "trial" / "tent-c")
    shutil.rmtree(tmp_path / "theirs" / "trial" / "tent-a")
    return tmp_path / "ours", tmp_path / "theirs"


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_cells_that_are_missing_are_copied_whole(tmp_path: Path, make: Make) -> None:
    ours, theirs = two(tmp_path, make)
    (theirs / "trial/tent-c/models").mkdir()
    (theirs / "trial/tent-c/models/last.bin").write_bytes(b"weights")
    merged = merge_into(ours, theirs)
    assert [str(cell) for cell in merged.new] == ["trial/tent-c"]
    assert [str(cell) for cell in merged.same] == ["trial/tent-b"]
    assert (ours / "trial/tent-c/models/last.bin").read_bytes() == b"weights"
    assert sorted(f.name for f in (ours / "trial").iterdir()) == ["tent-a", "tent-b", "tent-c"]


def test_merging_again_changes_nothing(tmp_path: Path, make: Make) -> None:
    ours, theirs = two(tmp_path, make)
    merge_into(ours, theirs)
    assert len(merge_into(ours, theirs).same) == 2


def test_a_cell_that_is_finished_there_replaces_an_unfinished_one(
    tmp_path: Path, make: Make
) -> None:
    ours, theirs = two(tmp_path, make)
    (ours / "trial/tent-b/result.json").unlink()
    assert [str(cell) for cell in merge_into(ours, theirs).finished] == ["trial/tent-b"]
    assert (ours / "trial/tent-b/result.json").is_file()


def test_times_may_differ_numbers_may_not(tmp_path: Path, make: Make) -> None:
    ours, theirs = two(tmp_path, make)
    file = theirs / "trial/tent-b/result.json"
    change(file, cost=RESULT["cost"] | {"seconds": 1.0})  # type: ignore[operator]
    assert not compare(ours, theirs).conflicts
    change(file, mean=12.6)
    with pytest.raises(RunError, match="tent-b: is done in both folders, with different results"):
        merge_into(ours, theirs)
    assert not (ours / "trial/tent-c").exists()


def test_all_conflicts_come_in_one_message(tmp_path: Path, make: Make) -> None:
    ours, theirs = two(tmp_path, make)
    text = (theirs / "trial/tent-b/cell.yaml").read_text()
    (theirs / "trial/tent-b/cell.yaml").write_text(text.replace("0.001", "0.002"))
    (theirs / "trial/tent-c" / OWNER_FILE).write_text(json.dumps(this_process()))
    with pytest.raises(
        RunError, match=r"tent-b: has another configuration[\s\S]*tent-c: is running"
    ):
        merge_into(ours, theirs)


@pytest.mark.parametrize("text", ["", "a: [", "!!python/object/apply:os.system ['touch hacked']"])
def test_a_damaged_or_hostile_cell_is_named_and_nothing_of_it_is_executed(
    tmp_path: Path, make: Make, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ours, theirs = two(tmp_path, make)
    (theirs / "trial/tent-c/cell.yaml").write_text(text)
    with pytest.raises(RunError, match="tent-c: cannot be read"):
        merge_into(ours, theirs)
    assert not (tmp_path / "hacked").exists()


def test_links_are_not_followed(tmp_path: Path, make: Make) -> None:
    ours, theirs = two(tmp_path, make)
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (theirs / "trial/tent-c/log.txt").symlink_to(secret)
    merge_into(ours, theirs)
    assert not (ours / "trial/tent-c/log.txt").exists()


def test_the_command_reports_what_it_did_and_refuses_with_code_2(
    tmp_path: Path, make: Make
) -> None:
    ours, theirs = two(tmp_path, make)
    assert "would merge: 1 new" in call("merge", ours, theirs, "--dry-run").stdout
    assert (
        f"merged: 1 new, 0 finished in {theirs}, 1 the same" in call("merge", ours, theirs).stdout
    )
    change(theirs / "trial/tent-b/result.json", mean=1.0)
    refused = call("merge", ours, theirs)
    assert (refused.exit_code, "nothing was copied" in refused.stderr) == (2, True)
    assert call("merge", ours, ours).exit_code == 2
    assert call("merge", ours, tmp_path / "nowhere").exit_code == 2
