"""Names for rows that belong to the experiments of PAID's motivation, as its paper numbers them."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ctta_bench.analysis.table.rows import SOURCE, row_labels

COMPONENTS: Mapping[str, str] = {
    "magnitude": "PAID (1) magnitude",
    "direction": "PAID (2) direction",
    "orthogonal": "PAID (3) rotation",
    "magnitude_direction": "PAID (4) magnitude, direction",
    "magnitude_orthogonal": "PAID (5) magnitude, rotation",
}
FULL = "magnitude_orthogonal"
PAIRWISE_INVARIANT = ("magnitude", "orthogonal", FULL)  # angles between neurons cannot change
SEMANTIC = "finetune"  # the method that learns another label set


def component_of(method: str, hyperparameters: str) -> str | None:
    """The component of a cell of PAID, from its method and hyper-parameters (JSON); else None."""
    if method != "paid":
        return None
    return str(json.loads(hyperparameters).get("component", FULL))


def with_labels(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells with a `label` each, source first, then PAID's settings by number, then the others.

    Where a name of the experiments would stand for cells that differ in more than their seed, the
    report's own label of the row is taken.
    """
    rows = row_labels(cells)
    each = [cell for _, cell in cells.iterrows()]
    names = [_name(cell) or row for row, cell in zip(rows, each, strict=True)]
    ambiguous = rows.groupby(pd.Series(names, cells.index)).transform("nunique") > 1
    places = [_place(cell) for cell in each]
    labelled = cells.assign(label=np.where(ambiguous, rows, names), place=places)
    return labelled.sort_values(["place", "label", "seed"])


def _name(cell: "pd.Series[Any]") -> str | None:
    if cell["method"] == SEMANTIC:
        adapter = json.loads(cell["hyperparameters"]).get("adapter", "none")
        return "semantic, free" if adapter == "none" else f"semantic, through {adapter}"
    component = component_of(cell["method"], cell["hyperparameters"])
    return COMPONENTS.get(component or "")


def _place(cell: "pd.Series[Any]") -> int:
    component = component_of(cell["method"], cell["hyperparameters"]) or ""
    if cell["method"] == SOURCE:
        return -1
    return [*COMPONENTS, component].index(component)
