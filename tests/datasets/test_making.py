"""Self-made sets: every byte is that of the corruption, whoever makes it and however often."""

import json
import multiprocessing
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.files import digest_of
from ctta_bench.datasets.io.roots import provenance
from ctta_bench.datasets.making import corrupted_sets as module
from ctta_bench.datasets.making.clean import CleanArray, CleanFolder, clean_images
from ctta_bench.datasets.making.corruptions import CORRUPTIONS, VERSION, corrupt
from ctta_bench.datasets.making.manifest import footnote, read_manifest
from ctta_bench.datasets.making.self_made import MakeOptions, make_benchmark
from ctta_bench.datasets.making.shards import Recipe
from ctta_bench.errors import ConfigError, DataError

CIFAR = Recipe("arrays", "cifar", seed=3)
IMAGENET = Recipe("folders", "imagenet", seed=3)
SHARD = 4


make_set = partial(module.make_set, shard=SHARD)


@pytest.fixture(autouse=True)
def here() -> Iterator[None]:
    """Images are made in this process, as in one that may start no others: it takes a second to
    start one."""
    multiprocessing.current_process().daemon = True
    yield
    multiprocessing.current_process().daemon = False


@pytest.fixture
def elsewhere(here: None) -> None:
    """Images are made in worker processes."""
    multiprocessing.current_process().daemon = False


@pytest.fixture
def clean(tmp_path: Path) -> CleanArray:
    """A shard and a bit of 12 x 10 pictures in three classes."""
    rng = np.random.RandomState(0)
    images = rng.randint(0, 255, (SHARD + 1, 12, 10, 3), dtype=np.uint8)
    np.save(tmp_path / "clean.npy", images)
    return CleanArray(tmp_path / "clean.npy", np.arange(len(images)) % 3)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three photographs of other sizes and modes: RGB, grey, and one with transparency."""
    folder = tmp_path / "photos"
    rng = np.random.RandomState(1)
    for name, mode, shape in (
        ("cat/a.png", "RGB", (40, 60, 3)),
        ("cat/b.jpg", "L", (50, 36)),
        ("dog/c.v2.png", "RGBA", (33, 33, 4)),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.randint(0, 255, shape, dtype=np.uint8), mode).save(folder / name)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


# Arrays, as CIFAR-10-C.


@pytest.mark.usefixtures("elsewhere")
def test_an_array_holds_five_blocks_by_severity_of_the_images_in_their_order(
    clean: CleanArray, tmp_path: Path
) -> None:
    target = tmp_path / "CIFAR-10-C"
    assert make_set(clean, target, CIFAR, corruptions=["fog"], workers=2) == ["fog.npy"]
    made, n = np.load(target / "fog.npy"), len(clean.labels)
    assert made.dtype == np.uint8
    assert made.shape == (5 * n, 12, 10, 3)
    for severity, number in ((1, 0), (3, n - 1), (5, SHARD)):
        expected = corrupt(clean.image(number), "fog", severity, seed=3, index=number)
        np.testing.assert_array_equal(made[(severity - 1) * n + number], expected)
    labels = np.load(target / "labels.npy")
    assert labels.dtype == np.uint8
    np.testing.assert_array_equal(labels, np.tile(np.arange(n) % 3, 5))


def test_a_made_array_has_the_bytes_that_numpy_saves(clean: CleanArray, tmp_path: Path) -> None:
    make_set(clean, tmp_path / "set", CIFAR, corruptions=["contrast"])
    stream = BytesIO()
    np.save(stream, np.load(tmp_path / "set" / "contrast.npy"))
    assert (tmp_path / "set" / "contrast.npy").read_bytes() == stream.getvalue()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("recipe", [CIFAR, IMAGENET], ids=["arrays", "folders"])
def test_one_and_two_workers_make_the_same_bytes(
    recipe: Recipe, clean: CleanArray, tmp_path: Path
) -> None:
    for workers in (1, 2):
        target = tmp_path / f"by-{workers}"
        make_set(clean, target, recipe, corruptions=["glass_blur", "snow"], workers=workers)
    assert contents(tmp_path / "by-1") == contents(tmp_path / "by-2")


def test_another_seed_makes_other_images(clean: CleanArray, tmp_path: Path) -> None:
    for seed in (0, 1):
        recipe = Recipe("arrays", "cifar", seed=seed)
        make_set(clean, tmp_path / str(seed), recipe, corruptions=["shot_noise"])
    first, second = (np.load(tmp_path / str(seed) / "shot_noise.npy") for seed in (0, 1))
    assert (first != second).mean() > 0.5


# Folders, as ImageNet-C.


def test_a_folder_holds_jpegs_of_quality_85_under_their_own_names(
    photos: Path, tmp_path: Path
) -> None:
    clean = CleanFolder(photos, Geometry(28, "crop", 32))
    target = tmp_path / "ImageNet-C"
    made = make_set(clean, target, IMAGENET, corruptions=["contrast"], severities=[2, 5])
    assert made == ["contrast/2", "contrast/5"]
    names = {"cat/a.JPEG", "cat/b.JPEG", "dog/c.v2.JPEG"}
    assert set(contents(target / "contrast" / "5")) == names
    expected = corrupt(clean.image(2), "contrast", 5, parameters="imagenet", seed=3, index=2)
    stream = BytesIO()
    Image.fromarray(expected).save(stream, "JPEG", quality=85, optimize=True)
    assert (target / "contrast" / "5" / "dog" / "c.v2.JPEG").read_bytes() == stream.getvalue()


def test_clean_photographs_are_resized_and_cut_as_torchvision_does(photos: Path) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    theirs = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(28)])
    clean = CleanFolder(photos, Geometry(28, "crop", 32))
    for number, file in enumerate(clean.files):
        expected = np.asarray(theirs(Image.open(photos / file).convert("RGB")))
        np.testing.assert_array_equal(clean.image(number), expected)
    assert clean.labels.tolist() == [0, 0, 1]


def test_the_layout_of_image_folder_is_a_folder_a_corruption(photos: Path, tmp_path: Path) -> None:
    options = MakeOptions(source=photos, corruptions=["contrast"], severities=[3], size=32)
    folder, made = make_benchmark("image_folder", tmp_path / "mine", options)
    assert made == ["contrast"]
    assert set(contents(folder / "contrast")) == {"cat/a.png", "cat/b.png", "dog/c.v2.png"}
    image = np.asarray(Image.open(folder / "contrast" / "cat" / "a.png"))
    clean = CleanFolder(photos, Geometry(32, "crop", 37))
    expected = corrupt(clean.image(0), "contrast", 3, parameters="imagenet", seed=0, index=0)
    np.testing.assert_array_equal(image, expected)


# Interruptions, second calls, and what is in the way.


@pytest.mark.parametrize("recipe", [CIFAR, IMAGENET], ids=["arrays", "folders"])
def test_an_interrupted_set_resumes_to_the_same_bytes(
    recipe: Recipe, clean: CleanArray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"corruptions": ["fog", "contrast"], "workers": 1}
    make_set(clean, tmp_path / "whole", recipe, **wanted)  # type: ignore[arg-type]

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    finish = "_finish_array" if recipe.layout == "arrays" else "_finish_folder"
    with monkeypatch.context() as patch:
        patch.setattr(module, finish, stop)
        with pytest.raises(KeyboardInterrupt):
            make_set(clean, tmp_path / "cut", recipe, **wanted)  # type: ignore[arg-type]
    (work,) = (tmp_path / "cut").glob(".making-*")
    marks = [*work.glob("fog-*"), *work.glob("contrast-*")]
    assert len(marks) == 2 * 5 * 2
    marks[0].unlink()  # that shard was not whole
    seen: list[tuple[int, int]] = []
    report = lambda *state: seen.append(state)  # noqa: E731
    make_set(clean, tmp_path / "cut", recipe, report=report, **wanted)  # type: ignore[arg-type]
    assert seen[-1] == (1, 1)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert not work.exists()


def test_a_second_call_makes_what_is_new_and_keeps_what_is_there(
    clean: CleanArray, tmp_path: Path
) -> None:
    target = tmp_path / "set"
    make_set(clean, target, CIFAR, corruptions=["contrast"])
    stamp = (target / "contrast.npy").stat().st_mtime_ns
    assert make_set(clean, target, CIFAR, corruptions=["contrast", "fog"]) == ["fog.npy"]
    assert make_set(clean, target, CIFAR, corruptions=["contrast", "fog"]) == []
    assert (target / "contrast.npy").stat().st_mtime_ns == stamp


def test_a_unit_that_got_its_place_just_before_the_end_is_taken_over(
    clean: CleanArray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    wanted = {"corruptions": ["contrast"], "severities": [1]}
    with monkeypatch.context() as patch:
        patch.setattr(module, "_record", stop)
        with pytest.raises(KeyboardInterrupt):
            make_set(clean, tmp_path / "set", IMAGENET, **wanted)  # type: ignore[arg-type]
    make_set(clean, tmp_path / "set", IMAGENET, **wanted)  # type: ignore[arg-type]
    manifest = read_manifest(tmp_path / "set")
    assert manifest is not None
    assert manifest["units"] == {"contrast/1": list(digest_of(tmp_path / "set" / "contrast/1"))}


def test_another_set_in_the_way_is_kept(clean: CleanArray, tmp_path: Path) -> None:
    make_set(clean, tmp_path / "set", CIFAR, corruptions=["contrast"])
    other = Recipe("arrays", "cifar", seed=4)
    with pytest.raises(DataError, match="made from other images, parameters or seed"):
        make_set(clean, tmp_path / "set", other, corruptions=["fog"])


def test_a_set_of_an_older_version_of_the_corruptions_is_kept(
    clean: CleanArray, tmp_path: Path
) -> None:
    made = tmp_path / "set"
    make_set(clean, made, CIFAR, corruptions=["contrast"])
    manifest = json.loads((made / "manifest.json").read_text())
    (made / "manifest.json").write_text(json.dumps(manifest | {"corruptions_version": 1}))
    with pytest.raises(DataError, match=f"of version 1, but this release makes version {VERSION}"):
        make_set(clean, made, CIFAR, corruptions=["motion_blur"])


def test_published_files_in_the_way_are_kept(clean: CleanArray, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "fog.npy").write_text("published")
    with pytest.raises(DataError, match="files that this program did not make"):
        make_set(clean, tmp_path / "set", CIFAR, corruptions=["fog"])
    assert (tmp_path / "set" / "fog.npy").read_text() == "published"


def test_an_image_that_does_not_decode_is_named_in_one_sentence(
    photos: Path, tmp_path: Path
) -> None:
    clean = CleanFolder(photos, Geometry(28, "crop", 32))
    (photos / "dog" / "d.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"d\.png: is not a readable image") as caught:
        make_set(clean, tmp_path / "set", IMAGENET, corruptions=["contrast"], severities=[1])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "set" / "contrast").exists()


# The manifest.


def test_the_manifest_states_how_the_set_was_made(clean: CleanArray, tmp_path: Path) -> None:
    make_set(clean, tmp_path / "set", IMAGENET, corruptions=["contrast"], severities=[1])
    told = json.loads((tmp_path / "set" / "manifest.json").read_text())
    expected = {
        "generator": "ctta-bench",
        "layout": "folders",
        "parameters": "imagenet",
        "seed": 3,
        "images": SHARD + 1,
        "size": [12, 10],
        "jpeg_quality": 85,
    }
    assert {key: told[key] for key in expected} == expected
    assert told["libraries"]["numpy"] == np.__version__
    assert told["libraries"]["libjpeg"]


def test_the_footnote_of_a_self_made_set_stands_beside_it(
    clean: CleanArray, tmp_path: Path
) -> None:
    make_set(clean, tmp_path / "set", IMAGENET, corruptions=["contrast"], severities=[1])
    told = provenance(tmp_path / "set")
    assert told == f"self-made corruptions (version {VERSION}, seed 3, JPEG quality 85)"
    manifest = read_manifest(tmp_path / "set")
    assert manifest is not None
    assert footnote(manifest) == told
    assert read_manifest(tmp_path) is None
    assert provenance(tmp_path) is None


def test_a_damaged_manifest_is_reported(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest\.json: is damaged"):
        read_manifest(tmp_path)


# Which clean images, and which wishes.


def test_cifar_sets_are_made_of_cifars_own_test_images_by_default(tmp_path: Path) -> None:
    from ctta_bench.datasets.rehearsal.pickled_batches import pickled_batch

    rng = np.random.RandomState(2)
    images = rng.randint(0, 255, (3, 32, 32, 3), dtype=np.uint8)
    rows = images.transpose(0, 3, 1, 2).reshape(3, -1)
    (tmp_path / "cifar-10-batches-py").mkdir()
    entries = {b"data": rows, b"labels": [7, 0, 9]}
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickled_batch(entries))
    folder, _ = make_benchmark("CIFAR10-C", tmp_path, MakeOptions(corruptions=["brightness"]))
    assert folder == tmp_path / "CIFAR-10-C"
    made = np.load(folder / "brightness.npy")
    np.testing.assert_array_equal(
        made[5], corrupt(images[2], "brightness", 2, parameters="cifar", seed=0, index=2)
    )
    assert np.load(folder / "labels.npy")[:3].tolist() == [7, 0, 9]


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_arrays_are_taken_from_npz_and_npy(kind: str, clean: CleanArray, tmp_path: Path) -> None:
    images, folder = np.load(clean.file)[:4, ..., 0], tmp_path / "mine"
    folder.mkdir()
    np.savez(folder / "set.npz", images=images, labels=np.arange(4))
    np.save(folder / "set.npy", images)
    np.save(folder / "labels.npy", np.arange(4))
    found = clean_images(folder / f"set.{kind}", Geometry(8), tmp_path)
    for opened in (found, pickle.loads(pickle.dumps(found))):
        np.testing.assert_array_equal(opened.image(3), np.repeat(images[3][..., None], 3, -1))
        assert opened.labels.tolist() == [0, 1, 2, 3]
    assert found.names[2] == "2/00000002"


def test_what_workers_get_of_an_array_is_its_place_and_not_its_images(clean: CleanArray) -> None:
    before = len(pickle.dumps(clean))
    assert clean.image(0).nbytes > 0
    assert len(pickle.dumps(clean)) == before < clean.file.stat().st_size


def broken(folder: Path, what: str) -> Path:
    images = np.zeros((2, 12, 12, 3), np.uint8)
    np.save(folder / "labels.npy", np.array([0.5]) if what == "labels" else np.array([0, 1, 2]))
    np.save(folder / "a.npy", images if what in ("count", "labels") else images.astype(float))
    np.savez(folder / "b.npz", images=images)
    (folder / "c.txt").write_text("")
    (folder / "empty").mkdir()
    (folder / "d.npz").write_bytes(b"PK")
    files = {"lacks": "b.npz", "suffix": "c.txt", "empty": "empty", "damaged": "d.npz"}
    return folder / files.get(what, "a.npy")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("count", "holds 2 images, but there are 3 labels"),
        ("labels", r"its labels are float64 \[1\]"),
        ("dtype", r"holds float64 \[2, 12, 12, 3\]"),
        ("lacks", "lacks the array labels"),
        ("suffix", "is no folder CLASS/IMAGE, no .npz"),
        ("empty", "holds no images in class folders"),
        ("damaged", "cannot be read as an array"),
    ],
)
def test_clean_images_that_are_none_are_reported(what: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        make_benchmark("cifar10_c", tmp_path / "root", MakeOptions(source=broken(tmp_path, what)))
    assert not list((tmp_path / "root").rglob("*.npy"))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("acdc", {}, "data make 'acdc': choose cifar10_c"),
        ("cifar10_c", {"corruptions": ["fogg"]}, "--corruption 'fogg': choose gaussian_noise"),
        ("imagenet_c", {"severities": [6]}, "--severity 6: choose 1"),
        ("cifar10_c", {"severities": [5]}, "files of this layout hold all five"),
        ("image_folder", {"severities": [1, 2]}, "image_folder holds one severity"),
        ("imagenet_c", {"size": 4}, "--size 4: images to corrupt have at least 8 pixels"),
        ("cifar10_c", {"size": 32, "source": Path(__file__)}, "--size: is for folders"),
    ],
)
def test_invalid_options_are_refused(
    name: str, options: dict[str, object], message: str, photos: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_benchmark(name, tmp_path / "root", MakeOptions(**{"source": photos} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cifar10_c", "imagenet_c", "image_folder"])
def test_missing_clean_images_are_reported_with_what_can_be_named(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=f"{name}: .*give the clean images with --source"):
        make_benchmark(name, tmp_path, MakeOptions())


def test_the_fifteen_are_made_by_default_and_nothing_else(tmp_path: Path) -> None:
    assert tuple(MakeOptions().corruptions) == CORRUPTIONS


def test_workers_do_without_torch(clean: CleanArray, tmp_path: Path) -> None:
    code = "import sys, ctta_bench.datasets.making.shards; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_a_full_disk_is_reported_and_nothing_half_made_has_a_final_name(
    clean: CleanArray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "write_array_header_1_0", full)
        with pytest.raises(DataError, match=r"contrast\.npy: the disk is full"):
            make_set(clean, tmp_path / "set", CIFAR, corruptions=["contrast"])
    named = {f.name for f in (tmp_path / "set").iterdir() if not f.name.startswith(".")}
    assert named == {"manifest.json", "provenance.txt"}
    assert make_set(clean, tmp_path / "set", CIFAR, corruptions=["contrast"]) == ["contrast.npy"]
    shutil.rmtree(tmp_path / "set")
