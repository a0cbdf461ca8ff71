"""Models that the cells of one process share: read once, and no cell sees what another did."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ctta_bench.config.cell import Cell, CellRequest, resolve
from ctta_bench.run.open import build_model
from ctta_bench.source_models import shared
from ctta_bench.source_models.shared import sharing_models

CPU = torch.device("cpu")


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


def cell(**values: Any) -> Cell:
    return resolve(CellRequest(method="tent", benchmark="fashion_c", **values))


def test_packed_cells_read_their_model_once_with_its_fingerprint(
    reads: list[str], tmp_path: Path
) -> None:
    file = copy_of_weights(tmp_path)
    del reads[:]
    with sharing_models():
        for seed in range(3):
            build_model(cell(seed=seed, weights=file), CPU)
    assert reads == ["fashion_vit"]
    build_model(cell(weights=file), CPU)
    assert len(reads) == 2  # nothing is kept for others


def copy_of_weights(folder: Path, scale: float = 1.0) -> Path:
    network = build_model(cell(), CPU).network
    file = folder / "weights.safetensors"
    save_file({k: (v * scale).contiguous() for k, v in network.state_dict().items()}, file)
    return file


def test_a_cell_starts_from_the_weights_of_the_file_whatever_the_one_before_did() -> None:
    fresh = build_model(cell(), CPU)
    with sharing_models():
        first = build_model(cell(), CPU)
        with torch.no_grad():
            for tensor in first.parameters():
                tensor.zero_()
        first(torch.zeros(4, 3, 32, 32))
        second = build_model(cell(), CPU)
    assert all(
        torch.equal(a, b) for a, b in zip(second.parameters(), fresh.parameters(), strict=True)
    )
    assert (first.passes.forward_images, second.passes.forward_images) == (4, 0)
    assert second.classifier is not first.classifier
    assert second.classifier is dict(second.network.named_modules())["head"]


def test_a_file_that_was_written_again_and_another_model_are_read(
    reads: list[str], tmp_path: Path
) -> None:
    file = copy_of_weights(tmp_path)
    del reads[:]
    with sharing_models():
        before = build_model(cell(weights=file), CPU)
        copy_of_weights(tmp_path, scale=0.5)
        after = build_model(cell(weights=file), CPU)
        build_model(cell(model="fashion_cnn"), CPU)
    assert reads[-1] == "fashion_cnn" and len(reads) >= 3
    assert torch.equal(after.classifier.weight, before.classifier.weight * 0.5)
