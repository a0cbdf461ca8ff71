"""What `status` shows of a grid under way: one line first, short names, errors so far, a notice."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ctta_bench.launch.plan import Launch
from ctta_bench.launch.status import folder_status
from ctta_bench.record.so_far import short_names, so_far
from tests.launch.conftest import LINE, RESULT, Make
from tests.launch.test_folder_status import launched
from tests.launches import call


def owned() -> dict[str, Any]:
    return {"cell__lock__json": {"host": "node", "heartbeat": time.time()}}


def event(launch: Launch, worker: int, at: str, **facts: Any) -> None:
    """Write an event with a time of its own."""
    with launch.journal(worker).file.open("a") as file:
        file.write(json.dumps({"time": f"2026-01-01T{at}Z", **facts}) + "\n")


@pytest.fixture
def under_way(make: Make, tmp_path: Path) -> Path:
    """Four cells of a pool: one done in 100 s, one at 4 of 10 batches, two that wait."""
    make("tent-a", 10, result__json=RESULT)
    make("tent-b", 4, **owned())
    make("tent-c")
    make("sar-d")
    launch = launched(tmp_path / "trial", "tent-a", "tent-b", "tent-c", "sar-d", executor="local")
    event(launch, 0, "10:00:00", step="tent-a", state="running")
    event(launch, 0, "10:01:00", step="tent-a", state="interrupted")
    event(launch, 0, "12:00:00", step="tent-a", state="running")
    event(launch, 0, "12:00:40", step="tent-a", state="done")
    return tmp_path / "trial"


def test_the_first_line_sums_up_with_the_time_of_the_whole_grid_and_its_basis(
    under_way: Path,
) -> None:
    found = folder_status(under_way)
    # Six batches of half a second, then two cells of 100 s, one after another.
    assert found.remaining.seconds == pytest.approx(203)
    line = call("status", under_way).stdout.splitlines()[0]
    assert line == (
        "1 of 4 done, 1 running, 2 queued; about 3 min left (by 1 finished cells, 1 at a time)"
    )


def test_without_a_finished_cell_the_time_is_unknown_and_that_is_said(
    make: Make, tmp_path: Path
) -> None:
    make("tent-a", 4, **owned())
    make("tent-b")
    launched(tmp_path / "trial", "tent-a", "tent-b", executor="local")
    line = call("status", tmp_path / "trial").stdout.splitlines()[0]
    assert line.endswith("1 running, 1 queued; time left unknown: no cell has finished yet")


def test_a_last_cell_has_the_time_of_its_batches(make: Make, tmp_path: Path) -> None:
    make("tent-a", 4, **owned())
    assert "about 3 s left (by their batches)" in call("status", tmp_path / "trial").stdout


def test_names_are_as_short_as_they_can_be() -> None:
    one = [f"{m}-fashion_c-fashion_vit-seed0-1a2b3c4{n}" for n, m in enumerate(("tent", "sar"))]
    assert list(short_names(one).values()) == ["tent", "sar"]
    two = [f"tent-fashion_c-fashion_vit-seed{n}-1a2b3c4d" for n in (0, 1)]
    assert list(short_names(two).values()) == ["tent-seed0", "tent-seed1"]
    alike = ["tent-a-b-seed0-11112222", "tent-a-b-seed0-33334444"]
    assert list(short_names(alike).values()) == ["tent-1111", "tent-3333"]
    assert short_names(["odd"]) == {"odd": "odd"}


def cell(directory: Path, name: str, errors: list[int]) -> str:
    (directory / name).mkdir(parents=True)
    lines = [json.dumps(LINE | {"batch": n, "errors": e}) + "\n" for n, e in enumerate(errors)]
    (directory / name / "batches.jsonl").write_text("".join(lines))
    return name


def test_the_error_so_far_is_compared_with_source_on_the_same_batches(tmp_path: Path) -> None:
    ours = cell(tmp_path, "tent-c-v-seed0-11112222", [1, 3])  # of batches of 8
    assert so_far(tmp_path, ours) == "25.0 %"
    source = cell(tmp_path, "source-c-v-seed0-11112222", [2, 4, 8])
    assert so_far(tmp_path, ours) == "25.0 % (-12.5)"
    assert so_far(tmp_path, source) == "58.3 %"
    cell(tmp_path, "source-c-v-seed0-33334444", [0, 0])  # which of the two?
    assert so_far(tmp_path, ours) == "25.0 %"
    assert so_far(tmp_path, cell(tmp_path, "sar-c-v-seed0-11112222", [])) == ""


def test_a_notice_comes_at_the_first_failure_and_at_the_end(make: Make, tmp_path: Path) -> None:
    make("tent-a", 10, result__json=RESULT)
    make("tent-b", 3, failed__json={"reason": "no memory"})
    make("tent-c", 3, failed__json={"reason": "no disk"})
    file = tmp_path / "notices"
    command = f"echo $CTTA_BENCH_EVENT: $CTTA_BENCH_MESSAGE >>{file}"
    shown = call("status", tmp_path / "trial", "--watch", "--notify", command)
    assert shown.exit_code == 1
    first, last = file.read_text().splitlines()
    assert first == "failed: tent-b: no memory"
    assert last == f"ended: {tmp_path / 'trial'}: 1 of 3 done, 2 failed"
    broken = call("status", tmp_path / "trial", "--watch", "--notify", "exit 3")
    assert "ended with exit code 3" in broken.stderr
    refused = call("status", tmp_path / "trial", "--notify", "true")
    assert (refused.exit_code, "--notify is for --watch" in refused.stderr) == (2, True)
