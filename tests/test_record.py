"""Files that are whole or not there, locks, and names."""

import os
from pathlib import Path

import numpy as np
import pytest

from ctta_bench.errors import RunError
from ctta_bench.record.folder import RunFolder, atomic, check_writable, write_json


def test_a_block_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    write_json(file, {"old": 1})
    before = file.read_bytes()
    with pytest.raises(ValueError, match="half"), atomic(file) as temporary:
        temporary.write_text('{"new":')
        raise ValueError("half way")
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_is_one_sentence_with_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"x\.json: cannot be written \(No space left on device\)"):
        write_json(tmp_path / "x.json", {})
    assert not list(tmp_path.iterdir())


def test_a_writable_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_equal_predictions_make_equal_bytes_without_pickles(tmp_path: Path) -> None:
    arrays = {"prediction": np.arange(5, dtype=np.int32), "label": np.zeros(5, np.int32)}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        RunFolder(tmp_path / name).write_arrays("predictions.npz", arrays)
    first, second = (tmp_path / n / "predictions.npz" for n in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    with np.load(first, allow_pickle=False) as loaded:
        np.testing.assert_array_equal(loaded["prediction"], arrays["prediction"])


def test_a_lock_is_released_and_can_be_taken_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for _ in range(2):
        with folder.locked():
            assert folder.file("cell.lock.json").exists()
    assert [f.name for f in tmp_path.iterdir()] == [".lock"]


def test_a_damaged_result_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"mean": 1')
    with pytest.raises(RunError, match=r"result\.json: is damaged"):
        RunFolder(tmp_path).result()
