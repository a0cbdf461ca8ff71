"""Ratios, their goals, and the comparison with a stored baseline."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

BASELINE = Path(__file__).parents[1] / "bench_baseline.json"
TOLERATED = 1.15


@dataclass(frozen=True)
class Goal:
    """A bound: `<=` or `>=` a number."""

    sign: str
    bound: float


def at_most(bound: float) -> Goal:
    """A goal that larger values miss."""
    return Goal("<=", bound)


def at_least(bound: float) -> Goal:
    """A goal that smaller values miss."""
    return Goal(">=", bound)


@dataclass(frozen=True)
class Row:
    """Ratios, or seconds, whose median is compared with a goal."""

    name: str
    values: Sequence[float]
    goal: Goal

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    @property
    def missed(self) -> bool:
        """Whether the median misses the goal."""
        up = self.goal.sign == ">="
        return self.median < self.goal.bound if up else self.median > self.goal.bound


def lost(row: Row, baseline: dict[str, float]) -> bool:
    """Whether a ratio is worse than in the baseline by more than TOLERATED; not for seconds."""
    before = baseline.get(row.name)
    if before is None or row.name.endswith("[s]"):
        return False
    worse = before / row.median if row.goal.sign == ">=" else row.median / max(before, 1e-9)
    # Small shares of a step may grow by one point.
    return worse > TOLERATED and abs(row.median - before) > 0.01


def shown(row: Row, baseline: dict[str, float]) -> str:
    """A row as a line of the printed table."""
    before = baseline.get(row.name)
    known = "" if before is None else f"{before:8.3f}"
    marks = "   MISSED" * row.missed + "   LOST" * lost(row, baseline)
    return (
        f"{row.name:44s}{row.median:8.3f}{min(row.values):8.3f}{max(row.values):8.3f}"
        f"   {row.goal.sign} {row.goal.bound:<6g}{known}{marks}"
    )


def judged(measured: Iterable[Row], *, write: bool = False) -> int:
    """Print each row as soon as it is measured; returns the exit code.

    The code is 1 if a goal is missed, or a ratio is more than 15 % worse than in the baseline.
    write: store the rows as the new baseline.
    """
    baseline = json.loads(BASELINE.read_text("utf-8")) if BASELINE.exists() else {}
    rows: list[Row] = []
    print(f"{'':44s}{'median':>8s}{'min':>8s}{'max':>8s}   goal    baseline")
    for row in measured:
        rows.append(row)
        print(shown(row, baseline), flush=True)
    if write:
        new = {row.name: round(row.median, 4) for row in rows if not row.name.endswith("[s]")}
        BASELINE.write_text(json.dumps(baseline | new, indent=2) + "\n", "utf-8")
    missed, worse = sum(r.missed for r in rows), sum(lost(r, baseline) for r in rows)
    print(f"{len(rows)} ratios: {missed} miss their goal, {worse} lost more than 15 %")
    return 1 if missed or (worse and not write) else 0
