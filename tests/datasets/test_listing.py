"""What is read of a folder, and that what is not read is counted and named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.datasets.cityscapes_acdc import CityscapesACDC
from ctta_bench.datasets.image_folder import FolderSettings, ImageFolder
from ctta_bench.datasets.imagenet_c import ImageNetC
from ctta_bench.datasets.imagenet_variants import ImageNetR, ImageNetV2
from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.flat_val import flat_classes, flat_files
from ctta_bench.datasets.io.imagenet import synsets
from ctta_bench.datasets.io.listing import listing, passed_over_note
from ctta_bench.datasets.making.clean import CleanFolder
from ctta_bench.datasets.making.corruptions import VERSION
from ctta_bench.datasets.making.self_made import MakeOptions, make_benchmark
from ctta_bench.errors import DataError
from tests.datasets.layouts import picture, synset_tree, val


def image(file: Path, value: int = 0) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16), (value, value, value)).save(file)
    return file


def folder(root: Path, **settings: Any) -> ImageFolder:
    return ImageFolder(FolderSettings(image_size=16, **settings), root)


def checked(root: Path, name: str = "image_folder") -> dict[str, Any]:
    done = CliRunner().invoke(
        app, ["data", "check", name, "--data-root", str(root), "--format", "json"]
    )
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# -- files


def test_all_formats_of_pillow_and_subfolders_are_read(tmp_path: Path) -> None:
    names = ["a.png", "b.tif", "c.tiff", "d.ppm", "e.gif", "f.webp", "g.BMP", "h.jpg", "sub/c.png"]
    for number, name in enumerate(names):
        image(tmp_path / "fog" / "cat" / name, 10 * number)
    Image.new("L", (16, 16), 90).save(tmp_path / "fog" / "cat" / "i.pgm")
    found = folder(tmp_path)
    images = found.domain("fog")
    assert len(images.labels) == 10
    values = images.load(np.arange(10)).float().mean(dim=(1, 2, 3)).round().tolist()
    # By path: `sub/c.png` comes last.
    assert values == [0, 10, 20, 30, 40, 50, 60, 70, 90, 80]
    assert found.provenance is None


def test_what_looks_like_an_image_and_is_not_read_is_counted_and_named(tmp_path: Path) -> None:
    cat = image(tmp_path / "fog" / "cat" / "a.png").parent
    for name in ("b.heic", "c.jpg.bak", ".d.png", "sub/e.svg"):
        (cat / name).parent.mkdir(exist_ok=True)
        (cat / name).write_bytes(b"x")
    image(cat / "f.png").rename(cat / "without_suffix")
    for name in ("notes.txt", "._a.png", ".a.png.12.tmp", "list", "labels.csv"):
        (cat / name).write_bytes(b"x")
    found = listing(cat)
    assert found.images == ["a.png"]
    assert found.passed_over == [".d.png", "b.heic", "c.jpg.bak", "sub/e.svg", "without_suffix"]
    image(tmp_path / "fog" / "stray.png")
    image(tmp_path / "top.png")
    note = folder(tmp_path).provenance
    assert note is not None
    assert note.startswith("7 files look like an image and are not read (top.png, fog/stray.png,")
    assert "and 4 more" in note
    assert checked(tmp_path)["note"] == note


def test_the_note_counts_one_file() -> None:
    assert passed_over_note([]) is None
    assert passed_over_note(["a.heic"]) == "1 file looks like an image and is not read (a.heic)"


def test_a_link_in_a_circle_ends(tmp_path: Path) -> None:
    image(tmp_path / "fog" / "cat" / "a.png")
    (tmp_path / "fog" / "cat" / "again").symlink_to(tmp_path / "fog" / "cat")
    assert listing(tmp_path / "fog" / "cat").images == ["a.png"]


# -- classes


def test_stray_folders_are_no_classes_and_are_named(tmp_path: Path) -> None:
    for domain in ("fog", "snow"):
        for name in ("cat", "dog"):
            image(tmp_path / domain / name / "a.png")
    image(tmp_path / "fog" / "__MACOSX" / "a.png")
    image(tmp_path / "fog" / "cat" / "@eaDir" / "thumb.png")
    (tmp_path / "fog" / "Drafts").mkdir()
    (tmp_path / "snow" / "lost+found").mkdir()
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".git").mkdir()
    found = folder(tmp_path)
    assert found.domain_names() == ("fog", "snow")
    assert found.class_names == ("cat", "dog")
    assert found.num_classes == 2
    assert found.domain("fog").labels.tolist() == [0, 1]
    assert found.unknown_folders() == [
        ".git", "lost+found", "fog/__MACOSX", "fog/cat/@eaDir", "snow/lost+found", "fog/Drafts",
    ]  # fmt: skip
    told = checked(tmp_path)
    assert told["classes"] == ["cat", "dog"]
    assert "fog/__MACOSX" in [part["name"] for part in told["parts"] if part["role"] == "unknown"]


def test_check_prints_the_classes_and_what_a_domain_lacks(tmp_path: Path) -> None:
    for domain, name in (("fog", "cat"), ("fog", "dog"), ("snow", "dog")):
        image(tmp_path / domain / name / "a.png")
    (tmp_path / "snow" / "cat").mkdir()
    done = CliRunner().invoke(app, ["data", "check", "image_folder", "--data-root", str(tmp_path)])
    assert done.exit_code == 0
    assert "2 classes: cat, dog" in done.stdout
    assert "note: snow has no images of cat" in done.stdout
    assert folder(tmp_path).domain("snow").labels.tolist() == [1]


def test_a_folder_without_any_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fog" / "cat").mkdir(parents=True)
    (tmp_path / "fog" / "cat" / "a.heic").write_bytes(b"x")
    assert "no DOMAIN/CLASS folders" in folder(tmp_path).problems()[0]


# -- ImageNet


def test_synset_trees_name_what_they_pass_over(tmp_path: Path) -> None:
    home = tmp_path / "imagenet-r"
    number = synsets().index(synsets("imagenet_r")[0])
    synset_tree(home, {number: ["a.jpg", "sub/b.jpg"]})
    (home / synsets()[number] / "c.heic").write_bytes(b"x")
    (home / "__MACOSX").mkdir()
    picture(home / "stray.jpg", 1)
    found = ImageNetR(None, tmp_path)
    assert len(found.domain("imagenet_r").labels) == 2
    assert found.provenance == (
        "imagenet-r: 2 files look like an image and are not read "
        f"(stray.jpg, {synsets()[number]}/c.heic)"
    )
    assert found.unknown_folders() == ["imagenet-r/__MACOSX"]


def test_imagenet_c_names_what_it_passes_over(tmp_path: Path) -> None:
    place = tmp_path / "ImageNet-C" / "fog" / "5"
    synset_tree(place, {3: [val(1)]})
    (place / synsets()[3] / f"{val(2)}.part").write_bytes(b"x")
    found = ImageNetC(ImageNetC.Settings(domains=("fog",)), tmp_path)
    assert len(found.domain("fog").labels) == 1
    assert found.provenance is not None
    assert "1 file looks like an image and is not read" in found.provenance


def test_v2_and_a_flat_folder_name_what_they_pass_over(tmp_path: Path) -> None:
    home = tmp_path / "imagenet-v2" / "imagenetv2-matched-frequency-format-val"
    for name in ("10/a.jpeg", "2/b.jpeg", "2/c.tif"):
        picture(home / name, int(name.partition("/")[0]))
    (home / "2" / "d.heic").write_bytes(b"x")
    v2 = ImageNetV2(None, tmp_path)
    assert v2.domain("imagenet_v2").labels.tolist() == [2, 2, 10]
    assert "2/d.heic" in str(v2.provenance)

    flat = picture(tmp_path / "val" / val(1), 1).parent
    picture(flat / "other.jpg", 1)
    (tmp_path / "val_map.txt").write_text(f"{val(1)} {synsets()[65]}\n")
    classes = flat_classes(flat)
    assert classes is not None
    images = flat_files(flat, classes, Geometry(8))
    assert (list(images.names), list(images.passed_over)) == ([val(1)], ["other.jpg"])


def test_labels_of_clean_images_count_classes_with_images_only(tmp_path: Path) -> None:
    for name in ("b", "c"):
        image(tmp_path / name / "0.png")
    (tmp_path / "a").mkdir()
    assert CleanFolder(tmp_path, Geometry(16)).labels.tolist() == [0, 1]


def test_clean_images_that_are_not_read_are_in_the_footnote(tmp_path: Path) -> None:
    image(tmp_path / "clean" / "cat" / "a.png")
    (tmp_path / "clean" / "cat" / "b.heic").write_bytes(b"x")
    options = MakeOptions(tmp_path / "clean", ["contrast"], size=16)
    make_benchmark("image_folder", tmp_path / "made", options)
    assert folder(tmp_path / "made").provenance == (
        f"self-made corruptions (version {VERSION}, seed 0); of its clean images, "
        "1 file looks like an image and is not read (cat/b.heic)"
    )


# -- streets


def test_street_images_of_other_names_are_counted(tmp_path: Path) -> None:
    place = tmp_path / "rgb_anon" / "fog" / "train" / "GP"
    image(place / "a_rgb_anon.png")
    image(place / "b_rgb_anon.jpg")
    labels = tmp_path / "gt" / "fog" / "train" / "GP" / "a_gt_labelTrainIds.png"
    labels.parent.mkdir(parents=True)
    Image.new("L", (16, 16), 0).save(labels)
    found = CityscapesACDC(CityscapesACDC.Settings(domains=("fog",), scale=(16, 16)), tmp_path)
    assert len(found.domain("fog").labels) == 1
    assert "rgb_anon/fog/train: 1 file looks like an image and is not read" in str(found.provenance)


def test_a_list_of_street_images_with_an_unknown_condition_is_refused(tmp_path: Path) -> None:
    image(tmp_path / "rgb_anon" / "fog" / "train" / "GP" / "a_rgb_anon.png")
    lines = tmp_path / "list.txt"
    lines.write_text("fog/train/GP/a_rgb_anon.png\nfoggy/train/GP/a_rgb_anon.png\n")
    settings = CityscapesACDC.Settings(images=lines, domains=("fog",))
    with pytest.raises(DataError, match=r"'foggy/train/GP/a_rgb_anon\.png' is not COND/SPLIT"):
        CityscapesACDC(settings, tmp_path).domain("fog")
