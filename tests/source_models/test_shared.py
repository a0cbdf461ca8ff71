"""Models that the cells of one process share: read once, and no cell sees what another did."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ctta_bench.config.cell import Cell, CellRequest, resolve
from ctta_bench.run.open import open_cell
from ctta_bench.source_models import shared
from ctta_bench.source_models.shared import Models


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that were read."""
    found: list[str] = []
    real = shared.load_source_model

    def read(name: str, **options: Any) -> Any:
        found.append(name)
        return real(name, **options)

    monkeypatch.setattr(shared, "load_source_model", read)
    return found


def cell(models: Models | None = None, **values: Any) -> Cell:
    return resolve(CellRequest(method="tent", benchmark="fashion_c", **values), models)


def model(models: Models | None = None, **values: Any) -> Any:
    return open_cell(cell(models, **values), models=models).model()


def copy_of_weights(folder: Path, scale: float = 1.0) -> Path:
    file = folder / "weights.safetensors"
    state = model().network.state_dict()
    save_file({k: (v * scale).contiguous() for k, v in state.items()}, file)
    return file


def test_cells_of_one_model_read_it_once_with_its_fingerprint(
    reads: list[str], tmp_path: Path
) -> None:
    file, models = copy_of_weights(tmp_path), Models(several=True)
    del reads[:]
    for seed in range(3):
        model(models, seed=seed, weights=file)
    assert reads == ["fashion_vit"]
    model(weights=file)
    assert len(reads) == 3  # nothing is kept for others: once for the cell, once to open it


def test_a_cell_starts_from_the_weights_of_the_file_whatever_the_one_before_did() -> None:
    fresh, models = model(), Models(several=True)
    first = model(models)
    with torch.no_grad():
        for tensor in first.parameters():
            tensor.zero_()
    first(torch.zeros(4, 3, 32, 32))
    second = model(models)
    assert all(
        torch.equal(a, b) for a, b in zip(second.parameters(), fresh.parameters(), strict=True)
    )
    assert (first.passes.forward_images, second.passes.forward_images) == (4, 0)
    assert second.classifier is not first.classifier
    assert second.classifier is dict(second.network.named_modules())["head"]


def test_a_file_that_was_written_again_and_another_model_are_read(
    reads: list[str], tmp_path: Path
) -> None:
    file, models = copy_of_weights(tmp_path), Models(several=True)
    before = model(models, weights=file)
    copy_of_weights(tmp_path, scale=0.5)
    del reads[:]
    after = model(models, weights=file)
    model(models, model="fashion_cnn")
    assert reads == ["fashion_vit", "fashion_cnn"]
    assert torch.equal(after.classifier.weight, before.classifier.weight * 0.5)


def test_two_models_are_never_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    models = Models(several=True)
    held: list[bool] = []
    real = shared.load_source_model

    def read(name: str, **options: Any) -> Any:
        held.append(models._cached is not None)
        return real(name, **options)

    monkeypatch.setattr(shared, "load_source_model", read)
    for name in ("fashion_vit", "fashion_cnn", "fashion_vit"):
        model(models, model=name)
    assert held == [False] * 3


@pytest.mark.parametrize("several", [False, True])
def test_the_model_of_an_only_cell_is_dropped_once_its_method_stands(
    several: bool, reads: list[str]
) -> None:
    models = Models(several=several)
    model(models)
    models.release()
    model(models)
    assert len(reads) == (1 if several else 2)
