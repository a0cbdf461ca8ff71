"""The code and data of a number: recorded with it, and compared before it is used again."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from PIL import Image
from safetensors.torch import save_file

from ctta_bench import registry
from ctta_bench.launch import local
from ctta_bench.record.folder import RunFolder
from ctta_bench.registry import METHODS, MODELS, load_plugin, plugin_files
from ctta_bench.run.environment import commit_of
from ctta_bench.run.provenance import earlier_parts
from ctta_bench.stream.fingerprint import READ_FILES, file_fingerprint, fingerprint
from ctta_bench.stream.image_sets import ArrayImages, first_images
from tests.conftest import TOY
from tests.launches import call

pytestmark = pytest.mark.usefixtures("toy", "undrawn")
METHOD = '''
import torch

from ctta_bench.method import Method
from ctta_bench.registry import METHODS


@METHODS.register_module("{name}")
class Mine(Method):
    """Adds a constant."""

    def adapt(self, images):
        import {helper}

        with torch.no_grad():
            return self.model(images) + {helper}.RATE
'''


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.RandomState(seed).randint(0, 255, (16, 16, 3), np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder DOMAIN/CLASS/IMAGE with two domains of ten images."""
    for number in range(20):
        file = tmp_path / "data" / ("day", "night")[number // 10] / f"{number % 10}" / "a.png"
        file.parent.mkdir(parents=True)
        picture(number).save(file)
    save_file(dict(MODELS.get("toy_vit")().state_dict()), tmp_path / "toy.safetensors")
    return tmp_path / "data"


def run_folder(folder: Path, *options: str, method: str = "source") -> Result:
    place = folder.parent
    return call(
        "run", method, "image_folder", "--data-root", folder, "--out", place / "runs",
        "--model", "toy_vit", "--weights", place / "toy.safetensors", "--set", "image_size=16",
        "--device", "cpu", "--workers", "0", "--quiet", *options,
    )  # fmt: skip


def environment(runs: Path) -> dict[str, Any]:
    (file,) = runs.glob("*/env.json")
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def flat(text: str) -> str:
    return " ".join(text.split())


# -- data


def add_an_image(folder: Path) -> None:
    picture(99).save(folder / "day" / "3" / "b.png")


def rename_an_image(folder: Path) -> None:
    (folder / "day" / "3" / "a.png").rename(folder / "day" / "3" / "z.png")


def replace_an_image(folder: Path) -> None:
    file = folder / "day" / "3" / "a.png"
    content = file.read_bytes()
    file.write_bytes(content[:-40] + bytes(40))  # same name, same size


def move_an_image(folder: Path) -> None:
    file = folder / "day" / "3" / "a.png"
    file.rename(folder / "day" / "4" / "b.png")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (add_an_image, "domain day: 10 images before, 11 now"),
        (rename_an_image, "domain day: other file names than before"),
        (replace_an_image, "domain day: other images than before"),
        (move_an_image, "domain day: other labels than before"),
    ],
)
def test_a_finished_cell_of_a_folder_that_has_changed_is_refused(
    change: Callable[[Path], None], said: str, folder: Path
) -> None:
    assert run_folder(folder).exit_code == 0
    assert "already done" in flat(run_folder(folder).output)

    change(folder)
    refused = run_folder(folder)

    assert refused.exit_code == 2
    assert said in flat(refused.output)
    assert "--force" in refused.output
    assert "night" not in refused.output.replace(str(folder), "")


def test_a_changed_folder_runs_again_with_force(folder: Path) -> None:
    run_folder(folder)
    before = environment(folder.parent / "runs")["data"]
    add_an_image(folder)

    # The class check of the model is not concerned: eleven images of ten classes.
    assert run_folder(folder, "--force").exit_code == 0
    now = environment(folder.parent / "runs")["data"]
    assert [facts["domains"]["day"]["images"] for facts in (before, now)] == [10, 11]
    assert before["domains"]["night"] == now["domains"]["night"]
    assert "already done" in flat(run_folder(folder).output)


def test_records_of_earlier_releases_and_missing_data_are_accepted(folder: Path) -> None:
    run_folder(folder)
    (file,) = (folder.parent / "runs").glob("*/env.json")
    whole = json.loads(file.read_text("utf-8"))
    add_an_image(folder)
    for key in ("data", "plugin_files"):
        del whole[key]
    file.write_text(json.dumps(whole))

    assert "already done" in flat(run_folder(folder).output)


def test_a_grid_refuses_the_changed_cells_and_runs_the_others(folder: Path) -> None:
    run_folder(folder)
    file = folder.parent / "both.yaml"
    weights = folder.parent / "toy.safetensors"
    common = f"benchmark: image_folder, model: toy_vit, weights: {weights}, set: {{image_size: 16}}"
    file.write_text(f"cells: [{{method: source, {common}}}, {{method: tent, {common}}}]\n")
    grid = ("grid", file, "--data-root", folder, "--out", folder.parent / "runs", "--quiet")
    add_an_image(folder)

    found = call(*grid, "--executor", "debug", "--device", "cpu")

    assert found.exit_code == 1, found.output
    assert "1 cell run, 0 were done before, 1 failed" in flat(found.output)
    assert "10 images before, 11 now" in flat(found.output)


def test_files_of_a_large_set_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    whole = Path.open
    monkeypatch.setattr(
        Path, "open", lambda self, *a, **k: opened.append(self) or whole(self, *a, **k)
    )
    names = [f"{number:04d}" for number in range(READ_FILES + 100)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    opened.clear()

    before = file_fingerprint(tmp_path, names)

    assert len(opened) == READ_FILES
    (tmp_path / names[-1]).write_bytes(b"other")
    assert {k for k, v in file_fingerprint(tmp_path, names).items() if v != before[k]} == {
        "sizes", "contents"
    }  # fmt: skip


def test_arrays_are_told_apart_by_a_few_images_and_all_labels() -> None:
    images = np.zeros((200, 3, 4, 4), np.uint8)
    labels = np.arange(200) % 10
    before = fingerprint(ArrayImages(images, labels))

    assert fingerprint(ArrayImages(images + 1, labels)) != before
    assert fingerprint(ArrayImages(images, labels[::-1])) != before
    assert fingerprint(ArrayImages(images.copy(), labels.copy())) == before
    first = fingerprint(first_images(ArrayImages(images, labels), 5))
    assert first == fingerprint(ArrayImages(images[:5], labels[:5]))


# -- plug-ins


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> Path:
    """A plug-in with a method that imports `its_helper` next to it."""
    name = f"mine_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:6]}"
    file = tmp_path / f"{name}.py"
    file.write_text(METHOD.format(name=name, helper=f"{name}_helper"))
    (tmp_path / f"{name}_helper.py").write_text("RATE = 0.5\n")
    monkeypatch.syspath_prepend(tmp_path)  # after the files: Python caches the listing
    request.addfinalizer(lambda: forget(file))
    return file


def forget(file: Path) -> None:
    """As in a new process."""
    module = registry._plugins.pop(str(file), None)
    METHODS.forget(module.__name__ if module else "")
    sys.modules.pop(f"{file.stem}_helper", None)


def run_plugin(plugin: Path, *options: str, method: str = "") -> Result:
    forget(plugin)
    return call(
        "run", method or plugin.stem, "toy", "--plugin", TOY, "--plugin", plugin, "--device", "cpu",
        "--out", plugin.parent / "runs", "--quiet", *options,
    )  # fmt: skip


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_files_of_plugins_are_recorded(plugin: Path) -> None:
    assert run_plugin(plugin).exit_code == 0

    found = environment(plugin.parent / "runs")["plugin_files"]

    helper = plugin.with_name(f"{plugin.stem}_helper.py")
    assert found.items() >= {f.name: sha256(f) for f in (plugin, helper, TOY)}.items()


@pytest.mark.parametrize("changed", ["{}.py", "{}_helper.py"])
def test_a_finished_cell_of_a_changed_plugin_is_refused(changed: str, plugin: Path) -> None:
    run_plugin(plugin)
    assert "already done" in flat(run_plugin(plugin).output)
    file = plugin.with_name(changed.format(plugin.stem))
    before = sha256(file)[:8]
    file.write_text(file.read_text() + "\n# another line\n")

    refused = run_plugin(plugin)

    assert refused.exit_code == 2
    assert f"{file.name} has changed (SHA-256 {before} before, {sha256(file)[:8]} now)" in flat(
        refused.output
    )
    assert run_plugin(plugin, "--force").exit_code == 0
    assert "already done" in flat(run_plugin(plugin).output)


def test_cells_that_do_not_use_the_changed_plugin_are_kept(plugin: Path) -> None:
    run_plugin(plugin, method="source")
    plugin.write_text(plugin.read_text() + "\n# another line\n")

    assert "already done" in flat(run_plugin(plugin, method="source").output)


def test_a_checkpoint_of_a_changed_plugin_is_refused(plugin: Path) -> None:
    run_plugin(plugin)
    (cell,) = (plugin.parent / "runs").iterdir()
    (cell / "result.json").unlink()
    (cell / "state.pt").write_bytes(b"")
    assert run_plugin(plugin).exit_code == 0  # nothing has changed: the damaged one is skipped

    (cell / "result.json").unlink()
    (cell / "state.pt").write_bytes(b"")
    plugin.write_text(plugin.read_text() + "\n# another line\n")
    refused = run_plugin(plugin)

    assert refused.exit_code == 2
    assert "has a checkpoint, but with other code" in flat(refused.output)
    assert (cell / "state.pt").exists()


def test_what_a_checkpoint_was_made_with_is_kept_where_it_differs(tmp_path: Path) -> None:
    cell, now = RunFolder(tmp_path), {"commit": "bbb", "device": "cpu", "threads": 2}
    stored = {"commit": "aaa", "device": "cpu", "earlier": [{"commit": "000"}]}
    cell.file("env.json").write_text(json.dumps(stored))

    assert earlier_parts(cell, now) == {}
    cell.file("state.pt").touch()
    assert earlier_parts(cell, now) == {"earlier": [{"commit": "000"}, {"commit": "aaa"}]}


def test_a_failed_cell_without_a_checkpoint_runs_with_the_mended_plugin(plugin: Path) -> None:
    working = plugin.read_text()
    plugin.write_text(working.replace("RATE", "MISSING"))
    assert run_plugin(plugin).exit_code != 0

    plugin.write_text(working)

    assert run_plugin(plugin).exit_code == 0


def test_a_package_is_followed_through_its_relative_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "their_methods"
    (package / "parts").mkdir(parents=True)
    (package / "__init__.py").write_text("from . import one\n")
    (package / "one.py").write_text("import numpy\nfrom .parts.loss import loss\n")
    (package / "parts" / "__init__.py").write_text("")
    (package / "parts" / "loss.py").write_text("import their_methods.unused\nloss = 1\n")
    (package / "unused.py").write_text("")
    (package / "not_imported.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    load_plugin("their_methods")
    found = {name for name in plugin_files() if name.startswith("their_methods")}

    names = ("__init__", "one", "parts/__init__", "parts/loss", "unused")
    assert found == {f"their_methods/{name}.py" for name in names}


# -- the code of ctta-bench


def test_an_edited_checkout_is_marked_with_a_hash_of_the_difference(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        words = ("-c", "user.name=a", "-c", "user.email=a@b", *words)
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert commit_of(tmp_path) is None
    git("init", "-q")
    for name in ("ctta_bench", "methods", "datasets", "experiments", "analysis"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.py").write_text("a = 1\n")
    (tmp_path / "pyproject.toml").write_text("")
    git("add", "."), git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert commit_of(tmp_path) == commit

    (tmp_path / "notes.txt").write_text("no code\n")
    assert commit_of(tmp_path) == commit
    (tmp_path / "methods" / "code.py").write_text("a = 2\n")
    edited = commit_of(tmp_path)
    (tmp_path / "methods" / "new.py").write_text("b = 1\n")
    marks = {edited, commit_of(tmp_path)}

    assert len(marks) == 2
    assert all(len(mark or "") == len(f"{commit}+edited-12345678") for mark in marks)
    assert all((mark or "").startswith(f"{commit}+edited-") for mark in marks)


# -- a snapshot


@pytest.mark.slow
def test_the_workers_of_a_snapshot_use_copies(
    plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, helper = plugin.parent, plugin.with_name(f"{plugin.stem}_helper.py")
    preset = place / "tuned.yaml"
    preset.write_text("tent: {toy: {values: {lr: 0.5}, published: {}}}\n")
    grid = place / "mine.yaml"
    grid.write_text(
        f"methods: [{plugin.stem}, {{name: tent, preset: {preset}}}]\nbenchmarks: [toy]\n"
    )
    own_preset = place / "presets" / f"{plugin.stem}.yaml"
    own_preset.parent.mkdir()
    own_preset.write_text("default: {any: {}}\n")
    files = (plugin, helper, preset, grid, own_preset)
    before = {file.name: file.read_bytes() for file in files}
    started: list[Any] = []

    def edit_and_start(pool: Any, on_event: Any) -> None:
        for file in files:
            file.write_text("an error\n")
        started.append(pool.launch)

    monkeypatch.setattr(local.Pool, "run", edit_and_start)
    call(
        "grid", grid, "--plugin", TOY, "--plugin", plugin, "--snapshot", "--out", place / "runs",
        "--quiet", "--device", "cpu", "--jobs", "1",
    )  # fmt: skip

    (launch,) = started
    copies = {name: launch.folder / "snapshot" / name for name in launch.facts["snapshot"]}
    assert {path.name: path.read_bytes() for path in copies.values()}.items() >= before.items()
    assert [Path(p).is_relative_to(launch.folder) for p in launch.facts["plugins"]] == [True, True]
    presets = [line["request"]["preset"] for line in launch.lines(0, 2)]
    assert sorted(presets) == sorted([str(copies["presets/0/tuned.yaml"]), "default"])

    # A worker, as it is started on this machine or in a job.
    code = local.start(launch, 0, None).wait()
    events = [event for _, event in launch.events() if event.get("state") == "done"]
    assert (code, len(events)) == (0, 2), launch.log(0).read_text()
    (mine,) = (place / "runs").glob(f"{plugin.stem}-*")
    stored = json.loads((mine / "env.json").read_text("utf-8"))["plugin_files"]
    assert stored[plugin.name] == hashlib.sha256(before[plugin.name]).hexdigest()
    assert stored[helper.name] == hashlib.sha256(before[helper.name]).hexdigest()


def test_a_snapshot_is_for_workers(tmp_path: Path) -> None:
    found = call("grid", "quickstart", "--snapshot", "--executor", "debug", "--out", tmp_path)

    assert found.exit_code == 2
    assert "--snapshot is for --executor local and slurm" in found.output
