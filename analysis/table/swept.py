"""The hyper-parameter that the rows of a method sweep, and the order of rows along it."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctta_bench.analysis.table.rows import Row

FEWEST = 3  # values of a curve


def in_axis_order(found: Sequence[Row]) -> list[Row]:
    """The rows, with those of a swept method sorted by the swept value, at the place of its best.

    Rows that also differ in other hyper-parameters are sorted by these first, as in the figure.
    """
    ordered: list[Row] = []
    for row in found:
        of_method = [other for other in found if other.method == row.method]
        settings = [numbers_of(other) for other in of_method]
        key = swept_key(settings)
        if key is None:
            ordered.append(row)
        elif row is of_method[0]:
            places = [
                (line, values.get(key, np.inf))
                for values, line in zip(settings, other_differences(of_method, key), strict=True)
            ]
            order = sorted(range(len(of_method)), key=places.__getitem__)
            ordered += [of_method[place] for place in order]
    return ordered


def values_of(row: Row) -> dict[str, Any]:
    """The hyper-parameters of a row."""
    values: dict[str, Any] = json.loads(str(row.cells["hyperparameters"].iloc[0]))
    return values


def numbers_of(row: Row) -> dict[str, float]:
    """The hyper-parameters of a row that are numbers."""
    return {
        key: value
        for key, value in values_of(row).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def swept_key(settings: Sequence[dict[str, float]]) -> str | None:
    """The key with the most values, if there are enough for a curve."""
    names = {key for values in settings for key in values}
    counts = {
        key: len({values[key] for values in settings if key in values}) for key in sorted(names)
    }
    key = max(counts, key=lambda name: counts[name], default=None)
    return key if key is not None and counts[key] >= FEWEST else None


def other_differences(found: Sequence[Row], key: str) -> list[list[str]]:
    """For each row the other hyper-parameters that differ, of any type: `std_weight=0.1`, ..."""
    settings = [
        {name: _shown(value) for name, value in values_of(row).items() if name != key}
        for row in found
    ]
    names = sorted({name for values in settings for name in values})
    differing = [k for k in names if len({values.get(k) for values in settings}) > 1]
    return [[f"{name}={values.get(name)}" for name in differing] for values in settings]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
