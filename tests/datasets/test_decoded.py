"""The cache of decoded images: the same bytes, made once, checked, and safe to interrupt."""

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ctta_bench.datasets.io import decoded
from ctta_bench.datasets.io.decoded import DecodedImages
from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.file_images import FileImages
from ctta_bench.errors import DataError

COUNT = 10


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded, "CHUNK", 3)
    decoded._opened.cache_clear()


@pytest.fixture
def files(tmp_path: Path) -> FileImages:
    folder, random = tmp_path / "set" / "fog" / "5", np.random.RandomState(0)
    folder.mkdir(parents=True)
    names = [f"{i:02d}.jpg" for i in range(COUNT)]
    for name in names:
        Image.fromarray(random.randint(0, 255, (8, 8, 3), np.uint8)).save(folder / name)
    return FileImages(folder, names, np.arange(COUNT), Geometry(8))


def fill(images: DecodedImages, workers: int = 0) -> list[tuple[int, int]]:
    told: list[tuple[int, int]] = []
    images.fill(lambda done, total: told.append((done, total)), workers)
    return told


@pytest.mark.parametrize("workers", [0, 2])
def test_cached_images_are_the_decoded_ones(
    files: FileImages, tmp_path: Path, workers: int
) -> None:
    cached = DecodedImages(files, tmp_path / "cache")
    assert fill(cached, workers) == [(3, 10), (6, 10), (9, 10), (10, 10)]
    index = np.array([9, 0, 4, 4])
    assert torch.equal(cached.load(index), files.load(index))
    assert cached.labels.tolist() == list(range(COUNT))
    whole = np.load(cached.folder / "images.npy", mmap_mode="r")
    assert (whole.shape, whole.dtype) == ((COUNT, 3, 8, 8), np.uint8)


def forbid_decoding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Files decoded from here on."""
    decoded_files: list[int] = []
    load = FileImages.load

    def counting(self: FileImages, index: np.ndarray) -> torch.Tensor:
        decoded_files.extend(index.tolist())
        return load(self, index)

    monkeypatch.setattr(FileImages, "load", counting)
    return decoded_files


def test_a_second_use_decodes_nothing(
    files: FileImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(DecodedImages(files, tmp_path / "cache"))
    seen = forbid_decoding(monkeypatch)
    again = DecodedImages(files, tmp_path / "cache")
    assert fill(again) == []
    again.load(np.arange(COUNT))
    assert seen == []


def interrupted(files: FileImages, cache: Path, after: int) -> None:
    def stop(done: int, total: int) -> None:
        if done >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DecodedImages(files, cache).fill(stop, 0)


def test_an_interrupted_making_resumes_and_ends_with_the_same_bytes(
    files: FileImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(DecodedImages(files, tmp_path / "whole"))
    interrupted(files, tmp_path / "cache", after=6)
    cached = DecodedImages(files, tmp_path / "cache")
    with pytest.raises(DataError, match="cannot be read"):
        cached.load(np.array([0]))
    seen = forbid_decoding(monkeypatch)
    fill(cached)
    assert seen == [6, 7, 8, 9]
    for name in ("images.npy", "checksums.npy", "manifest.json"):
        (one,), (other,) = ((tmp_path / c).glob(f"*/{name}") for c in ("whole", "cache"))
        assert one.read_bytes() == other.read_bytes()
    assert sorted(p.name for p in cached.folder.iterdir()) == [
        "checksums.npy", "images.npy", "manifest.json",
    ]  # fmt: skip


@pytest.mark.parametrize("file", ["images.part", "checksums.part"])
@pytest.mark.parametrize("cut", [1, 300])
def test_what_an_interruption_left_half_written_is_decoded_again(
    files: FileImages, tmp_path: Path, file: str, cut: int
) -> None:
    interrupted(files, tmp_path / "cache", after=6)
    cached = DecodedImages(files, tmp_path / "cache")
    part = cached.folder / file
    part.write_bytes(part.read_bytes()[:-cut] + b"x")
    fill(cached)
    index = np.arange(COUNT)
    assert torch.equal(cached.load(index), files.load(index))


def test_a_damaged_cache_is_noticed_when_the_image_is_read(
    files: FileImages, tmp_path: Path
) -> None:
    cached = DecodedImages(files, tmp_path / "cache")
    fill(cached)
    stored = np.load(cached.folder / "images.npy", mmap_mode="r+")
    stored[7, 1, 2, 3] += 1
    stored.flush()
    cached.load(np.array([0, 6, 8]))
    with pytest.raises(DataError, match=r"cached image 7 is damaged; remove the folder"):
        cached.load(np.array([6, 7]))


@pytest.mark.parametrize("change", ["pixels", "geometry", "names"])
def test_other_files_or_another_geometry_are_another_cache(
    files: FileImages, tmp_path: Path, change: str
) -> None:
    before = DecodedImages(files, tmp_path / "cache").folder
    after: Any = files
    match change:
        case "pixels":
            Image.new("RGB", (8, 8)).save(files.folder / "03.jpg")
        case "geometry":
            after = FileImages(files.folder, files.names, files.labels, Geometry(4, "crop", 8))
        case "names":
            after = files.cut(9)
    assert DecodedImages(after, tmp_path / "cache").folder != before


def test_a_full_disk_is_one_sentence(
    files: FileImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ctta_bench.datasets.io.decoded.os.fsync", full)
    with pytest.raises(DataError, match="the disk is full"):
        fill(DecodedImages(files, tmp_path / "cache"))
    monkeypatch.undo()


def test_an_image_that_does_not_decode_leaves_no_cache_under_a_final_name(
    files: FileImages, tmp_path: Path
) -> None:
    (files.folder / "05.jpg").write_bytes(b"no image")
    cached = DecodedImages(files, tmp_path / "cache")
    with pytest.raises(DataError, match=r"05\.jpg: is not a readable image"):
        fill(cached)
    assert not (cached.folder / "manifest.json").exists()
    assert not (cached.folder / "images.npy").exists()
