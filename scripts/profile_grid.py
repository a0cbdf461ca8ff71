"""How much of a grid's allocation goes into methods' passes: python scripts/profile_grid.py RUNS

RUNS: a folder of a finished grid on Slurm. Allocation: from the first line of each job's script to
its end, as Slurm's accounting has it, times its workers. Passes: the seconds of `result.json`, in
which methods predict and adapt. With `--least 0.8` the exit code is 1 for a smaller share.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from ctta_bench.launch.plan import Launch, launches

COLUMNS = ("-n", "-P", "-X", "-D", "-o", "JobID,ElapsedRaw")


def allocated(launch: Launch) -> float:
    """Seconds of all workers of a launch's jobs, with those of earlier attempts."""
    jobs = launch.jobs()
    roots = sorted({job.partition("_")[0] for job in jobs})
    if not roots:
        return 0.0
    call = ["sacct", *COLUMNS, "-j", ",".join(roots)]
    said = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    lines = [line.split("|") for line in said.splitlines()]
    return launch.workers_per_job * sum(float(s) for job, s in lines if job in jobs)


def passes(runs: Path) -> tuple[int, float]:
    """Number of finished cells, and the seconds of their passes."""
    found = [json.loads(file.read_text("utf-8")) for file in runs.glob("*/result.json")]
    seconds = [result["cost"]["seconds"] for result in found if "cost" in result]
    return len(seconds), sum(seconds)


def main() -> int:
    """Print the share, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="folder of a finished grid")
    parser.add_argument("--least", type=float, default=0.0, help="smallest share that is accepted")
    asked = parser.parse_args()
    cells, seconds = passes(asked.runs)
    allocation = sum(map(allocated, launches(asked.runs)))
    if not cells or not allocation:
        print(f"{asked.runs}: no finished cells of jobs of Slurm", file=sys.stderr)
        return 2
    share = seconds / allocation
    each = f"{cells} cells, {seconds / cells:.0f} s of passes each"
    print(f"{each}: {100 * share:.1f} % of {allocation:.0f} s")
    return 0 if share >= asked.least else 1


if __name__ == "__main__":
    sys.exit(main())
