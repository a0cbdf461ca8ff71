"""A grid on a real Slurm under random faults: python scripts/stress_slurm.py --cells 60

On the Slurm of tests/slurm/cluster.sh (`install`, `start`, and `eval "$(... env)"` before). While
the grid runs, workers, nodes, launchers and the controller are killed at random. At the end every
cell has one result, which equals that of a run on this machine without faults; no job and
no process is left, and all states are `done`. Exit code 0 only then.
"""

import argparse
import collections
import contextlib
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
from ctta_bench.launch.status import folder_status  # noqa: E402
from ctta_bench.record.schema import RESULT_FILE  # noqa: E402
from tests.launches import PLUGINS, recorded  # noqa: E402

CLUSTER = ROOT / "tests" / "slurm" / "cluster.sh"
ENTRIES = "source, tent, {name: slow, set: {pause: 0.1}}"
PROFILE = """\
memory_gb: 0.5
time_minutes: 10
cpus: 2
cells_per_job: {cells_per_job}
workers_per_job: 2
parallel: 2
"""


class Grid:
    """The grid under test, and what is done to it. cells: three for each seed."""

    def __init__(self, folder: Path, cells: int, cells_per_job: int) -> None:
        self.folder, self.runs = folder, folder / "runs"
        self.file, self.profile = folder / "stress.yaml", folder / "profile.yaml"
        seeds = list(range(cells // 3))
        self.file.write_text(f"methods: [{ENTRIES}]\nbenchmarks: [toy]\nseeds: {seeds}\n")
        self.profile.write_text(PROFILE.format(cells_per_job=cells_per_job))
        self.submitting: subprocess.Popen[bytes] | None = None
        self.log = (folder / "launchers.log").open("w")

    def launcher(self, *more: object) -> "subprocess.Popen[bytes]":
        """A process of `ctta-bench grid`."""
        words = [sys.executable, "-m", "ctta_bench", "grid", self.file, *PLUGINS, "--device", "cpu"]
        words += more
        return subprocess.Popen(list(map(str, words)), stdout=self.log, stderr=self.log)

    def alone(self) -> "subprocess.Popen[bytes]":
        """A process that runs the same cells on this machine, without faults."""
        return self.launcher("--executor", "debug", "--quiet", "--out", self.folder / "alone")

    def submit(self) -> "subprocess.Popen[bytes]":
        """The launcher that submits what is neither done nor under way, a new one if none runs."""
        if self.submitting is None or self.submitting.poll() is not None:
            words = ("--profile", self.profile, "--out", self.runs, "--checkpoint", 2)
            self.submitting = self.launcher(*words)
        return self.submitting

    def processes(self) -> list[int]:
        """Workers and supervisors of jobs of this grid."""
        mark, found = str(self.runs.resolve() / ".launch").encode(), []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if mark in file.read_bytes():
                    found.append(int(file.parent.name))
        return found

    # -- faults

    def kill_process(self) -> None:
        """A worker, or the supervisor of a job."""
        if found := self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(found), signal.SIGKILL)

    def lose_node(self) -> None:
        """A node with all that runs on it; it comes back."""
        node = f"n{random.randint(1, 4)}"
        subprocess.run([CLUSTER, "lose", node], check=True, timeout=120)
        time.sleep(2)
        subprocess.run([CLUSTER, "bring", node], check=True, timeout=120)

    def kill_launcher(self) -> None:
        """A launcher, somewhere on its way."""
        launcher = self.submit()
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(random.uniform(1, 20))
        launcher.kill()

    def kill_controller(self) -> None:
        """The controller, for some seconds in which a launcher tries to reach it."""
        subprocess.run([CLUSTER, "away"], check=True, timeout=120)
        self.submit()
        time.sleep(random.uniform(2, 20))
        subprocess.run([CLUSTER, "back"], check=True, timeout=120)


def release_held() -> "collections.Counter[str]":
    """Release the jobs that Slurm holds, as an operator does; returns how many there were.

    Where a node is lost while a job begins on it, Slurm may drain the node and hold the job
    (`launch failed requeued held`) until somebody releases it.
    """
    waiting = lines("squeue", "-t", "PD", "-o", "%i %r")
    held = [line.split()[0] for line in waiting if "held" in line]
    for job in held:
        subprocess.run(["scontrol", "release", job], check=True)
    for node in {*lines("sinfo", "-N", "-t", "drain", "-o", "%N")}:
        subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], check=True)
    return collections.Counter({"job held": len(held)})


def lines(*words: str) -> list[str]:
    """What a command of Slurm prints, without a head."""
    call = [*words, "--noheader"]
    return subprocess.run(call, capture_output=True, text=True, check=True).stdout.splitlines()


def under_faults(grid: Grid, minutes: float, patience: float) -> "collections.Counter[str]":
    """Submit; faults for some minutes or until all is done; then submit what is left until it is.

    Returns the number of faults of each kind.
    """
    kinds = (grid.kill_process, grid.lose_node, grid.kill_launcher, grid.kill_controller)
    faults: collections.Counter[str] = collections.Counter()
    grid.submit().wait()
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end and not folder_status(grid.runs).is_done:
        time.sleep(random.uniform(1, 6))
        faults += release_held()  # or a drained node could not be lost and brought back
        fault = random.choices(kinds, (5, 2, 1, 1))[0]
        faults[fault.__name__] += 1
        fault()
    end = time.monotonic() + 60 * patience
    while time.monotonic() < end:
        status = folder_status(grid.runs)
        if status.is_done:
            break
        faults += release_held()  # adds nothing where none was held
        if not status.is_under_way:
            grid.submit().wait()
        time.sleep(3)
    grid.submit().wait()  # has nothing to do
    return faults


def queue(grid: Grid) -> dict[str, str]:
    """What Slurm says of each job of the grid in its queue, by number."""
    marks = [launch.mark(0).rpartition(":")[0] for launch in launches(grid.runs)]
    said = lines("squeue", "-o", "%A %i %T %N %r %k")
    return {line.split()[0]: line for line in said if any(mark in line for mark in marks)}


def left(grid: Grid, seconds: int) -> list[str]:
    """Jobs in the queue and processes of the grid, once there are none or the time has passed."""
    found = [""]
    for _ in range(seconds):
        found = [f"job in the queue: {line}" for line in queue(grid).values()]
        found += [f"process: {pid}" for pid in grid.processes()]
        if not found:
            break
        time.sleep(1)
    return found


def cancel_lost(grid: Grid) -> "collections.Counter[str]":
    """Cancel the jobs that Slurm calls running and that have no process, as an operator does.

    Returns how many there were. A controller that is killed forgets what it had not yet written
    down: it may go on waiting for the end of a job that it has heard of already, or begin the job
    once more on another node.
    """
    environments = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            environments.append(file.read_bytes().split(b"\0"))
    lost = [
        (job, line)
        for job, line in queue(grid).items()
        if " RUNNING " in line
        and not any(f"SLURM_JOB_ID={job}".encode() in values for values in environments)
    ]
    for job, line in lost:
        print(f"a job without a process, cancelled: {line}")
        subprocess.run(["scancel", job], check=True)
    return collections.Counter({"job lost": len(lost)})


def problems(grid: Grid) -> list[str]:
    """What is wrong at the end, when the run without faults has ended, too."""
    status = folder_status(grid.runs)
    found = [f"{c.cell}: {c.state} {c.reason}" for c in status.cells if c.state != "done"]
    ends = collections.Counter(
        event["step"]
        for launch in launches(grid.runs)
        for _, event in launch.events()
        if event.get("state") == "done"
    )
    found += [f"{cell}: done {count} times" for cell, count in ends.items() if count > 1]
    found += left(grid, 60)
    alone = grid.folder / "alone"
    cells = {file.parent.name for file in alone.glob(f"*/{RESULT_FILE}")}
    if cells != {cell.cell for cell in status.cells}:
        found.append(f"{len(cells)} cells alone, {len(status.cells)} on Slurm")
    for cell in sorted(cells):
        there = grid.runs / cell
        if (there / RESULT_FILE).is_file() and recorded(there) != recorded(alone / cell):
            found.append(f"{cell}: differs from a run without faults")
    return found


def main() -> int:
    """Run; prints a line of facts, and a line for each problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=60, help="a multiple of three")
    parser.add_argument("--cells-per-job", type=int, help="default: 15, or a twentieth if more")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long faults happen")
    parser.add_argument("--patience", type=float, default=30.0, help="minutes to end after that")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for all files; default: a temporary one")
    asked = parser.parse_args()
    random.seed(asked.seed)
    os.environ["OMP_NUM_THREADS"] = "1"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stress-") as temporary:
        folder = asked.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        grid = Grid(folder, asked.cells, asked.cells_per_job or max(15, asked.cells // 20))
        alone = grid.alone()
        faults = under_faults(grid, asked.minutes, asked.patience)
        minutes = (time.monotonic() - began) / 60
        alone.wait()
        # A job that starts last finds nothing to do, but imports torch first: on a busy machine
        # that alone may take half a minute.
        if left(grid, 120):
            faults += cancel_lost(grid)
        found = problems(grid)
    counted = ", ".join(f"{name} {count}" for name, count in sorted(faults.items()))
    print(f"{asked.cells} cells in {minutes:.1f} minutes; faults: {counted}")
    print("\n".join(found) or "every cell once, as without faults; nothing left")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
