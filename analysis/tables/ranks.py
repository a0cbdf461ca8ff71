"""Mean ranks over domains and benchmarks, and the difference that chance alone seldom exceeds."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import metric_of, rows
from ctta_bench.analysis.table.table import Entry, Table
from ctta_bench.registry import TABLES

ALPHA = 0.05
FEWEST_METHODS = 3
FEWEST_BLOCKS = 5  # domains over all benchmarks


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks of methods over blocks (a domain of a benchmark each).

    ranks: [methods] mean rank, 1 is the best, best first. critical: the smallest difference in
    mean rank that is significant (Nemenyi, all pairs at once). p: of Friedman's test that all
    methods are alike. blocks: how many.
    """

    name: str
    title: str
    ranks: "pd.Series[float]"
    critical: float
    p: float
    blocks: int


def all_ranks(runs: Runs) -> list[Ranks]:
    """The ranks of each group, and those over all groups where several share their methods.

    Nothing for fewer than FEWEST_METHODS methods or FEWEST_BLOCKS domains. Rows of settings swept
    within a method are methods of their own.
    """
    groups = runs.groups()
    values = [_values(group) for group in groups]
    found = [
        ranks_of(notes.table_name(group), notes.title(group), of_group)
        for group, of_group in zip(groups, values, strict=True)
    ]
    several = [part for part in values if not part.empty]
    if len(several) > 1:
        together = pd.concat(several, axis=1, join="inner")
        found.append(ranks_of("all", f"{len(several)} benchmarks and models", together))
    return [ranks for ranks in found if ranks is not None]


def ranks_of(name: str, title: str, values: pd.DataFrame) -> Ranks | None:
    """Ranks from [methods, blocks] where small is good; ties share their mean rank."""
    methods, blocks = values.shape
    if methods < FEWEST_METHODS or blocks < FEWEST_BLOCKS:
        return None
    # Rounded, so that equal means of different seeds tie.
    ranked: npt.NDArray[np.float64] = stats.rankdata(values.round(9).to_numpy(), axis=0)
    all_alike = bool((ranked == ranked[0]).all())
    p = 1.0 if all_alike else float(stats.friedmanchisquare(*values.to_numpy()).pvalue)
    ranks = pd.Series(ranked.mean(axis=1), index=values.index).sort_values(kind="stable")
    return Ranks(name, title, ranks, critical_difference(methods, blocks), p, blocks)


def critical_difference(methods: int, blocks: int) -> float:
    """Nemenyi's critical difference of mean ranks at ALPHA (Demsar, 2006)."""
    q = stats.studentized_range.ppf(1 - ALPHA, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * blocks)))


@TABLES.register_module("ranks", place=50, of="all")
def rank_tables(runs: Runs) -> list[Table]:
    """The ranks of each group, and those over all groups."""
    return [rank_table(ranks) for ranks in all_ranks(runs)]


def rank_table(ranks: Ranks) -> Table:
    """Mean ranks, best first; bold are those that do not differ significantly from the best."""
    best = float(ranks.ranks.iloc[0])
    behind = ranks.ranks - best
    level = behind <= ranks.critical
    frame = pd.DataFrame({"rank": ranks.ranks, "behind": behind})
    return Table(
        name=f"{ranks.name}-ranks",
        caption=(
            f"Mean ranks over {ranks.blocks} domains: {ranks.title}. 1 is the best; two methods "
            f"differ where their mean ranks are more than {ranks.critical:.2f} apart (Nemenyi, "
            f"all pairs, level {ALPHA}); bold: not worse than the best. Friedman's test that all "
            f"are alike: p {_p_text(ranks.p)}. Domains of one stream are not independent, so that "
            "this is a guide and no proof."
        ),
        frame=frame,
        header=("method", "mean rank", "behind the best"),
        lines=tuple(
            (str(label), (Entry(f"{rank:.2f}", best=is_level), Entry(f"{rank - best:.2f}")))
            for (label, rank), is_level in zip(ranks.ranks.items(), level, strict=True)
        ),
    )


def _values(group: Runs) -> pd.DataFrame:
    """[methods, domains] means over rounds and seeds, the sign turned so that small is good."""
    found = [row for row in rows(group) if not np.isnan(row.mean)]
    if not found:
        return pd.DataFrame()
    sign = metric_of(group).ascending
    values = pd.DataFrame(
        [sign * row.over(axis=1) for row in found], index=[row.label for row in found]
    )
    return values.dropna(axis=1)  # a domain without anything to score ranks nobody


def _p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"
