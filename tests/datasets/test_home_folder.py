"""`~` in every path that a user gives to a data set is the home folder."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.datasets.cifar_c import Cifar10C
from ctta_bench.datasets.cityscapes_acdc import CityscapesACDC
from ctta_bench.datasets.fashion import FashionC
from ctta_bench.datasets.fetching.obtain import obtain
from ctta_bench.datasets.fetching.origins import find_origin
from ctta_bench.datasets.image_folder import FolderSettings, ImageFolder
from ctta_bench.datasets.imagenet_c import ImageNetC
from ctta_bench.datasets.io.decoded import DecodedImages
from ctta_bench.datasets.io.imagenet import synsets
from ctta_bench.datasets.io.roots import data_root
from ctta_bench.datasets.making.self_made import MakeOptions, make_benchmark
from ctta_bench.errors import ConfigError, DataError, expanded
from tests.datasets.layouts import cifar_batch


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for domain in ("fog", "snow"):
        file = tmp_path / "x" / domain / "cat" / "a.png"
        file.parent.mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(file)
    return tmp_path


def test_the_data_root_of_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTTA_BENCH_DATA", "~/x")
    assert data_root(None) == home / "x"
    assert FashionC().cache_folder() == home / "x"
    done = CliRunner().invoke(app, ["data", "check", "image_folder"])
    assert done.exit_code == 0, done.output
    assert "2 domains: fog, snow" in done.stdout


def test_the_data_root_of_an_option(home: Path) -> None:
    done = CliRunner().invoke(app, ["data", "check", "image_folder", "--data-root", "~/x"])
    assert done.exit_code == 0, done.output
    assert data_root(Path("~/x")) == home / "x"
    for kind in (ImageFolder, ImageNetC, CityscapesACDC, Cifar10C):
        assert kind(None, Path("~/x")).root == home / "x"


def test_a_cache_of_decoded_images(home: Path) -> None:
    benchmark = ImageFolder(FolderSettings(image_size=16), home / "x")
    benchmark.decoded_cache = Path("~/cache")
    images = benchmark.domain("fog")
    assert isinstance(images, DecodedImages)
    assert images.cache == home / "cache"


def test_lists_of_images(home: Path) -> None:
    (home / "list.txt").write_text(f"{synsets()[3]}/ILSVRC2012_val_00000001.JPEG\n")
    settings = ImageNetC.Settings(images=Path("~/list.txt"))
    assert settings.images == home / "list.txt"
    whole = ImageNetC.Settings(images=home / "list.txt")
    assert settings.record() == whole.record()  # its content is in the identity, not its path
    assert ImageNetC.Settings.model_validate({"images": "~/list.txt"}).images == home / "list.txt"
    streets = CityscapesACDC.Settings.model_validate({"images": "~/streets.txt"})
    assert streets.images == home / "streets.txt"
    assert ImageNetC.Settings().images == "list"


def test_training_images_and_clean_images(home: Path) -> None:
    for number in range(1, 6):
        cifar_batch(home / "cifar" / f"data_batch_{number}", 2, 10 * number)
    cifar_batch(home / "cifar" / "test_batch", 2, 60)
    train, _ = Cifar10C(None, home).training_sets(Path("~/cifar"))
    assert len(train.labels) == 10
    np.save(home / "clean.npy", np.zeros((2, 32, 32, 3), np.uint8))
    np.save(home / "labels.npy", np.arange(2))
    options = MakeOptions(Path("~/clean.npy"), ["contrast"])
    folder, made = make_benchmark("cifar10_c", Path("~/made"), options)
    assert (folder, made) == (home / "made" / "CIFAR-10-C", ["contrast.npy"])
    assert (folder / "contrast.npy").is_file()


def test_a_mirror_is_a_folder_below_the_home_folder(home: Path) -> None:
    archive = find_origin("cifar10_c").chosen(())[0]
    (home / "mirror").mkdir()
    (home / "mirror" / archive.file).write_bytes(b"x")
    with pytest.raises(DataError, match=rf"{home}/mirror/{archive.file}: has 1 bytes"):
        obtain(archive, home / "data", mirror="~/mirror")


def test_an_unknown_user_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="~nobody_of_this_name/x: there is no such home folder"):
        expanded("~nobody_of_this_name/x")
