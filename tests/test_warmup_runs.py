"""Warm-ups in folders of their own: made when missing, shared, resumed, refused if not theirs."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.table.notes import footnotes
from ctta_bench.analysis.table.rows import rows
from ctta_bench.config.cell import Cell, CellRequest, resolve
from ctta_bench.config.experiment import Experiment, expand
from ctta_bench.errors import DataError, RunError
from ctta_bench.launch.running import run_grid
from ctta_bench.launch.steps import schedule
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.status import status
from ctta_bench.registry import METHODS
from ctta_bench.run.engine import run_cell
from ctta_bench.run.loggers import Logger
from ctta_bench.run.options import RunOptions
from ctta_bench.run.warmups import read_learnt, run_warmup

pytestmark = pytest.mark.usefixtures("toy")
# Two updates an epoch; few layers, so that each is quick.
RECIPE = {"warmup_epochs": 3, "warmup_batch_size": 20, "warmup_lr": 0.01, "layers": "v"}
LORA = RECIPE | {"source_samples": 20, "benchmark.domains": ["noise"]}
UPDATES = 6


def cell(method: str = "lora", **values: Any) -> Cell:
    values = {"set": LORA} | values
    return resolve(CellRequest(method=method, benchmark="toy", **values))


def with_(**changes: Any) -> dict[str, Any]:
    return {"set": LORA | changes}


def run(chosen: Cell, directory: Path, **options: Any) -> dict[str, Any]:
    return run_cell(chosen, RunFolder(directory / chosen.id), RunOptions(**options))


def predictions(directory: Path, chosen: Cell) -> dict[str, Any]:
    with np.load(directory / chosen.id / "predictions.npz", allow_pickle=False) as arrays:
        return {name: arrays[name].tolist() for name in arrays}


class StopAt(Logger):
    """Sends this process a Ctrl-C after so many updates of a warm-up."""

    def __init__(self, updates: int) -> None:
        self.updates = updates

    def preparing(self, what: str, done: int, total: int) -> None:
        if what.startswith("warming up") and done == self.updates:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one cell and its warm-up, both done."""
    from ctta_bench.registry import load_plugin
    from tests.conftest import TOY

    load_plugin(str(TOY))
    directory = tmp_path_factory.mktemp("runs")
    run(cell(), directory)
    return directory


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to damage."""
    return Path(shutil.copytree(finished, tmp_path / "runs"))


def warmup_folder(directory: Path) -> Path:
    (found,) = directory.glob("warmup-*")
    return found


# -- one cell


def test_a_run_makes_its_missing_warm_up_in_a_folder_next_to_it(finished: Path) -> None:
    folder = warmup_folder(finished)
    names = {file.name for file in folder.iterdir()} - {".lock"}
    expected = {"cell.yaml", "batches.jsonl", "env.json", "log.txt", "result.json"}
    assert names == expected | {"warmup.safetensors"}
    assert folder.name == cell().warmup["id"] == cell().record["warmup"]
    assert folder.name.startswith("warmup-lora-toy-seed0-")
    assert yaml.safe_load((folder / "cell.yaml").read_text())["kind"] == "warm-up"


def test_its_result_sums_the_training_up(finished: Path) -> None:
    result = json.loads((warmup_folder(finished) / "result.json").read_text())
    lines = (warmup_folder(finished) / "batches.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert result["updates"] == len(losses) == UPDATES
    assert result["loss_by_epoch"] == pytest.approx(np.reshape(losses, (3, 2)).mean(1).tolist())
    assert result["source_images"] == 40
    assert result["source_accuracy"]["before"] == 100  # the toy's labels are the model's own
    assert result["trained_parameters"] == 4 * 6 * (24 + 24)  # blocks, rank, sides of v


def test_the_cell_is_that_of_a_warm_up_in_its_own_process_to_the_bit(finished: Path) -> None:
    from ctta_bench.api import evaluate
    from ctta_bench.run.open import open_cell

    chosen = cell()
    opened = open_cell(chosen)
    method = opened.method()
    scores = evaluate(method, opened.benchmark).scores
    assert predictions(finished, chosen)["nll"] == scores.nll.tolist()


def test_status_shows_a_warm_up_and_reports_take_it_for_no_result(finished: Path) -> None:
    states = {row.cell: (row.state, row.done, row.total) for row in status(finished)}
    assert states == {cell().id: ("done", 5, 5), cell().warmup["id"]: ("done", UPDATES, UPDATES)}
    runs = load(finished)
    assert (list(runs.cells["cell"]), runs.left_out) == ([cell().id], [])


def test_an_interrupted_warm_up_is_bit_identical(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(cell(), tmp_path, loggers=[StopAt(3)])
    folder = warmup_folder(tmp_path)
    assert (folder / "state.pt").exists() and not (folder / "result.json").exists()
    run(cell(), tmp_path)
    assert "resumed after 3 of 6 updates" in (folder / "log.txt").read_text()
    for name in ("warmup.safetensors", "batches.jsonl"):
        assert (folder / name).read_bytes() == (warmup_folder(finished) / name).read_bytes()
    assert predictions(tmp_path, cell()) == predictions(finished, cell())


def test_an_interrupt_within_the_last_update_ends_after_the_warm_up(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(cell(), tmp_path, loggers=[StopAt(UPDATES)])
    assert (warmup_folder(tmp_path) / "result.json").exists()
    assert not (tmp_path / cell().id / "batches.jsonl").exists()


@pytest.mark.parametrize("keep", [0, 100])
def test_a_damaged_checkpoint_of_a_warm_up_restarts_it(
    keep: int, finished: Path, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / cell().warmup["id"])
    with pytest.raises(KeyboardInterrupt):
        run_warmup(cell(), folder, RunOptions(loggers=[StopAt(3)]))
    state = folder.file("state.pt")
    state.write_bytes(state.read_bytes()[:keep])
    run_warmup(cell(), folder)
    assert "damaged checkpoint skipped" in folder.file("log.txt").read_text()
    learnt, expected = folder.file("warmup.safetensors"), warmup_folder(finished)
    assert learnt.read_bytes() == (expected / "warmup.safetensors").read_bytes()


def test_the_reason_of_a_failed_warm_up_is_recorded_in_both_folders(tmp_path: Path) -> None:
    from ctta_bench.method.warmup import Warmup

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RunError, match="no space"):
        patch.setattr(Warmup, "updates", lambda self: (_ for _ in ()).throw(RunError("no space")))
        run(cell(), tmp_path)
    for folder in (tmp_path / cell().id, warmup_folder(tmp_path)):
        assert json.loads((folder / "failed.json").read_text())["reason"] == "no space"


# -- sharing


@pytest.mark.parametrize(
    "changes",
    [
        with_(lr=0.5),
        with_(std_weight=0.3, entropy_filter=True),
        with_(**{"benchmark.batch_size": 3, "benchmark.rounds": 2}),
        with_(**{"benchmark.domains": ["dark"]}),
        {"window": 8},
        {"adapt": False},
        {"preset": "paper"},
        {"experiment": "other"},
    ],
)
def test_cells_that_differ_in_the_stream_alone_share_a_warm_up(changes: Any) -> None:
    assert cell(**changes).warmup["id"] == cell().warmup["id"]
    assert "warmup" not in resolve(CellRequest(method="lora", benchmark="toy")).record


@pytest.mark.parametrize(
    "changes",
    [
        with_(warmup_lr=0.02),
        with_(warmup_epochs=2),
        with_(warmup_augmentation="crop"),
        with_(rank=2),
        with_(layers="q"),
        with_(skip_last_blocks=1),
        with_(**{"benchmark.labeller": "toy_cnn"}),  # other labels of the source set
        {"seed": 1},
        {"precision": "float64"},
        {"preprocessing": "lineage"},
        {"method": "dora"},
    ],
)
def test_cells_that_differ_in_what_the_warm_up_sees_have_their_own(changes: Any) -> None:
    assert cell(**changes).warmup["id"] != cell().warmup["id"]


def test_a_second_cell_takes_the_warm_up_that_is_there(copied: Path) -> None:
    before = {f: f.stat().st_mtime_ns for f in warmup_folder(copied).iterdir()}
    run(cell(**with_(lr=0.5)), copied)
    assert {f: f.stat().st_mtime_ns for f in warmup_folder(copied).iterdir()} == before


# -- what is refused


def test_a_warm_up_of_another_model_is_refused_in_one_sentence(copied: Path) -> None:
    """The file of one model's warm-up, copied into the folder of another's."""
    folder, record = RunFolder(warmup_folder(copied)), json.loads(json.dumps(cell().warmup))
    record["model"]["sha256"] = 64 * "0"
    with pytest.raises(RunError, match=r"is the warm-up of another model; delete the folder.*\.$"):
        read_learnt(folder, record)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_truncated_warm_up_is_refused_in_one_sentence(copied: Path, share: float) -> None:
    file = warmup_folder(copied) / "warmup.safetensors"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(RunError, match=r"is missing or damaged .* the warm-up runs again"):
        run(cell(**with_(lr=0.5)), copied)


def test_a_flipped_bit_in_a_warm_up_is_refused(copied: Path) -> None:
    file = warmup_folder(copied) / "warmup.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(RunError, match="was changed after the warm-up"):
        run(cell(**with_(lr=0.5)), copied)


def test_a_benchmark_without_source_set_has_no_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ctta_bench.registry import BENCHMARKS

    monkeypatch.setattr(BENCHMARKS.get("toy"), "source", lambda self: None)
    with pytest.raises(DataError, match="LoRA reads labelled source data, but toy has no source"):
        run(cell(), tmp_path)


# -- a grid


def experiment(*sets: dict[str, Any], **values: Any) -> list[Cell]:
    methods = [{"name": "lora", "set": LORA | s} for s in sets]
    return expand(Experiment(name="e", methods=methods, benchmarks=("toy",), **values))


def test_a_grid_makes_each_warm_up_once_and_first_and_adds_its_warm_up_only_cell() -> None:
    cells = experiment({"lr": 0.1}, {"lr": 0.2}, {"rank": 2}, {"warmup_epochs": 0}, seeds=(0, 1))
    steps = schedule(cells)
    assert [step.warms_up for step in steps] == [True] * 4 + [False] * 12
    assert len({step.id for step in steps}) == 16
    assert [c.request.adapt for c in cells] == [True] * 8 + [False] * 4


def test_a_grid_without_warm_ups_has_no_other_cells() -> None:
    assert [c.request.adapt for c in experiment({"warmup_epochs": 0})] == [True]


def test_rows_distinguish_warm_up_only_adapted_and_without_warm_up(copied: Path) -> None:
    cells = experiment({}, {"lr": 0.5}, {"warmup_epochs": 0})
    events: list[str] = []
    outcome = run_grid(
        cells,
        copied,
        RunOptions(),
        make_loggers=lambda step: (),
        on_step=lambda number, step, state: events.append(f"{number} {state}"),
    )
    assert (len(outcome.done), len(outcome.kept), outcome.warmups) == (3, 1, [])
    assert events[0] == "0 kept"  # the warm-up
    (group,) = load(copied).groups()
    labels = {row.name: row for row in rows(group)}
    assert set(labels) == {
        "lora lr=0.0002",
        "lora with warm-up, lr=0.0002",
        "lora with warm-up, lr=0.5",
        "lora (warm-up only)",
    }
    only = json.loads((copied / cells[-1].id / "result.json").read_text())
    assert only["cost"]["trainable_parameters"] == only["counters"]["skipped_updates"] == 0
    assert only["cost"]["backward_per_image"] == 0


def test_cells_of_a_failed_warm_up_are_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ctta_bench.method.warmup import Warmup

    def fail(self: Warmup) -> Any:
        raise RunError("the loss has no gradient")

    monkeypatch.setattr(Warmup, "updates", fail)
    outcome = run_grid(experiment({}), tmp_path, RunOptions(), make_loggers=lambda step: ())
    (warmup, *others) = outcome.failed
    assert warmup.startswith("warmup-") and len(others) == 2
    assert all("its warm-up warmup-" in outcome.failed[name] for name in others)
    states = {row.cell: row.state for row in status(tmp_path)}
    assert set(states.values()) == {"failed"}


# -- without adaptation


def test_a_cell_that_does_not_adapt_is_the_warmed_model_on_every_image(copied: Path) -> None:
    chosen = cell(adapt=False)
    run(chosen, copied)
    assert (
        chosen.record["adapt"] is False and "lr" not in chosen.record["method"]["hyperparameters"]
    )
    learnt = load_file(warmup_folder(copied) / "warmup.safetensors")
    kind = METHODS.get("lora")
    from ctta_bench.run.open import open_cell
    from tests.methods import source_images, toy

    method: Any = open_cell(chosen).method()
    assert type(method) is kind
    method.start(source_images(labelled=True), learnt)
    images = toy.Toy().domain("noise").load(np.arange(40)).float() / 255
    with torch.no_grad():
        expected = method.model(images).softmax(-1).amax(-1)
    stored = predictions(copied, chosen)
    found = torch.tensor(stored["confidence"])
    torch.testing.assert_close(found, expected[torch.tensor(stored["index"])], atol=1e-5, rtol=0)


# Of cells from before there were warm-ups of their own, on the toy benchmark.
KNOWN = {
    "cmae": "cfd56942", "cotta": "339e3922", "dept": "28dbca19", "dora": "a2d8a2d3",
    "ecotta": "675fcec4", "lora": "d4eaf6c1", "paid": "f1942dd9", "tent": "370453e8",
    "vida": "a2a7cb5e",
}  # fmt: skip


@pytest.mark.parametrize("method", KNOWN)
def test_a_cell_that_uses_neither_switch_nor_warm_up_keeps_its_identity(method: str) -> None:
    chosen = resolve(CellRequest(method=method, benchmark="toy"))
    assert chosen.id == f"{method}-toy-toy_vit-seed0-{KNOWN[method]}"
    assert chosen.warmup is None


# -- a source model is one thing, a warm-up another


def test_plain_warmed_and_cold_starts_are_three_cells_with_rows_of_their_own(
    tmp_path: Path,
) -> None:
    vida = {"rank_high": 4, "views": 2, "benchmark.domains": ["noise"]}
    warm = vida | {"warmup_epochs": 1, "warmup_batch_size": 20}
    chosen = [
        cell("source", set={"benchmark.domains": ["noise"]}),
        cell("vida", set=vida),
        cell("vida", set=warm),
        cell("vida", set=warm, adapt=False),
    ]
    assert len({c.id for c in chosen}) == 4
    for c in chosen:
        run(c, tmp_path)
    (group,) = load(tmp_path).groups()
    names = {row.name for row in rows(group)}
    assert names == {"source", "vida", "vida with warm-up", "vida (warm-up only)"}
    notes = footnotes(group, rows(group))
    warmed = "ViDA (warm-up only), ViDA (with warm-up)"
    assert f"Trained on source images before the stream (warm-up): {warmed}." in notes
    assert f"Read labelled source images before the stream: {warmed}." in notes
    read = [json.loads((tmp_path / c.id / "result.json").read_text()) for c in chosen]
    assert [r["source_access"] for r in read] == ["none", "none", "labelled", "labelled"]
    assert len({r["model_sha256"] for r in read}) == 1  # the source model is one and the same


@pytest.mark.parametrize("method", ["source", "vida"])
def test_what_a_warm_up_left_is_no_source_model(method: str, finished: Path) -> None:
    file = warmup_folder(finished) / "warmup.safetensors"
    with pytest.raises(DataError, match="holds the state of a method after its warm-up"):
        cell(method, set={}, weights=file)


@pytest.mark.parametrize(
    ("inner", "added", "words"),
    [
        ("linear_vida", ("vida_down", "vida_up", "vida_down2", "vida_up2"), "ViDA's adapters"),
        ("base_layer", ("lora_A.default", "lora_B.default"), "LoRA's matrices"),
        ("", ("hra_u", "m"), "PAID's rotations"),
    ],
)
@pytest.mark.parametrize("method", ["source", "vida", "paid"])
def test_a_checkpoint_with_adapters_is_refused_by_name(
    method: str, inner: str, added: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    """As in official warm-ups: source weights, some under other names, and adapters."""
    from ctta_bench.registry import MODELS

    plain = MODELS.get("toy_vit")().state_dict()
    official: dict[str, Any] = {}
    for name, value in plain.items():
        layer, _, key = name.rpartition(".")
        attention = layer.endswith(("attn.qkv", "attn.proj"))
        place = ".".join(filter(None, [layer, inner * attention, key]))
        official[f"module.{place}"] = value
        if attention and key == "weight":
            official |= {f"module.{layer}.{part}.weight": torch.zeros(1, 1) for part in added}
    torch.save(official, tmp_path / "warmed.pt")
    with pytest.raises(DataError, match=f"it holds {words} .* after a warm-up; give the source"):
        cell(method, set={}, weights=tmp_path / "warmed.pt")
