"""The sentence over a group's results, on the page and in the terminal: who differs from source."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.read.error_model import LEVEL
from ctta_bench.analysis.table.notes import counted, enumerated
from ctta_bench.analysis.table.rows import metric_of, rows, source_row
from ctta_bench.analysis.table.table import Table, signed
from ctta_bench.scoring.metric import Metric, printed

FEW_IMAGES = 200  # per domain; with fewer the sentence has a warning
_MAX_NAMED = 4  # better or worse methods with their numbers


class _Compared(NamedTuple):
    """A method minus source, in the units of the metric. gain: positive if it is better."""

    label: str
    difference: float
    low: float
    high: float
    gain: float
    differs: bool  # after Holm's correction
    detectable: float


def headline(group: Runs, significance: Table | None) -> str:
    """Which methods differ from source, by how much, and what the data can show, in sentences.

    significance: the table that compares each method of the group with source, if there is one.
    """
    found, metric = rows(group), metric_of(group)
    source = source_row(found)
    methods = [row for row in found if row is not source and not np.isnan(row.mean)]
    if not methods:
        return "No method has a complete result yet."
    if source is None or significance is None:
        best = methods[0]
        text = f"{best.label} has the {metric.superlative}, {metric.shown(best.mean)}."
        return f"{text} There is no complete run of source to compare with."
    compared = _compared(significance, metric)
    if not compared:
        return f"No method can be compared with {source.label}; the table below it has the reasons."
    few = _few_images(group)
    sentences = [_verdict(compared, source.label, metric, _amounts(group))]
    if group.finished().cells["seed"].nunique() == 1:
        sentences.append("Only one seed was run, so this says nothing about other seeds.")
    visible = [c.detectable for c in compared if 0 < c.detectable < np.inf]
    if visible and (few or not any(c.differs for c in compared)):
        reason = f"With fewer than {FEW_IMAGES} images per domain, d" if few else "D"
        least = f"{printed(min(visible))} {_points(metric)}"
        sentences.append(f"{reason}ifferences below {least} cannot be seen here.")
    elif few:
        sentences.append(f"There are fewer than {FEW_IMAGES} images per domain.")
    return " ".join(sentences)


def _compared(significance: Table, metric: Metric) -> list[_Compared]:
    """The methods with a comparison, from the best to the worst."""
    labels = dict(
        zip(significance.frame.index, (label for label, _ in significance.lines), strict=True)
    )
    frame = significance.frame.dropna(subset=["difference", "p_holm"])
    found = [
        _Compared(
            labels[name],
            row["difference"],
            row["low"],
            row["high"],
            -metric.ascending * row["difference"],
            bool(row["p_holm"] < LEVEL),
            row["detectable"],
        )
        for name, row in frame.to_dict("index").items()
    ]
    return sorted(found, key=lambda compared: -compared.gain)


def _verdict(compared: Sequence[_Compared], source: str, metric: Metric, amounts: str) -> str:
    better = [c for c in compared if c.differs and c.gain > 0]
    worse = [c for c in compared if c.differs and c.gain < 0]
    alike = [c.label for c in compared if not c.differs]
    points = _points(metric)
    if not better and not worse:
        best = compared[0]
        interval = f", [{signed(best.low)}, {signed(best.high)}]" if np.isfinite(best.low) else ""
        return (
            f"No method differs from {source} (best: {best.label}, {signed(best.difference)} "
            f"{points}{interval}; {amounts})."
        )
    parts = [f"No method is better than {source}"]
    if better:
        parts = [f"{better[0].label} is better than {source} by {_size(better[0], points)}"]
    if better[1:]:
        parts.append(f"so {_verb(better[1:])} {_named(better[1:])}")
    if alike:
        parts.append(f"{enumerated(alike)} {_verb(alike)} not distinguishable from it")
    if worse:
        parts.append(f"{_named(worse[::-1])} {_verb(worse)} worse")
    return f"{'; '.join(parts)} ({amounts}; after Holm's correction)."


def _size(compared: _Compared, points: str) -> str:
    """`5.4 points [3.8, 7.0]`, both positive."""
    ends = sorted(abs(end) for end in (compared.low, compared.high))
    return f"{printed(abs(compared.gain))} {points} [{', '.join(map(printed, ends))}]"


def _named(compared: Sequence[_Compared]) -> str:
    """`TENT (2.1 [1.0, 3.2]) and SAR (1.0 [0.2, 1.8])`, and how many more there are."""
    texts = [f"{c.label} ({_size(c, '').replace('  ', ' ')})" for c in compared]
    if len(texts) > _MAX_NAMED:
        return f"{', '.join(texts[:_MAX_NAMED])} and {len(texts) - _MAX_NAMED} more"
    return enumerated(texts)


def _verb(subjects: Sequence[object]) -> str:
    return "is" if len(subjects) == 1 else "are"


def _points(metric: Metric) -> str:
    return "points" if metric.unit == "%" else metric.unit


def _amounts(group: Runs) -> str:
    """`3 seeds, 300 images per domain`."""
    images = group.domains["n"]
    low, high = int(images.min()), int(images.max())
    shown = f"{low}" if low == high else f"{low} to {high}"
    seeds = int(group.finished().cells["seed"].nunique())
    return f"{counted(seeds, 'seed')}, {shown} images per domain"


def _few_images(group: Runs) -> bool:
    return bool(group.domains["n"].min() < FEW_IMAGES)
