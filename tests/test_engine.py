"""One cell: what the method sees, its files, and bit-identical resume."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from ctta_bench.config.cell import Cell, CellRequest, resolve
from ctta_bench.errors import DataError, RunError
from ctta_bench.method import Method
from ctta_bench.record.folder import RunFolder
from ctta_bench.registry import METHODS
from ctta_bench.run.checkpoint import resume
from ctta_bench.run.engine import run_cell
from ctta_bench.run.loggers import Logger
from ctta_bench.run.options import RunOptions
from tests.conftest import TOY
from tests.launches import recorded
from tests.methods import NETWORKS

pytestmark = pytest.mark.usefixtures("toy")
BATCHES = 15  # three domains of 40 images in batches of 8
CLASSIFYING = [n for n in METHODS.names() if "classification" in METHODS.get(n).tasks]


def cell(method: str = "tent", **values: Any) -> Cell:
    network = NETWORKS.get(method, "toy_vit")
    few = {"style_batch_size": 16} if method == "reservoir" else {}  # of the toy's 40 images
    values = {"model": network, "set": {"labeller": network} | few} | values
    return resolve(CellRequest(method=method, benchmark="toy", **values))


class StopAfter(Logger):
    """Sends this process a Ctrl-C while batch number `batch` is being logged."""

    number = signal.SIGINT

    def __init__(self, batch: int) -> None:
        self.at = batch

    def batch(self, record: dict[str, Any]) -> None:
        if record["batch"] == self.at:
            os.kill(os.getpid(), self.number)


def test_a_run_leaves_its_documented_files_and_nothing_else(tmp_path: Path) -> None:
    run_cell(cell(), RunFolder(tmp_path))
    names = {f.name for f in tmp_path.iterdir()} - {".lock"}
    expected = {"cell.yaml", "batches.jsonl", "predictions.npz", "result.json", "env.json"}
    assert names == expected | {"log.txt"}


def test_the_error_in_the_result_is_that_of_the_predictions(tmp_path: Path) -> None:
    result = run_cell(cell(), RunFolder(tmp_path))
    with np.load(tmp_path / "predictions.npz", allow_pickle=False) as arrays:
        wrong = arrays["prediction"] != arrays["label"]
        errors = [100 * wrong[arrays["domain"] == d].mean() for d in range(3)]
    assert [d["error"] for d in result["rounds"][0]["domains"]] == pytest.approx(errors)
    assert result["mean"] == pytest.approx(np.mean(errors))


def test_versions_kernel_and_threads_are_recorded_with_the_result(tmp_path: Path) -> None:
    run_cell(cell(), RunFolder(tmp_path))
    env = json.loads((tmp_path / "env.json").read_text())
    assert env["torch"] == torch.__version__
    assert env["attention"] in ("fused", "plain")
    assert {"timm", "torchvision", "numpy", "python", "threads", "device"} <= set(env)


class Spy(Method):
    """Keeps everything that it is handed."""

    source_access = "unlabelled"
    handed: list[Any] = []

    def prepare(self, source: Any) -> None:
        self.handed.append(source)
        self.handed.extend(source.batches())

    def adapt(self, images: Tensor) -> Tensor:
        self.handed.append(images)
        with torch.no_grad():
            return self.model(images)


def test_labels_and_domain_names_cannot_reach_a_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(METHODS, "get", lambda name: Spy)
    Spy.handed.clear()
    run_cell(cell("source"), RunFolder(tmp_path))
    source, *tensors = Spy.handed
    # Images alone: floats of four axes, and no attribute leads from the source set to a label.
    assert all(t.ndim == 4 and t.is_floating_point() for t in tensors)
    with pytest.raises(DataError, match="gets no labels"):
        next(source.labelled_batches())


def test_a_method_without_source_access_gets_no_source_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    tent = METHODS.get("tent")
    monkeypatch.setattr(tent, "prepare", lambda self, source: seen.append(source))
    run_cell(cell("tent"), RunFolder(tmp_path))
    assert seen == [None]


def fates(method: str) -> tuple[int, int]:
    """Two batches at random, the same in every session: where to be killed, and interrupted."""
    first, second = sorted(random.Random(method).sample(range(BATCHES - 1), 2))
    return first, second


class KillAfter(StopAfter):
    """Kills this process."""

    number = signal.SIGKILL


KILLED = {"tent", "rotta"}  # by default; test_method.py resumes all methods


@pytest.fixture(scope="module")
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each method, each by a process that was killed: folders by the methods' names."""
    folder = tmp_path_factory.mktemp("killed")
    mine = [item for item in request.session.items if "killed" in getattr(item, "fixturenames", ())]
    methods = [item.callspec.params["method"] for item in mine]  # type: ignore[attr-defined]
    program = (
        "import os, sys, torch; torch.set_num_threads(1)\n"
        "from ctta_bench.registry import load_plugin; load_plugin(sys.argv[1])\n"
        "from tests.test_engine import *\n"
        "for method in sys.argv[3:]:\n"
        "    if os.fork():\n"
        "        assert os.wait()[1] == signal.SIGKILL, method\n"
        "        continue\n"
        "    folder = RunFolder(Path(sys.argv[2], method))\n"
        "    at = KillAfter(fates(method)[0])\n"
        "    try:\n"
        "        run_cell(cell(method), folder, RunOptions(loggers=[at], checkpoint='2'))\n"
        "    finally:\n"
        "        os._exit(1)\n"
    )
    call = [sys.executable, "-c", program, str(TOY), str(folder), *methods]
    subprocess.run(call, cwd=TOY.parent.parent, check=True)
    return folder


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=() if m in KILLED else pytest.mark.slow) for m in CLASSIFYING],
)
def test_a_run_that_is_killed_then_interrupted_at_random_batches_is_bit_identical(
    method: str, killed: Path
) -> None:
    chosen, cut, whole = cell(method), killed / method, killed / f"{method}-whole"
    run_cell(chosen, RunFolder(whole))
    with pytest.raises(KeyboardInterrupt):
        run_cell(chosen, RunFolder(cut), RunOptions(loggers=[StopAfter(fates(method)[1])]))
    assert (cut / "state.pt").exists()
    assert not (cut / "result.json").exists()
    run_cell(chosen, RunFolder(cut))
    assert [a["outcome"] for a in RunFolder(cut).attempts()] == ["lost", "interrupted"]
    assert recorded(cut) == recorded(whole)


def interrupted(folder: Path, batch: int, checkpoint: str = "20s") -> None:
    options = RunOptions(loggers=[StopAfter(batch)], checkpoint=checkpoint)
    with pytest.raises(KeyboardInterrupt):
        run_cell(cell(), RunFolder(folder), options)


def test_an_interrupt_within_the_last_batch_passes_after_the_result(tmp_path: Path) -> None:
    interrupted(tmp_path, 14)  # of batches 0 to 14: a grid must not begin another cell
    folder = RunFolder(tmp_path)
    assert folder.is_done and not folder.file("state.pt").exists()
    assert "interrupted" not in [attempt["outcome"] for attempt in folder.attempts()]
    assert run_cell(cell(), folder) == folder.result()


def truncate(file: Path, share: float = 0.5) -> None:
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])


@pytest.mark.parametrize("name", ["state.pt", "batches.jsonl"])
def test_a_truncated_file_falls_back_and_the_run_is_bit_identical(
    name: str, tmp_path: Path
) -> None:
    run_cell(cell(), RunFolder(tmp_path / "whole"))
    interrupted(tmp_path / "cut", 8, checkpoint="2")
    truncate(tmp_path / "cut" / name)
    run_cell(cell(), RunFolder(tmp_path / "cut"))
    assert recorded(tmp_path / "cut") == recorded(tmp_path / "whole")


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_is_logged(tmp_path: Path) -> None:
    interrupted(tmp_path, 8, checkpoint="3")  # checkpoints at 3, 6 and, stopping, 9 batches
    truncate(tmp_path / "state.pt")
    run_cell(cell(), RunFolder(tmp_path))
    log = (tmp_path / "log.txt").read_text()
    assert "damaged checkpoint skipped" in log
    assert "resumed after 6 of 15 batches" in log


def test_with_both_checkpoints_damaged_the_stream_restarts_and_this_is_logged(
    tmp_path: Path,
) -> None:
    interrupted(tmp_path / "cut", 8, checkpoint="3")
    truncate(tmp_path / "cut" / "state.pt")
    (tmp_path / "cut" / "state.previous.pt").write_bytes(b"nonsense")
    run_cell(cell(), RunFolder(tmp_path / "whole"))
    run_cell(cell(), RunFolder(tmp_path / "cut"))
    assert "the stream starts from the beginning" in (tmp_path / "cut" / "log.txt").read_text()
    assert recorded(tmp_path / "cut") == recorded(tmp_path / "whole")


def test_a_finished_cell_is_kept_and_not_touched(tmp_path: Path) -> None:
    first = run_cell(cell(), RunFolder(tmp_path))
    before = {f: f.stat().st_mtime_ns for f in tmp_path.iterdir()}
    again = run_cell(cell(), RunFolder(tmp_path))
    assert again == first
    assert {f: f.stat().st_mtime_ns for f in tmp_path.iterdir()} == before


def test_force_runs_a_finished_cell_again(tmp_path: Path) -> None:
    run_cell(cell(), RunFolder(tmp_path))
    before = (tmp_path / "result.json").stat().st_mtime_ns
    run_cell(cell(), RunFolder(tmp_path), RunOptions(force=True))
    assert (tmp_path / "result.json").stat().st_mtime_ns > before


def test_a_folder_of_another_configuration_is_refused(tmp_path: Path) -> None:
    run_cell(cell("tent"), RunFolder(tmp_path))
    with pytest.raises(RunError, match="another configuration"):
        run_cell(cell("sar"), RunFolder(tmp_path))


@pytest.mark.parametrize("name", ["cell.yaml", "result.json"])
def test_a_folder_of_a_newer_schema_is_refused(name: str, tmp_path: Path) -> None:
    run_cell(cell(), RunFolder(tmp_path))
    content = yaml.safe_load((tmp_path / name).read_text()) | {"schema_version": 99}
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(RunError, match="newer version"):
        run_cell(cell(), RunFolder(tmp_path))


def test_two_processes_never_write_one_cell(tmp_path: Path) -> None:
    with RunFolder(tmp_path).locked(), pytest.raises(RunError, match="is running this cell"):
        run_cell(cell(), RunFolder(tmp_path))


def test_a_model_near_chance_is_refused_before_it_is_adapted(tmp_path: Path) -> None:
    # The pictures are labelled by the ViT: the CNN cannot know them.
    with pytest.raises(DataError, match="near chance"):
        run_cell(cell("source", model="toy_cnn"), RunFolder(tmp_path))
    assert "near chance" in json.loads((tmp_path / "failed.json").read_text())["reason"]


def test_reset_setting_starts_every_domain_at_the_source(tmp_path: Path) -> None:
    values = {"lr": 0.05, "setting": "reset"}
    result = run_cell(cell(set=values), RunFolder(tmp_path / "all"))
    for name in ("dark", "noise"):
        alone = run_cell(cell(set=values | {"domains": [name]}), RunFolder(tmp_path / name))
        together = {d["domain"]: d["nll"] for d in result["rounds"][0]["domains"]}
        # The order inside a domain differs by its position; source-started, the level does not.
        assert alone["rounds"][0]["domains"][0]["nll"] == pytest.approx(together[name], rel=0.2)
    assert result["counters"]["resets"] == 2


def test_rounds_are_listed_one_by_one(tmp_path: Path) -> None:
    result = run_cell(cell(set={"rounds": 3}), RunFolder(tmp_path))
    assert [entry["round"] for entry in result["rounds"]] == [0, 1, 2]
    assert result["mean"] == pytest.approx(np.mean([e["mean"] for e in result["rounds"]]))


def test_source_has_the_same_error_at_every_batch_size(tmp_path: Path) -> None:
    errors = [
        run_cell(cell("source", set={"batch_size": n}), RunFolder(tmp_path / str(n)))["mean"]
        for n in (40, 7, 1)
    ]
    assert errors[0] == errors[1] == errors[2]


def test_a_slow_logger_or_none_changes_no_result(tmp_path: Path) -> None:
    class Noisy(Logger):
        def batch(self, record: dict[str, Any]) -> None:
            torch.rand(3)
            time.sleep(0.001)

    run_cell(cell("paid"), RunFolder(tmp_path / "a"), RunOptions(loggers=[Noisy()]))
    run_cell(cell("paid"), RunFolder(tmp_path / "b"))
    assert recorded(tmp_path / "a") == recorded(tmp_path / "b")


def test_a_method_built_another_way_cannot_take_the_state(tmp_path: Path) -> None:
    from ctta_bench.errors import MethodError
    from ctta_bench.run.open import open_cell

    interrupted(tmp_path, 4)
    other = cell("paid", set={"rank": 4})
    opened = open_cell(other)
    with pytest.raises(MethodError):
        resume(RunFolder(tmp_path), opened.method(), opened.stream())


def test_tensorboard_is_written_in_addition_to_the_lines(tmp_path: Path) -> None:
    from ctta_bench.run.loggers import make_loggers

    run_cell(cell(), RunFolder(tmp_path), RunOptions(loggers=make_loggers(("tensorboard",))))
    assert list((tmp_path / "tensorboard").glob("events*"))
