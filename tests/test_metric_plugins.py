"""A metric is declared once: one file adds a measure, another the metric of a task of its own."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ctta_bench import registry
from ctta_bench.analysis import load
from ctta_bench.analysis.read.statistics import paired_difference
from ctta_bench.analysis.report.write import write_report
from ctta_bench.api import evaluate, load_benchmark, load_method, load_model
from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.errors import ConfigError
from ctta_bench.record.folder import RunFolder
from ctta_bench.record.status import status
from ctta_bench.registry import REGISTRIES, load_plugin
from ctta_bench.run.engine import run_cell
from ctta_bench.run.options import RunOptions
from tests.test_engine import StopAfter

pytestmark = pytest.mark.usefixtures("undrawn")

TOP_THREE = '''
"""One more measure of classification."""

from ctta_bench.registry import MEASURES
from ctta_bench.scoring.measures import Measure


@MEASURES.register_module("top3_error", place=40)
class TopThreeError(Measure):
    """Share of images whose label is not among the three largest logits."""

    head, caption, factor, worst = "top-3 error %", "Top-3 error", 100, 1.0

    def score(self, outputs):
        """1 where the label is missed."""
        best = outputs.logits.topk(3, dim=1).indices
        return (best != outputs.labels.view(-1, 1)).all(1).float()
'''

AGES = '''
"""A task of its own: the age of a picture, which is its brightness, and how far a guess is off."""

import numpy as np
import torch
from torch import nn

from ctta_bench.method import Method
from ctta_bench.registry import BENCHMARKS, METHODS, METRICS, MODELS
from ctta_bench.scoring.base import Scorer
from ctta_bench.scoring.metric import Metric
from ctta_bench.stream import ArrayImages, Benchmark


@METRICS.register_module("age")
class AgeError(Metric):
    """Mean absolute error in years."""

    name = "mae"
    symbol, errors_text, unit, factor = "MAE", "absolute error", "years", 1
    arrays = {"guess": 1, "label": 1}

    def scorer(self, num_classes, class_names):
        """Keeps each guess."""
        return AgeScorer(self)

    def image_values(self, arrays):
        """[n] years that each guess is off."""
        return np.abs(arrays["guess"] - arrays["label"])


class AgeScorer(Scorer):
    """The guess and the age of each image."""

    def score(self, logits, labels):
        """Float64 arrays [n]."""
        return {"guess": logits[:, 0].double().cpu().numpy(), "label": labels.double().numpy()}


class Brightness(nn.Module):
    """A hundred times the mean of an image."""

    task = "age"

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 1)
        nn.init.constant_(self.head.weight, 100.0)
        nn.init.zeros_(self.head.bias)

    def forward(self, images):
        return self.head(images.mean((1, 2, 3))[:, None])


@MODELS.register_module("brightness")
def brightness():
    """The network."""
    network = Brightness()
    network.pretrained_cfg = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "input_size": (3, 8, 8)}
    return network


@BENCHMARKS.register_module("ages")
class Ages(Benchmark):
    """Twelve ages, guessed from pictures as they are and from ones that are five years darker."""

    name, task, num_classes, default_model = "ages", "age", 1, "brightness"

    def domain_names(self):
        return ("clean", "dark")

    def domain(self, name, severity=None):
        ages = np.arange(10, 70, 5)
        shown = ages - 5 * (name == "dark")
        images = np.broadcast_to(shown[:, None, None, None] * 2.55, (12, 3, 8, 8))
        return ArrayImages(images.round().astype(np.uint8), ages)


@METHODS.register_module("guess")
class Guess(Method):
    """The model as it is, a few years added."""

    tasks = frozenset({"age"})
    passes_per_image = (1, 0)
    added = 0.0

    def adapt(self, images):
        """Guesses [n, 1]."""
        with torch.no_grad():
            return self.model(images) + self.added


@METHODS.register_module("guess_older")
class GuessOlder(Guess):
    """Five years are added."""

    added = 5.0
'''


@pytest.fixture(autouse=True)
def _plugins(toy: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plug-ins of a test are forgotten after it."""
    monkeypatch.setattr(registry, "_plugins", dict(registry._plugins))
    for entries in REGISTRIES:
        monkeypatch.setattr(entries, "_plugin_entries", dict(entries._plugin_entries))
    yield


def plugin(folder: Path, text: str) -> None:
    file = folder / "plugin.py"
    file.write_text(text)
    load_plugin(str(file))


def run(root: Path, **values: object) -> Path:
    cell = resolve(CellRequest(**values))
    run_cell(cell, RunFolder(root / "trial" / cell.record["id"]))
    return root / "trial" / cell.record["id"]


def stored(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "predictions.npz", allow_pickle=False) as found:
        return dict(found)


def values(runs_dir: Path, metric: str) -> dict[str, float]:
    results = load(runs_dir).results
    found = results[results["metric"] == metric]
    return dict(zip(found["domain"], found["value"], strict=True))


def test_one_file_adds_a_measure_from_the_logits_to_the_report(tmp_path: Path) -> None:
    runs_dir = tmp_path / "runs"
    before = stored(run(runs_dir / "before", method="source", benchmark="toy"))
    plugin(tmp_path, TOP_THREE)
    folder = run(runs_dir / "after", method="source", benchmark="toy")
    arrays = stored(folder)
    assert set(arrays) - set(before) == {"top3_error"}
    assert all(np.array_equal(arrays[name], before[name]) for name in before)

    missed = {
        name: 100 * float(arrays["top3_error"][arrays["domain"] == place].mean(dtype=float))
        for place, name in enumerate(("clean", "dark", "noise"))
    }
    result = json.loads((folder / "result.json").read_text())
    (round_,) = result["rounds"]
    assert {d["domain"]: d["top3_error"] for d in round_["domains"]} == missed
    assert missed["clean"] == 0 < missed["dark"]
    assert all(d["top3_error"] <= d["error"] for d in round_["domains"])

    report = write_report(runs_dir / "after")
    assert values(runs_dir / "after", "top3_error") == missed
    results = pd.read_csv(report.results)
    assert results[results["metric"] == "top3_error"]["value"].tolist() == pytest.approx(
        list(missed.values())
    )
    (table,) = [path for path in report.table_files if path.name.endswith("-measures.md")]
    assert "| method | top-3 error % |" in table.read_text()
    assert f"| Source | {np.mean(list(missed.values())):.1f} |" in table.read_text()
    assert "Further measures" not in write_report(runs_dir / "before").page.read_text()


def test_a_measure_of_more_classes_than_a_model_has_is_not_taken(tmp_path: Path) -> None:
    plugin(
        tmp_path,
        TOP_THREE.replace("factor, worst = ", "factor, fewest_classes, worst = ").replace(
            "100, 1.0", "100, 11, 1.0"
        ),
    )
    folder = run(tmp_path / "runs", method="source", benchmark="toy")
    assert "top3_error" not in stored(folder)
    assert "top3_error" not in (folder / "result.json").read_text()


def test_a_measure_is_recounted_and_held_against_the_arrays(tmp_path: Path) -> None:
    plugin(tmp_path, TOP_THREE)
    folder = run(tmp_path / "runs", method="source", benchmark="toy")
    arrays = stored(folder)
    arrays["top3_error"] = np.ones_like(arrays["top3_error"])
    np.savez_compressed(folder / "predictions.npz", **arrays)
    assert "top3_error is" in load(tmp_path / "runs").left_out[0][1]


@pytest.mark.parametrize("is_loaded_first", [True, False])
def test_a_measure_that_a_part_of_the_stream_lacks_is_left_out(
    is_loaded_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = resolve(CellRequest(method="source", benchmark="toy"))
    whole, cut = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut")
    run_cell(cell, whole)
    if is_loaded_first:
        plugin(tmp_path, TOP_THREE)
    with pytest.raises(KeyboardInterrupt):
        run_cell(cell, cut, RunOptions(loggers=[StopAfter(3)]))
    if is_loaded_first:
        monkeypatch.setattr(registry.MEASURES, "_plugin_entries", {})
    else:
        plugin(tmp_path, TOP_THREE)
    result = run_cell(cell, cut)
    assert result["rounds"] == whole.result()["rounds"]
    assert set(stored(cut.path)) == set(stored(whole.path))


def test_one_file_adds_a_task_with_its_metric(tmp_path: Path) -> None:
    plugin(tmp_path, AGES)
    runs_dir = tmp_path / "runs"
    as_is = run(runs_dir, method="guess", benchmark="ages")
    older = run(runs_dir, method="guess_older", benchmark="ages")
    result = json.loads((as_is / "result.json").read_text())
    assert result["metric"] == "mae"
    clean, dark = (entry["mae"] for entry in result["rounds"][0]["domains"])
    assert clean < 0.5 and abs(dark - 5) < 0.5  # pictures hold 256 levels
    assert result["mean"] == pytest.approx((clean + dark) / 2)

    runs = load(runs_dir)
    assert runs.left_out == []
    assert runs.cells["metric"].tolist() == ["mae", "mae"]
    assert {cell.state for cell in status(runs_dir)} == {"done"}
    difference = paired_difference([older], [as_is], metric="mae")
    means = [json.loads((f / "result.json").read_text())["mean"] for f in (older, as_is)]
    assert difference.mean == pytest.approx(means[0] - means[1])

    page = write_report(runs_dir).page.read_text()
    assert " years (" in page and "MAE in years (lower is better)" in page
    assert re.search(r"\"what\": ?\"absolute error\"", page)  # of the curves


def test_a_task_of_its_own_runs_from_python(tmp_path: Path) -> None:
    plugin(tmp_path, AGES)
    model, benchmark = load_model("brightness"), load_benchmark("ages")
    found = evaluate(load_method("guess", model), benchmark)
    assert found.record["source_accuracy"] is None
    off = np.abs(found.scores.guess - found.scores.label)
    assert found.record["mean"] == pytest.approx(off.mean())
    assert found.by_domain["clean"] < 0.5


def test_without_the_plugin_such_a_cell_is_left_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        for entries in REGISTRIES:
            patched.setattr(entries, "_plugin_entries", dict(entries._plugin_entries))
        plugin(tmp_path, AGES)
        run(tmp_path / "runs", method="guess", benchmark="ages", set={"batch_size": 5})
    ((_, reason),) = load(tmp_path / "runs").left_out
    assert "the task 'age'" in reason and "classification, segmentation" in reason


def test_a_benchmark_of_a_task_without_metric_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"unknown metric 'age'.* There are classification, segm"):
        registry.METRICS.get("age")
