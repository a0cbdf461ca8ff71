"""The conformance checks of benchmarks find what is wrong; the pages of benchmarks run."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ctta_bench.authoring.benchmark_checks import CHECKS, check_benchmark
from ctta_bench.cli import app
from ctta_bench.registry import BENCHMARKS, load_plugin
from ctta_bench.stream import ArrayImages, Benchmark, StreamSettings
from tests import toy_maps
from tests.conftest import TOY

toy: Any = load_plugin(str(TOY))
PAGE = (Path(__file__).parents[2] / "docs" / "adding-a-benchmark.md").read_text("utf-8")
IMAGES = np.random.default_rng(0).integers(256, size=(12, 3, 8, 8), dtype=np.uint8)
LABELS = np.arange(12) % 4


class Good(Benchmark):
    name = "good"
    num_classes = 4
    same_images = True

    def domain_names(self) -> tuple[str, ...]:
        return ("day", "night")

    def domain(self, name: str, severity: int | None = None) -> Any:
        return ArrayImages(IMAGES // (3 if name == "night" else 1), LABELS)


def wrong(**members: Any) -> Benchmark:
    """A benchmark with some members replaced."""
    return type("Wrong", (Good,), members)(StreamSettings(batch_size=4))  # type: ignore[no-any-return]


def of_night(images: np.ndarray, labels: np.ndarray = LABELS) -> Callable[..., Any]:
    return lambda self, name, severity=None: ArrayImages(
        images if name == "night" else IMAGES, labels if name == "night" else LABELS
    )


class Backwards(ArrayImages):
    def load(self, index: np.ndarray) -> torch.Tensor:
        return super().load(np.sort(index))


class Damaged(ArrayImages):
    def load(self, index: np.ndarray) -> torch.Tensor:
        raise OSError("damaged")


class Unsent(ArrayImages):
    def __reduce__(self) -> Any:
        raise TypeError("an open file")


@pytest.mark.parametrize("name", ["toy", "good"])
def test_a_right_benchmark_passes_every_check(name: str) -> None:
    found = [*check_benchmark(wrong() if name == "good" else "toy")]
    assert [one.check for one in found] == list(CHECKS)
    assert [one for one in found if not one.passed] == []


def test_label_maps_pass_every_check() -> None:
    found = [*check_benchmark(toy_maps.ToyMaps())]
    assert [one for one in found if not one.passed] == []


@pytest.mark.parametrize(
    ("check", "members", "words"),
    [
        ("data_are_there", {"problems": lambda self: ["no folder x."]}, "no folder x."),
        ("data_are_there", {"domain": of_night(IMAGES[:0], LABELS[:0])}, "night has no images"),
        ("names", {"extra_domains": lambda self: ("day",)}, "a domain is named twice"),
        ("names", {"extra_domains": lambda self: ("a/b",)}, "'a/b' is no name"),
        ("names", {"name": ""}, "set the name"),
        ("images", {"domain": of_night(IMAGES.transpose(0, 2, 3, 1))}, "gives [8, 8, 8, 3]"),
        ("images", {"domain": of_night(IMAGES.astype(np.int64))}, "images of torch.int64"),
        ("images", {"domain": of_night(IMAGES / 100)}, "values from"),
        ("images", {"domain": of_night(IMAGES[:, :, :6, :6])}, "of [8, 8] and night of [6, 6]"),
        (
            "images",
            {"domain": lambda self, name, severity=None: Backwards(IMAGES, LABELS)},
            "in the order of the numbers",
        ),
        ("labels", {"domain": of_night(IMAGES, LABELS + 1)}, "labels from 1 to 4"),
        ("labels", {"num_classes": 0}, "num_classes is 0"),
        ("labels", {"class_names": ("a",)}, "1 class_names, but num_classes is 4"),
        ("labels", {"task": "segmentation"}, "does not fit task = 'segmentation'"),
        (
            "every_call_gives_the_same",
            {
                "domain": lambda self, name, severity=None: ArrayImages(
                    np.random.randint(256, size=IMAGES.shape).astype(np.uint8), LABELS
                )
            },
            "seed what is random",
        ),
        (
            "severities",
            {
                "severities": (1, 2),
                "domain": lambda self, name, severity=None: ArrayImages(
                    IMAGES, LABELS[::-1] if severity == 2 else LABELS
                ),
            },
            "other labels at severity 2",
        ),
        ("same_images", {"domain": of_night(IMAGES, LABELS[::-1])}, "same_images = False"),
        ("source_is_apart", {"source": lambda self: ArrayImages(IMAGES[:3], LABELS[:3])}, "day is"),
        (
            "workers",
            {"domain": lambda self, name, severity=None: Unsent(IMAGES, LABELS)},
            "an open file",
        ),
        (
            "stream",
            {"domain": lambda self, name, severity=None: Damaged(IMAGES, LABELS)},
            "OSError: damaged",
        ),
    ],
)
def test_what_is_wrong_is_found(check: str, members: dict[str, Any], words: str) -> None:
    found = {one.check: one for one in check_benchmark(wrong(**members))}
    assert not found[check].passed and words in found[check].detail


# -- commands and pages


def test_the_command_checks_benchmarks_too(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["check", "toy"])
    assert done.exit_code == 0 and "source is apart" in done.stdout
    file = tmp_path / "broken.py"
    file.write_text(
        "from ctta_bench.registry import BENCHMARKS\n"
        "from ctta_bench.stream import Benchmark\n\n\n"
        '@BENCHMARKS.register_module("broken")\n'
        "class Broken(Benchmark):\n"
        '    name = "broken"\n\n'
        "    def domain_names(self):\n"
        '        return ("a", "a")\n\n'
        "    def domain(self, name, severity=None):\n"
        "        raise OSError('gone')\n"
    )
    done = CliRunner().invoke(app, ["check", "broken", "--plugin", str(file)])
    assert done.exit_code == 1 and "gone" in done.stdout and "named twice" in done.stdout
    BENCHMARKS.forget(BENCHMARKS.find("broken").module)
    unknown = CliRunner().invoke(app, ["check", "tennt"])
    assert unknown.exit_code == 2 and "tent" in unknown.stderr


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines():
        done = CliRunner().invoke(app, line.split()[1:])
        assert done.exit_code == 0, done.output
    BENCHMARKS.forget(BENCHMARKS.find("my_streets").module)


@pytest.mark.slow
def test_a_new_benchmark_passes_its_test(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["new", "benchmark", "My-Streets", "--out", str(tmp_path)])
    assert made.exit_code == 0, made.output
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_streets.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "adding-a-benchmark.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "my_cameras: day, night" in printed and "gradual" in printed
    assert "gain (95 % interval)" in printed
