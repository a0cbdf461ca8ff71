"""Missing cells of a table: failed, running, stopped or never started; and how to run them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from ctta_bench.analysis.read.experiments import command
from ctta_bench.analysis.table.rows import Row
from ctta_bench.analysis.table.table import MISSING

MAX_LISTED = 12  # parts of a footnote; the list of cells on the page has all


def missing_cells(found: Sequence[Row]) -> Iterator[str]:
    """The missing cells of a table, each with its reason, and the command that runs them."""
    gaps: dict[str, dict[str, list[str]]] = {}  # by experiment and reason
    for row in found:
        for _, cell in row.cells[row.cells["state"] != "done"].iterrows():
            why = (
                f"{cell['state']}: {cell['reason'].rstrip('.')}"
                if cell["reason"]
                else cell["state"]
            )
            of_experiment = gaps.setdefault(cell["experiment"], {})
            of_experiment.setdefault(why, []).append(f"{row.label}, seed {cell['seed']}")
    for experiment, label, seed in _never_started(found):
        gaps.setdefault(experiment, {}).setdefault("not run", []).append(f"{label}, seed {seed}")
    paths = {str(e): path for row in found for e, path in row.cells[["experiment", "path"]].values}
    for experiment, reasons in gaps.items():
        parts = [f"{listed(cells, '; ')} ({why})" for why, cells in reasons.items()]
        texts = listed(parts, "; ")
        run = command(experiment, Path(paths[experiment]).parent)
        yield f"{MISSING} Missing cells: {texts}. Run them with `{run}`."


def _never_started(found: Sequence[Row]) -> Iterator[tuple[str, str, int]]:
    """Experiment, label and seed of cells that a row lacks and other rows of it have."""
    cells = pd.concat([row.cells.assign(label=row.label) for row in found])
    for experiment, part in cells.groupby("experiment"):
        seeds = sorted(part["seed"].unique())
        for label, same in part.groupby("label"):
            for seed in seeds:
                if seed not in set(same["seed"]):
                    yield str(experiment), str(label), int(seed)


def listed(parts: Sequence[str], between: str = ", ") -> str:
    """The first MAX_LISTED parts, and how many more there are: `a, b, and 3 more`."""
    more = f"{between}and {len(parts) - MAX_LISTED} more" if len(parts) > MAX_LISTED else ""
    return between.join(parts[:MAX_LISTED]) + more
