"""The calibration table: how far confidence and accuracy are apart, and two proper scores."""

import numpy as np
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import Row, domain_names, metric_of, rows
from ctta_bench.analysis.table.swept import in_axis_order
from ctta_bench.analysis.table.table import MISSING, Entry, Table, best_two
from ctta_bench.registry import TABLES

_SCORES = {"ece": ("ECE %", 1), "nll": ("NLL", 3), "brier": ("Brier", 3)}  # head, decimals


@TABLES.register_module("calibration", place=90)
def calibration_table(runs: Runs) -> Table | None:
    """ECE, NLL and Brier score of each method of one group, or None where no cell has them.

    Means over domains, then rounds, then finished seeds, as the headline metric is averaged; one
    with a missing part is missing. The frame also holds the standard deviation over seeds.
    """
    found = in_axis_order([row for row in rows(runs) if len(row.values)])
    known = runs.results[runs.results["metric"].isin(list(_SCORES))]
    if not found or known.empty:
        return None
    values = {name: [_seed_means(row, name, runs) for row in found] for name in _SCORES}
    frame = pd.DataFrame(index=[row.label for row in found])
    for name, of_rows in values.items():
        frame[name] = [float(seeds.mean()) for seeds in of_rows]
        frame[f"{name}_std"] = [_deviation(seeds) for seeds in of_rows]
    columns = [_entries(frame, name, decimals) for name, (_, decimals) in _SCORES.items()]
    symbol = metric_of(runs).symbol
    return Table(
        name=f"{notes.table_name(runs)}-calibration",
        caption=(
            f"Calibration: {notes.title(runs)}. Expected calibration error over 15 equal bins of "
            "the largest softmax value, negative log-likelihood and Brier score of the scored "
            f"predictions; lower is better. Averaged as the mean {symbol} is: over domains, rounds "
            "and seeds. Best bold, second underlined."
        ),
        frame=frame,
        header=("method", *(head for head, _ in _SCORES.values())),
        lines=tuple(
            (row.label, tuple(entries[line] for entries in columns))
            for line, row in enumerate(found)
        ),
    )


def _seed_means(row: Row, score: str, runs: Runs) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """[finished seeds] means of a score; NaN for a seed that lacks it somewhere."""
    wanted = len(domain_names(runs)) * int(runs.cells["rounds"].iloc[0])
    own = runs.results[
        (runs.results["metric"] == score) & runs.results["cell"].isin(row.finished["cell"])
    ]
    by_cell = own.groupby("cell")
    complete = by_cell["value"].count() == wanted
    # All domains of a round are there, so that the mean of rounds is that of everything.
    means = by_cell["value"].mean().where(complete)
    return means.reindex(row.finished["cell"]).to_numpy(dtype=np.float64)


def _deviation(seeds: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    return float(seeds.std(ddof=1)) if len(seeds) > 1 else float("nan")


def _entries(frame: pd.DataFrame, name: str, decimals: int) -> list[Entry]:
    printed = [f"{value:.{decimals}f}" for value in frame[name]]
    texts = [MISSING if np.isnan(v) else t for v, t in zip(frame[name], printed, strict=True)]
    spread = ["" if np.isnan(std) else f" ± {std:.{decimals}f}" for std in frame[f"{name}_std"]]
    best, second = best_two(texts)
    return [
        Entry(text + more, text == best, text == second)
        for text, more in zip(texts, spread, strict=True)
    ]
