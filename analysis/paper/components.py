"""Labels of the rows of PAID's motivation experiments, with the numbers of its paper."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ctta_bench.analysis.table.rows import SOURCE, row_names

COMPONENTS: Mapping[str, str] = {
    "magnitude": "PAID (1) magnitude",
    "direction": "PAID (2) direction",
    "orthogonal": "PAID (3) rotation",
    "magnitude_direction": "PAID (4) magnitude, direction",
    "magnitude_orthogonal": "PAID (5) magnitude, rotation",
}
FULL = "magnitude_orthogonal"
PAIRWISE_INVARIANT = ("magnitude", "orthogonal", FULL)  # angles between neurons cannot change
SEMANTIC = "finetune"  # the method that is trained on another label set


def component_of(method: str, hyperparameters: str) -> str | None:
    """The component of a cell of PAID, from its hyper-parameters (JSON); None for other methods."""
    if method != "paid":
        return None
    return str(json.loads(hyperparameters).get("component", FULL))


def with_labels(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells with a `label` each, source first, then PAID's settings by number, then the others.

    `label` is stored in CSV files, `shown` is what is printed for it. A label of the experiments is
    used only for cells that differ in nothing but their seed; else the row of the report gives
    label (its name) and `shown` (its label).
    """
    names, labels = row_names(cells)
    each = [cell for _, cell in cells.iterrows()]
    own = [_label(cell) or name for name, cell in zip(names, each, strict=True)]
    ambiguous = names.groupby(pd.Series(own, cells.index)).transform("nunique") > 1
    label = np.where(ambiguous, names, own)
    labelled = cells.assign(
        label=label,
        shown=[labels.get(text, text) for text in label],
        place=[_place(cell) for cell in each],
    )
    return labelled.sort_values(["place", "label", "seed"])


def _label(cell: "pd.Series[Any]") -> str | None:
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
