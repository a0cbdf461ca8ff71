"""Cityscapes → ACDC: files in the protocol's order, read as mmsegmentation does, or refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
import pytest
import torch
from mmseg.datasets import CityscapesDataset, DarkZurichDataset
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.datasets.io.label_files import TRAIN_IDS, read_map
from ctta_bench.datasets.io.street_classes import CLASSES, PALETTE
from ctta_bench.datasets.io.street_files import resized
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.registry import BENCHMARKS, load_plugin
from ctta_bench.stream import MapSet, Stream, batch_domains

CONDITIONS = ("fog", "night", "rain", "snow")
HEIGHT, WIDTH = 54, 96  # a twentieth of ACDC's
FRAMES = ("GP010475/GP010475_frame_000002", "GOPR0475/GOPR0475_frame_000011",
          "GOPR0475/GOPR0475_frame_000002")  # fmt: skip
ALL_FIRST = {"scale": (27, 48)}


def picture(seed: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, (height, width, 3), np.uint8)


def label(seed: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    found = np.random.RandomState(seed).randint(0, 19, (height, width)).astype(np.uint8)
    found[:2] = 255
    return found


def save(file: Path, values: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(file)


def lay(root: Path, split: str = "train", ref: str = "") -> None:
    for d, condition in enumerate(CONDITIONS):
        for number, frame in enumerate(FRAMES):
            place = f"{condition}/{split}{ref}/{frame}"
            save(root / f"rgb_anon/{place}_rgb{ref}_anon.png", picture(10 * d + number))
            save(root / f"gt/{place}_gt{ref}_labelTrainIds.png", label(10 * d + number))


def write_cityscapes(root: Path, split: str = "train") -> None:
    for number, city in enumerate(("ulm", "bonn")):
        place = f"{split}/{city}/{city}_00000{number}_000019"
        save(root / f"leftImg8bit/{place}_leftImg8bit.png", picture(number, 64, 128))
        raw = np.argsort(TRAIN_IDS, kind="stable").astype(np.uint8)[label(number, 64, 128)]
        save(root / f"gtFine/{place}_gtFine_labelIds.png", raw)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("streets")
    lay(root)
    return root


@pytest.fixture
def tree(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "data")


def benchmark(root: Path, **settings: Any) -> Any:
    entry = BENCHMARKS.get("cityscapes_acdc")
    return entry(entry.Settings(**(ALL_FIRST | settings)), root)


def test_classes_and_colours_are_those_of_mmsegmentation() -> None:
    assert CityscapesDataset.METAINFO["classes"] == CLASSES
    assert [tuple(c) for c in CityscapesDataset.METAINFO["palette"]] == list(PALETTE)


def test_conditions_come_in_the_protocols_order_and_frames_sorted_by_path(whole: Path) -> None:
    read = benchmark(whole)
    assert read.chosen_domains() == CONDITIONS
    stem = "rgb_anon.png"
    assert read.domain("night").names == [
        f"GOPR0475/GOPR0475_frame_000002_{stem}",
        f"GOPR0475/GOPR0475_frame_000011_{stem}",
        f"GP010475/GP010475_frame_000002_{stem}",
    ]
    order = Stream(batch_domains(read), read.settings, 3).order
    assert order.domain.tolist() == 3 * [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert order.index.tolist() == 12 * [0, 1, 2]


def test_files_and_pairs_are_those_that_mmsegmentation_finds(whole: Path) -> None:
    theirs = DarkZurichDataset(
        data_root=str(whole),
        data_prefix={"img_path": "rgb_anon/rain/train", "seg_map_path": "gt/rain/train"},
        pipeline=[],
    )
    ours = benchmark(whole).domain("rain")
    rows = [theirs.get_data_info(number) for number in range(len(theirs))]
    assert [str(ours.folder / name) for name in ours.names] == [r["img_path"] for r in rows]
    assert [str(ours.maps_folder / n) for n in ours.map_names] == [r["seg_map_path"] for r in rows]


def test_images_and_maps_are_those_of_mmsegmentations_test_pipeline(whole: Path) -> None:
    theirs = DarkZurichDataset(
        data_root=str(whole),
        data_prefix={"img_path": "rgb_anon/snow/train", "seg_map_path": "gt/snow/train"},
        test_mode=True,
        pipeline=[
            {"type": "LoadImageFromFile"},
            {"type": "Resize", "scale": (48, 27), "keep_ratio": True},
            LoadAnnotations(),
        ],
    )
    ours = benchmark(whole).domain("snow")
    for number in range(3):
        given, index = theirs[number], np.array([number])
        rgb = given["img"][..., ::-1].transpose(2, 0, 1)
        assert np.array_equal(ours.load(index)[0].numpy(), rgb)
        assert np.array_equal(ours.maps(index)[0].numpy(), given["gt_seg_map"])


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((1080, 1920), (540, 960)),
        ((1080, 1920), (270, 480)),
        ((1024, 2048), (512, 1024)),
        ((1024, 2048), (540, 960)),
        ((135, 240), (540, 960)),
        ((301, 517), (100, 333)),
    ],
)
def test_images_are_resized_as_mmcv_does(size: tuple[int, int], box: tuple[int, int]) -> None:
    image = picture(0, *size)
    expected = mmcv.imrescale(image, (box[1], box[0]))
    assert np.array_equal(resized(image, box), expected)


def test_labels_keep_their_size_whatever_the_scale(whole: Path) -> None:
    read = benchmark(whole, scale=(54, 96), batch_size=2)
    batch = Stream(batch_domains(read), read.settings, 0).batch(0)
    assert batch.images.shape == (2, 3, 54, 96)
    assert batch.labels.shape == (2, HEIGHT, WIDTH)
    half = benchmark(whole)
    assert Stream(batch_domains(half), half.settings, 0).batch(0).images.shape == (1, 3, 27, 48)


def test_the_default_is_the_protocol() -> None:
    settings = BENCHMARKS.get("cityscapes_acdc").Settings()
    assert settings.record() == {
        "setting": "continual", "domains": [], "rounds": 3, "batch_size": 1, "examples": None,
        "order": "file", "split": "train", "scale": [540, 960], "images": "all",
    }  # fmt: skip


RAW_IDS = {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11,
           25: 12, 26: 13, 27: 14, 28: 15, 31: 16, 32: 17, 33: 18}  # fmt: skip


def test_raw_ids_become_train_ids_and_all_others_are_ignored(tmp_path: Path) -> None:
    save(tmp_path / "ids.png", np.arange(256, dtype=np.uint8)[None])
    found = read_map(tmp_path / "ids.png", raw_ids=True)[0]
    assert found.tolist() == [RAW_IDS.get(value, 255) for value in range(256)]


def test_cityscapes_is_read_from_raw_ids_where_it_has_no_others(tmp_path: Path) -> None:
    write_cityscapes(tmp_path)
    source = benchmark(tmp_path).source()
    assert source.names[0].startswith("bonn/")
    assert np.array_equal(source.maps(np.array([0]))[0].numpy(), label(1, 64, 128))


def test_cityscapes_train_ids_are_taken_where_they_have_been_made(tmp_path: Path) -> None:
    write_cityscapes(tmp_path)
    for number, city in enumerate(("ulm", "bonn")):
        name = f"gtFine/train/{city}/{city}_00000{number}_000019_gtFine_labelTrainIds.png"
        save(tmp_path / name, np.full((64, 128), 5 + number, np.uint8))
    maps = benchmark(tmp_path).source().maps(np.array([0, 1]))
    assert maps[0].unique().tolist() == [6]
    assert maps[1].unique().tolist() == [5]


@pytest.mark.parametrize(
    ("scale", "size"), [((540, 960), (512, 1024)), ((270, 480), (256, 512)), ((27, 48), (26, 51))]
)
def test_source_images_are_shown_as_large_as_the_stream(
    scale: tuple[int, int], size: tuple[int, int], tmp_path: Path
) -> None:
    write_cityscapes(tmp_path)
    assert benchmark(tmp_path, scale=scale).source().load(np.array([0])).shape[2:] == size


def test_source_images_without_labels_are_a_source_without_labels(tmp_path: Path) -> None:
    write_cityscapes(tmp_path)
    shutil.rmtree(tmp_path / "gtFine")
    source = benchmark(tmp_path).source()
    assert len(source.labels) == 2
    assert not isinstance(source, MapSet)


def test_without_cityscapes_there_is_no_source(whole: Path) -> None:
    assert benchmark(whole).source() is None


def test_validation_and_reference_images_and_cityscapes_are_named(tmp_path: Path) -> None:
    lay(tmp_path, "val")
    lay(tmp_path, "val", "_ref")
    write_cityscapes(tmp_path, "val")
    read = benchmark(tmp_path, split="val", domains=("fog_ref", "fog", "clean"))
    assert read.problems() == []
    batches = list(Stream(batch_domains(read), read.settings, 0).batches())[:8]
    assert [len(d) for d in batch_domains(read)] == [3, 3, 2]
    assert torch.equal(batches[3].labels[0], torch.from_numpy(label(2)))
    assert read.provenance == (
        "the val split of ACDC instead of its training images; images at 48x27 pixels instead of "
        "960x540"
    )


@pytest.mark.parametrize("folder", ["ACDC", "acdc"])
def test_the_sets_may_lie_in_folders_of_their_own(folder: str, tmp_path: Path) -> None:
    lay(tmp_path / folder)
    write_cityscapes(tmp_path / "cityscapes")
    read = benchmark(tmp_path)
    assert read.problems() == []
    assert len(read.source().labels) == 2


def test_a_list_chooses_images_in_its_order_and_its_content_is_the_identity(
    whole: Path, tmp_path: Path
) -> None:
    lines = [f"{c}/train/{FRAMES[i]}_rgb_anon.png" for c in CONDITIONS for i in (0, 2)]
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_text("\n".join(lines))
    other.write_text("\n".join(f"rgb_anon/{line}" for line in lines) + "\n")
    read = benchmark(whole, images=one)
    assert [name.partition("/")[0] for name in read.domain("fog").names] == ["GP010475", "GOPR0475"]
    records = [benchmark(whole, images=file).settings.record()["images"] for file in (one, other)]
    assert records[0] == records[1] != "all"
    other.write_text("\n".join(reversed(lines)))
    assert benchmark(whole, images=other).settings.record()["images"] != records[0]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("fog/train/GOPR0475/other_rgb_anon.png", "lists GOPR0475/other_rgb_anon.png, which"),
        ("fog/train/x\nfog/train/x", "lists an image twice"),
        ("rain/train/x", "lists no image of fog/train/"),
    ],
)
def test_an_invalid_list_is_reported(lines: str, words: str, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(lines)
    assert words in benchmark(whole, images=tmp_path / "list.txt").problems()[0]


def raw(root: Path) -> Path:
    file = root / f"gt/night/train/{FRAMES[1]}_gt_labelTrainIds.png"
    values = np.full((HEIGHT, WIDTH), 7, np.uint8)
    values[5, 5] = 23
    save(file, values)
    return file


def missing(root: Path) -> Path:
    file = root / f"gt/rain/train/{FRAMES[0]}_gt_labelTrainIds.png"
    file.unlink()
    return file


def coloured(root: Path) -> Path:
    file = root / f"gt/snow/train/{FRAMES[2]}_gt_labelTrainIds.png"
    save(file, np.asarray(PALETTE, np.uint8)[np.minimum(label(0), 18)])
    return file


def small(root: Path) -> Path:
    file = root / f"gt/fog/train/{FRAMES[0]}_gt_labelTrainIds.png"
    save(file, label(0, 27, 48))
    return file


def damaged(root: Path) -> Path:
    file = root / f"gt/fog/train/{FRAMES[0]}_gt_labelTrainIds.png"
    file.write_bytes(file.read_bytes()[:60])
    return file


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (raw, "holds the value 23, but train ids are 0 to 18, and 255"),
        (missing, "this label map is missing"),
        (coloured, "has 3 channels, but a label map has one"),
        (small, "has 48x27 pixels, but its image"),
        (damaged, "is not a readable label map"),
    ],
)
def test_wrong_label_files_are_named_by_the_run_and_by_data_check(
    spoil: Callable[[Path], Path], words: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = spoil(tree)
    monkeypatch.chdir(tree)
    monkeypatch.setattr("ctta_bench.run.open.usable_cores", lambda: 0)  # no processes for 12 files
    options = ["--data-root", str(tree), "--set", "scale=[32, 57]", "--workers", "0"]
    model = ["--plugin", "tests.toy_maps", "--model", "toy_streets"]
    for call in (["data", "check", *options], ["run", "source", *options, *model]):
        found = CliRunner().invoke(app, [*call, "cityscapes_acdc"])
        assert found.exit_code == 2, found.output
        told = "".join(found.stderr.split())
        assert str(file) in told
        assert "".join(words.split()) in told


def test_the_first_wrong_file_of_several_is_named(tree: Path) -> None:
    for frame in FRAMES:
        save(tree / f"gt/fog/train/{frame}_gt_labelTrainIds.png", np.full((54, 96), 33, np.uint8))
    with pytest.raises(DataError, match=r"GOPR0475_frame_000002_gt_labelTrainIds\.png: holds the"):
        benchmark(tree).prepare_data(lambda what, done, total: None, 0)


def test_a_missing_folder_is_reported_with_its_path(tmp_path: Path) -> None:
    (told,) = benchmark(tmp_path).problems()
    assert told.startswith(f"no folder {tmp_path}/rgb_anon; ")
    assert "ACDC needs an account" in told
    (tmp_path / "rgb_anon" / "fog").mkdir(parents=True)
    (first, *others) = benchmark(tmp_path).problems()
    folder = f"{tmp_path}/rgb_anon/fog/train"
    assert first.startswith(f"domain fog: no images *_rgb_anon.png in {folder}")
    assert len(others) == 3


def test_images_of_several_sizes_cannot_share_a_batch(tree: Path) -> None:
    save(tree / f"rgb_anon/fog/train/{FRAMES[1]}_rgb_anon.png", picture(0, 54, 54))
    with pytest.raises(DataError, match="has another shape than the images before it"):
        benchmark(tree).domain("fog").load(np.arange(3))


def test_training_uses_cityscapes_with_labels(tmp_path: Path) -> None:
    write_cityscapes(tmp_path / "other")
    write_cityscapes(tmp_path / "other", "val")
    train, test = benchmark(tmp_path).training_sets(tmp_path / "other")
    assert (len(train.labels), len(test.labels)) == (2, 2)
    with pytest.raises(DataError, match="Cityscapes needs an account"):
        benchmark(tmp_path).training_sets(None)


def record(root: Path, **settings: Any) -> dict[str, Any]:
    load_plugin("tests.toy_maps")
    request = CellRequest(
        method="source", benchmark="cityscapes_acdc", model="toy_streets", data_root=root,
        set=settings,
    )  # fmt: skip
    return resolve(request).record


def test_another_scale_or_split_is_another_cell(whole: Path) -> None:
    records = [record(whole), record(whole, scale=[270, 480]), record(whole, split="val")]
    assert records[0]["benchmark"]["scale"] == [540, 960]
    assert records[0]["benchmark"]["inference"] == "whole"
    assert len({r["id"] for r in records}) == 3


def test_where_the_data_lies_is_no_part_of_the_cell(whole: Path, tree: Path) -> None:
    assert record(whole)["id"] == record(tree)["id"]


@pytest.mark.parametrize("scale", [[10, 960], [540], 540, [540, 5000]])
def test_an_impossible_scale_is_refused(scale: Any, whole: Path) -> None:
    with pytest.raises(ConfigError, match=r"benchmark cityscapes_acdc\.scale"):
        record(whole, scale=scale)
