"""Files that are whole or not there, locks, and names."""

import ast
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from ctta_bench.errors import RunError
from ctta_bench.record import schema
from ctta_bench.record.folder import RunFolder, atomic, check_writable, write_json
from ctta_bench.record.schema import ADDED, NAMES, WARM_UP, identity, warmup_facts


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


RECORD = {
    "schema_version": 1,
    "id": "tent-toy-toy_vit-seed0-00000000",
    "experiment": "first",
    "method": {"name": "tent", "preset": "default", "hyperparameters": {"lr": 0.1}, "window": 0},
    "benchmark": {"name": "toy", "version": 1, "domains": ["clean"]},
    "model": {"name": "toy_vit", "sha256": "0" * 64},
    "precision": "float32",
    "seed": 0,
}


@pytest.mark.parametrize("key", [*NAMES, *ADDED])
def test_names_and_what_a_run_adds_are_no_part_of_the_identity(key: str) -> None:
    assert identity(RECORD | {key: "another"}) == identity(RECORD)


def test_every_other_key_is_part_of_the_identity() -> None:
    others = [key for key in RECORD if key not in (*NAMES, "method")]
    assert len({identity(RECORD | {key: {"name": 9}}) for key in others}) == len(others)
    assert identity(RECORD | {"adapt": False}) != identity(RECORD)


def test_of_a_method_its_preset_alone_is_no_part_of_the_identity() -> None:
    def changed(**values: object) -> str:
        return identity(RECORD | {"method": RECORD["method"] | values})  # type: ignore[operator]

    assert changed(preset="another") == identity(RECORD)
    assert len({changed(), changed(window=4), changed(hyperparameters={}), changed(name="x")}) == 4


def test_identity_and_start_are_those_of_version_0_1_0() -> None:
    assert identity(RECORD).startswith("c6cb509e94f5bc086922e647b1756f81")
    record = RECORD | {"kind": WARM_UP, "method": {"name": "vida", "hyperparameters": {"rank": 4}}}
    assert warmup_facts(record) == json.dumps(
        {key: record[key] for key in record if key not in ("id", "experiment", "schema_version")},
        sort_keys=True,
    )


def test_a_cell_of_another_experiment_is_the_same_cell(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.plan(RECORD)
    folder.check_configuration(RECORD | {"experiment": "second"})
    with pytest.raises(RunError, match=r"another configuration \(seed differs\)"):
        folder.check_configuration(RECORD | {"seed": 1})


NAMES_OF_FILES = {value for name, value in vars(schema).items() if name.endswith("_FILE")}
# A `.lock` may be that of a folder of images, too.
NAME = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, NAMES_OF_FILES - {'.lock'}))})(?!\w)")
ROOT = Path(__file__).parents[1]


def spelled(source: str) -> set[str]:
    """The names of files that the strings of a source hold, docstrings apart."""
    if not NAME.search(source):
        return set()
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        str(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and id(node) not in docstrings
    ]
    return {found for text in texts for found in NAME.findall(text)}


def test_no_other_module_spells_the_name_of_a_file() -> None:
    folders = ("ctta_bench", "analysis", "methods", "datasets", "experiments", "scripts")
    files = {file.resolve() for folder in folders for file in (ROOT / folder).rglob("*.py")}
    names = {str(file.relative_to(ROOT)): spelled(file.read_text("utf-8")) for file in files}
    spellers = {name for name, found in names.items() if found}
    assert spellers == {"ctta_bench/record/schema.py"}
    assert names["ctta_bench/record/schema.py"] == NAMES_OF_FILES - {".lock"}


def test_the_names_of_files_are_those_of_version_0_1_0() -> None:
    """Folders of the last release are still read."""
    assert {
        *("cell.yaml", "batches.jsonl", "predictions.npz", "pictures.npz", "result.json"),
        *("env.json", "state.pt", "state.previous.pt", "warmup.safetensors", "failed.json"),
        *("attempts.json", "log.txt", ".lock", "cell.lock.json", "index.html", "results.csv"),
        "experiment.json",  # newer, of the folder of a grid
    } == NAMES_OF_FILES
    assert (schema.SCHEMA_VERSION, schema.MODELS_FOLDER) == (1, "models")
