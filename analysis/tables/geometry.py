"""The geometry of kept models as a table, and the words and orders that its figures share."""

import numpy as np
import pandas as pd

from ctta_bench.analysis.kept_models.geometry_runs import MEASURES, Geometry
from ctta_bench.analysis.table.table import MISSING, Entry, Table

CIRCULAR = (
    "Rows marked * keep every angle between neurons by construction, whatever the data (but where "
    "a magnitude passes through zero and turns its neuron round): their ΔS is rounding, and that "
    "it is small says nothing about invariance. Only the rows without * can answer that."
)
_MARK = " *"


def geometry_table(geometry: Geometry) -> Table:
    """A row per method: the measures, averaged over domains and then over seeds."""
    frame = means(geometry.models, ["label"])
    span = geometry.models.groupby("label")["delta_s_per_pair"].agg(["min", "max"])
    frame["lowest"], frame["highest"] = span["min"], span["max"]
    frame["models"] = geometry.models.groupby("label").size()
    order = ordered_labels(geometry.models)
    frame = frame.loc[order]
    columns = [
        "models", "relative_change", "delta_m", "delta_a", "delta_s", "delta_s_per_pair", "lowest",
        "highest", *MEASURES[-2:],
    ]  # fmt: skip
    shown = shown_labels(geometry.models)
    return Table(
        name=geometry.name,
        caption=(
            f"Geometry of the change of {geometry.model} ({geometry.model_sha256[:8]}), "
            f"{geometry.setting}: means over domains and seeds, pooled over all linear layers of "
            "the blocks (a neuron counts once in ΔM and ΔA, a pair once in ΔS per pair; ΔS is the "
            "mean over layers, weighted by pairs). `matched`: the change scaled to the size of "
            "PAID's in the same domain; `noise`: a random change of PAID's size."
        ).replace("`", ""),
        frame=frame[columns],
        header=(
            "method",
            "models",
            "|ΔW|/|W|",
            "ΔM",
            "ΔA",
            "ΔS",
            "ΔS per pair",
            "lowest",
            "highest",
            "matched",
            "noise",
        ),
        lines=tuple(
            (
                shown[label],
                (
                    Entry(str(int(frame.loc[label, "models"]))),
                    *(Entry(scientific(frame.loc[label, column])) for column in columns[1:]),
                ),
            )
            for label in order
        ),
        footnotes=(CIRCULAR,),
    )


def means(models: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Means over seeds of what has the same keys, in the order in which they come."""
    per_seed = models.groupby([*keys, "seed"], sort=False)[MEASURES].mean()
    means: pd.DataFrame = per_seed.groupby(level=keys, sort=False).mean()
    return means


def ordered_labels(models: pd.DataFrame) -> list[str]:
    """Rows: methods by ΔS per pair, smallest first, then the semantic shifts likewise."""
    means = models.groupby(["kind", "label"])["delta_s_per_pair"].mean().reset_index()
    return list(means.sort_values(["kind", "delta_s_per_pair"])["label"])


def shown_labels(models: pd.DataFrame) -> dict[str, str]:
    """Labels as they are printed: with a mark where pairwise angles cannot change."""
    invariant = models.groupby("label")["invariant"].all()
    return {label: label + _MARK * bool(invariant[label]) for label in invariant.index}


def scientific(value: float) -> str:
    """A value in three digits, or two and an exponent."""
    if np.isnan(value):
        return MISSING
    if value == 0:
        return "0"
    return f"{value:.1e}" if value < 1e-3 or value >= 1e4 else f"{value:.3g}"
