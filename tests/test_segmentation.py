"""Segmentation through the engine: maps as labels, mIoU, bit-identical resume."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from ctta_bench.api import evaluate, load_benchmark, load_method, load_model
from ctta_bench.config.cell import Cell, CellRequest, resolve
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.record.folder import RunFolder
from ctta_bench.registry import BENCHMARKS, load_plugin
from ctta_bench.run.engine import run_cell
from ctta_bench.run.open import open_cell, source_accuracy, source_data
from ctta_bench.run.options import RunOptions
from ctta_bench.run.source_cache import fingerprint_of
from ctta_bench.stream import ArrayImages, SourceData, Stream, batch_domains
from tests.conftest import TOY
from tests.launches import recorded
from tests.test_engine import StopAfter


@pytest.fixture(autouse=True)
def _toys() -> None:
    load_plugin(str(TOY))
    load_plugin("tests.toy_maps")


def cell(method: str = "source", **values: Any) -> Cell:
    return resolve(CellRequest(method=method, benchmark="toy_maps", **values))


def arrays(folder: Path, name: str = "predictions.npz") -> dict[str, np.ndarray]:
    with np.load(folder / name, allow_pickle=False) as found:
        return dict(found)


def by_domain(result: dict[str, Any]) -> dict[str, Any]:
    return {entry["domain"]: entry["miou"] for entry in result["rounds"][0]["domains"]}


def test_batches_carry_maps_of_the_labels_own_size() -> None:
    benchmark = BENCHMARKS.get("toy_maps")()
    batch = Stream(batch_domains(benchmark), benchmark.settings, 0).batch(0)
    assert batch.images.shape == (1, 3, 32, 48)
    assert batch.labels.shape == (1, 64, 96)
    assert batch.labels.dtype == torch.uint8


@pytest.mark.parametrize("setting", ["mixed", "continual"])
def test_images_and_maps_of_one_batch_belong_together(setting: str) -> None:
    entry = BENCHMARKS.get("toy_maps")
    benchmark = entry(entry.Settings(setting=setting, batch_size=3, order="shuffled"))
    for batch in Stream(batch_domains(benchmark), benchmark.settings, 5).batches():
        for row, (domain, index) in enumerate(zip(batch.domain, batch.index, strict=True)):
            images = benchmark.domain(benchmark.domain_names()[domain])
            one = np.array([index])
            assert torch.equal(batch.images[row], images.load(one)[0].float() / 255)
            assert torch.equal(batch.labels[row], images.maps(one)[0])


def test_the_source_model_is_right_where_it_made_the_labels_and_wrong_elsewhere(
    tmp_path: Path,
) -> None:
    result = run_cell(cell(), RunFolder(tmp_path))
    found = by_domain(result)
    assert result["metric"] == "miou"
    assert found["clean"] == 100
    assert 0 < found["dark"] < 100
    assert result["mean"] == pytest.approx(np.mean(list(found.values())))
    assert result["classes"] == list("abcdefghij")
    assert result["source_accuracy"] == 100


def test_the_result_is_that_of_the_stored_matrices(tmp_path: Path) -> None:
    result = run_cell(cell(), RunFolder(tmp_path))
    stored = arrays(tmp_path)
    assert list(stored) == ["confusion", "index", "domain", "round"]
    assert stored["confusion"].dtype == np.int32
    assert stored["confusion"].shape == (21, 10, 11)
    labelled = 64 * (96 - 8)
    assert set(stored["confusion"].sum((1, 2))) == {labelled}
    dark = stored["confusion"][stored["domain"] == 1].sum(0)
    entry = result["rounds"][0]["domains"][1]
    assert (entry["n"], entry["pixels"]) == (7, 7 * labelled)
    assert entry["pixel_accuracy"] == pytest.approx(100 * np.trace(dark) / dark.sum())


def test_a_batch_line_counts_images_pixels_and_wrong_pixels(tmp_path: Path) -> None:
    run_cell(cell(set={"batch_size": 3}), RunFolder(tmp_path))
    lines = [json.loads(line) for line in (tmp_path / "batches.jsonl").read_text().splitlines()]
    assert [line["n"] for line in lines] == 3 * [3, 3, 1]
    assert lines[0]["pixels"] == 3 * 64 * 88
    assert [line["errors"] for line in lines[:3]] == [0, 0, 0]
    assert lines[3]["errors"] > 0


def test_neither_batch_size_nor_order_of_images_changes_the_miou(tmp_path: Path) -> None:
    found = [
        run_cell(cell(set=changes), RunFolder(tmp_path / str(number)))["rounds"][0]["domains"]
        for number, changes in enumerate(
            [{}, {"batch_size": 4}, {"order": "shuffled"}, {"setting": "mixed"}]
        )
    ]
    assert all(other == found[0] for other in found)


@pytest.mark.parametrize("batch", [0, 9])
def test_an_interrupted_run_is_bit_identical_with_its_pictures(batch: int, tmp_path: Path) -> None:
    chosen = cell("tent", set={"rounds": 2})
    run_cell(chosen, RunFolder(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        run_cell(chosen, RunFolder(tmp_path / "cut"), RunOptions(loggers=[StopAfter(batch)]))
    run_cell(chosen, RunFolder(tmp_path / "cut"))
    assert recorded(tmp_path / "cut") == recorded(tmp_path / "whole")
    whole, cut = ((tmp_path / name / "pictures.npz").read_bytes() for name in ("whole", "cut"))
    assert whole == cut


def test_workers_change_no_bit(tmp_path: Path) -> None:
    for workers in (0, 2):
        run_cell(cell("tent", workers=workers), RunFolder(tmp_path / str(workers)))
    assert recorded(tmp_path / "0") == recorded(tmp_path / "2")


def test_pictures_are_the_first_two_of_each_domain_in_the_first_round(tmp_path: Path) -> None:
    run_cell(cell(set={"rounds": 2}), RunFolder(tmp_path))
    kept = arrays(tmp_path, "pictures.npz")
    assert kept["domain"].tolist() == [0, 0, 1, 1, 2, 2]
    assert kept["index"].tolist() == [0, 1, 0, 1, 0, 1]
    assert kept["domain"].dtype == np.int16
    images = BENCHMARKS.get("toy_maps")().domain("dark")
    shown = images.load(np.array([1]))[0].movedim(0, -1)
    assert np.array_equal(kept["image"][3], shown.numpy())
    # Labels are drawn at the image's size: every second pixel of a map of twice that size.
    assert np.array_equal(kept["label"][3], images.maps(np.array([1]))[0, ::2, ::2].numpy())
    labelled = kept["label"][0] != 255
    assert np.array_equal(kept["prediction"][0][labelled], kept["label"][0][labelled])


def test_a_domain_without_a_labelled_pixel_is_in_no_mean_and_named(tmp_path: Path) -> None:
    result = run_cell(cell(set={"domains": ["blank", "dark"]}), RunFolder(tmp_path))
    found = by_domain(result)
    assert found["blank"] is None
    assert result["mean"] == found["dark"]
    assert result["notes"] == ["no labelled pixel, and no part of the mean: blank"]


def test_a_stream_without_any_labelled_pixel_has_no_mean(tmp_path: Path) -> None:
    result = run_cell(cell(set={"domains": ["blank"]}), RunFolder(tmp_path))
    assert result["mean"] is None


def test_the_record_contains_the_task_and_how_images_are_seen(tmp_path: Path) -> None:
    run_cell(cell(), RunFolder(tmp_path))
    record = yaml.safe_load((tmp_path / "cell.yaml").read_text())["benchmark"]
    assert (record["task"], record["inference"]) == ("segmentation", "whole")


def test_a_cell_of_classification_has_no_task_in_its_record() -> None:
    record = resolve(CellRequest(method="source", benchmark="toy")).record["benchmark"]
    assert not {"task", "inference", "scale"} & set(record)


@pytest.mark.parametrize(
    ("benchmark", "model", "words"),
    [
        ("toy_maps", "toy_vit", "toy_vit: is for classification, but the benchmark for segm"),
        ("toy", "toy_segmentor", "toy_segmentor: is for segmentation, but the benchmark for cla"),
    ],
)
def test_a_model_of_another_task_is_refused_at_planning(
    benchmark: str, model: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(CellRequest(method="source", benchmark=benchmark, model=model))


def test_a_method_of_another_task_is_refused_at_planning() -> None:
    with pytest.raises(
        ConfigError, match="'lame' supports classification, but benchmark 'toy_maps' is segm"
    ):
        cell("lame")


@pytest.mark.parametrize("setting", ["correlated", "ptta", "label_shift", "mixed_correlated"])
def test_settings_that_need_a_class_of_each_image_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="orders images by their class"):
        cell(set={"setting": setting})


@pytest.mark.parametrize("setting", ["reset", "mixed", "cdc", "smooth"])
def test_other_settings_support_segmentation(setting: str, tmp_path: Path) -> None:
    result = run_cell(cell(set={"setting": setting}), RunFolder(tmp_path))
    assert {d["domain"]: d["n"] for d in result["rounds"][0]["domains"]} == {
        "clean": 7, "dark": 7, "noise": 7,
    }  # fmt: skip


def test_a_model_near_chance_is_refused(tmp_path: Path) -> None:
    class Shifted(BENCHMARKS.get("toy_maps")):  # type: ignore[misc]
        def source(self) -> Any:
            images = super().source()
            maps = np.where(images.label_maps == 255, 255, (images.label_maps + 1) % 10)
            return type(images)(images.images, maps.astype(np.uint8))

    model = open_cell(cell()).model()
    with pytest.raises(DataError, match=r"reaches an mIoU of .* on 7 source images of toy_maps"):
        source_accuracy(Shifted(), model)


def test_labelled_source_batches_carry_maps() -> None:
    images = BENCHMARKS.get("toy_maps")().source()
    device = torch.device("cpu")
    source = SourceData(images, labelled=True, seed=0, device=device, dtype=torch.float32)
    shown, maps = next(source.labelled_batches(2))
    order = source.order()[:2]
    assert torch.equal(maps, images.maps(order))
    assert torch.equal(shown, images.load(order) / 255)


def test_a_source_set_without_maps_is_refused_for_methods_that_read_labels() -> None:
    class Unlabelled(BENCHMARKS.get("toy_maps")):  # type: ignore[misc]
        def source(self) -> Any:
            images = super().source()
            return ArrayImages(images.images, images.labels)

    method = open_cell(cell("source")).method()
    assert source_accuracy(Unlabelled(), method.model) is None
    method.source_access = "unlabelled"
    assert len(source_data(Unlabelled(), method, 0)) == 7  # type: ignore[arg-type]
    method.source_access = "labelled"
    with pytest.raises(DataError, match="the source images of toy_maps have no label maps"):
        source_data(Unlabelled(), method, 0)


def test_a_source_set_is_distinguished_by_its_maps_too() -> None:
    images = BENCHMARKS.get("toy_maps")().source()
    order = np.arange(7)
    changed = images.label_maps.copy()
    changed[2, 40, 40] = (changed[2, 40, 40] + 1) % 10
    other = type(images)(images.images, changed)
    assert fingerprint_of(images, order) == fingerprint_of(images, order)
    assert fingerprint_of(images, order) != fingerprint_of(other, order)


def test_the_api_scores_segmentation(tmp_path: Path) -> None:
    benchmark = load_benchmark("toy_maps", examples=2)
    found = evaluate(load_method("source", load_model("toy_segmentor")), benchmark)
    assert found.scores.confusion.shape == (6, 10, 11)
    assert found.by_domain["clean"] == 100
    assert found.miou == found.record["mean"]
    with pytest.raises(ConfigError, match="has no error: its metric is miou"):
        _ = found.error
