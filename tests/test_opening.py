"""What a cell needs is opened once: one read of its model in a process, one benchmark built."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.launch.plan import Launch
from ctta_bench.launch.steps import schedule
from ctta_bench.launch.work import work
from ctta_bench.record.folder import RunFolder
from ctta_bench.registry import BENCHMARKS
from ctta_bench.run.engine import run_cell
from ctta_bench.source_models import shared
from tests.launches import PLUGINS, call, grid, states, write_grid

pytestmark = pytest.mark.usefixtures("toy")
# A warm-up, source statistics and the check on source images: all that asks for the model.
WARMED = {"warmup_epochs": 1, "source_samples": 20, "benchmark.domains": ["noise"]}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts models that are read ("model") and benchmarks that are built ("benchmark")."""
    counts: Counter[str] = Counter()
    real, kind = shared.load_source_model, BENCHMARKS.get("toy")
    build = kind.__init__

    def read(name: str, **options: Any) -> Any:
        counts["model"] += 1
        return real(name, **options)

    def init(self: Any, *arguments: Any) -> None:
        counts["benchmark"] += 1
        build(self, *arguments)

    monkeypatch.setattr(shared, "load_source_model", read)
    monkeypatch.setattr(kind, "__init__", init)
    return counts


def test_a_cell_with_a_warm_up_opens_each_thing_once(opened: Counter[str], tmp_path: Path) -> None:
    cell = resolve(CellRequest(method="lora", benchmark="toy", set=WARMED))
    opened.clear()
    result = run_cell(cell, RunFolder(tmp_path / cell.id))
    assert cell.warmup is not None and RunFolder(tmp_path / cell.warmup["id"]).is_done
    assert result["source_accuracy"] == 100
    assert opened == {"model": 1, "benchmark": 1}


def test_run_reads_the_model_once_for_fingerprint_warm_up_and_stream(
    opened: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = [word for key, value in WARMED.items() for word in ("--set", f"{key}={value}")]
    result = call("run", "lora", "toy", *PLUGINS[:2], *overrides, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert opened == {"model": 1, "benchmark": 2}  # the other to resolve the cell


def test_a_grid_in_one_process_reads_the_model_of_its_cells_once(
    opened: Counter[str], tmp_path: Path
) -> None:
    entries = ("source", "eata", "{name: lora, set: {warmup_epochs: 1}}")
    file = write_grid(tmp_path, *entries, more="seeds: [0, 1]")
    assert grid(file, "--executor", "debug", "--out", tmp_path / "runs").exit_code == 0
    assert states(tmp_path / "runs") == ["done"] * 10
    assert opened["model"] == 1


def test_a_worker_reads_the_model_of_its_cells_once(opened: Counter[str], tmp_path: Path) -> None:
    asked = [CellRequest(method=m, benchmark="toy") for m in ("source", "tent", "eata")]
    asked.append(CellRequest(method="lora", benchmark="toy", set=WARMED))
    steps = schedule([resolve(request) for request in asked])
    options = {"device": "cpu", "force": False, "checkpoint": "20s", "log": [], "plugins": []}
    launch = Launch.create(
        tmp_path, steps, [(0, len(steps))], executor="local", shared=True, **options
    )
    opened.clear()
    work(launch, 0)
    assert states(tmp_path) == ["done"] * 5
    # Each step resolves its cell from the plan, and opens it; the data of the finished warm-up are
    # compared once with those of the cell that starts from it.
    assert opened == {"model": 1, "benchmark": 2 * len(steps) + 1}
