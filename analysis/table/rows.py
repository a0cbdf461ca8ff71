"""Rows of a table: cells that differ only in their seed, with their values as one array."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.analysis.table.table import CHOSEN
from ctta_bench.record.schema import NOT_IN_PAPER
from ctta_bench.registry import METHODS, domain_display_names
from ctta_bench.scoring.metric import EQUAL_DECIMALS, Metric

SOURCE = "source"
_ID_LENGTH = 8
_WARMUP, _LENGTHS = "warmup_", ("epochs", "iterations")
_ROWS: WeakKeyDictionary[Runs, list["Row"]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)  # == of frames and arrays gives no bool
class Row:
    """One method with its hyper-parameters, over its seeds.

    name: of registry names, `tent (paper) lr=0.01`; the index of frames and CSV files. label: what
    is printed, `TENT (paper, lr=0.01)`. cells: all its cells, of any state. values:
    [finished seeds, rounds, domains], the headline metric in %, NaN where a finished cell lacks a
    domain. empty: where there was nothing to score (no labelled pixel): NaN as well, but left out
    of means.
    """

    name: str
    label: str
    method: str
    cells: pd.DataFrame
    values: npt.NDArray[np.float64]
    empty: npt.NDArray[np.bool_]

    @cached_property
    def finished(self) -> pd.DataFrame:
        """Its finished cells, by seed."""
        done: pd.DataFrame = self.cells[self.cells["state"] == "done"]
        return done

    @cached_property
    def path_of_seed(self) -> dict[int, str]:
        """The folder of each finished cell, by seed."""
        return dict(zip(self.finished["seed"], self.finished["path"], strict=True))

    @property
    def starts_from(self) -> str:
        """The model whose scores a row without adaptation has: "warm-up" or "source"; else ""."""
        return str(self.cells["starts_from"].iloc[0])

    @property
    def seed_means(self) -> npt.NDArray[np.float64]:
        """[finished seeds]: mean over domains, then over rounds; NaN if a domain is missing."""
        return _means(*_means(self.values, self.empty, axis=2), axis=1)[0]

    @property
    def mean(self) -> float:
        """Mean over domains, rounds and finished seeds; NaN if a value is missing."""
        return float(self.seed_means.mean()) if len(self.values) else float("nan")

    @property
    def micro_mean(self) -> float:
        """Mean over all images, whatever their domain, then over seeds; NaN if one is missing."""
        of_seeds = pd.to_numeric(self.finished["micro_mean"], errors="coerce")
        return float("nan") if np.isnan(self.mean) else float(of_seeds.mean(skipna=False))

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
    if runs not in _ROWS:  # each table and figure of a report asks for them
        _ROWS[runs] = _rows(runs)
    return list(_ROWS[runs])


def _rows(runs: Runs) -> list[Row]:
    names, labels = row_names(runs.cells)
    metric, domains = metric_of(runs), domain_names(runs)
    wanted = runs.results[runs.results["metric"] == metric.name]
    values = wanted.set_index(["cell", "round", "domain"])["value"].to_dict()
    found = [
        _row(str(name), labels[str(name)], cells, values, domains)
        for name, cells in runs.cells.groupby(names)
    ]
    sign = metric.ascending
    return sorted(
        found,
        key=lambda row: (
            row.method != SOURCE,
            np.isnan(row.mean),
            sign * round(row.mean, EQUAL_DECIMALS),
            row.name,
        ),
    )


def _means(
    values: npt.NDArray[np.float64], empty: npt.NDArray[np.bool_], axis: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Means along an axis over values that are not empty, and where all are empty."""
    counts = (~empty).sum(axis=axis)
    sums = np.where(empty, 0.0, values).sum(axis=axis)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), counts == 0


def source_row(found: Sequence[Row]) -> Row | None:
    """The first row of source with a complete mean; None without one."""
    return next((row for row in found if row.method == SOURCE and not np.isnan(row.mean)), None)


def is_balanced(runs: Runs) -> bool:
    """Whether all domains have equally many images, so that the micro mean is the mean."""
    return runs.domains["n"].nunique() < 2


def metric_of(runs: Runs) -> Metric:
    """The headline metric of a group: the same in all its cells, because they share a benchmark."""
    return metric_named(str(runs.cells["metric"].iloc[0]))


def domain_names(runs: Runs) -> list[str]:
    """Domains of one group in the order of the stream, each once."""
    return list(dict.fromkeys(runs.cells["domains"].iloc[0]))


def domain_labels(runs: Runs) -> dict[str, str]:
    """The display name of each domain of one group, in the order of the stream."""
    domains = domain_names(runs)
    shown = domain_display_names(str(runs.cells["benchmark"].iloc[0]), domains)
    return dict(zip(domains, shown, strict=True))


def row_names(cells: pd.DataFrame) -> tuple["pd.Series[str]", dict[str, str]]:
    """The name of each cell's row, and the label that is printed for each name.

    A name consists of registry names, `tent (paper) lr=0.01`; its label is `TENT (paper, lr=0.01)`.
    Both hold the preset if the method was run with several, and the hyper-parameters that differ
    within a preset. Two cells of one group and seed never share a name: where nothing else
    differs, it ends in the last eight characters of the cell's name. Two names never share a
    label: where methods have the same display name, it ends in the name.
    """
    unadapted = {"": "", "warm-up": "warm-up only", "source": "not adapted"}
    presets, values = dict.fromkeys(cells.index, ""), dict.fromkeys(cells.index, "")
    for _, same_method in cells.groupby(["method", "starts_from"]):
        several = same_method["preset"].nunique() > 1
        for preset, same_preset in same_method.groupby("preset"):
            presets |= dict.fromkeys(same_preset.index, str(preset) if several else "")
            values |= _differences(same_preset)
    methods = cells["method"].astype(str)
    starts = cells["starts_from"].map(unadapted)
    parts = [*zip(starts, presets.values(), values.values(), strict=True)]
    keys = [*zip(methods, cells["group"], cells["seed"], parts, strict=True)]
    counts = Counter(keys)
    displays = {method: METHODS.display_name(method) for method in set(methods)}
    names, labels = [], {}
    for key, cell, notes in zip(keys, cells["cell"], cells["notes"], strict=True):
        method, _, _, (start, preset, text) = key
        same = str(cell)[-_ID_LENGTH:] if counts[key] > 1 else ""
        forms = ((" ({})", start), (" ({})", preset), (" {}", text), (" [{}]", same))
        names.append(method + "".join(form.format(part) for form, part in forms if part))
        inside = ", ".join(part for _, part in forms if part)
        mark = CHOSEN * any(note.startswith(NOT_IN_PAPER) for note in notes)
        labels[names[-1]] = displays[method] + mark + (f" ({inside})" if inside else "")
    shown = Counter(labels.values())
    unique = {n: label if shown[label] == 1 else f"{label} [{n}]" for n, label in labels.items()}
    return pd.Series(names, cells.index, dtype=object), unique


def _differences(cells: pd.DataFrame) -> dict[Any, str]:
    """For each cell, the hyper-parameters in which the cells differ: `lr=0.01, steps=2`.

    Where only some have a warm-up, their text begins with "with warm-up". Hyper-parameters of the
    warm-up are named only where they differ among the cells with one.
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
        return ", ".join(parts)

    return {index: suffix(index, values) for index, values in settings.items()}


def _differs(settings: Sequence[dict[str, Any]], key: str) -> bool:
    return len({json.dumps(values.get(key)) for values in settings}) > 1


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _row(
    name: str,
    label: str,
    cells: pd.DataFrame,
    values: Mapping[tuple[str, int, str], float | None],
    domains: Sequence[str],
) -> Row:
    """A row of these cells. values: of the headline metric, by cell, round and domain."""
    cells = cells.sort_values(["seed", "cell"])
    finished = cells.loc[cells["state"] == "done", "cell"]
    num_rounds = int(cells["rounds"].iloc[0])
    keys = [(c, step, d) for c in finished for step in range(num_rounds) for d in domains]
    shape = (len(finished), num_rounds, len(domains))
    array = np.array([_number(values.get(key)) for key in keys], dtype=np.float64).reshape(shape)
    empty = np.isnan(array) & np.array([key in values for key in keys], dtype=bool).reshape(shape)
    return Row(name, label, str(cells["method"].iloc[0]), cells, array, empty)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
