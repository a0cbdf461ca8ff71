"""The leaderboard: which methods are better than source, by how much, how sure, at what price."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.read.error_model import LEVEL
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.compared import (
    Compared,
    common_seeds,
    compared_with,
    uncertainty,
)
from ctta_bench.analysis.table.missing import listed, missing_cells
from ctta_bench.analysis.table.rows import (
    SOURCE,
    Row,
    domain_labels,
    domain_names,
    metric_of,
    rows,
    source_row,
)
from ctta_bench.analysis.table.table import (
    MISSING,
    Entry,
    Table,
    in_order,
    plus_minus,
    ranked,
    signed,
)
from ctta_bench.analysis.tables.main import seeds_text, seeds_vary
from ctta_bench.analysis.tables.measured_cost import find_records, median
from ctta_bench.record.schema import NOT_IN_PAPER
from ctta_bench.registry import TABLES
from ctta_bench.scoring.metric import Metric, printed

ALIKE = "≈"  # not distinguishable from the best
BETTER, WORSE = "↑", "↓"
HEADS = ("rank", "gain (95 % interval)", "time × Source", "memory × Source", "source data")
KEY = (
    f"{ALIKE}: not distinguishable from rank 1; {BETTER}, {WORSE}: better, worse than Source after "
    f"Holm's correction at level {LEVEL}."
)
_NUMBERS = ["mean", "half_interval", "gain", "low", "high", "p_holm", "time", "memory"]
_FACTS = ["rank", "alike", *_NUMBERS, "source_access", "warmup"]
_ACCESS = {"none": "none", "unlabelled": "images", "labelled": "labels"}
_MOST_BOLD = 3  # of more entries, bold would say nothing


@TABLES.register_module("leaderboard", place=5, heading="Leaderboard")
def leaderboard(runs: Runs) -> Table:
    """One group from the best mean to the worst, with gain over source, time and memory.

    Columns of the frame: rank (of methods; 1 is the best, equal printed means share the best
    place), alike (whether it is not distinguishable from the best), mean and half_interval (half of
    its 95 % interval), gain over source with the ends `low` and `high` of its interval and `p_holm`
    (corrected for the number of methods), time and memory as multiples of source's, source_access
    and warmup, then the mean of each domain. Source and what a warm-up leaves have no rank. Rows
    with a missing mean are last.
    """
    found, metric = rows(runs), metric_of(runs)
    source = source_row(found)
    others = [row for row in found if row is not source and not np.isnan(row.mean)]
    compared = {one.row.name: one for one in _compared(source, others, metric)}
    methods = [row for row in others if is_method(row)]
    alike = {one.row.name for one in compared_to_best(methods, metric) if not one.differs}
    memory = _memory(found, source)
    domains = _domains(runs)
    frame = pd.DataFrame(
        [
            _numbers(row, metric, compared.get(row.name))
            | dict(zip(domains, row.over(axis=1), strict=True))
            for row in found
        ],
        index=[row.name for row in found],
    )
    frame["rank"] = _ranks(methods, metric).reindex(frame.index)
    frame["alike"] = [row.name in alike for row in found]
    times = relative_times(found, source)
    frame["time"] = [times.get(row.name, np.nan) for row in found]
    frame["memory"] = [memory.get(row.name, np.nan) for row in found]
    frame["source_access"] = [_access(row) for row in found]
    frame["warmup"] = [bool(row.cells["warmup"].astype(bool).any()) for row in found]
    frame = in_order(frame, "mean", metric.higher_is_better)
    frame = frame[[*_FACTS, *domains]]
    of_name = {row.name: row for row in found}
    ordered = [of_name[str(name)] for name in frame.index]
    columns = _columns(frame, ordered, runs)
    return Table(
        name=f"{notes.table_name(runs)}-leaderboard",
        caption=_caption(runs, found),
        frame=frame,
        header=("method", *columns),
        lines=tuple(
            (row.label, tuple(entries[line] for entries in columns.values()))
            for line, row in enumerate(ordered)
        ),
        footnotes=tuple(_footnotes(found, source, list(compared.values()), frame)),
    )


def is_method(row: Row) -> bool:
    """Whether a row has a rank: source and what a warm-up leaves do not adapt."""
    return row.method != SOURCE and not row.starts_from


def compared_to_best(methods: Sequence[Row], metric: Metric) -> list[Compared]:
    """Each method minus the first, the best, with Holm's correction over all of them."""
    return compared_with(methods[0], methods[1:], metric) if methods else []


def _domains(runs: Runs) -> list[str]:
    return [f"domain {name}" if name in _FACTS else name for name in domain_names(runs)]


def _compared(source: Row | None, others: Sequence[Row], metric: Metric) -> list[Compared]:
    return [] if source is None else compared_with(source, others, metric)


def _numbers(row: Row, metric: Metric, compared: Compared | None) -> dict[str, float]:
    """The numbers of a row by column; a gain has the sign that is positive for a better method."""
    sure = uncertainty(row, metric)
    values = dict.fromkeys(_NUMBERS, np.nan) | {"mean": row.mean}
    if sure is not None:
        values["half_interval"] = sure.half_width
    if compared is not None and compared.estimate is not None:
        gain = compared.estimate.scaled(-metric.ascending)
        values |= {"gain": gain.mean, "low": gain.low, "high": gain.high}
        values["p_holm"] = compared.p_holm
    return values


def _ranks(methods: Sequence[Row], metric: Metric) -> "pd.Series[float]":
    """The place of each method by its mean; equal printed means share the best of their places."""
    shown = pd.Series({row.name: float(printed(row.mean)) for row in methods}, dtype=float)
    return shown.rank(method="min", ascending=not metric.higher_is_better)


def relative_times(found: Sequence[Row], source: Row | None) -> dict[str, float]:
    """Time as a multiple of source's, by row: measured by `ctta-bench cost`, else that of the runs.

    Rows on another device than source's have none.
    """
    if source is None or not len(source.finished):
        return {}
    return measured_times(found, source) or {
        row.name: _mean(row, "seconds") / _mean(source, "seconds")
        for row in _on_its_device(found, source)
    }


def measured_times(found: Sequence[Row], source: Row) -> dict[str, float]:
    """Time as a multiple of source's, by row, from the records of `ctta-bench cost` alone."""
    alike = _on_its_device(found, source) if len(source.finished) else []
    return _measured(alike, "to_reference", same_device=True)


def _on_its_device(found: Sequence[Row], source: Row) -> list[Row]:
    """The finished rows on the device of source."""
    return [row for row in found if len(row.finished) and _devices(row) == _devices(source)]


def _mean(row: Row, cost: str) -> float:
    return float(pd.to_numeric(row.finished[cost], errors="coerce").mean())


def _devices(row: Row) -> set[tuple[str, str]]:
    """Device and number of threads of each finished cell."""
    return {
        (str(device), str(threads))
        for device, threads in zip(row.finished["device"], row.finished["threads"], strict=True)
    }


def _memory(found: Sequence[Row], source: Row | None) -> dict[str, float]:
    """Memory as a multiple of source's, from the records of `ctta-bench cost`, else of a GPU.

    The peak of a run on a CPU is that of the whole process, and says nothing about a method.
    """
    if measured := _measured(found, "memory_to_source"):
        return measured
    if source is None or not _on_gpu(source):
        return {}
    of_source = _mean(source, "peak_memory_mb")
    alike = [row for row in found if _devices(row) == _devices(source)]
    return {row.name: _mean(row, "peak_memory_mb") / of_source for row in alike}


def _on_gpu(row: Row) -> bool:
    devices = row.finished["device"]
    return bool(len(devices)) and not devices.isna().any() and "cpu" not in set(devices)


def _measured(found: Sequence[Row], column: str, *, same_device: bool = False) -> dict[str, float]:
    """A column of records with the rows' protocol, as multiples of source's, by row.

    A record without source's own entry, or with an empty one, says nothing.
    """
    folders = sorted({Path(path).parent for row in found for path in row.cells["path"]})
    keys = {
        row.name: (row.method, str(row.cells["hyperparameters"].iloc[0]))
        for row in found
        if not row.starts_from
    }
    values: dict[str, float] = {}
    for record in (record for folder in folders for record in find_records(folder)[0]):
        if not _is_of(record, found[0], same_device):
            continue
        of = {
            (str(one["method"]), json.dumps(one["hyperparameters"], sort_keys=True)): median(
                one[column]
            )
            for one in record["methods"]
        }
        of_source = {method: value for (method, _), value in of.items()}.get(SOURCE, np.nan)
        ratios = {name: of.get(key, np.nan) / of_source for name, key in keys.items()}
        values |= {name: ratio for name, ratio in ratios.items() if np.isfinite(ratio)}
    return values


def _is_of(record: dict[str, Any], row: Row, same_device: bool) -> bool:
    """Whether a record has the benchmark, weights, precision and batch size of a row."""
    cell = row.cells.iloc[0]
    return (
        record["benchmark"] == cell["benchmark"]
        and record["model"]["sha256"] == cell["model_sha256"]
        and record["precision"] == cell["precision"]
        and record["batch_size"] == cell["batch_size"]
        and (not same_device or {record["environment"]["device"]} == {d for d, _ in _devices(row)})
    )


def _access(row: Row) -> str:
    """What a row read of the source data: none, unlabelled or labelled; "" if not recorded."""
    known = [str(access) for access in row.finished["source_access"].dropna()]
    return max(known, key=list(_ACCESS).index, default="")


def _columns(frame: pd.DataFrame, found: Sequence[Row], runs: Runs) -> dict[str, list[Entry]]:
    """The printed entries of each column, by its head."""
    metric = metric_of(runs)
    rank, gain, time, memory, access = HEADS
    values = [*frame.to_dict("index").values()]
    bold = _bold(frame)
    shown = {
        rank: [Entry(_rank(v)) for v in values],
        metric.head: [
            Entry(
                f"{printed(v['mean'])}{plus_minus(v['half_interval'])}"
                if np.isfinite(v["mean"])
                else MISSING,
                best=is_bold,
            )
            for v, is_bold in zip(values, bold, strict=True)
        ],
        **(
            {
                gain: [_gain(v) for v in values],
                time: [Entry(_multiple(v["time"])) for v in values],
                memory: [Entry(_multiple(v["memory"])) for v in values],
            }
            if source_row(found)
            else {}
        ),
        access: [Entry(_needs(v["source_access"], v["warmup"])) for v in values],
    }
    if seeds_vary(found):
        shown["seeds"] = [Entry(seeds_text(row)) for row in found]
    collapsed = {row.name: notes.collapsed_domains(runs, row) for row in found}
    for place, (name, head) in enumerate(domain_labels(runs).items()):
        column = frame[_domains(runs)[place]]
        empty = [row.name for row in found if row.is_empty(0, 1)[place]]
        flagged = [row for row, domains in collapsed.items() if name in domains]
        shown[head] = ranked(column, metric.higher_is_better, empty, flagged)
    return shown


def _bold(frame: pd.DataFrame) -> list[bool]:
    """Bold is what is not distinguishable from the best, else equal bests; if they are few."""
    first = frame["rank"] == 1
    for chosen in (first | frame["alike"], first):
        if chosen.sum() <= _MOST_BOLD:
            return [bool(is_bold) for is_bold in chosen]
    return [False] * len(frame)


def _rank(values: dict[Any, Any]) -> str:
    if np.isnan(values["rank"]):
        return MISSING
    alike = f" {ALIKE}" if values["alike"] and values["rank"] > 1 else ""
    return f"{values['rank']:.0f}{alike}"


def _gain(values: dict[Any, Any]) -> Entry:
    """`+5.4 [+3.8, +7.0] ↑`: the arrow is there if the method differs from source."""
    gain, low, high = values["gain"], values["low"], values["high"]
    if np.isnan(gain):
        return Entry(MISSING)
    interval = f" [{signed(low)}, {signed(high)}]" if np.isfinite(low) else ""
    differs = values["p_holm"] < LEVEL
    mark = f" {BETTER if gain > 0 else WORSE}" if differs else ""
    return Entry(f"{signed(gain)}{interval}{mark}")


def _multiple(value: float) -> str:
    if not np.isfinite(value):
        return MISSING
    return printed(value, 0 if value >= 100 else 1)


def _needs(access: str, warmed: bool) -> str:
    read = _ACCESS.get(access, MISSING)
    return f"{read}, warm-up" if warmed else read


def _caption(runs: Runs, found: Sequence[Row]) -> str:
    metric = metric_of(runs)
    return (
        f"Leaderboard: {notes.title(runs)}. {notes.upper_first(metric.text)}, mean "
        f"{notes.averaged(runs, 'domains', 'rounds', 'seeds')}{notes.interval(found)}. Rank: the "
        "place by this mean; equal printed means share a place. Gain: over Source, in points, "
        f"positive is better. {KEY} Intervals are not corrected. Time: of predicting and adapting, "
        "as `ctta-bench cost` measured it if its record is in the folder, else as it was in the "
        "runs, where other load on the machine affects it. Source data: what the "
        "method reads before the stream: none, images, or images with labels; warm-up: it is "
        "trained on them."
    )


def _footnotes(
    found: Sequence[Row], source: Row | None, compared: Sequence[Compared], frame: pd.DataFrame
) -> list[str]:
    texts = [f"{one.row.label}: {one.reason}" for one in compared if one.estimate is None]
    fewer = [
        f"{one.row.label} ({len(seeds)} of {len(source.finished)})"
        for one in compared
        if source is not None
        and one.estimate is not None
        and (seeds := common_seeds(one.row, source)) != sorted(source.finished["seed"])
    ]
    if fewer:
        texts.append(f"Gain over fewer seeds than Source has: {listed(fewer)}.")
    unlike = [
        row.label
        for row in found
        if source is not None and len(row.finished) and _devices(row) != _devices(source)
    ]
    if source is not None and unlike:
        texts.append(f"No time, because {source.label} ran on another device: {listed(unlike)}.")
    if source is not None and frame["memory"].isna().all():
        texts.append(
            "Memory is not recorded by runs on a CPU; `ctta-bench cost --out DIR` measures it, "
            "with the folder of these runs as DIR."
        )
    return [*texts, *notes.chosen(found, NOT_IN_PAPER), *missing_cells(found)]
