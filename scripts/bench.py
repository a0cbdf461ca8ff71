"""Speed and memory as ratios against references in the same process: `make bench`.

    python scripts/bench.py [--repeats 5] [--model vit_small_patch16_224] [--only paid,tent]
                            [--device cuda] [--write-baseline]

Subject and reference take turns, and the median of the ratios counts, so that a machine whose
speed drifts does not matter. Start-up times are medians of fresh processes, of the processor.
Exit code 1 if a goal is missed, or a ratio is more than 15 % worse than in
scripts/bench_baseline.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from bench_goals import Goal, Row, engine_rows, method_rows

BASELINE = Path(__file__).with_name("bench_baseline.json")
TOLERATED = 1.15


def start_up(*arguments: str, repeats: int) -> list[float]:
    """Seconds of the processor for a fresh process of Python, less those of an empty one."""
    times = {}
    for call in (arguments, ("-c", "pass")):
        times[call] = []
        for _ in range(repeats):
            began = _of_children()
            subprocess.run([sys.executable, *call], check=True, stdout=subprocess.DEVNULL)
            times[call].append(_of_children() - began)
    empty = statistics.median(times["-c", "pass"])
    return [t - (empty if arguments[0] == "-c" else 0) for t in times[arguments]]


def _of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def start_up_rows(repeats: int) -> Iterator[Row]:
    """Seconds until commands answer."""
    command = str(Path(sys.executable).parent / "ctta-bench")
    calls = {
        "import ctta_bench [s]": (("-c", "import ctta_bench"), 0.3),
        "ctta-bench list methods [s]": ((command, "list", "methods"), 0.7),
        "ctta-bench --help [s]": ((command, "--help"), 0.7),
    }
    for name, (call, bound) in calls.items():
        yield Row(name, start_up(*call, repeats=repeats), Goal("<=", bound))


def lost(row: Row, baseline: dict[str, float]) -> bool:
    """Whether a ratio is worse than it was, by more than is tolerated; seconds are not held."""
    before = baseline.get(row.name)
    if before is None or row.name.endswith("[s]"):
        return False
    worse = before / row.median if row.goal.sign == ">=" else row.median / max(before, 1e-9)
    # A share of a step is small: a point more is no loss.
    return worse > TOLERATED and abs(row.median - before) > 0.01


def shown(row: Row, baseline: dict[str, float]) -> str:
    """A line of the table."""
    before = baseline.get(row.name)
    known = "" if before is None else f"{before:8.3f}"
    marks = "   MISSED" * row.missed + "   LOST" * lost(row, baseline)
    return (
        f"{row.name:44s}{row.median:8.3f}{min(row.values):8.3f}{max(row.values):8.3f}"
        f"   {row.goal.sign} {row.goal.bound:<6g}{known}{marks}"
    )


def judged(measured: Iterable[Row], *, write: bool) -> int:
    """Print each row when it is there; the exit code. `write` makes them the baseline."""
    baseline = json.loads(BASELINE.read_text("utf-8")) if BASELINE.exists() else {}
    rows: list[Row] = []
    print(f"{'':44s}{'median':>8s}{'min':>8s}{'max':>8s}   goal    baseline")
    for row in measured:
        rows.append(row)
        print(shown(row, baseline), flush=True)
    if write:
        kept = {row.name: round(row.median, 4) for row in rows if not row.name.endswith("[s]")}
        BASELINE.write_text(json.dumps(baseline | kept, indent=2) + "\n", "utf-8")
    missed, worse = sum(r.missed for r in rows), sum(lost(r, baseline) for r in rows)
    print(f"{len(rows)} ratios: {missed} miss their goal, {worse} lost more than 15 %")
    return 1 if missed or (worse and not write) else 0


def main() -> None:
    """Measure everything, print a table, and fail if a goal is missed or something was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", default="vit_small_patch16_224", help="of timm")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--only", default="", help="methods, or engine, or start")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write-baseline", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    only = {name for name in arguments.only.split(",") if name}

    def measured() -> Iterator[Row]:
        if not only or "start" in only:
            yield from start_up_rows(7)
        if not only or "engine" in only:
            yield from engine_rows(arguments.model, arguments.batch_size, device)
        yield from method_rows(
            arguments.model, arguments.batch_size, device, only, arguments.repeats
        )

    sys.exit(judged(measured(), write=arguments.write_baseline))


if __name__ == "__main__":
    main()
