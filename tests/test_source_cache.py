"""Source statistics: made once for a model and its source images, bit-identical, checked."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ctta_bench.config.cell import Cell, CellRequest, resolve
from ctta_bench.errors import DataError
from ctta_bench.record.folder import RunFolder
from ctta_bench.run.engine import run_cell
from ctta_bench.run.open import open_cell, source_data
from ctta_bench.run.source_cache import SourceCache, fingerprint_of
from ctta_bench.stream import ArrayImages, SourceData

pytestmark = pytest.mark.usefixtures("toy")
CPU = torch.device("cpu")


def cell(root: Path, **values: Any) -> Cell:
    chosen = {"source_samples": 20, "layers": "v", "benchmark.domains": ["noise"]}
    values["set"] = chosen | values.get("set", {})
    request = {"method": "lora", "benchmark": "toy", "data_root": root} | values
    return resolve(CellRequest(**request))


def statistics(chosen: Cell, said: list[str] | None = None) -> dict[str, Tensor]:
    """What a cell takes for the source's mean and deviation, as the engine prepares it."""
    opened = open_cell(chosen)
    method: Any = opened.method()
    method.start(opened.source(method, (said if said is not None else []).append))
    return {"mean": method.source_statistics.mean, "std": method.source_statistics.std}


def stored(root: Path) -> list[Path]:
    return sorted((root / "source").glob("statistics-*.safetensors"))


def bits(found: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: value.tolist() for name, value in found.items()}


# -- kept and shared


def test_stored_statistics_are_the_computed_ones_to_the_bit(tmp_path: Path) -> None:
    chosen = cell(tmp_path)
    opened = open_cell(chosen)
    method: Any = opened.method()
    method.start(source_data(opened.benchmark, method, 0))  # nothing is kept here
    plain = {"mean": method.source_statistics.mean, "std": method.source_statistics.std}
    assert stored(tmp_path) == []
    first, second = statistics(chosen), statistics(chosen)
    assert bits(plain) == bits(first) == bits(second)
    assert len(stored(tmp_path)) == 1


@pytest.mark.parametrize("method", ["lora", "dora", "paid"])
def test_a_second_cell_computes_nothing(method: str, tmp_path: Path) -> None:
    run_cell(cell(tmp_path), RunFolder(tmp_path / "first"))
    (file,) = stored(tmp_path)
    before = file.stat().st_mtime_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ctta_bench.parts.source.features.source_statistics", _never)
        more = {"lr": 0.1, "std_weight": 0.1, "benchmark.batch_size": 5}
        run_cell(cell(tmp_path, method=method, set=more), RunFolder(tmp_path / "second"))
    assert file.stat().st_mtime_ns == before


def _never(*_: Any, **__: Any) -> None:
    raise AssertionError("computed again")


@pytest.mark.parametrize(
    "changes",
    [
        {"set": {"source_samples": 21}},
        {"set": {"entropy_filter": True}},
        {"set": {"benchmark.labeller": "toy_cnn"}},
        {"seed": 1},
        {"precision": "float64"},
        {"preprocessing": "lineage"},
    ],
)
def test_what_decides_the_statistics_has_a_file_of_its_own(
    changes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The toy's predictions are never as sure as the filter wants them.
    monkeypatch.setattr("ctta_bench.parts.source.features.filter_limit", lambda classes: 10.0)
    statistics(cell(tmp_path))
    statistics(cell(tmp_path, **changes))
    assert len(stored(tmp_path)) == 2


def test_other_images_under_the_same_name_are_distinguished() -> None:
    images = torch.arange(2 * 3 * 4, dtype=torch.uint8).view(2, 3, 2, 2).numpy()
    labels = torch.tensor([0, 1]).numpy()
    order = torch.tensor([1, 0]).numpy()
    found = {
        fingerprint_of(ArrayImages(*content), content_order)
        for *content, content_order in [
            (images, labels, order),
            (images + 1, labels, order),
            (images, labels[::-1], order),
            (images, labels, order[::-1]),
        ]
    }
    assert len(found) == 4


def test_warmed_statistics_are_of_the_warm_up_that_made_them(tmp_path: Path) -> None:
    warm = {"statistics_model": "warmed", "warmup_iterations": 1, "warmup_batch_size": 20}
    one = statistics(cell(tmp_path, set=warm | {"warmup_lr": 0.1}))
    other = statistics(cell(tmp_path, set=warm | {"warmup_lr": 0.2}))
    assert bits(one) != bits(other)
    assert len(stored(tmp_path)) == 2


# -- what is wrong with a file


def test_a_file_of_another_model_is_refused_in_one_sentence(tmp_path: Path) -> None:
    statistics(cell(tmp_path))
    (file,) = stored(tmp_path)
    with safetensors.safe_open(file, "pt") as content:
        facts = json.loads(content.metadata()["facts"])
    tensors = load_file(file)
    save_file(tensors, file, metadata={"facts": json.dumps(facts | {"model": 64 * "0"})})
    with pytest.raises(DataError, match=r"was made from another model; delete it"):
        statistics(cell(tmp_path))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_damaged_file_is_made_again_and_that_is_said(share: float, tmp_path: Path) -> None:
    expected = bits(statistics(cell(tmp_path)))
    (file,) = stored(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    said: list[str] = []
    assert bits(statistics(cell(tmp_path), said)) == expected
    assert len(said) == 1 and "is damaged" in said[0] and file.name in said[0]
    assert file.read_bytes() == whole


def test_the_log_of_the_run_reports_a_damaged_file(tmp_path: Path) -> None:
    statistics(cell(tmp_path))
    stored(tmp_path)[0].write_bytes(b"nonsense")
    run_cell(cell(tmp_path), RunFolder(tmp_path / "run"))
    assert "is damaged" in (tmp_path / "run" / "log.txt").read_text()


def test_a_cache_that_cannot_be_written_is_done_without_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "source").write_text("a file where the folder should be")
    said: list[str] = []
    assert bits(statistics(cell(tmp_path), said)) == bits(statistics(cell(tmp_path / "else")))
    assert len(said) == 1 and "could not be stored" in said[0]


def test_nothing_half_written_is_left_under_a_final_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(tensors: Any, path: Path, metadata: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ctta_bench.run.source_cache.save_file", torn)
    said: list[str] = []
    SourceCache(tmp_path, {}, said.append)("thing", {}, lambda: {"a": torch.ones(1)})
    assert list(tmp_path.iterdir()) == []
    assert "No space left" in said[0]


def test_without_a_cache_a_source_makes_what_it_is_asked_for(tmp_path: Path) -> None:
    images = ArrayImages(torch.zeros(2, 3, 2, 2).byte().numpy(), torch.zeros(2).numpy())
    source = SourceData(images, labelled=False, seed=0, device=CPU, dtype=torch.float32)
    assert source.once("thing", {}, lambda: {"a": torch.ones(1)}) == {"a": torch.ones(1)}
