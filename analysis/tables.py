"""The tables of a report: errors per domain and per round, and whether methods differ."""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctta_bench.analysis import notes
from ctta_bench.analysis.collect import Runs
from ctta_bench.analysis.rows import (
    HIGHER_IS_BETTER,
    SOURCE,
    Row,
    domain_names,
    metric_of,
    rows,
    short_names,
    source_row,
)
from ctta_bench.analysis.statistics import PairedDifference, holm, paired_bootstrap
from ctta_bench.analysis.table import MISSING, Entry, Table
from ctta_bench.errors import RunError

SIGNIFICANT = 0.05


def tables(runs: Runs) -> list[Table]:
    """One main table per group; rows of different weights or protocols never share one."""
    return [main_table(group) for group in runs.groups()]


def main_table(runs: Runs) -> Table:
    """Errors of one group: a row per method, a column per domain in the order of the stream.

    Means are over domains, then rounds, then finished seeds; one with a missing part is missing.
    """
    found = rows(runs)
    domains = domain_names(runs)
    columns = short_names(domains)
    frame = _frame(found, [row.over(axis=1) for row in found], columns)
    _add_gain(frame, found, runs)
    flagged = {
        (row.label, short)
        for row in found
        for name, short in zip(domains, columns, strict=True)
        if name in notes.collapsed_domains(runs, row)
    }
    return _table(table_name(runs), notes.caption(runs, found), frame, found, runs, flagged)


def round_table(runs: Runs) -> Table | None:
    """Means of one group per round, or None where there is a single round."""
    num_rounds = int(runs.cells["rounds"].iloc[0])
    if num_rounds == 1:
        return None
    found = rows(runs)
    columns = [f"round {number + 1}" for number in range(num_rounds)]
    frame = _frame(found, [row.over(axis=2) for row in found], columns)
    _add_gain(frame, found, runs)
    caption = f"By round. {notes.caption(runs, found)}"
    return _table(f"{table_name(runs)}-rounds", caption, frame, found, runs, set())


def significance_table(runs: Runs) -> Table | None:
    """Each method of one group against source, or None without a finished source to pair with."""
    found = rows(runs)
    source = source_row(found)
    others = [row for row in found if row is not source and not np.isnan(row.mean)]
    if source is None or not others or metric_of(runs) != "error":
        return None
    results = {row.label: _against(row, source) for row in others}
    paired = {label: r for label, r in results.items() if isinstance(r, PairedDifference)}
    frame = pd.DataFrame(
        [(r.difference, r.low, r.high, r.p) for r in paired.values()],
        index=list(paired),
        columns=["difference", "low", "high", "p"],
    )
    frame["p_holm"] = holm(frame["p"].tolist())
    return Table(
        name=f"{table_name(runs)}-significance",
        caption=(
            f"Each method against {source.label}: {notes.title(runs)}. Difference in mean error in "
            "points (negative: the method is better) with its 95 % interval and two-sided p "
            "from a paired bootstrap over the test images, and p after Holm's correction; bold "
            f"where that is below {SIGNIFICANT}."
        ),
        frame=frame.reindex(list(results)),
        header=("method", "difference", "95 % interval", "p", "p (Holm)"),
        lines=tuple((row.label, _significance_line(frame, row.label)) for row in others),
        footnotes=tuple(f"{name}: {r}" for name, r in results.items() if isinstance(r, str)),
    )


def table_name(runs: Runs) -> str:
    """A short, safe and unique stem for the files of a group."""
    cell = runs.cells.iloc[0]
    text = f"{cell['benchmark']}-{cell['setting']}-{cell['model']}"
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:80].strip("-.") + f"-{cell['group']}"


def _frame(
    found: Sequence[Row], parts: Sequence[npt.NDArray[np.float64]], columns: list[str]
) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame(
        np.reshape(parts, (len(found), len(columns))),
        index=[row.label for row in found],
        columns=columns,
    )
    frame["mean"] = [row.mean for row in found]
    frame["std"] = [row.std for row in found]
    return frame


def _add_gain(frame: pd.DataFrame, found: Sequence[Row], runs: Runs) -> None:
    source = source_row(found)
    if source is not None:
        gain = source.mean - frame["mean"]
        frame["gain"] = -gain if metric_of(runs) in HIGHER_IS_BETTER else gain
    frame["seeds"] = [len(row.values) for row in found]


def _table(
    name: str,
    caption: str,
    frame: pd.DataFrame,
    found: Sequence[Row],
    runs: Runs,
    flagged: set[tuple[str, str]],
) -> Table:
    higher = metric_of(runs) in HIGHER_IS_BETTER
    domains = list(frame.columns[: list(frame.columns).index("mean")])
    columns = {name: _ranked_entries(frame, name, higher, flagged) for name in [*domains, "mean"]}
    columns["mean"] = [
        entry if np.isnan(std) else Entry(f"{entry.text} ± {std:.1f}", entry.best, entry.second)
        for entry, std in zip(columns["mean"], frame["std"], strict=True)
    ]
    if "gain" in frame:
        columns["gain"] = [Entry(_signed(value)) for value in frame["gain"]]
    if _seeds_vary(found):
        columns["seeds"] = [Entry(_seeds(row)) for row in found]
    return Table(
        name=name,
        caption=caption,
        frame=frame,
        header=("method", *columns),
        lines=tuple(
            (row.label, tuple(entries[line] for entries in columns.values()))
            for line, row in enumerate(found)
        ),
        footnotes=notes.footnotes(runs, found),
    )


def _ranked_entries(
    frame: pd.DataFrame, column: str, higher: bool, flagged: set[tuple[str, str]]
) -> list[Entry]:
    """Printed values of a column. Ranks go by what is printed, so that equals look equal."""
    printed = [MISSING if np.isnan(value) else f"{value:.1f}" for value in frame[column]]
    order = sorted({float(text) for text in printed if text != MISSING}, reverse=higher)
    best, second = ([f"{value:.1f}" for value in order] + ["", ""])[:2]
    is_ranked = sum(text != MISSING for text in printed) > 1
    return [
        Entry(
            text, is_ranked and text == best, is_ranked and text == second, (row, column) in flagged
        )
        for row, text in zip(frame.index, printed, strict=True)
    ]


def _signed(value: float) -> str:
    if np.isnan(value):
        return MISSING
    text = f"{abs(value):.1f}"
    return text if text == "0.0" else ("+" if value > 0 else "−") + text


def _seeds_vary(found: Sequence[Row]) -> bool:
    return len({(len(row.values), len(row.cells)) for row in found}) > 1 or any(
        len(row.values) != len(row.cells) for row in found
    )


def _seeds(row: Row) -> str:
    done, planned = len(row.values), len(row.cells)
    return str(done) if done == planned else f"{done}/{planned}"


def _against(row: Row, source: Row) -> PairedDifference | str:
    """The paired difference over the seeds both have, or the sentence that says why not."""
    paths = [dict(zip(r.finished["seed"], r.finished["path"], strict=True)) for r in (row, source)]
    common = sorted(paths[0].keys() & paths[1].keys())
    if not common:
        return f"no finished seed in common with {SOURCE}."
    try:
        return paired_bootstrap(*([part[seed] for seed in common] for part in paths))
    except RunError as error:
        return str(error)


def _significance_line(frame: pd.DataFrame, label: str) -> tuple[Entry, ...]:
    if label not in frame.index:
        return (Entry(MISSING),) * 4
    difference, low, high, p, p_holm = frame.loc[label]
    return (
        Entry(_signed(difference), best=p_holm < SIGNIFICANT),
        Entry(f"[{_signed(low)}, {_signed(high)}]"),
        Entry(_p_text(p)),
        Entry(_p_text(p_holm)),
    )


def _p_text(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"
