"""ImageNet-R, -A, -Sketch and -V2: which classes their folders are, and which logits are scored."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctta_bench import api
from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.config.validation import validate
from ctta_bench.datasets.io.imagenet import positions, synsets
from ctta_bench.errors import DataError
from ctta_bench.model import SourceModel
from ctta_bench.record.folder import RunFolder
from ctta_bench.registry import BENCHMARKS, MODELS
from ctta_bench.run.engine import run_cell
from tests.datasets.layouts import SIDE, load_class_reader, picture, synset_tree

FOLDERS = {
    "imagenet_r": "imagenet-r",
    "imagenet_a": "imagenet-a",
    "imagenet_sketch": "ImageNet-Sketch/sketch",
    "imagenet_v2": "imagenet-v2/imagenetv2-matched-frequency-format-val",
}
SMALL = ["imagenet_r", "imagenet_a"]


def build(name: str, root: Path, **settings: Any) -> Any:
    entry = BENCHMARKS.get(name)
    values = {"crop": SIDE, "resize": SIDE} | settings
    return entry(validate(entry.Settings, values, "benchmark"), root)


def tree(name: str, root: Path) -> list[int]:
    """Two images of three classes that the set has; their numbers among the 1,000."""
    numbers = [positions(name)[i] for i in (2, 30, 199)] if name in SMALL else [2, 30, 100]
    files = {number: ["a.jpg", "b.jpg"] for number in numbers}
    if name == "imagenet_v2":
        for number, names in files.items():
            for file in names:
                picture(root / FOLDERS[name] / str(number) / file, number, (20, 13))
    else:
        synset_tree(root / FOLDERS[name], files, size=(20, 13))
    return numbers


def run(name: str, root: Path, out: Path, method: str = "source") -> dict[str, Any]:
    load_class_reader()
    request = CellRequest(
        method=method,
        benchmark=name,
        model="class_reader",
        data_root=root,
        set={"crop": SIDE, "resize": SIDE, "batch_size": 4},
    )
    return run_cell(resolve(request), RunFolder(out))


@pytest.mark.parametrize("name", FOLDERS)
def test_a_model_that_reads_the_class_makes_no_error(name: str, tmp_path: Path) -> None:
    numbers = tree(name, tmp_path)
    assert run(name, tmp_path, tmp_path / "out")["mean"] == 0
    with np.load(tmp_path / "out" / "predictions.npz") as scores:
        place = list(positions(name)) if name in SMALL else list(range(1000))
        assert sorted(scores["label"]) == sorted(2 * [place.index(n) for n in numbers])
    environment = (tmp_path / "out" / "env.json").read_text()
    assert '"corruptions": null' in environment


@pytest.mark.parametrize("name", SMALL)
def test_every_method_sees_the_two_hundred_logits_alone(name: str, tmp_path: Path) -> None:
    tree(name, tmp_path)
    assert run(name, tmp_path, tmp_path / "out", "tent")["mean"] == 0
    with np.load(tmp_path / "out" / "predictions.npz") as scores:
        assert scores["prediction"].max() < 200


def test_the_logits_kept_are_those_of_the_set_in_its_order() -> None:
    load_class_reader()
    full, cut = (SourceModel(MODELS.get("class_reader")()) for _ in range(2))
    cut.keep_classes(positions("imagenet_a"))
    images = torch.rand(3, 3, 4, 4)
    assert cut.num_classes == 200
    assert torch.equal(cut(images), full(images)[:, list(positions("imagenet_a"))])
    assert torch.equal(cut.head(cut.features(images)), cut(images))


def test_from_python_a_model_with_other_logits_is_refused_with_the_way_out(tmp_path: Path) -> None:
    load_class_reader()
    tree("imagenet_r", tmp_path)
    benchmark = build("imagenet_r", tmp_path)
    model = api.load_model("class_reader")
    with pytest.raises(
        DataError, match=r"200 classes and class_reader 1000 logits: .*keep_classes"
    ):
        api.evaluate(api.load_method("source", model), benchmark)
    model.keep_classes(benchmark.model_classes())
    assert api.evaluate(api.load_method("source", model), benchmark).error == 0


def test_numbers_of_v2_are_sorted_as_numbers(tmp_path: Path) -> None:
    for number in (0, 2, 10, 100):
        picture(tmp_path / FOLDERS["imagenet_v2"] / str(number) / "x.jpeg", number)
    images = build("imagenet_v2", tmp_path).domain("imagenet_v2")
    assert images.labels.tolist() == [0, 2, 10, 100]


@pytest.mark.parametrize("stray", ["1000", "n01440764", "-1", "1e2"])
def test_a_folder_of_v2_that_is_no_class_number_is_refused(tmp_path: Path, stray: str) -> None:
    tree("imagenet_v2", tmp_path)
    (tmp_path / FOLDERS["imagenet_v2"] / stray).mkdir()
    with pytest.raises(DataError, match=f"'{stray}' is not a class number"):
        build("imagenet_v2", tmp_path).domain("imagenet_v2")


@pytest.mark.parametrize("name", SMALL)
def test_the_source_of_a_small_set_has_its_classes_alone(name: str, tmp_path: Path) -> None:
    inside = positions(name)[7]
    outside = next(n for n in range(1000) if n not in positions(name))
    synset_tree(tmp_path / "imagenet2012" / "train", {inside: ["a.JPEG"], outside: ["b.JPEG"]})
    source = build(name, tmp_path).source()
    assert (list(source.names), source.labels.tolist()) == ([f"{synsets()[inside]}/a.JPEG"], [7])


@pytest.mark.parametrize("name", FOLDERS)
def test_a_missing_set_is_one_problem_with_the_way_out(name: str, tmp_path: Path) -> None:
    (problem,) = build(name, tmp_path).problems()
    assert str(tmp_path / FOLDERS[name]) in problem


@pytest.mark.parametrize("name", FOLDERS)
def test_files_sorted_by_class_are_shuffled_by_default(name: str, tmp_path: Path) -> None:
    assert build(name, tmp_path).settings.order == "shuffled"
