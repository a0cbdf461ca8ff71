"""The rehearsal of cityscapes_acdc has the true names and encodings, and runs."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.datasets.fetching.known import known_data
from ctta_bench.datasets.fetching.verify import verify
from ctta_bench.datasets.rehearsal.benchmarks import rehearse
from ctta_bench.datasets.rehearsal.model import write_rehearsal_model
from ctta_bench.errors import DataError
from ctta_bench.record.folder import RunFolder
from ctta_bench.registry import BENCHMARKS, load_plugin
from ctta_bench.run.engine import run_cell


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rehearsal")
    rehearse("cityscapes_acdc", root, images=2)
    return root


def test_names_are_those_of_the_publishers(root: Path) -> None:
    files = {file.relative_to(root).as_posix() for file in root.rglob("*.png")}
    frame = "snow/train/GP010475/GP010475_frame_000002"
    ref = "night/train_ref/GOPR0475/GOPR0475_frame_000001"
    assert {
        f"rgb_anon/{frame}_rgb_anon.png",
        f"gt/{frame}_gt_labelTrainIds.png",
        f"gt/{frame}_gt_labelIds.png",
        f"rgb_anon/{ref}_rgb_ref_anon.png",
        f"gt/{ref}_gt_ref_labelTrainIds.png",
        "leftImg8bit/train/zurich/zurich_000001_000019_leftImg8bit.png",
        "gtFine/val/munster/munster_000000_000019_gtFine_labelIds.png",
    } <= files
    assert not [name for name in files if name.endswith("gtFine_labelTrainIds.png")]


def test_files_are_a_fourth_of_the_true_size_and_encoded_as_the_true_ones(root: Path) -> None:
    place = "fog/val/GOPR0475/GOPR0475_frame_000001"
    with Image.open(root / f"rgb_anon/{place}_rgb_anon.png") as image:
        assert (image.mode, image.size) == ("RGB", (1920 // 4, 1080 // 4))
    with Image.open(root / f"gt/{place}_gt_labelTrainIds.png") as label:
        assert (label.mode, label.size) == ("L", (480, 270))
        assert set(np.unique(np.asarray(label))) <= {*range(19), 255}
    with Image.open(root / f"gt/{place}_gt_labelIds.png") as raw:
        assert np.unique(np.asarray(raw)).max() > 18


def test_all_of_it_is_read_in_the_true_layout(root: Path) -> None:
    read = BENCHMARKS.get("cityscapes_acdc")(root=root)
    assert read.problems() == []
    names = (*read.domain_names(), *read.extra_domains())
    counts = {name: len(read.domain(name).labels) for name in names}
    assert counts == dict.fromkeys(read.domain_names(), 2) | {
        "fog_ref": 1, "night_ref": 1, "rain_ref": 1, "snow_ref": 1, "clean": 4,
    }  # fmt: skip
    assert len(read.source().labels) == 8
    assert read.provenance == "rehearsal images"


def test_the_listing_knows_it_and_its_manifest_proves_it(root: Path) -> None:
    rows = {row["name"]: row["there"] for row in known_data(root)}
    assert (rows["cityscapes_acdc"], rows["cityscapes"]) == ("yes", "yes")
    assert {finding.verdict for finding in verify("cityscapes_acdc", root)} == {"whole"}


def test_made_twice_it_is_the_same_and_true_data_is_left_alone(root: Path, tmp_path: Path) -> None:
    rehearse("cityscapes_acdc", root, images=2)
    (tmp_path / "gt").mkdir()
    (tmp_path / "gt" / "fog.png").write_bytes(b"true")
    with pytest.raises(DataError, match="gt: holds files that are not a rehearsal's"):
        rehearse("cityscapes_acdc", tmp_path, images=1)


def test_a_cell_runs_on_it_and_says_what_it_ran_on(root: Path, tmp_path: Path) -> None:
    load_plugin("tests.toy_maps")
    acdc = tmp_path / "acdc"
    acdc.mkdir()
    for name in ("rgb_anon", "gt"):  # without the source set, which this model does not know
        (acdc / name).symlink_to(root / name)
    request = CellRequest(
        method="tent", benchmark="cityscapes_acdc", model="toy_streets", data_root=acdc,
        workers=0, set={"scale": [135, 240], "rounds": 2, "lr": 1e-4},
    )  # fmt: skip
    result = run_cell(resolve(request), RunFolder(tmp_path / "cell"))
    assert [d["domain"] for d in result["rounds"][1]["domains"]] == ["fog", "night", "rain", "snow"]
    assert result["rounds"][0]["domains"][0]["pixels"] <= 2 * 480 * 270
    with np.load(tmp_path / "cell" / "pictures.npz") as kept:
        assert kept["image"].shape == (8, 135, 240, 3)
    told = "rehearsal images; images at 240x135 pixels instead of 960x540"
    assert told in (tmp_path / "cell" / "env.json").read_text()


def test_data_check_counts_its_parts(root: Path) -> None:
    found = CliRunner().invoke(
        app, ["data", "check", "cityscapes_acdc", "--root", str(root), "--workers", "0", "--decode"]
    )
    assert found.exit_code == 0
    assert "4 domains: fog, night, rain, snow" in found.output
    assert "note: rehearsal images" in found.output


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_its_weights_pass_the_check_of_their_accuracy_at_both_sizes(root: Path) -> None:
    write_rehearsal_model("cityscapes_acdc", root, scale=(68, 120))
    for size in ([], ["--set", "scale=[68,120]"]):
        words = ["--set", "domains=[fog]", "--set", "examples=1", "--set", "rounds=1", *size]
        place = ["--root", str(root), "--out", str(root / "runs"), "--workers", "0"]
        found = CliRunner().invoke(app, ["run", "source", "cityscapes_acdc", *words, *place])
        assert found.exit_code == 0, found.output
