"""Run folders and plug-ins of release 0.1.0 still work.

stored/0.1.0/ was written by that release on the toy benchmark: finished cells, an interrupted one,
an interrupted one after its warm-up, and (whole/) what the last two became without interruption.
"""

import copy
import importlib
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import ctta_bench
from ctta_bench.analysis import load
from ctta_bench.cli import app
from ctta_bench.model import SourceModel
from ctta_bench.names import RENAMED_MODULES, RENAMED_NAMES
from ctta_bench.parts.adapters.injected import InjectedLinear
from ctta_bench.parts.families.weighted import (
    SampleWeightingHyperparameters,
    SampleWeightingMethod,
)
from ctta_bench.source_models.tiny import tiny_vit

pytestmark = pytest.mark.usefixtures("undrawn")

HERE = Path(__file__).parent
STORED = HERE / "stored" / "0.1.0"
NAMES = json.loads((HERE / "public_names.json").read_text("utf-8"))
# The commands whose runs were interrupted, by folder.
INTERRUPTED = {"interrupted": ("cotta", 1), "warmed": ("paid", 2)}
SETTINGS = {
    "cotta": ("views=2", "lr=0.001"),
    "paid": ("lr=0.01", "warmup_epochs=1", "rank=4", "source_samples=32"),
    "tent": ("lr=0.01",),
}


def ctta(*arguments: object) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def ctta_run(method: str, out: Path, seed: int = 0) -> str:
    options = [word for value in SETTINGS.get(method, ()) for word in ("--set", value)]
    plugin = ("--plugin", HERE / "toy.py", "--device", "cpu")
    return ctta("run", method, "toy", *options, *plugin, "--seed", seed, "--out", out)


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    (cell,) = (file.parent for file in folder.glob("*/predictions.npz"))
    with np.load(cell / "predictions.npz") as stored:
        return dict(stored)


def same_bits(some: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> bool:
    return some.keys() == others.keys() and all(
        values.dtype == others[name].dtype and values.tobytes() == others[name].tobytes()
        for name, values in some.items()
    )


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A copy of what the last release wrote."""
    return Path(shutil.copytree(STORED, tmp_path / "stored"))


# -- runs


@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupted_run_resumes_bit_identically(
    name: str, stored: Path, tmp_path: Path
) -> None:
    method, seed = INTERRUPTED[name]
    (state,) = (stored / name).glob(f"{method}-*/state.pt")
    before = torch.load(state, weights_only=True)["arrays"]

    ctta_run(method, stored / name, seed)
    ctta_run(method, tmp_path / name, seed)  # a rerun, with the code of today

    log = (state.parent / "log.txt").read_text("utf-8")
    done = len(before["label"]) // 8
    assert f"resumed after {done} of 15 batches" in log
    resumed, rerun, whole = (
        arrays_of(stored / name),
        arrays_of(tmp_path / name),
        arrays_of(stored / "whole" / name),
    )
    begun = {key: values[: len(before["label"])] for key, values in rerun.items()}
    if same_bits(begun, {key: value.numpy() for key, value in before.items()}):
        assert same_bits(resumed, rerun)
        assert same_bits(resumed, whole)
    else:  # another kind of processor: its last bits differ from those of the stored checkpoint
        for values in (resumed, rerun):
            assert np.array_equal(values["label"], whole["label"])
            assert np.array_equal(values["index"], whole["index"])
            assert np.allclose(values["confidence"], whole["confidence"], atol=1e-3)


def test_a_warm_up_is_not_made_again(stored: Path) -> None:
    (learnt,) = (stored / "warmed").glob("warmup-*/warmup.safetensors")
    before = learnt.stat().st_mtime_ns, learnt.read_bytes()

    ctta_run("paid", stored / "warmed", seed=2)

    assert (learnt.stat().st_mtime_ns, learnt.read_bytes()) == before
    assert len([*(stored / "warmed").glob("warmup-*")]) == 1


def test_a_finished_run_is_kept(stored: Path) -> None:
    output = ctta_run("tent", stored / "finished")

    assert "already done" in output
    assert len([*(stored / "finished").glob("*/result.json")]) == 2


def test_runs_are_reported(stored: Path) -> None:
    ctta("report", stored / "finished")

    results = (stored / "finished" / "report" / "results.csv").read_text("utf-8")
    assert results == (STORED / "results.csv").read_text("utf-8")


def test_every_run_has_its_state(stored: Path) -> None:
    states = {name: [*load(stored / name).cells["state"]] for name in ("finished", *INTERRUPTED)}

    assert states == {
        "finished": ["done", "done"],
        "interrupted": ["incomplete"],
        "warmed": ["incomplete"],
    }
    assert "8/15" in CliRunner().invoke(app, ["status", str(stored / "interrupted")]).output


def test_runs_are_merged(stored: Path, tmp_path: Path) -> None:
    ctta_run("source", tmp_path / "finished")  # the same cell, run today
    (cell,) = (file.parent for file in (tmp_path / "finished").glob("*/result.json"))
    today = json.loads((cell / "result.json").read_text("utf-8"))
    for name in ("result.json", "predictions.npz"):  # another processor has other last digits
        shutil.copy(stored / "finished" / cell.name / name, cell)
    then = json.loads((cell / "result.json").read_text("utf-8"))
    (cell / "result.json").write_text(json.dumps(today | then), "utf-8")  # keys of today remain

    ctta("merge", stored / "finished", tmp_path / "finished")
    ctta("merge", stored / "finished", stored / "whole" / "warmed")

    assert len([*(stored / "finished").glob("*/result.json")]) == 4  # a warm-up is one of them


# -- names


@pytest.mark.parametrize("module", NAMES)
def test_public_names_are_importable(module: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        found = importlib.import_module(module)

        assert [name for name in NAMES[module] if not hasattr(found, name)] == []


def test_the_contract_of_plug_ins_warns_of_nothing_and_each_old_name_once() -> None:
    of_contract = (
        "",
        ".method",
        ".registry",
        ".model",
        ".stream",
        ".errors",
        ".testing",
        ".config",
    )
    names = "\n".join(
        f"from ctta_bench{module} import {name}"
        for module in of_contract
        for name in NAMES[f"ctta_bench{module}"]
        if name not in RENAMED_NAMES.get(module.removeprefix("."), {})
    )

    old = (
        "import importlib, warnings\n"
        "from ctta_bench.names import RENAMED_MODULES, RENAMED_NAMES\n"
        "warnings.simplefilter('always')\n"
        "for old, new in RENAMED_MODULES.items():\n"
        "    with warnings.catch_warnings(record=True) as caught:\n"
        "        warnings.simplefilter('always', FutureWarning)\n"
        "        for _ in range(2):\n"
        "            found = importlib.import_module(f'ctta_bench.{old}')\n"
        "    ours = [str(w.message) for w in caught if w.category is FutureWarning]\n"
        "    assert len(ours) == 1 and f'ctta_bench.{new} since' in ours[0], (old, ours)\n"
        "    assert found is importlib.import_module(f'ctta_bench.{new}'), old\n"
        "    assert found.__spec__.name == f'ctta_bench.{new}', old\n"
        "for path, names in RENAMED_NAMES.items():\n"
        "    module = importlib.import_module(f'ctta_bench.{path}')\n"
        "    for old, new in names.items():\n"
        "        with warnings.catch_warnings(record=True) as caught:\n"
        "            warnings.simplefilter('always', FutureWarning)\n"
        "            for _ in range(2):\n"
        "                assert getattr(module, old) is getattr(module, new), old\n"
        "        assert [f'.{new} since' in str(w.message) for w in caught] == [True], old\n"
    )

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{names}\n{old}"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert RENAMED_MODULES and RENAMED_NAMES


def test_a_renamed_module_names_the_release() -> None:
    with pytest.warns(
        FutureWarning, match=r"is called ctta_bench\.run\.engine since ctta-bench 0\.2\.0"
    ):
        sys.modules.pop("ctta_bench.engine", None)
        importlib.import_module("ctta_bench.engine")
    assert hasattr(ctta_bench, "engine")


def test_old_hooks_of_a_plug_in_give_the_same_numbers_with_one_warning_each() -> None:
    class New(SampleWeightingMethod):
        Hyperparameters = SampleWeightingHyperparameters

        def total_loss(self, images: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
            return super().total_loss(images, logits, weights) / 2

        def adapt(self, images: Tensor) -> Tensor:
            logits = self.model(images)
            self.update(images, logits)
            return logits

    network = tiny_vit()
    images = torch.rand(3, 8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    expected = [New(SourceModel(copy.deepcopy(network)))(batch) for batch in images]

    with pytest.warns(FutureWarning) as caught:

        class Old(SampleWeightingMethod):
            Hyperparameters = SampleWeightingHyperparameters

            def objective(self, images: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
                return super().objective(images, logits, weights) / 2

            def adapt(self, images: Tensor) -> Tensor:
                logits = self.model(images)
                self.learn(images, logits)
                return logits

        found = [Old(SourceModel(copy.deepcopy(network)))(batch) for batch in images]

    assert all(map(torch.equal, found, expected))
    owner = "SampleWeightingMethod"
    pairs = {
        "Old.objective": "Old.total_loss",
        f"{owner}.objective": f"{owner}.total_loss",
        f"{owner}.learn": f"{owner}.update",
    }
    assert sorted(str(warning.message) for warning in caught) == sorted(
        f"{old} is called {new} since ctta-bench 0.2.0; the old name will be removed in 0.3.0."
        for old, new in pairs.items()
    )


def test_an_old_attribute_reads_and_sets_the_new_one() -> None:
    layer: Any = InjectedLinear(torch.nn.Linear(2, 2), "m", {})
    with pytest.warns(FutureWarning, match="InjectedLinear.bypassed is called .*adapters_disabled"):
        layer.bypassed = True
    assert layer.adapters_disabled
    assert layer.bypassed
