"""`ctta-bench cost` as a user meets it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ctta_bench.cli import app
from tests.conftest import TOY

Invoke = Callable[..., Result]
ON_TOY = ("--benchmark", "toy", "--plugin", str(TOY), "--repeats", "1", "--out", "costs")


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Invoke]:
    """`ctta-bench` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    yield lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_table_is_printed_and_a_record_kept_that_a_report_shows(invoke: Invoke) -> None:
    done = invoke("cost", "source", "tent", *ON_TOY, "--set", "benchmark.batch_size=5")

    assert done.exit_code == 0, done.output
    for word in ("time / TENT", "time / bound", "memory / Source", "GFLOPs", "batch size 5"):
        assert word in done.stdout
    file = Path("costs/cost-toy-toy_vit-5-cpu-float32.json")
    assert str(file) in done.stdout
    assert [m["method"] for m in json.loads(file.read_text())["methods"]] == ["source", "tent"]
    assert invoke("report", "costs").exit_code == 0
    assert "Measured cost" in Path("costs/report/index.html").read_text()


def test_json_is_the_record(invoke: Invoke) -> None:
    done = invoke("cost", "tent", *ON_TOY, "--precision", "bfloat16", "--format", "json")

    record = json.loads(done.stdout)
    assert record["precision"] == "bfloat16"
    assert record["file"] == "costs/cost-toy-toy_vit-8-cpu-bfloat16.json"
    assert record["methods"][0]["backward_per_image"] == 1


def test_a_method_that_does_not_support_the_model_is_an_error_if_requested(invoke: Invoke) -> None:
    done = invoke("cost", "norm", *ON_TOY)

    assert done.exit_code == 2
    assert done.stderr.startswith("error: BN adapt re-estimates")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("tnet",), "tent"),
        (("tent", "--benchmark", "nowhere"), "nowhere"),
        (("tent", "--precision", "int8"), "float32"),
        (("tent", "--set", "rank=3"), "rank"),
        (("tent", "--format", "xml"), "json"),
    ],
)
def test_mistakes_are_refused_with_a_sentence(
    invoke: Invoke, arguments: tuple[str, ...], word: str
) -> None:
    done = invoke("cost", *arguments)

    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert word in done.stderr
    assert "Traceback" not in done.output


def test_the_help_has_an_example(invoke: Invoke) -> None:
    assert "Example" in invoke("cost", "--help").stdout
