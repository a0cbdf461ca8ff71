"""CCC's streams, read out of their tars."""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctta_bench.config.validation import validate
from ctta_bench.datasets import ccc
from ctta_bench.datasets.ccc import CCC
from ctta_bench.errors import DataError
from ctta_bench.stream import Stream, batch_domains
from tests.datasets.layouts import SIDE, colour, picture

NAMES = ["baseline_20_transition+speed_1000_seed_43", "baseline_20_transition+speed_2000_seed_44"]


@pytest.fixture(autouse=True)
def _own_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ccc, "user_cache_path", lambda name: tmp_path / "cache")


def write_tar(file: Path, labels: list[int], scratch: Path) -> Path:
    """As the authors write it: KEY.info, KEY.input.jpg and KEY.output.cls for each image."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as archive:
        for number, label in enumerate(labels):
            image = picture(scratch / "image", max(0, label)).read_bytes()
            members = {"info": b"fog 0.25", "input.jpg": image, "output.cls": str(label).encode()}
            for kind, content in members.items():
                member = tarfile.TarInfo(f"{number:07d}.{kind}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for offset, name in enumerate(NAMES):
        for serial in range(2):
            labels = [100 * (1 + 2 * offset + serial) + i for i in range(3)]
            write_tar(tmp_path / "CCC" / name / f"serial_{serial:05d}.tar", labels, tmp_path)
    return tmp_path


def benchmark(root: Path, **settings: Any) -> CCC:
    values = {"domains": tuple(NAMES), "crop": SIDE, "batch_size": 4} | settings
    return CCC(validate(CCC.Settings, values, "benchmark"), root)


def test_a_stream_is_its_tars_in_order_and_images_belong_to_their_labels(root: Path) -> None:
    images = benchmark(root).domain(NAMES[0])
    assert images.labels.tolist() == [100, 101, 102, 200, 201, 202]
    loaded = images.load(np.array([4, 0, 3]))
    assert loaded[:, :, 2, 5].tolist() == [list(colour(n)) for n in (201, 100, 200)]


def test_a_missing_tar_between_others_is_a_problem(root: Path) -> None:
    (root / "CCC" / NAMES[0] / "serial_00000.tar").unlink()
    words = r"serial_00000.tar is missing, and later tars are there"
    assert [problem for problem in benchmark(root).problems() if "serial_00000" in problem]
    with pytest.raises(DataError, match=words):
        benchmark(root).domain(NAMES[0])


def test_a_tar_with_images_that_are_not_read_is_refused(root: Path) -> None:
    tar = root / "CCC" / NAMES[0] / "serial_00000.tar"
    with tarfile.open(tar, "a") as archive:
        archive.addfile(tarfile.TarInfo("0000009.input.png"))
    with pytest.raises(DataError, match=r"holds 0000009\.input\.png, but only images"):
        benchmark(root).domain(NAMES[0])


def test_each_stream_starts_again(root: Path) -> None:
    read = benchmark(root)
    batches = list(Stream(batch_domains(read), read.settings, 0).batches())
    assert [len(b.labels) for b in batches] == [4, 2, 4, 2]
    assert [b.reset for b in batches] == [False, False, True, False]


def test_a_level_has_nine_streams(root: Path) -> None:
    assert len(benchmark(root, domains=(), level=0).chosen_domains()) == 9
    assert (
        "baseline_40_transition+speed_5000_seed_45"
        in CCC(validate(CCC.Settings, {"level": 40}, "benchmark"), root).domain_names()
    )


def test_a_speed_has_three_streams_and_changes_no_other_cell(root: Path) -> None:
    fast = benchmark(root, domains=(), speed=1000)
    assert [name.split("_")[-3:] for name in fast.chosen_domains()] == [
        ["1000", "seed", seed] for seed in ("43", "44", "45")
    ]
    assert fast.settings.record()["speed"] == 1000
    everything = benchmark(root, domains=())
    assert "speed" not in everything.settings.record()
    assert "speed" not in {**everything.source_settings(), **fast.source_settings()}


def test_examples_open_no_tar_that_they_do_not_need(root: Path) -> None:
    (root / "CCC" / NAMES[0] / "serial_00001.tar").write_bytes(b"half a tar")
    assert len(benchmark(root, examples=3).domain(NAMES[0]).labels) == 3
    with pytest.raises(DataError, match=r"serial_00001.tar: is not a complete tar of CCC"):
        benchmark(root, examples=4).domain(NAMES[0])


@pytest.mark.parametrize("share", [0.4, 0.8])
def test_a_tar_that_is_cut_off_is_refused(root: Path, share: float) -> None:
    tar = root / "CCC" / NAMES[0] / "serial_00000.tar"
    tar.write_bytes(tar.read_bytes()[: int(share * 9 * 1024)])
    with pytest.raises(DataError, match="is not a complete tar of CCC"):
        benchmark(root).domain(NAMES[0])


@pytest.mark.parametrize("label", [1000, -1])
def test_a_class_that_is_none_is_refused(root: Path, label: int) -> None:
    write_tar(root / "CCC" / NAMES[0] / "serial_00000.tar", [label], root)
    with pytest.raises(DataError, match=r"a complete tar of CCC \(image 0000000 has no class\)"):
        benchmark(root).domain(NAMES[0])


def test_the_index_is_kept_and_made_again_for_another_tar(root: Path) -> None:
    benchmark(root).domain(NAMES[0])
    kept = sorted((root / "cache" / "ccc").glob("*.npy"))
    assert len(kept) == 2
    kept[0].write_bytes(b"damaged")
    assert len(benchmark(root).domain(NAMES[0]).labels) == 6
    write_tar(root / "CCC" / NAMES[0] / "serial_00000.tar", [7, 8], root)
    assert benchmark(root).domain(NAMES[0]).labels.tolist() == [7, 8, 200, 201, 202]


def test_a_missing_stream_is_a_problem_with_its_address(root: Path) -> None:
    other = "baseline_20_transition+speed_5000_seed_45"
    (problem,) = benchmark(root, domains=(NAMES[0], other)).problems()
    assert f"mlcloud.uni-tuebingen.de:7443/datasets/CCC/{other}/" in problem
    (root / "CCC" / "notes").mkdir()
    assert benchmark(root).unknown_folders() == ["notes"]


def test_a_damaged_image_is_named_by_tar_and_place(root: Path) -> None:
    tar = root / "CCC" / NAMES[0] / "serial_00000.tar"
    tar.write_bytes(tar.read_bytes().replace(b"\x89PNG", b"JUNK"))
    images = benchmark(root).domain(NAMES[0])
    with pytest.raises(DataError, match=r"serial_00000.tar: image 1: is not a readable image"):
        images.load(np.array([1]))


def test_a_cache_of_a_whole_stream_is_refused(root: Path) -> None:
    read = benchmark(root)
    assert read.problems() == []
    read.decoded_cache = root / "cache"
    assert "would take 1.1 TB" in read.problems()[0]
