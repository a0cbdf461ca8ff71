"""The geometry of kept models as a table; labels and orders that its figures share."""

import numpy as np
import pandas as pd

from ctta_bench.analysis.kept_models.geometry_runs import MEASURES, Geometry
from ctta_bench.analysis.table.table import MISSING, Entry, Table
from ctta_bench.registry import MODELS

CIRCULAR = (
    "Rows with * keep every angle between neurons by construction, for any data (except where a "
    "magnitude passes through zero and reverses its neuron). Their ΔS is rounding error; that it "
    "is small is no evidence for invariance. Only rows without * can give evidence."
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
            f"Geometry of the weight change: {MODELS.display_name(geometry.model)}, "
            f"{geometry.setting}. ΔM: change of the lengths of neurons. ΔA: change of their "
            "directions. ΔS: change of the angles between them. Means over domains and seeds, "
            "pooled over all linear layers of the blocks: each neuron counts once in ΔM and ΔA, "
            "each pair of neurons once in ΔS per pair; ΔS is the mean over layers, weighted by "
            "pairs. Lowest, highest: of ΔS per pair over all models. Matched: ΔS per pair after "
            "scaling the change to the size of PAID's in the same domain. Noise: ΔS per pair of a "
            "random change of PAID's size."
        ),
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
    """Means over seeds for each combination of keys, in the order of the rows."""
    per_seed = models.groupby([*keys, "seed"], sort=False)[MEASURES].mean()
    means: pd.DataFrame = per_seed.groupby(level=keys, sort=False).mean()
    return means


def ordered_labels(models: pd.DataFrame) -> list[str]:
    """Labels of methods by ΔS per pair, smallest first, then of semantic shifts in the same way."""
    means = models.groupby(["kind", "label"])["delta_s_per_pair"].mean().reset_index()
    return list(means.sort_values(["kind", "delta_s_per_pair"])["label"])


def shown_labels(models: pd.DataFrame) -> dict[str, str]:
    """What is printed for each label: with a mark if pairwise angles cannot change."""
    found = models.groupby("label").agg({"shown": "first", "invariant": "all"})
    return {
        str(label): str(row["shown"]) + _MARK * bool(row["invariant"])
        for label, row in found.iterrows()
    }


def scientific(value: float) -> str:
    """A value with three digits, or with two digits and an exponent."""
    if np.isnan(value):
        return MISSING
    if value == 0:
        return "0"
    return f"{value:.1e}" if value < 1e-3 or value >= 1e4 else f"{value:.3g}"
