"""The sentences over a group's results: who differs from source, by how much, and how sure."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.compared import Compared, compared_with
from ctta_bench.analysis.table.notes import enumerated
from ctta_bench.analysis.table.rows import Row, metric_of, rows, source_row
from ctta_bench.analysis.table.table import signed
from ctta_bench.analysis.tables.leaderboard import is_method, relative_times
from ctta_bench.errors import counted
from ctta_bench.scoring.metric import Metric, printed

FEW_IMAGES = 200  # per domain; with fewer there is a warning
HARDLY = 0.05  # points; a smaller difference prints as 0.0
_MAX_NAMED = 4  # methods in a sentence


class Headline(NamedTuple):
    """What a group's results show, in one or two sentences, and what weakens them."""

    verdict: str
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.verdict, *self.warnings))


class _Gain(NamedTuple):
    """A method over source, in the units of the metric; positive is better."""

    row: Row
    gain: float
    low: float
    high: float
    differs: bool  # after Holm's correction
    detectable: float
    seeds: int


def headline(group: Runs) -> Headline:
    """Which methods differ from source, by how much, at what price, and what the data can show.

    Example: `str(headline(load("runs/quickstart").groups()[0]))`
    """
    found, metric = rows(group), metric_of(group)
    source = source_row(found)
    complete = [row for row in found if row is not source and not np.isnan(row.mean)]
    if not any(map(is_method, complete)) and source is None:
        return Headline("No method has a complete result yet.", tuple(_missing(group)))
    if source is None:
        best = next(row for row in complete if is_method(row))
        text = f"{best.label} has the {metric.superlative}, {metric.shown(best.mean)}."
        text += " There is no complete run of source to compare with."
        return Headline(text, tuple(_warnings(group, [])))
    # As in the table of significance, warm-ups without adaptation count in Holm's correction.
    gains = _gains(compared_with(source, complete, metric), metric)
    if not gains:
        text = f"No method can be compared with {source.label}"
        text += "; the table below it has the reasons." if complete else " yet."
        return Headline(text, tuple(_missing(group)))
    methods = [row for row in complete if is_method(row)]
    verdict = _verdict(gains, source, methods, group)
    return Headline(verdict, tuple(_warnings(group, gains)))


def _gains(compared: Sequence[Compared], metric: Metric) -> list[_Gain]:
    """The methods with a comparison, from the best to the worst."""
    found = []
    for one in compared:
        if one.estimate is not None and is_method(one.row):
            gain = one.estimate.scaled(-metric.ascending)
            facts = (gain.mean, gain.low, gain.high, one.differs, gain.detectable, gain.seeds)
            found.append(_Gain(one.row, *facts))
    return sorted(found, key=lambda one: -round(one.gain, 9))


def _verdict(gains: Sequence[_Gain], source: Row, methods: Sequence[Row], group: Runs) -> str:
    metric = metric_of(group)
    better = [one for one in gains if one.differs and one.gain > 0]
    worse = [one for one in gains if one.differs and one.gain < 0]
    amounts = _amounts(group, gains)
    if not better and not worse:
        first = [one for one in gains if signed(one.gain) == signed(gains[0].gain)]
        ends = f", [{signed(first[0].low)}, {signed(first[0].high)}]"
        interval = ends if len(first) == 1 and np.isfinite(first[0].low) else ""
        return (
            f"No method differs from {source.label} (best: {_names([one.row for one in first])}, "
            f"{signed(first[0].gain)} {_points(metric)}{interval}; {amounts})."
        )
    if not better:
        return (
            f"No method is better than {source.label}; {_names([w.row for w in worse[::-1]])} "
            f"{_verb(worse)} worse ({amounts})."
        )
    best = better[0]
    ratio = relative_times([best.row, source], source).get(best.row.name, np.nan)
    price = f" at {printed(ratio)} × its time" if np.isfinite(ratio) else ""
    alike = _not_distinguishable(best.row, methods, metric)
    unsure = [one.row for one in gains[: gains.index(best)]]
    text = (
        f"{best.row.label} is better than {source.label} by {printed(best.gain)} "
        f"{_points(metric)}{_interval(best)}{price}"
    )
    if alike:
        text += f"; {_names(alike)} {_verb(alike)} not distinguishable from {best.row.label}"
    if unsure:
        verb = "gain is" if len(unsure) == 1 else "gains are"
        text += f"; for {_names(unsure)} the larger {verb} not distinguishable from 0"
    if len(gains) == 1:
        return f"{text} ({amounts})."
    rest = len(gains) - len(better) - len(worse)
    counts = [f"{len(better)} of {len(gains)} methods {_verb(better)} better than {source.label}"]
    counts += [f"{len(worse)} {_verb(worse)} worse"] if worse else []
    if rest:
        counts.append(f"{rest} {'is' if rest == 1 else 'are'} not distinguishable from it")
    return f"{text}. {enumerated(counts)} ({amounts})."


def _not_distinguishable(best: Row, methods: Sequence[Row], metric: Metric) -> list[Row]:
    """The other methods that do not differ from the best, as marked in the leaderboard."""
    compared = compared_with(best, [row for row in methods if row is not best], metric)
    return [one.row for one in compared if one.estimate is not None and not one.differs]


def _interval(of: _Gain) -> str:
    """` [3.8, 7.0]`."""
    return f" [{printed(of.low)}, {printed(of.high)}]" if np.isfinite(of.low) else ""


def _names(found: Sequence[Row]) -> str:
    """`TENT, SAR and CoTTA`, or the first few and how many more there are."""
    labels = [row.label for row in found]
    if len(labels) > _MAX_NAMED:
        return f"{', '.join(labels[: _MAX_NAMED - 1])} and {len(labels) - _MAX_NAMED + 1} more"
    return enumerated(labels)


def _verb(subjects: Sequence[object]) -> str:
    return "is" if len(subjects) == 1 else "are"


def _points(metric: Metric) -> str:
    return "points" if metric.unit == "%" else metric.unit


def _amounts(group: Runs, gains: Sequence[_Gain]) -> str:
    """`3 seeds, 300 images per domain`: those of the comparisons."""
    images = group.domains["n"]
    low, high = int(images.min()), int(images.max())
    shown = counted(low, "image") if low == high else f"{low} to {high} images"
    fewest, most = min(one.seeds for one in gains), max(one.seeds for one in gains)
    seeds = counted(most, "seed") if fewest == most else f"{fewest} to {most} seeds"
    return f"{seeds}, {shown} per domain"


def _warnings(group: Runs, gains: Sequence[_Gain]) -> list[str]:
    """What a reader must know before trusting the verdict, one sentence each."""
    found = []
    seeds = [one.seeds for one in gains] or [int(group.finished().cells["seed"].nunique())]
    if max(seeds) == 1:
        found.append("This is of one seed and says nothing about other seeds.")
    few = bool(group.domains["n"].min() < FEW_IMAGES)
    # A method that hardly changes a prediction has no difference to see.
    visible = [one.detectable for one in gains if HARDLY < one.detectable < np.inf]
    if visible and (few or not any(one.differs for one in gains)):
        reason = f"With fewer than {FEW_IMAGES} images per domain, d" if few else "D"
        least = f"{printed(min(visible))} {_points(metric_of(group))}"
        found.append(f"{reason}ifferences below {least} cannot be seen here.")
    elif few:
        found.append(f"There are fewer than {FEW_IMAGES} images per domain.")
    cell = group.cells.iloc[0]
    if group.domains["n"].max() <= cell["batch_size"]:
        found.append("Each domain is a single batch, so hardly any adaptation can be seen here.")
    return [*found, *_missing(group)]


def _missing(group: Runs) -> list[str]:
    """How many cells have no result, by their state."""
    states = group.cells["state"].value_counts()
    lacking = [f"{count} {state}" for state, count in states.items() if state != "done"]
    if not lacking:
        return []
    total = counted(int(states.sum()), "cell")
    missing = int(states.sum() - states.get("done", 0))
    return [
        f"{missing} of {total} {'is' if missing == 1 else 'are'} missing ({', '.join(lacking)})."
    ]
