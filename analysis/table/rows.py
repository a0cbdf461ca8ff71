"""Rows of a table: the cells that differ in their seed alone, and their values as one array."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.scoring.metric import Metric

SOURCE = "source"
_WARMUP, _LENGTHS = "warmup_", ("epochs", "iterations")
SHORT_NAMES = {
    "gaussian_noise": "gaussian",
    "shot_noise": "shot",
    "impulse_noise": "impulse",
    "defocus_blur": "defocus",
    "glass_blur": "glass",
    "motion_blur": "motion",
    "zoom_blur": "zoom",
    "elastic_transform": "elastic",
    "jpeg_compression": "jpeg",
    "speckle_noise": "speckle",
}


@dataclass(frozen=True, eq=False)  # frames and arrays have no single truth value
class Row:
    """One method as it was run, over its seeds.

    cells: all its cells, whatever their state. values: [finished seeds, rounds, domains], the
    headline metric in %, NaN where a finished cell lacks a domain. empty: where there was nothing
    to score (no labelled pixel): NaN as well, but left out of means.
    """

    label: str
    method: str
    cells: pd.DataFrame
    values: npt.NDArray[np.float64]
    empty: npt.NDArray[np.bool_]

    @property
    def finished(self) -> pd.DataFrame:
        """Its finished cells, by seed."""
        done: pd.DataFrame = self.cells[self.cells["state"] == "done"]
        return done

    @property
    def seed_means(self) -> npt.NDArray[np.float64]:
        """[finished seeds]: mean over domains, then over rounds; NaN if a domain is missing."""
        return _means(*_means(self.values, self.empty, axis=2), axis=1)[0]

    @property
    def mean(self) -> float:
        """Mean over domains, rounds and finished seeds; NaN if a part is missing."""
        return float(self.seed_means.mean()) if len(self.values) else float("nan")

    @property
    def std(self) -> float:
        """Sample standard deviation of the mean over the seeds; NaN for a single seed."""
        return float(self.seed_means.std(ddof=1)) if len(self.values) > 1 else float("nan")

    def over(self, axis: int) -> npt.NDArray[np.float64]:
        """Mean over seeds and one more axis: 1 gives a value per domain, 2 one per round."""
        return self._over_seeds(*_means(self.values, self.empty, axis))

    def by_round(self) -> npt.NDArray[np.float64]:
        """[rounds, domains]: mean over seeds."""
        return self._over_seeds(self.values, self.empty)

    def is_empty(self, *axes: int) -> npt.NDArray[np.bool_]:
        """Where, over these axes of `values`, there was nothing to score in any finished cell."""
        if not len(self.values):
            return np.zeros([n for a, n in enumerate(self.values.shape) if a not in axes], bool)
        return np.asarray(self.empty.all(axis=axes))

    def _over_seeds(
        self, values: npt.NDArray[np.float64], empty: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float64]:
        if not len(values):
            return np.full(values.shape[1:], np.nan)
        return _means(values, empty, axis=0)[0]


def rows(runs: Runs) -> list[Row]:
    """The rows of one group: source first, then from the best mean to the worst, then the empty."""
    labels = row_labels(runs.cells)
    found = [_row(str(label), cells, runs) for label, cells in runs.cells.groupby(labels)]
    sign = metric_of(runs).ascending
    return sorted(
        found,
        key=lambda row: (row.method != SOURCE, np.isnan(row.mean), sign * row.mean, row.label),
    )


def _means(
    values: npt.NDArray[np.float64], empty: npt.NDArray[np.bool_], axis: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Means along an axis over what is not empty, and where all of it is."""
    counts = (~empty).sum(axis=axis)
    sums = np.where(empty, 0.0, values).sum(axis=axis)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), counts == 0


def source_row(found: Sequence[Row]) -> Row | None:
    """The first row of the un-adapted model with a complete mean, if there is one."""
    return next((row for row in found if row.method == SOURCE and not np.isnan(row.mean)), None)


def metric_of(runs: Runs) -> Metric:
    """The headline metric of a group: the same in all its cells, for they share a benchmark."""
    return metric_named(str(runs.cells["metric"].iloc[0]))


def domain_names(runs: Runs) -> list[str]:
    """Domains of one group in the order of the stream, each once."""
    return list(dict.fromkeys(runs.cells["domains"].iloc[0]))


def domain_labels(domains: Sequence[str]) -> list[str]:
    """The names papers print as column heads; full ones where two would be the same."""
    short = [SHORT_NAMES.get(name, name.replace("_", " ")) for name in domains]
    return short if len(set(short)) == len(short) else list(domains)


def row_labels(cells: pd.DataFrame) -> "pd.Series[str]":
    """A label per cell: the method, and what tells it from other rows of that method.

    That is the preset if there are several, and the hyper-parameters that differ within a preset.
    Cells of a group that would still be two runs of one seed are told apart by the hash of their
    identity.
    """
    unadapted = {"": "", "warm-up": " (warm-up only)", "source": " (not adapted)"}
    labels = cells["method"].astype(str) + cells["starts_from"].map(unadapted)
    for _, same_method in cells.groupby(["method", "starts_from"]):
        several_presets = same_method["preset"].nunique() > 1
        for preset, same_preset in same_method.groupby("preset"):
            name = f" ({preset})" if several_presets else ""
            for index, suffix in _differences(same_preset).items():
                labels.loc[index] += name + suffix
    doubled = cells[["group", "seed"]].assign(label=labels).duplicated(keep=False)
    labels[doubled] += " [" + cells["cell"].str[-8:] + "]"
    return labels


def _differences(cells: pd.DataFrame) -> dict[Any, str]:
    """For each cell, the hyper-parameters in which the cells differ: ` lr=0.01, steps=2`.

    Where only some have a warm-up, theirs says so; how it was made only where recipes differ.
    """
    settings = {
        index: json.loads(text) | ({"window": window} if window else {})
        for index, text, window in zip(
            cells.index, cells["hyperparameters"], cells["window"], strict=True
        )
    }
    warmed = {i for i, v in settings.items() if any(v.get(f"warmup_{k}") for k in _LENGTHS)}
    recipes = [{k: v for k, v in settings[i].items() if k.startswith(_WARMUP)} for i in warmed]
    some_warmed = 0 < len(warmed) < len(settings)
    keys = sorted({key for values in settings.values() for key in values})
    differing = [
        key
        for key in keys
        if _differs(recipes if key.startswith(_WARMUP) else list(settings.values()), key)
    ]

    def suffix(index: Any, values: dict[str, Any]) -> str:
        mine = [key for key in differing if key in values]
        parts = ["with warm-up"] if some_warmed and index in warmed else []
        parts += [
            f"{key}={_shown(values[key])}"
            for key in mine
            if index in warmed or not key.startswith(_WARMUP)
        ]
        return " " + ", ".join(parts) if parts else ""

    return {index: suffix(index, values) for index, values in settings.items()}


def _differs(settings: Sequence[dict[str, Any]], key: str) -> bool:
    return len({json.dumps(values.get(key)) for values in settings}) > 1


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _row(label: str, cells: pd.DataFrame, runs: Runs) -> Row:
    cells = cells.sort_values(["seed", "cell"])
    finished = cells.loc[cells["state"] == "done", "cell"]
    domains, num_rounds = domain_names(runs), int(cells["rounds"].iloc[0])
    wanted = runs.results[runs.results["metric"] == metric_of(runs).name]
    value = wanted.set_index(["cell", "round", "domain"])["value"].to_dict()
    values = [
        [
            [_number(value.get((cell, step, domain))) for domain in domains]
            for step in range(num_rounds)
        ]
        for cell in finished
    ]
    is_there = [
        [[(cell, step, domain) in value for domain in domains] for step in range(num_rounds)]
        for cell in finished
    ]
    shape = (len(finished), num_rounds, len(domains))
    array = np.array(values, dtype=np.float64).reshape(shape)
    empty = np.isnan(array) & np.array(is_there, dtype=bool).reshape(shape)
    return Row(label, str(cells["method"].iloc[0]), cells, array, empty)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
