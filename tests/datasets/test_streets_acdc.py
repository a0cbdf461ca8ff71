"""The embedded segmentation benchmark, and its source model."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.config.validation import validate
from ctta_bench.datasets import streets_acdc
from ctta_bench.datasets.io.street_classes import CLASSES
from ctta_bench.datasets.streets_acdc import (
    SETS,
    CachedStreets,
    Streets,
    StreetsACDC,
    StreetsSettings,
    scene_of,
)
from ctta_bench.datasets.streets_models import EMBEDDED
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.source_models.pretrained import load_source_model
from ctta_bench.stream import Batch, MapSet, Stream, batch_domains
from ctta_bench.training.recipes import recipe_for


def first_batches(workers: int) -> list[Batch]:
    benchmark = StreetsACDC(StreetsSettings(examples=2, rounds=2, batch_size=2))
    stream = Stream(batch_domains(benchmark), benchmark.settings, seed=3)
    return list(stream.batches(workers=workers))


def test_the_domains_are_those_of_acdc_and_clean_and_held_out_ones_are_extra() -> None:
    benchmark = StreetsACDC()
    assert benchmark.domain_names() == ("fog", "night", "rain", "snow")
    assert benchmark.extra_domains() == ("clean", "dusk", "dust")
    assert (benchmark.task, benchmark.num_classes) == ("segmentation", 19)
    assert benchmark.class_names == CLASSES


def test_a_domain_has_400_images_of_which_a_hundred_are_streamed() -> None:
    benchmark = StreetsACDC()
    assert len(benchmark.domain("rain").labels) == 400
    assert [len(domain) for domain in batch_domains(benchmark)] == [100] * 4
    assert len(batch_domains(StreetsACDC(StreetsSettings(examples=None)))[0]) == 400
    with pytest.raises(ConfigError, match="examples"):
        validate(StreetsSettings, {"examples": 401}, "benchmark")


def test_no_two_sets_share_a_scene() -> None:
    assert len(set(SETS.values())) == len(SETS)
    assert {*StreetsACDC().domain_names(), *StreetsACDC().extra_domains(), "train"} == set(SETS)
    one, other = (Streets(name, 1).maps(np.array([0])) for name in ("fog", "snow"))
    assert not np.array_equal(one, other)


def test_images_are_128_by_256_and_their_labels_twice_as_large() -> None:
    images = StreetsACDC().domain("night")
    assert isinstance(images, MapSet)
    assert images.load(np.array([0, 7])).shape == (2, 3, 128, 256)
    assert images.maps(np.array([0, 7])).shape == (2, 256, 512)


def test_an_image_depends_on_its_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Streets("rain", 400)
    forth = images.load(np.array([3, 399, 5]))
    monkeypatch.setattr(streets_acdc, "_latest", {})
    assert np.array_equal(images.load(np.array([5])), forth[2:])
    assert np.array_equal(images.load(np.array([399])), forth[1:2])


def test_workers_change_no_bit_of_a_batch() -> None:
    for ours, theirs in zip(first_batches(0), first_batches(2), strict=True):
        assert np.array_equal(ours.images, theirs.images)
        assert np.array_equal(ours.labels, theirs.labels)
    assert ours.round == 1


def test_few_scenes_are_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streets_acdc, "_latest", {})
    monkeypatch.setattr(streets_acdc, "LATEST", 2)
    kept = [scene_of("clean", number) for number in range(3)]
    assert list(streets_acdc._latest.values()) == kept[1:]
    assert scene_of("clean", 2) is kept[2]


def test_training_scenes_are_the_source_set_with_small_labels() -> None:
    benchmark = StreetsACDC()
    train, test = benchmark.training_sets(None)
    source, number = benchmark.source(), np.array([2])
    assert isinstance(train, MapSet)
    assert isinstance(source, MapSet)
    assert np.array_equal(train.load(number), source.load(number))
    assert np.array_equal(train.maps(number), source.maps(number)[:, ::2, ::2])
    assert (len(train.labels), len(test.labels)) == (3000, 200)
    with pytest.raises(DataError, match="its scenes are generated, not read"):
        benchmark.training_sets(Path("somewhere"))


def test_kept_scenes_are_made_once() -> None:
    images = CachedStreets("train", 5)
    first = images.load(np.array([1, 4]))
    images.maps(np.array([4]))
    assert sorted(images.cached) == [1, 4]
    assert np.array_equal(images.load(np.array([4, 1])), first.flip(0))


def test_the_shipped_weights_were_made_by_the_recipe_of_this_package() -> None:
    told = json.loads((EMBEDDED / "streets_segformer.json").read_text(encoding="utf-8"))
    assert told["recipe"] | {"mixup": 0.0} == recipe_for("streets_segformer").model_dump()
    assert (told["benchmark"], told["data"]) == ("streets_acdc", {"train": 3000, "test": 200})
    assert told["sha256"] == load_source_model("streets_segformer").sha256()


def test_the_source_model_is_good_on_clear_scenes_and_worse_in_each_weather(
    tmp_path: Path,
) -> None:
    few = ["--set", "benchmark.examples=5", "--set", "benchmark.batch_size=4"]
    domains = ["--set", "benchmark.domains=[clean,fog,night,rain,snow]"]
    run = ["run", "source", "streets_acdc", *few, *domains, "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*run, "--format", "json"])
    assert done.exit_code == 0, done.output
    (result,) = tmp_path.rglob("result.json")
    scored = json.loads(result.read_text())["rounds"][0]["domains"]
    miou = {entry["domain"]: entry["miou"] for entry in scored}
    assert miou["clean"] > 65
    for name in ("fog", "night", "rain", "snow"):
        assert 10 < miou[name] < miou["clean"] - 20
