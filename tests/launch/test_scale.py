"""A thousand cells: their status, and their submission to the scheduler.

Times are those of the processor: what else the machine does is no fault of ours.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctta_bench.config.experiment import Experiment, expand
from ctta_bench.launch.status import folder_status
from ctta_bench.launch.steps import arrays, in_order, pack, schedule, wave_of
from ctta_bench.record.schema import identity
from tests.launch.conftest import CELL, LINE, RESULT


def lay(root: Path, count: int) -> None:
    """Synthetic run folders: nine in ten are done."""
    lines = "".join(json.dumps(LINE | {"batch": n}) + "\n" for n in range(10))
    for n in range(count):
        name = f"tent-toy-toy_vit-seed{n}-{n:08x}"
        folder = root / name
        folder.mkdir(parents=True)
        values = {"name": name, "experiment": root.name, "seed": n, "digest": "0" * 64}
        (folder / "cell.yaml").write_text(CELL.format(**values))
        (folder / "batches.jsonl").write_text(lines)
        if n % 10:
            (folder / "result.json").write_text(json.dumps(RESULT | {"cell": name}))


def seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def test_the_status_of_a_thousand_cells_takes_less_than_a_second(tmp_path: Path) -> None:
    lay(tmp_path / "trial", 1000)
    assert len(folder_status(tmp_path / "trial").cells) == 1000
    assert seconds(lambda: folder_status(tmp_path / "trial")) < 1


@pytest.mark.usefixtures("toy")
def test_a_thousand_cells_become_jobs_in_seconds() -> None:
    def submit() -> None:
        asked = Experiment(name="e", methods=({"name": "tent"},), benchmarks=("toy",),
                           seeds=tuple(range(1000)))  # fmt: skip
        steps = in_order(schedule(expand(asked)))
        packs = pack(steps, 4)
        arrays([wave_of(steps[start]) for start, _ in packs], 1001, 50)
        assert len({identity(step.record) for step in steps}) == 1000

    assert seconds(submit) < 10


@pytest.mark.slow
def test_each_step_of_a_very_large_grid_stays_within_its_share() -> None:
    """The limits of 100,000 cells, in proportion: docs/scaling.md has what those really take."""
    script = Path(__file__).parents[2] / "scripts" / "bench.py"
    call = [sys.executable, str(script), "scale", "--cells", "2000"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == [
        *("expand", "plan", "status", "collect")
    ]
