"""The share of a grid's allocation that goes into methods' passes: scripts/profile_grid.py RUNS

RUNS: the folder of a finished grid on Slurm. The allocation is what Slurm's accounting has of its
jobs, from the first line of the script to the end, times the workers of a job. Passes are the
seconds that results record, in which methods predict and adapt. With `--least 0.8` the exit code is
1 if their share is smaller.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from ctta_bench.launch.plan import Launch, launches
from ctta_bench.record.schema import RESULT_FILE


def allocated(launch: Launch) -> float:
    """Seconds of all workers of a launch's jobs, also of those that were queued again."""
    jobs = launch.jobs()
    if not jobs:
        return 0.0
    roots = ",".join({job.partition("_")[0] for job in jobs})
    call = ["sacct", "-n", "-P", "-X", "-D", "-o", "JobID,ElapsedRaw", "-j", roots]
    said = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    lines = [line.split("|") for line in said.splitlines()]
    return launch.workers_per_job * sum(float(s) for job, s in lines if job in jobs)


def in_cells(launch: Launch) -> float:
    """Seconds in which the workers of a launch had a cell."""
    workers = range(len(launch.facts["packs"]))
    return sum(sum(launch.journal(n).durations().values()) for n in workers)


def main() -> int:
    """Print the shares, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="folder of a finished grid")
    parser.add_argument("--least", type=float, default=0.0, help="smallest share of passes")
    asked = parser.parse_args()
    results = [json.loads(file.read_text("utf-8")) for file in asked.runs.glob(f"*/{RESULT_FILE}")]
    found = launches(asked.runs)
    whole = sum(map(allocated, found))
    if not results or not whole:
        print(f"{asked.runs}: no finished cells of jobs of Slurm.", file=sys.stderr)
        return 2
    passes = sum(result["cost"]["seconds"] for result in results)
    cells = sum(map(in_cells, found))
    jobs = sum(launch.number_of_jobs for launch in found)
    print(f"{len(results)} cells of {passes / len(results):.0f} s in {jobs} jobs, {whole:.0f} s")
    print(f"  {passes / whole:6.1%}  passes")
    print(f"  {(cells - passes) / whole:6.1%}  cells, apart from passes")
    print(f"  {(whole - cells) / whole:6.1%}  jobs, apart from cells")
    return 0 if passes >= asked.least * whole else 1


if __name__ == "__main__":
    sys.exit(main())
