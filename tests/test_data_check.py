"""`data check` reports which data are available; `data bench` how fast they are read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.datasets.io.imagenet import synsets
from ctta_bench.datasets.making.corruptions import CORRUPTIONS
from ctta_bench.errors import ConfigError
from ctta_bench.registry import Registry
from ctta_bench.stream import ArrayImages, Domain, Stream, StreamSettings
from ctta_bench.stream.availability import reading_speed
from tests.datasets.layouts import SIDE, cifar_c, synset_tree, val

SETTINGS = ("--set", f"crop={SIDE}", "--set", f"resize={SIDE}")


def call(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    for name in CORRUPTIONS:
        synset_tree(tmp_path / "ImageNet-C" / name / "5", {3: [val(1)], 700: [val(2)]})
    return tmp_path


def test_check_lists_the_stream_the_extras_and_what_is_unknown(imagenet: Path) -> None:
    synset_tree(imagenet / "ImageNet-C" / "saturate" / "5", {3: [val(1)]})
    (imagenet / "ImageNet-C" / "tmp").mkdir()
    done = call("data", "check", "imagenet-c", "--root", imagenet, "--format", "json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["problems"], found["domains"]) == ([], list(CORRUPTIONS))
    roles: dict[str, dict[str, Any]] = {}
    for part in found["parts"]:
        roles.setdefault(part["role"], {})[part["name"]] = part["images"]
    assert roles == {
        "stream": dict.fromkeys(CORRUPTIONS, 2),
        "extra": {
            "speckle_noise": None, "gaussian_blur": None, "spatter": None, "saturate": 1,
            "clean": None,
        },
        "source": {"source": None},
        "unknown": {"tmp": None},
    }  # fmt: skip


def test_check_ends_in_words_that_a_reader_can_use(imagenet: Path) -> None:
    done = call("data", "check", "imagenet_c", "--data-root", imagenet)
    assert "imagenet_c: complete; 15 domains: gaussian_noise, shot_noise" in done.stdout
    assert "note: all images of a set smaller than RobustBench's list" in done.stdout


def test_check_names_every_domain_with_a_problem_and_exits_with_2(imagenet: Path) -> None:
    (imagenet / "ImageNet-C" / "fog" / "5" / "0").mkdir()
    (imagenet / "ImageNet-C" / "frost").rename(imagenet / "elsewhere")
    done = call("data", "check", "imagenet_c", "--data-root", imagenet)
    assert done.exit_code == 2
    assert "domain frost: no folder" in done.stderr
    assert "domain fog:" in done.stderr and "'0' is none of the 1,000 synsets" in done.stderr
    assert "domain snow" not in done.stderr


def test_check_of_arrays_names_what_is_of_the_wrong_shape(tmp_path: Path) -> None:
    folder = cifar_c(tmp_path / "CIFAR-10-C", 4, CORRUPTIONS)
    np.save(folder / "fog.npy", np.zeros((20, 32, 32), np.uint8))
    (folder / "frost.npy").unlink()
    done = call("data", "check", "cifar10-c", "--root", tmp_path)
    assert done.exit_code == 2
    assert "fog.npy: holds uint8 [20, 32, 32], expected uint8 [20, 32, 32, 3]" in done.stderr
    assert "no file" in done.stderr and "frost.npy" in done.stderr


@pytest.mark.parametrize("workers", ["0", "2"])
def test_check_decode_names_all_damaged_images(imagenet: Path, workers: str) -> None:
    broken = [
        imagenet / "ImageNet-C" / name / "5" / synsets()[number] / val(file)
        for name, number, file in [("fog", 3, 1), ("fog", 700, 2), ("snow", 3, 1)]
    ]
    for file in broken:
        file.write_bytes(b"junk")
    plain = call("data", "check", "imagenet_c", "--root", imagenet, *SETTINGS)
    assert plain.exit_code == 0
    options = (*SETTINGS, "--decode", "--workers", workers)
    done = call("data", "check", "imagenet_c", "--root", imagenet, *options)
    assert done.exit_code == 2
    assert "fog: 2 images cannot be decoded" in done.stderr
    assert all(str(file) in done.stderr for file in broken)


def test_check_of_a_missing_root_is_one_sentence(tmp_path: Path) -> None:
    done = call("data", "check", "imagenet_c", "--root", tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--set", "severity=6"), "severity: 6"),
        (("--set", "batch_size=0"), "batch_size: 0"),
        (("--set", "colour=1"), "unknown key 'colour'"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(options: tuple[str, ...], words: str) -> None:
    done = call("data", "check", "imagenet_c", *options)
    assert done.exit_code == 2
    assert words in done.stderr


# -- how fast


def test_bench_reports_images_per_second_for_each_number_of_workers(imagenet: Path) -> None:
    options = ("--workers", "0,1", "--batches", "6", "--format", "json", "--device", "cpu")
    done = call("data", "bench", "imagenet_c", "--root", imagenet, *SETTINGS, *options)
    assert done.exit_code == 0, done.output
    speeds = json.loads(done.stdout)
    assert [s["workers"] for s in speeds] == [0, 1]
    assert [s["images"] for s in speeds] == [12, 12]  # 6 batches of the 2 images of a domain
    assert all(s["images_per_second"] > 0 for s in speeds)


def test_bench_shows_a_table_and_reads_arrays_too(tmp_path: Path) -> None:
    cifar_c(tmp_path / "CIFAR-10-C", 4, CORRUPTIONS)
    options = ("--workers", "0", "--batches", "4", "--device", "cpu")
    done = call("data", "bench", "cifar10_c", "--root", tmp_path, *options)
    assert done.exit_code == 0, done.output
    assert "images per second" in done.stdout


@pytest.mark.parametrize("workers", ["two", "-1", "1,,2"])
def test_bench_refuses_what_is_no_number_of_workers(workers: str) -> None:
    done = call("data", "bench", "fashion_c", f"--workers={workers}")
    assert done.exit_code == 2
    assert "write numbers from 0 up" in done.stderr


def test_the_speed_counts_neither_the_start_nor_what_lay_ready() -> None:
    images = ArrayImages(np.zeros((40, 3, 2, 2), np.uint8), np.zeros(40, np.int64))
    stream = Stream([Domain("a", images)], StreamSettings(batch_size=4), 0)
    cpu = torch.device("cpu")
    assert reading_speed(stream, 0, batches=25, seconds=60, device=cpu).images == 100
    assert reading_speed(stream, 2, batches=5, seconds=60, device=cpu).images == 20


# -- names


def test_two_benchmarks_of_the_package_cannot_share_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fleet").mkdir()
    entry = '@BENCHMARKS.register_module("same")\nclass Same:\n    pass\n'
    for name in ("one", "two"):
        (tmp_path / "fleet" / f"{name}.py").write_text(entry)
    (tmp_path / "fleet" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"fleet.two and fleet.one both register the benchmark"):
        Registry("benchmark", "BENCHMARKS", "fleet").names()
