"""A grid on a real Slurm under random faults: python scripts/stress_slurm.py --cells 60

On the Slurm of tests/slurm/cluster.sh (`install`, `start`, and `eval "$(... env)"` before). While
the grid runs, workers, nodes, the launcher and the controller are killed at random. At the end
every cell has one result, which equals that of a run on this machine; no job is left, and all
states are `done`. Exit code 0 only then.
"""

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from ctta_bench.launch.plan import launches  # noqa: E402
from ctta_bench.launch.states import UNDER_WAY  # noqa: E402
from ctta_bench.launch.status import folder_status  # noqa: E402
from tests.launches import recorded  # noqa: E402

CLUSTER = ROOT / "tests" / "slurm" / "cluster.sh"
PLUGINS = ("--plugin", ROOT / "tests" / "toy.py", "--plugin", ROOT / "tests" / "slow.py")
PROFILE = "memory_gb: 0.3\ntime_minutes: 10\ncells_per_job: 6\nworkers_per_job: 2\ncpus: 2\n"


def call(*words: object, **kwargs: object) -> "subprocess.CompletedProcess[str]":
    """Run a program; its exit code is for the caller to judge."""
    return subprocess.run(list(map(str, words)), text=True, check=False, **kwargs)  # type: ignore[call-overload,no-any-return]


class Grid:
    """The grid under test: its files, and what is done to it."""

    def __init__(self, folder: Path, cells: int) -> None:
        self.folder, self.runs = folder, folder / "runs"
        self.file, self.profile = folder / "stress.yaml", folder / "profile.yaml"
        seeds = list(range(-(-cells // 2)))
        slow = "{name: slow, set: {pause: 0.2}}"
        self.file.write_text(f"methods: [source, {slow}]\nbenchmarks: [toy]\nseeds: {seeds}\n")
        self.profile.write_text(PROFILE)
        self.faults: collections.Counter[str] = collections.Counter()

    def command(self, *more: object) -> list[str]:
        """`ctta-bench grid` of the file."""
        words = [sys.executable, "-m", "ctta_bench", "grid", self.file, *PLUGINS, "--device", "cpu"]
        return list(map(str, [*words, "--checkpoint", 2, *more]))

    def submit(self, *, kill_after: float | None = None) -> None:
        """Submit what is not under way; kill the launcher after some seconds, if it still runs."""
        words = self.command("--profile", self.profile, "--out", self.runs)
        launcher = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            launcher.wait(kill_after)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()

    # -- faults

    def kill_worker(self) -> None:
        """A worker process, or the supervisor of a job, at once."""
        mark = str(self.runs.resolve() / ".launch").encode()
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if mark in file.read_bytes():
                    found.append(int(file.parent.name))
            except OSError:
                continue
        if found:
            try:
                os.kill(random.choice(found), signal.SIGKILL)
            except ProcessLookupError:
                return

    def lose_node(self) -> None:
        """A node with all that runs on it; it comes back."""
        node = f"n{random.randint(1, 4)}"
        call(CLUSTER, "lose", node, timeout=120)
        time.sleep(2)
        call(CLUSTER, "bring", node, timeout=120)

    def kill_launcher(self) -> None:
        """A launcher that submits what is left, somewhere on its way."""
        self.submit(kill_after=random.uniform(1, 15))

    def kill_controller(self) -> None:
        """The controller, for some seconds, while a launcher may try to reach it."""
        call(CLUSTER, "away", timeout=120)
        time.sleep(random.uniform(1, 8))
        call(CLUSTER, "back", timeout=120)

    def strike(self) -> None:
        """One of the faults."""
        fault = random.choice(
            [
                self.kill_worker,
                self.kill_worker,
                self.lose_node,
                self.kill_launcher,
                self.kill_controller,
            ]
        )
        self.faults[fault.__name__] += 1
        fault()


def under_faults(grid: Grid, minutes: float, patience: float) -> None:
    """Submit, strike for some minutes, then let the grid end, submitting again what has failed."""
    grid.submit()
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        time.sleep(random.uniform(1, 8))
        grid.strike()
    last = time.monotonic() + 60 * patience
    while time.monotonic() < last:
        found = folder_status(grid.runs)
        if found.is_done:
            return
        if not any(cell.state in UNDER_WAY for cell in found.cells):
            grid.submit()
        time.sleep(5)


def problems(grid: Grid, cells: int) -> list[str]:
    """What is wrong at the end."""
    status = folder_status(grid.runs)
    states = collections.Counter(cell.state for cell in status.cells)
    found = [] if states == {"done": cells} else [f"states: {dict(states)}"]
    ends = collections.Counter(
        event["step"]
        for launch in launches(grid.runs)
        for _, event in launch.events()
        if event.get("state") == "done"
    )
    found += [f"{cell}: done {count} times" for cell, count in ends.items() if count > 1]
    queue = call("squeue", "-h", "-o", "%i %k", capture_output=True).stdout
    marks = [launch.mark(0).rpartition(":")[0] for launch in launches(grid.runs)]
    found += [
        f"left in the queue: {line}" for line in queue.splitlines() if any(m in line for m in marks)
    ]
    alone = grid.folder / "alone"
    call(*grid.command("--executor", "debug", "--quiet", "--out", alone), stdout=subprocess.DEVNULL)
    for cell in alone.glob("*-seed*"):
        there = grid.runs / cell.name / "result.json"
        if there.is_file() and recorded(there.parent) != recorded(cell):
            found.append(f"{cell.name}: differs from a run on this machine")
    return found


def main() -> int:
    """Run; prints a line of facts, and a line for each problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long faults happen")
    parser.add_argument("--patience", type=float, default=30.0, help="minutes to end after that")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    random.seed(asked.seed)
    cells, began = 2 * (-(-asked.cells // 2)), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stress-") as folder:
        os.environ["OMP_NUM_THREADS"] = "1"
        grid = Grid(Path(folder), cells)
        under_faults(grid, asked.minutes, asked.patience)
        found = problems(grid, cells)
    facts = {
        "cells": cells,
        "seconds": round(time.monotonic() - began),
        "faults": dict(grid.faults),
    }
    print(json.dumps(facts))
    print("\n".join(found) or "every cell once, as on this machine, nothing left")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
