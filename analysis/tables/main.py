"""The main tables: the metric per domain and per round, and each method against source."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.read.error_model import LEVEL
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.compared import compared_with, uncertainty
from ctta_bench.analysis.table.rows import (
    Row,
    domain_labels,
    domain_names,
    is_balanced,
    metric_of,
    rows,
    source_row,
)
from ctta_bench.analysis.table.swept import in_axis_order
from ctta_bench.analysis.table.table import MISSING, Entry, Table, plus_minus, ranked, signed
from ctta_bench.analysis.tables.classes import class_notes
from ctta_bench.registry import TABLES
from ctta_bench.scoring.metric import EQUAL_DECIMALS, Metric, printed

MAX_COLUMNS = 24  # of a table by round and domain; with more, it has the means of rounds only

Cells = set[tuple[str, str]]  # row and column of the frame


def tables(runs: Runs) -> list[Table]:
    """One main table per group; rows of different weights or protocols never share one."""
    return [main_table(group) for group in runs.groups()]


@TABLES.register_module("main", place=10, heading="By domain")
def main_table(runs: Runs) -> Table:
    """The metric of one group: a row per method, a column per domain in the order of the stream.

    Means are over domains, then rounds, then finished seeds; one with a missing part is missing.
    """
    found = in_axis_order(rows(runs))
    domains = domain_names(runs)
    frame = _frame(found, [row.over(axis=1) for row in found], domains, metric_of(runs))
    _add_gain(frame, found, runs)
    flagged = {(row.name, d) for row in found for d in notes.collapsed_domains(runs, row)}
    return _table(
        Table(
            notes.table_name(runs),
            notes.caption(runs, found),
            frame,
            header=("method", *domain_labels(runs).values()),
            lines=(),
            unit=metric_of(runs).head,
            footnotes=(*notes.footnotes(runs, found), *class_notes(runs)),
            brief=notes.brief(runs, found),
        ),
        found,
        runs,
        flagged,
        _empty(found, [row.is_empty(0, 1) for row in found], domains),
    )


@TABLES.register_module("rounds", place=20, heading="By round")
def round_table(runs: Runs) -> Table | None:
    """One group by round and domain with the mean of each round; None for a single round.

    With more than MAX_COLUMNS columns it has the means of the rounds only.
    """
    num_rounds = int(runs.cells["rounds"].iloc[0])
    if num_rounds == 1:
        return None
    found = in_axis_order(rows(runs))
    rounds = [f"round {number + 1}" for number in range(num_rounds)]
    domains = domain_names(runs)
    by_domain = num_rounds * (len(domains) + 1) <= MAX_COLUMNS
    if not by_domain:
        domains = []
    columns = [name for step in rounds for name in (*(f"{step} {d}" for d in domains), step)]
    parts = [_by_round(row.by_round()[:, : len(domains)], row.over(axis=2)) for row in found]
    empty = [_by_round(row.is_empty(0)[:, : len(domains)], row.is_empty(0, 2)) for row in found]
    frame = _frame(found, parts, columns, metric_of(runs))
    _add_gain(frame, found, runs)
    heads = [*domain_labels(runs).values(), "mean"] * num_rounds if by_domain else columns
    return _table(
        Table(
            f"{notes.table_name(runs)}-rounds",
            f"By round{' and domain' if by_domain else ''}. {notes.caption(runs, found)}",
            frame,
            header=("method", *heads),
            lines=(),
            footnotes=notes.footnotes(runs, found),
            brief=notes.brief(runs, found, ["domains"] if not by_domain else []),
            spans=(("", 1), *((name, len(domains) + 1) for name in rounds)) if by_domain else (),
        ),
        found,
        runs,
        set(),
        _empty(found, empty, columns),
    )


def _by_round(values: npt.NDArray[Any], means: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[rounds, domains] and [rounds] as one row: the domains of a round, then its mean."""
    return np.concatenate([values, means[:, None]], axis=1).ravel()


@TABLES.register_module("significance", place=60, heading="Compared with Source")
def significance_table(runs: Runs) -> Table | None:
    """Each method of one group compared with source; None without a finished source run."""
    found = in_axis_order(rows(runs))
    source = source_row(found)
    others = [row for row in found if row is not source and not np.isnan(row.mean)]
    metric = metric_of(runs)
    if source is None or not others:
        return None
    compared = compared_with(source, others, metric)
    frame = pd.DataFrame(
        [
            [np.nan] * 6 if e is None else (e.mean, e.low, e.high, e.p, e.detectable, p_holm)
            for _, e, p_holm, _ in compared
        ],
        index=[row.name for row in others],
        columns=["difference", "low", "high", "p", "detectable", "p_holm"],
        dtype=float,
    )
    seeds = max((e.seeds for _, e, *_ in compared if e is not None), default=1)
    return Table(
        name=f"{notes.table_name(runs)}-significance",
        caption=(
            f"Each method compared with {source.label}: {notes.title(runs)}. Difference: mean "
            f"{metric.symbol} of the method minus that of {source.label}, in points "
            f"({metric.sign_of_better}: the method is better). 95 % interval and two-sided p hold "
            f"{notes.holds_for(seeds)}. p (Holm): corrected for the number of methods. Bold: p "
            f"(Holm) below {LEVEL}. Detectable: the smallest true difference that a test at "
            "this level finds with 80 % power, before the correction."
        ),
        frame=frame,
        header=("method", "difference", "95 % interval", "p", "p (Holm)", "detectable"),
        lines=tuple((row.label, _significance_line(frame, row.name)) for row in others),
        footnotes=tuple(
            f"{row.label}: {reason}" for row, estimate, _, reason in compared if estimate is None
        ),
    )


def _frame(
    found: Sequence[Row],
    parts: Sequence[npt.NDArray[np.float64]],
    columns: list[str],
    metric: Metric,
) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame(
        np.reshape(parts, (len(found), len(columns))),
        index=[row.name for row in found],
        columns=columns,
    )
    frame["mean"] = [row.mean for row in found]
    frame["micro_mean"] = [row.micro_mean for row in found]
    frame["std"] = [row.std for row in found]
    sure = [uncertainty(row, metric) for row in found]
    frame["half_interval"] = [np.nan if e is None else e.half_width for e in sure]
    return frame


def _add_gain(frame: pd.DataFrame, found: Sequence[Row], runs: Runs) -> None:
    source = source_row(found)
    if source is not None:
        metric = metric_of(runs)
        gains = [metric.gain(source.mean, mean) for mean in frame["mean"]]
        frame["gain"] = np.round(gains, EQUAL_DECIMALS)
    frame["seeds"] = [len(row.values) for row in found]


def _empty(
    found: Sequence[Row], masks: Sequence[npt.NDArray[np.bool_]], columns: Sequence[str]
) -> Cells:
    """Where there was nothing to score."""
    return {
        (row.name, column)
        for row, mask in zip(found, masks, strict=True)
        for column, is_empty in zip(columns, mask, strict=True)
        if is_empty
    }


def _table(plan: Table, found: Sequence[Row], runs: Runs, flagged: Cells, empty: Cells) -> Table:
    """The plan with its lines, and with the last columns: means, gain and seeds."""
    frame, higher = plan.frame, metric_of(runs).higher_is_better
    values = list(frame.columns[: list(frame.columns).index("mean")])
    columns = {
        name: ranked(frame[name], higher, _in(empty, name), _in(flagged, name))
        for name in [*values, "mean"]
    }
    alike = _alike(found, metric_of(runs))
    columns["mean"] = [
        Entry(f"{entry.text}{plus_minus(half)}", best=row in alike)
        for row, entry, half in zip(found, columns["mean"], frame["half_interval"], strict=True)
    ]
    if not is_balanced(runs):
        columns["micro mean"] = ranked(frame["micro_mean"], higher)
    if "gain" in frame:
        columns["gain"] = [Entry(signed(value)) for value in frame["gain"]]
    if seeds_vary(found):
        columns["seeds"] = [Entry(seeds_text(row)) for row in found]
    more = list(columns)[len(values) :]
    return replace(
        plan,
        header=(*plan.header, *more),
        lines=tuple(
            (row.label, tuple(entries[line] for entries in columns.values()))
            for line, row in enumerate(found)
        ),
        groups=tuple(notes.source_data_group(row) for row in found),
        spans=(*plan.spans, ("all rounds", len(more))) if plan.spans else (),
    )


def _alike(found: Sequence[Row], metric: Metric) -> list[Row]:
    """The row with the best mean, and those that are not distinguishable from it; none if all."""
    complete = [row for row in found if not np.isnan(row.mean)]
    if len(complete) < 2:
        return []
    best = min(complete, key=lambda row: metric.ascending * round(row.mean, EQUAL_DECIMALS))
    others = [row for row in complete if row is not best]
    compared = compared_with(best, others, metric)
    alike = [one.row for one in compared if one.estimate is not None and not one.differs]
    return [] if len(alike) == len(others) else [best, *alike]


def _in(cells: Cells, column: str) -> set[str]:
    """The row names of the cells in a column."""
    return {row for row, name in cells if name == column}


def seeds_vary(found: Sequence[Row]) -> bool:
    """Whether a table needs a column with the number of seeds of each row."""
    return len({(len(row.values), len(row.cells)) for row in found}) > 1 or any(
        len(row.values) != len(row.cells) for row in found
    )


def seeds_text(row: Row) -> str:
    """Finished seeds, of how many if not all: `3`, `2/3`."""
    done, planned = len(row.values), len(row.cells)
    return str(done) if done == planned else f"{done}/{planned}"


def _significance_line(frame: pd.DataFrame, name: str) -> tuple[Entry, ...]:
    mean, low, high, p, detectable, p_holm = frame.loc[name]
    if np.isnan(mean):
        return (Entry(MISSING),) * 5
    return (
        Entry(signed(mean), best=p_holm < LEVEL),
        Entry(f"[{signed(low)}, {signed(high)}]" if np.isfinite(low) else MISSING),
        Entry(_p_text(p)),
        Entry(_p_text(p_holm)),
        Entry(printed(detectable) if np.isfinite(detectable) else MISSING),
    )


def _p_text(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"
