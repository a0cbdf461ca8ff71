"""Published checkpoints: adapters as a warm-up by their names, and verdicts on source weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.config.cell import Cell, CellRequest, resolve
from ctta_bench.errors import ConfigError, DataError, MethodError, RunError
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.read import read_cell
from ctta_bench.run import weight_check
from ctta_bench.run.engine import run_cell
from ctta_bench.run.imported import import_warmup
from ctta_bench.run.open import open_cell
from ctta_bench.run.weight_check import check_weights

FEW = {"benchmark.domains": ["fog"], "benchmark.examples": 4, "benchmark.batch_size": 4}
RECIPES: dict[str, dict[str, Any]] = {
    "paid": {"warmup_epochs": 1, "source_samples": 8, "rank": 2, "skip_last_blocks": 1},
    "vida": {"warmup_epochs": 1, "rank_high": 4, "views": 2},
}


def cell_of(method: str, **more: Any) -> Cell:
    return resolve(
        CellRequest(method=method, benchmark="fashion_c", set=RECIPES[method] | FEW | more)
    )


def official(method: str) -> dict[str, Tensor]:
    """A file as the official code writes it, with learnt values that differ from the start."""
    made = open_cell(cell_of(method)).method()
    names, source = made.published_names()
    start = made.warmup_result()
    learnt = {theirs: start[ours].detach() * 1.5 + 0.01 for theirs, ours in names.items()}
    return {name: value.clone().contiguous() for name, value in (learnt | source).items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("published")

    def get(method: str) -> Path:
        file = folder / f"{method}.pth"
        if not file.exists():
            torch.save({"model": {f"module.{k}": v for k, v in official(method).items()}}, file)
        return file

    return get


def test_the_names_are_those_of_the_official_codes() -> None:
    paid, vida = official("paid"), official("vida")
    block = {name.removeprefix("blocks.0.") for name in paid if name.startswith("blocks.0.")}
    layers = ["attn.qkv.q", "attn.qkv.k", "attn.qkv.v", "attn.proj", "mlp.fc1", "mlp.fc2"]
    parts = [f"{layer}.{part}" for layer in layers for part in ("m", "hra_u", "unit_w", "bias")]
    norms = [f"norm{n}.{part}" for n in (1, 2) for part in ("weight", "bias")]
    assert block == {*parts, *norms}
    last = max(int(name.split(".")[1]) for name in paid if name.startswith("blocks."))
    assert f"blocks.{last}.attn.qkv.weight" in paid  # of the skipped block
    parts = ["vida_down", "vida_up", "vida_down2", "vida_up2", "linear_vida"]
    assert {f"blocks.0.attn.proj.{part}.weight" for part in parts} <= set(vida)
    rows = paid["blocks.0.mlp.fc1.unit_w"].norm(dim=1)
    assert torch.allclose(rows, torch.ones_like(rows), atol=1e-5)


@pytest.mark.parametrize("method", ["paid", "vida"])
def test_a_cell_starts_from_the_imported_tensors_and_says_so(
    method: str, files: Callable[[str], Path], tmp_path: Path
) -> None:
    cell = cell_of(method)
    result = import_warmup(cell, files(method), tmp_path)
    assert result["updates"] == 0
    assert result["imported"]["file"] == f"{method}.pth"
    folder = RunFolder(tmp_path / cell.id)
    run_cell(cell, folder)
    (note,) = [n for n in read_cell(folder.path)["notes"] if "published file" in n]
    assert f"{method}.pth (SHA-256 " in note
    kept = [file.name for file in tmp_path.glob("warmup-*")]
    assert kept == [cell.warmup["id"]]  # it did not run
    with pytest.raises(RunError, match="is a finished warm-up"):
        import_warmup(cell, files(method), tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("blocks.0.mlp.fc1.m"), "lacks blocks.0.mlp.fc1.m"),
        (lambda t: t.update({"blocks.0.extra": torch.ones(1)}), "unknown blocks.0.extra"),
        (
            lambda t: t["norm.weight"].add_(0.1),
            "another source model than fashion_vit: norm.weight",
        ),
        (lambda t: t["blocks.0.mlp.fc1.unit_w"].mul_(1.1), "blocks.0.mlp.fc1.unit_w"),
        (lambda t: t.update({"blocks.0.mlp.fc1.m": torch.ones(3, 1)}), r"m \[3, 1\] instead of"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    change: Callable[[dict[str, Tensor]], object], words: str, tmp_path: Path
) -> None:
    tensors = official("paid")
    change(tensors)
    save_file(tensors, tmp_path / "paid.safetensors")
    with pytest.raises(DataError, match=words):
        import_warmup(cell_of("paid"), tmp_path / "paid.safetensors", tmp_path)
    assert not [*tmp_path.glob("warmup-*")]


def test_what_has_no_warm_up_takes_no_file(files: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no warm-up"):
        import_warmup(cell_of("paid", warmup_epochs=0), files("paid"), tmp_path)
    lora = CellRequest(method="lora", benchmark="fashion_c", set={"warmup_epochs": 1} | FEW)
    with pytest.raises(MethodError, match="no published file of a warm-up is known"):
        import_warmup(resolve(lora), files("paid"), tmp_path)


def test_the_command_imports(files: Callable[[str], Path], tmp_path: Path) -> None:
    few = [w for k, v in RECIPES["paid"].items() for w in ("--set", f"{k}={v}")]
    words = ["warmup", "import", str(files("paid")), "paid", "fashion_c", *few]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "learnt values of paid.pth" in done.stdout
    assert "accuracy on source images: " in done.stdout
    missing = CliRunner().invoke(app, [*words[:2], "absent.pth", *words[3:]])
    assert missing.exit_code == 2
    assert "absent.pth: no such file of weights" in missing.stderr


# -- source weights


def test_weights_are_right_wrong_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"sha256": "unknown", "clean": "unknown"}
    found = check_weights("fashion_vit", facts)
    assert (found.verdict, found.findings[0][:4]) == ("unknown", "fits")
    measured = next(text for text in found.findings if "on source images" in text)
    assert float(measured.split()[0]) > 80
    file = tmp_path / "w.safetensors"
    save_file({"head.weight": torch.ones(10, 3)}, file)
    wrong = check_weights("fashion_vit", facts, weights=file)
    assert wrong.verdict == "wrong"
    assert "does not fit the network" in wrong.findings[0]
    differs = check_weights("fashion_vit", facts | {"sha256": "0" * 64}, weights=file)
    assert differs.verdict == "wrong"
    assert differs.findings == ("its SHA-256 is not the published one",)
    monkeypatch.setattr(weight_check, "source_accuracy", lambda *_, **__: 80.5)
    verdicts = [
        check_weights("fashion_vit", facts | {"clean": f"{clean} (by someone)"}).verdict
        for clean in (80.0, 90.0)
    ]
    assert verdicts == ["right", "wrong"]


def test_the_command_names_the_models_of_the_paper(tmp_path: Path) -> None:
    asked = CliRunner().invoke(app, ["models", "check", "fashion_vit"])
    assert asked.exit_code == 2
    assert "cifar10_vit_base" in asked.stderr
    absent = CliRunner().invoke(
        app, ["models", "check", "cifar10_vit_base", "--root", str(tmp_path)]
    )
    assert absent.exit_code == 2
