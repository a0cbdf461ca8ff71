"""CIFAR10-C and CIFAR100-C as .npy files, and CIFAR's own pickles read without running one."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctta_bench.config.validation import validate
from ctta_bench.datasets.cifar_c import Cifar10C, Cifar100C, CifarC, mapped
from ctta_bench.datasets.io.python_batches import read_batch
from ctta_bench.datasets.making.corruptions import CORRUPTIONS
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.stream import Stream, batch_domains
from tests.datasets.layouts import cifar_batch, cifar_c

N = 12  # images a severity


@pytest.fixture
def root(tmp_path: Path) -> Path:
    cifar_c(tmp_path / "CIFAR-10-C", N, ("fog", "snow"))
    return tmp_path


def benchmark(root: Path, **settings: Any) -> CifarC:
    values = {"domains": ("fog", "snow"), "batch_size": 5} | settings
    return Cifar10C(validate(Cifar10C.Settings, values, "benchmark"), root)


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_a_severity_is_its_block_of_rows_in_file_order(root: Path, severity: int) -> None:
    images = benchmark(root).domain("fog", severity)
    loaded = images.load(np.array([0, 7, 11]))
    assert loaded.shape == (3, 3, 32, 32)
    assert loaded[:, 1, 5, 9].tolist() == [20 * severity, 20 * severity + 7, 20 * severity + 11]
    assert images.labels.tolist() == [i % 10 for i in range(N)]


def test_the_stream_reads_the_severity_of_the_settings(root: Path) -> None:
    read = benchmark(root, severity=3)
    batch = next(Stream(batch_domains(read), read.settings, 0).batches())
    assert (batch.images[:, 0, 0, 0] * 255).round().int().tolist() == [60, 61, 62, 63, 64]


# -- files of one severity alone


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """10,000 images of one severity: image i is grey i % 251."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    values = (np.arange(10_000) % 251).astype(np.uint8)
    images = np.lib.format.open_memmap(folder / "fog.npy", "w+", np.uint8, (10_000, 32, 32, 3))
    images[:] = values[:, None, None, None]
    images.flush()
    np.save(folder / "labels.npy", np.random.default_rng(0).integers(10, size=10_000))
    return tmp_path


def test_one_severity_alone_is_told_and_read_where_it_is_named(alone: Path) -> None:
    unnamed = benchmark(alone, domains=("fog",))
    with pytest.raises(DataError, match=r"fog\.npy: holds the 10,000 images of one severity alone"):
        unnamed.domain("fog")
    assert "--set severity=N" in unnamed.problems()[0]
    named = benchmark(alone, domains=("fog",), severity=2)
    images = named.domain("fog")
    assert named.problems() == []
    assert len(images.labels) == 10_000
    assert images.load(np.array([9_999]))[0, 0, 0, 0] == 9_999 % 251
    assert images.labels.tolist() == np.load(alone / "CIFAR-10-C" / "labels.npy").tolist()
    assert named.provenance == "files of one severity alone, read as severity 2: fog.npy"


def test_one_severity_alone_is_no_schedule_of_severities(alone: Path) -> None:
    gradual = benchmark(alone, domains=("fog",), severity=2, setting="gradual")
    assert "but the stream needs severity 1, too" in gradual.problems()[0]


def test_one_file_of_one_severity_among_others_of_five(root: Path) -> None:
    file = root / "CIFAR-10-C" / "fog.npy"
    np.save(file, np.load(file)[2 * N : 3 * N])
    named = benchmark(root, severity=3)
    assert [len(named.domain(name).labels) for name in ("fog", "snow")] == [N, N]
    assert [named.domain(n).load(np.array([1]))[0, 0, 0, 0].item() for n in ("fog", "snow")] == [
        61,
        61,
    ]
    assert named.provenance is not None
    with pytest.raises(DataError, match="of one severity alone"):
        benchmark(root).domain("fog")


@pytest.mark.parametrize("rows", [3 * N, 2 * N, 5 * N - 1, 10 * N])
def test_other_numbers_of_rows_are_refused(rows: int, root: Path) -> None:
    np.save(root / "CIFAR-10-C" / "fog.npy", np.zeros((rows, 32, 32, 3), np.uint8))
    words = (
        rf"fog\.npy: holds uint8 \[{rows}, 32, 32, 3\], expected uint8 \[60, 32, 32, 3\] of five"
    )
    with pytest.raises(DataError, match=words):
        benchmark(root, severity=3).domain("fog")


@pytest.mark.parametrize("count", [5 * N, 50_000])
def test_labels_that_differ_between_severities_are_refused(count: int, root: Path) -> None:
    labels = np.random.default_rng(0).integers(10, size=count)
    np.save(root / "CIFAR-10-C" / "labels.npy", labels)
    with pytest.raises(DataError, match="five equal blocks, or the 10,000 labels of one severity"):
        benchmark(root, severity=3).domain("fog")


def test_channels_stay_in_their_places(root: Path) -> None:
    file = root / "CIFAR-10-C" / "fog.npy"
    rgb = np.load(file)
    rgb[..., 0] = 201
    np.save(file, rgb)
    assert benchmark(root).domain("fog").load(np.array([2]))[0, :, 3, 4].tolist() == [201, 102, 102]


def test_files_are_mapped_and_the_default_domains_are_the_fifteen(root: Path) -> None:
    assert isinstance(mapped(root / "CIFAR-10-C" / "fog.npy"), np.memmap)
    assert Cifar10C(None, root).chosen_domains() == CORRUPTIONS
    assert (Cifar10C.num_classes, Cifar100C.num_classes) == (10, 100)


def damage(file: Path, how: str) -> None:
    array = np.load(file)
    match how:
        case "cut":
            file.write_bytes(file.read_bytes()[:-1000])
        case "float":
            np.save(file, array.astype(np.float32))
        case "rows":
            np.save(file, array[:-1])
        case "shape":
            np.save(file, array.transpose(0, 3, 1, 2))
        case "objects":
            np.save(file, np.array([{"a": 1}] * 3, object), allow_pickle=True)
        case "text":
            file.write_text("404")
        case "gone":
            file.unlink()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", "snow.npy: is not a complete .npy array"),
        ("float", r"snow.npy: holds float32 \[60, 32, 32, 3\], expected uint8 \[60, 32, 32, 3\]"),
        ("rows", r"snow.npy: holds uint8 \[59, 32, 32, 3\], expected uint8 \[60"),
        ("shape", r"snow.npy: holds uint8 \[60, 3, 32, 32\], expected"),
        ("objects", "snow.npy: is not a complete .npy array"),
        ("text", "snow.npy: is not a complete .npy array"),
        (
            "gone",
            r"no file .*snow.npy, expected 12 x 5 images .*`ctta-bench data download cifar10_c",
        ),
    ],
)
def test_a_damaged_file_is_one_problem_and_one_sentence(root: Path, how: str, words: str) -> None:
    damage(root / "CIFAR-10-C" / "snow.npy", how)
    read = benchmark(root)
    assert len(read.problems()) == 1
    with pytest.raises(DataError, match=words) as caught:
        read.domain("snow")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.arange(5 * N), r"labels.npy: label 10 in row 10 is not one of the 10 classes"),
        (np.full(5 * N, -1), r"label -1 in row 0"),
        (np.zeros(5 * N + 1, np.uint8), "expected integers, one row per image"),
        (np.zeros(5 * N), "holds float64"),
        (np.zeros((5 * N, 2), np.uint8), "expected integers"),
        (np.zeros(0, np.uint8), "expected integers"),
    ],
)
def test_labels_that_are_none_are_refused(root: Path, labels: np.ndarray, words: str) -> None:
    np.save(root / "CIFAR-10-C" / "labels.npy", labels)
    with pytest.raises(DataError, match=words):
        benchmark(root).domain("fog")


def test_a_root_without_the_set_is_one_sentence_with_the_way_out(tmp_path: Path) -> None:
    (problem,) = Cifar100C(None, tmp_path).problems()
    assert "CIFAR-100-C" in problem
    assert "`ctta-bench data download cifar100_c" in problem


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"severity": 6}, r"severity: 6: .* less than or equal to 5"),
        ({"batch_size": 0}, r"batch_size: 0"),
    ],
)
def test_settings_out_of_range_are_refused(root: Path, setting: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        benchmark(root, **setting)


def test_gradual_reads_all_severities_of_the_same_images(root: Path) -> None:
    read = benchmark(root, setting="gradual", domains=("fog",), batch_size=N)
    stream = Stream(batch_domains(read), read.settings, 0)
    first = [int((b.images[0, 0, 0, 0] * 255).round()) for b in stream.batches()]
    assert first == [20 * s for s in (1, 2, 3, 4, 5, 4, 3, 2, 1)]


def test_a_set_of_ones_own_says_so(root: Path) -> None:
    assert benchmark(root).provenance is None
    (root / "CIFAR-10-C" / "provenance.txt").write_text("self-made corruptions\nmore\n")
    assert benchmark(root).provenance == "self-made corruptions"


# -- CIFAR's own files


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_clean_sets_are_read_in_the_order_of_their_files(tmp_path: Path, protocol: int) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    for number in range(1, 6):
        cifar_batch(folder / f"data_batch_{number}", 3, 10 * number, protocol=protocol)
    cifar_batch(folder / "test_batch", 2, 7, protocol=protocol)
    read = Cifar10C(None, tmp_path)
    source = read.source()
    assert source is not None
    loaded = source.load(np.arange(15))
    assert loaded.shape == (15, 3, 32, 32)
    assert loaded[:, 0, 0, 0].tolist() == [10 * n + i for n in range(1, 6) for i in range(3)]
    assert source.labels.tolist() == [0, 1, 2] * 5
    assert read.domain("clean").labels.tolist() == [7, 8]
    # The corrupted ones are missing, which only a stream that has some of them needs.
    assert Cifar10C(Cifar10C.Settings(domains=["clean"]), tmp_path).problems() == []
    assert "no folder" in read.problems()[0]


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    cifar_batch(tmp_path / "cifar-100-python" / "train", 4, 0, "fine_labels")
    source = Cifar100C(None, tmp_path).source()
    assert source is not None and source.labels.tolist() == [0, 1, 2, 3]


def test_there_is_no_source_without_the_clean_set(root: Path) -> None:
    assert benchmark(root).source() is None


class Hostile:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize(
    "call",
    [
        (os.system, ("touch owned",)),
        (eval, ("open('owned', 'w')",)),
        (np.load, ("owned",)),
        (getattr, ("", "join")),
    ],
    ids=["system", "eval", "numpy's load", "getattr"],
)
def test_a_pickle_that_calls_anything_is_refused(
    tmp_path: Path, call: Any, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "data_batch_1"
    file.write_bytes(pickle.dumps({"data": Hostile(*call)}, protocol=protocol))
    with pytest.raises(DataError, match=r"data_batch_1: is refused.*it calls"):
        read_batch(file, "labels")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"data": np.array([{}], object), "labels": [0]}, "is refused"),
        ({"data": np.zeros((2, 3072)), "labels": [0, 0]}, "holds no array `data` of uint8"),
        ({"data": np.zeros((2, 12), np.uint8), "labels": [0, 0]}, r"holds data \[2, 12\]"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, r"labels \[1\]"),
        ({"data": np.zeros((2, 3072), np.uint8)}, r"labels \[\]"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["cat"]}, "not integers"),
        ([1, 2], "holds no array `data`"),
    ],
)
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, content: Any, words: str) -> None:
    file = tmp_path / "test_batch"
    file.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(DataError, match=words):
        read_batch(file, "labels")


def test_a_cut_pickle_and_a_missing_one_are_named(tmp_path: Path) -> None:
    file = cifar_batch(tmp_path / "test_batch", 2, 0)
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(DataError, match="test_batch: is"):
        read_batch(file, "labels")
    with pytest.raises(DataError, match=r"no file .*train"):
        read_batch(tmp_path / "train", "labels")
