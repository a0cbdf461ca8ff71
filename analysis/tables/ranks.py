"""Mean ranks over domains and benchmarks, with the critical difference of Nemenyi's test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import Row, metric_of, rows
from ctta_bench.analysis.table.table import Entry, Table
from ctta_bench.registry import TABLES
from ctta_bench.scoring.metric import EQUAL_DECIMALS, printed

ALPHA = 0.05
FEWEST_METHODS = 3
FEWEST_BLOCKS = 5  # domains over all benchmarks


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks of methods over blocks; a block is a domain of a benchmark.

    ranks: [methods] mean rank by row name, 1 is the best, best first. critical: the smallest
    difference in mean rank that is significant (Nemenyi, all pairs at once). p: of Friedman's test
    that all methods are equal. blocks: their number. labels: what is printed for each row name.
    """

    name: str
    title: str
    ranks: "pd.Series[float]"
    critical: float
    p: float
    blocks: int
    labels: Mapping[str, str] = field(default_factory=dict)

    def label(self, name: object) -> str:
        """What is printed for a row name."""
        return self.labels.get(str(name), str(name))


def all_ranks(runs: Runs) -> list[Ranks]:
    """The ranks of each group, and over all groups those of the methods that all of them have.

    Nothing for fewer than FEWEST_METHODS methods or FEWEST_BLOCKS domains. Each swept value of a
    method counts as a method; what a warm-up leaves without adaptation does not.
    """
    groups = runs.groups()
    found_rows = [
        [row for row in rows(group) if not np.isnan(row.mean) and not row.starts_from]
        for group in groups
    ]
    values = [_values(group, found) for group, found in zip(groups, found_rows, strict=True)]
    labels = {row.name: row.label for found in reversed(found_rows) for row in found}
    found = [
        ranks_of(notes.table_name(group), notes.title(group), of_group, labels)
        for group, of_group in zip(groups, values, strict=True)
    ]
    several = [frame for frame in values if not frame.empty]
    if len(several) > 1:
        together = pd.concat(several, axis=1, join="inner")
        found.append(ranks_of("all", f"{len(several)} benchmarks and models", together, labels))
    return [ranks for ranks in found if ranks is not None]


def ranks_of(
    name: str, title: str, values: pd.DataFrame, labels: Mapping[str, str] | None = None
) -> Ranks | None:
    """Ranks from [methods, blocks] where small is good; ties share their mean rank."""
    methods, blocks = values.shape
    if methods < FEWEST_METHODS or blocks < FEWEST_BLOCKS:
        return None
    rounded = values.round(EQUAL_DECIMALS).to_numpy()  # so that equal means of different seeds tie
    ranked: npt.NDArray[np.float64] = stats.rankdata(rounded, axis=0)
    all_alike = bool((ranked == ranked[0]).all())
    p = 1.0 if all_alike else float(stats.friedmanchisquare(*rounded).pvalue)
    ranks = pd.Series(ranked.mean(axis=1), index=values.index).sort_values(kind="stable")
    critical = critical_difference(methods, blocks)
    return Ranks(name, title, ranks, critical, p, blocks, labels or {})


def critical_difference(methods: int, blocks: int) -> float:
    """Nemenyi's critical difference of mean ranks at ALPHA (Demsar, 2006)."""
    q = stats.studentized_range.ppf(1 - ALPHA, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * blocks)))


@TABLES.register_module("ranks", place=50, of="all", heading="Mean ranks")
def rank_tables(runs: Runs) -> list[Table]:
    """The ranks of each group, and those over all groups."""
    return [rank_table(ranks) for ranks in all_ranks(runs)]


def rank_table(ranks: Ranks) -> Table:
    """Mean ranks, best first; bold are those that do not differ significantly from the best."""
    difference = ranks.ranks - float(ranks.ranks.iloc[0])
    frame = pd.DataFrame({"rank": ranks.ranks, "behind": difference})
    return Table(
        name=f"{ranks.name}-ranks",
        caption=(
            f"Mean ranks over {ranks.blocks} domains: {ranks.title}. Rank 1 is the best. Two "
            f"methods differ if their mean ranks differ by more than {ranks.critical:.2f} "
            f"(Nemenyi's test of all pairs, level {ALPHA}). Bold: no significant difference from "
            f"the best. Friedman's test that all methods are equal: p {_p_text(ranks.p)}. The "
            "domains of a stream are not independent, so these tests are a guide and not a proof."
        ),
        frame=frame,
        header=("method", "mean rank", "difference from the best"),
        lines=tuple(
            (
                ranks.label(name),
                (Entry(printed(rank, 2), best=more <= ranks.critical), Entry(printed(more, 2))),
            )
            for (name, rank), more in zip(ranks.ranks.items(), difference, strict=True)
        ),
    )


def _values(group: Runs, found: Sequence[Row]) -> pd.DataFrame:
    """[methods, domains] means over rounds and seeds, with the sign that makes low values good."""
    if not found:
        return pd.DataFrame()
    sign = metric_of(group).ascending
    values = pd.DataFrame(
        [sign * row.over(axis=1) for row in found], index=[row.name for row in found]
    )
    return values.dropna(axis=1)  # a domain without anything to score gives no ranks


def _p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"
