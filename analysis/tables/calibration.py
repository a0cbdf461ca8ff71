"""Measures other than the headline metric: calibration (ECE, NLL, Brier score), and others."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import Row, domain_names, rows
from ctta_bench.analysis.table.swept import in_axis_order
from ctta_bench.analysis.table.table import MISSING, Entry, Table, best_two
from ctta_bench.registry import TABLES
from ctta_bench.scoring.measures import all_measures
from ctta_bench.scoring.metric import printed

Floats = npt.NDArray[np.float64]


@TABLES.register_module("calibration", place=90, heading="Calibration")
def calibration_table(runs: Runs) -> Table | None:
    """ECE, NLL and Brier score of each method of one group, or None where no cell has them."""
    return _table(runs, "calibration", "Calibration")


@TABLES.register_module("measures", place=95, heading="Further measures")
def measures_table(runs: Runs) -> Table | None:
    """The further measures of each method of one group, or None where no cell has any."""
    return _table(runs, "measures", "Further measures")


def _table(runs: Runs, name: str, title: str) -> Table | None:
    """The measures that name this table, a column each.

    Means over domains, then rounds, then finished seeds, as the headline metric is averaged. A mean
    is missing where one of its values is. The frame also holds the standard deviation over seeds.
    """
    measures = [measure for measure in all_measures() if measure.table == name]
    found = in_axis_order([row for row in rows(runs) if len(row.values)])
    known = runs.results["metric"].isin([measure.name for measure in measures])
    if not found or not known.any():
        return None
    frame = pd.DataFrame(index=[row.name for row in found])
    for measure in measures:
        of_rows = [_seed_means(row, measure.name, runs) for row in found]
        frame[measure.name] = [float(seeds.mean()) for seeds in of_rows]
        frame[f"{measure.name}_std"] = [_deviation(seeds) for seeds in of_rows]
    columns = [_entries(frame, measure.name, measure.decimals) for measure in measures]
    return Table(
        name=f"{notes.table_name(runs)}-{name}",
        caption=(
            f"{title}: {notes.title(runs)}. {notes.enumerated([m.caption for m in measures])}. "
            f"Lower is better. Means {notes.averaged(runs, 'domains', 'rounds', 'seeds')}"
            f"{notes.spread(found)}. {notes.MARKS}"
        ),
        frame=frame,
        header=("method", *(measure.head for measure in measures)),
        lines=tuple(
            (row.label, tuple(entries[line] for entries in columns))
            for line, row in enumerate(found)
        ),
    )


def _seed_means(row: Row, score: str, runs: Runs) -> Floats:
    """[finished seeds] means of a score; NaN for a seed that lacks it somewhere."""
    wanted = len(domain_names(runs)) * int(runs.cells["rounds"].iloc[0])
    own = runs.results[
        (runs.results["metric"] == score) & runs.results["cell"].isin(row.finished["cell"])
    ]
    by_cell = own.groupby("cell")
    complete = by_cell["value"].count() == wanted
    # Every round has all domains, so the mean over all values is the mean over rounds.
    means = by_cell["value"].mean().where(complete)
    return means.reindex(row.finished["cell"]).to_numpy(dtype=np.float64)


def _deviation(seeds: Floats) -> float:
    return float(seeds.std(ddof=1)) if len(seeds) > 1 else float("nan")


def _entries(frame: pd.DataFrame, name: str, decimals: int) -> list[Entry]:
    texts = [printed(value, decimals) if np.isfinite(value) else MISSING for value in frame[name]]
    spread = [
        "" if np.isnan(std) else f" ± {printed(std, decimals)}" for std in frame[f"{name}_std"]
    ]
    best, second = best_two(texts)
    return [
        Entry(text + more, text == best, text == second)
        for text, more in zip(texts, spread, strict=True)
    ]
