"""The cost table: parameters, state, passes, and time relative to TENT."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import Row, rows
from ctta_bench.analysis.table.table import MISSING, Entry, Table
from ctta_bench.registry import METHODS, TABLES
from ctta_bench.scoring.metric import printed

REFERENCE = "tent"
_FRAME = {  # columns of the frame, with the cost in the cells that each averages
    "parameters": "trainable_parameters",
    "state": "extra_state_bytes",
    "forward": "forward_per_image",
    "backward": "backward_per_image",
    "seconds": "seconds",
}


@TABLES.register_module("cost", place=110, heading="Cost")
def cost_table(runs: Runs) -> Table | None:
    """What each method of one group costs; None if no cell is finished.

    Means over finished seeds. Time is that of predicting and adapting, without reading data and
    without preparation, divided by the mean of TENT in the same group; NaN without a run of TENT.
    """
    found = [row for row in rows(runs) if len(row.finished)]
    if not found:
        return None
    frame = pd.DataFrame(
        {name: [_mean(row, cost) for row in found] for name, cost in _FRAME.items()},
        index=[row.name for row in found],
    )
    frame["time"] = _relative(frame["seconds"], found)
    return Table(
        name=f"{notes.table_name(runs)}-cost",
        caption=(
            f"Cost: {notes.title(runs)}. Parameters: learnable ones. State: what the method stores "
            "in addition. FP, BP: forward and backward passes per image. Time: of predicting and "
            f"adapting, relative to {METHODS.display_name(REFERENCE)}. Source data: what the "
            "method reads of them before the stream. Means over seeds."
        ),
        frame=frame,
        header=("method", "parameters", "state", "FP", "BP", "time", "source data"),
        lines=tuple(
            (row.label, (*_entries(values), _access(row)))
            for (_, values), row in zip(frame.iterrows(), found, strict=True)
        ),
        footnotes=_footnotes(found),
    )


def _mean(row: Row, cost: str) -> float:
    return float(pd.to_numeric(row.finished[cost], errors="coerce").mean())


def _relative(seconds: "pd.Series[float]", found: list[Row]) -> "pd.Series[float]":
    """Seconds divided by those of the first row of REFERENCE; NaN without one."""
    references = [s for s, row in zip(seconds, found, strict=True) if row.method == REFERENCE]
    relative: pd.Series[float] = seconds / (references or [np.nan])[0]
    return relative


def _access(row: Row) -> Entry:
    """What a method reads of the source data: unlabelled or labelled images, or nothing."""
    known = sorted(set(row.finished["source_access"].dropna()) - {"none"})
    return Entry(", ".join(known) or MISSING)


def _entries(values: "pd.Series[float]") -> tuple[Entry, ...]:
    shown: list[tuple[str, Callable[[float], str]]] = [
        ("parameters", lambda value: f"{value:,.0f}"),
        ("state", in_bytes),
        ("forward", lambda value: printed(value, 2)),
        ("backward", lambda value: printed(value, 2)),
        ("time", lambda value: printed(value, 2)),
    ]
    return tuple(
        Entry(MISSING if np.isnan(values[name]) else text(float(values[name])))
        for name, text in shown
    )


def in_bytes(value: float) -> str:
    """Bytes in a readable unit."""
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{printed(value / size)} {unit}"
    return f"{value:.0f} B"


def _footnotes(found: list[Row]) -> tuple[str, ...]:
    cells = pd.concat([row.finished for row in found])
    devices = sorted(cells["device"].dropna().astype(str).unique())
    texts = []
    if not any(row.method == REFERENCE for row in found):
        texts.append(
            f"No relative time: there is no finished run of {METHODS.display_name(REFERENCE)}."
        )
    if len(devices) > 1:
        texts.append(f"Times were measured on several devices: {', '.join(devices)}.")
    elif devices:
        texts.append(
            f"Measured on {devices[0]}, cell by cell. Other load on the machine affects the times."
        )
    return tuple(texts)
