"""Which row of runs is which row of the paper's tables.

Rows of one table may have different batch sizes, as in the paper. Of several rows of a method, the
one whose hyper-parameters are nearest to the published ones is taken.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ctta_bench.analysis.paper.as_run import as_run
from ctta_bench.analysis.paper.shape import SOURCE, domains_of, name_of
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table.missing import listed
from ctta_bench.analysis.table.rows import Row, domain_names, rows

BATCH_SIZE = "batch_size"
# What the rows of one benchmark have in common, whatever their batch size and number of rounds.
_FAMILY = [
    "model", "model_sha256", "preprocessing", "precision", "examples", "severity", "domains",
    "details",
]  # fmt: skip
_FEWEST = 2  # rows of a table


@dataclass(frozen=True, eq=False)
class Candidate:
    """A finished row that may be one of the paper's, with the group that it is from.

    wanted: values that the row of the paper has instead of the published ones (`layers: qk`).
    """

    row: Row
    group: Runs
    wanted: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cell(self) -> "pd.Series[Any]":
        """Its first cell, for what all its cells share."""
        return self.row.cells.iloc[0]

    @property
    def values(self) -> dict[str, Any]:
        """Its hyper-parameters and its batch size."""
        found: dict[str, Any] = json.loads(str(self.cell["hyperparameters"]))
        return found | {BATCH_SIZE: int(self.cell[BATCH_SIZE])}

    def differing(self) -> dict[str, tuple[Any, Any]]:
        """The values that differ from those of the published row: ours, and the published one."""
        known = as_run(str(self.cell["benchmark"]), self.row.method)
        if known is None:
            return {}
        own = {key: value for key, value in self.values.items() if key not in self.wanted}
        found = known.differing(own)
        if BATCH_SIZE in own and own[BATCH_SIZE] != known.batch_size:
            found[BATCH_SIZE] = (own[BATCH_SIZE], known.batch_size)
        return found


@dataclass
class Family:
    """The rows of one benchmark under one protocol, and what was taken of them for a table."""

    benchmark: str
    candidates: list[Candidate]
    lines: list[tuple[Any, ...]] = field(default_factory=list)  # the columns of the reference
    taken: dict[str, Candidate] = field(default_factory=dict)  # by its name in the table
    remarks: list[str] = field(default_factory=list)

    def pick(
        self,
        method: str,
        name: str = "",
        num_rounds: int = 1,
        **wanted: Any,
    ) -> Candidate | None:
        """The row of a method with the wanted values that is nearest to the published one."""
        found = [
            replace(one, wanted=wanted)
            for one in self.candidates
            if one.row.method == method
            and one.cell["rounds"] == num_rounds
            and all(one.values.get(key) == value for key, value in wanted.items())
        ]
        name = name or method
        if not found:
            return None
        far = [len(one.differing()) for one in found]
        nearest = [one for one, distance in zip(found, far, strict=True) if distance == min(far)]
        if len(nearest) > 1 and method != SOURCE:  # source has no hyper-parameters
            labels = [f"{one.row.label}, batches of {one.cell[BATCH_SIZE]}" for one in nearest]
            self.remarks.append(
                f"{name_of(method)}: empty, because several rows are equally near to the "
                f"published one: {listed(labels, '; ')}."
            )
            return None
        self.taken[name] = nearest[0]
        return nearest[0]


def regimes(runs: Runs) -> list[list[Candidate]]:
    """The rows that may be the paper's, by their pre-processing and precision.

    Those with the published pre-processing in float32 come first; see `regime`.
    """
    found: dict[str, list[Candidate]] = {}
    for group in runs.finished().groups():
        cell = group.cells.iloc[0]
        domains = domains_of(str(cell["benchmark"]))
        if cell["setting"] != "continual" or not domains or domain_names(group) != domains:
            continue
        found.setdefault(regime(cell), []).extend(
            Candidate(row, group) for row in rows(group) if _is_eligible(row)
        )
    return [own for _, own in sorted(found.items()) if own]


def regime(cell: "pd.Series[Any]") -> str:
    """What rows of one table have in common: "" for pre-processing and precision as published.

    Else what differs: `true`, `true-bfloat16`. The published pre-processing is `lineage` for
    classification, the checkpoint's own for segmentation.
    """
    known = as_run(str(cell["benchmark"]), SOURCE)
    own = str(cell["preprocessing"])
    differing = [own] if known is not None and own != known.preprocessing else []
    return "-".join([*differing, *([str(cell["precision"])] * (cell["precision"] != "float32"))])


def _is_eligible(row: Row) -> bool:
    """Whether a row is complete, and of a method that adapts or of the source model."""
    adapts = not row.starts_from and not row.cells["window"].astype(bool).any()
    return adapts and not np.isnan(row.mean)


def families(candidates: list[Candidate]) -> Iterator[Family]:
    """The rows of each benchmark that share a protocol but for batch size and rounds."""
    found: dict[tuple[str, ...], list[Candidate]] = {}
    for one in candidates:
        key = (str(one.cell["benchmark"]), *(str(one.cell[name]) for name in _FAMILY))
        found.setdefault(key, []).append(one)
    for (benchmark, *_), own in found.items():
        yield Family(benchmark, own)


Fill = Callable[[Family, str], None]


def best(found: list[Family], fill: Fill, table: str) -> list[Family]:
    """Of each benchmark the family with the most rows of a table; none with fewer than two."""
    chosen: dict[str, Family] = {}
    for family in found:
        own = Family(family.benchmark, family.candidates)
        fill(own, table)
        if len(own.taken) >= (1 if table == "10_round" else _FEWEST):
            known = chosen.get(family.benchmark)
            if known is None or len(own.taken) > len(known.taken):
                chosen[family.benchmark] = own
    return [*chosen.values()]
