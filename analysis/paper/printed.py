"""The printed numbers of the paper of PAID next to measured ones, with recomputed means."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.rows import Row, domain_labels, domain_names, metric_of, rows
from ctta_bench.analysis.table.table import MISSING, Entry, Table, signed
from ctta_bench.record.schema import RESULTS_TABLE_FILE
from ctta_bench.registry import BENCHMARKS, METHODS, TABLES
from ctta_bench.scoring.metric import printed

PAPER = "paper"
QUOTED = (
    "Paper: quoted from the tables of PAID (NeurIPS 2025), not measured here. Its normalisation, "
    "weights and versions may differ."
)
COST_ERRATA = (
    "Erratum of the paper, PAID: 1.24M parameters belong to rank 14 on 12 blocks, the CIFAR10 "
    "configuration; the ImageNet one has 1.08M (text) or 0.81M (official code).",
    "Erratum of the paper, TENT: the 25 LayerNorms of ViT-B hold 38,400 parameters.",
)
_REFERENCE = Path(__file__).parents[1] / "reference"
_TABLES = {"imagenet", "cifar10", "cifar100", "acdc", "10_round"}  # of whole methods
_OVER_ROUNDS = {"all", "mean of 10"}
_HALF_DIGIT = 0.05 + 1e-9  # the largest change by rounding to one decimal


@dataclass(frozen=True, eq=False)
class PaperNumbers:
    """The numbers that the paper prints for a benchmark and a number of rounds.

    cells: one row per printed number, with columns method, round (as printed), domain and value;
    `mean` is a domain. domains: in the printed order.
    """

    cells: pd.DataFrame
    benchmark: str
    domains: list[str]
    num_rounds: int

    def value(self, method: str, round_: str, domain: str) -> float:
        """One printed number, NaN where there is none."""
        c = self.cells
        here = (c["method"] == method) & (c["round"] == round_) & (c["domain"] == domain)
        return float(c.loc[here, "value"].iloc[0]) if here.any() else float("nan")

    def mean(self, method: str) -> float:
        """The printed mean over all domains and rounds."""
        return self.value(method, self.last, "mean")

    def recomputed(self, method: str) -> float:
        """The mean of all printed cells of a method; NaN if the paper only prints means."""
        c = self.cells
        return float(c.loc[(c["method"] == method) & (c["domain"] != "mean"), "value"].mean())

    @property
    def printed_rounds(self) -> list[str]:
        """The printed names of the rounds with numbers by domain."""
        by_domain = self.cells[self.cells["domain"] != "mean"]
        found = list(dict.fromkeys(by_domain["round"]))
        return [name for name in found if name in _OVER_ROUNDS] or found

    @property
    def last(self) -> str:
        """The printed name of the round of the mean over everything."""
        found = list(dict.fromkeys(self.cells["round"]))
        return next((name for name in found if name in _OVER_ROUNDS), found[0])

    def errata(self, methods: Sequence[str]) -> Iterator[str]:
        """Printed means that are not the mean of their printed cells, and other remarks."""
        for method in methods:
            parts = [
                f"{where}{stated:.1f} is printed, the printed cells give {printed(recomputed)}"
                for where, stated, recomputed in self._means(method)
                if abs(stated - recomputed) > _HALF_DIGIT
            ]
            parts += self._remarked(method, "value")
            if parts:
                yield f"Erratum of the paper, {paper_label(method)}: {'; '.join(parts)}."

    def marks(self, methods: Sequence[str]) -> Iterator[str]:
        """What is bold in print, or not, against the numbers of its column."""
        for method in methods:
            if parts := self._remarked(method, "mark"):
                yield f"Erratum of the paper, {paper_label(method)}: {'; '.join(parts)}."

    def _remarked(self, method: str, of: str) -> list[str]:
        known = _remarks()
        ours = (known["benchmark"] == self.benchmark) & (known["method"] == method)
        return [str(remark) for remark in known.loc[ours & (known["of"] == of), "remark"]]

    def _means(self, method: str) -> Iterator[tuple[str, float, float]]:
        """Each printed mean with the mean of its printed cells."""
        own = self.cells[(self.cells["method"] == method) & (self.cells["domain"] != "mean")]
        for name, part in own.groupby("round", sort=False):
            stated = self.value(method, str(name), "mean")
            if not np.isnan(stated):
                where = f"round {name}: " if self.last != name else "mean: "
                yield where, stated, float(part["value"].mean())
        if self.last not in set(own["round"]) and len(own):
            yield "mean: ", self.mean(method), float(own["value"].mean())


def paper_numbers(runs: Runs) -> PaperNumbers | None:
    """The numbers of the paper for the benchmark, setting and rounds of a group; None without."""
    cell = runs.cells.iloc[0]
    if cell["setting"] != "continual":
        return None
    results = reference()
    wanted = results["table"].isin(_TABLES) & (results["benchmark"] == cell["benchmark"])
    wanted &= results["metric"] == metric_of(runs).name
    for _, table in results[wanted].groupby("table", sort=False):
        domains = [name for name in dict.fromkeys(table["domain"]) if name != "mean"]
        if _num_rounds(table) == cell["rounds"] and domains == domain_names(runs):
            return PaperNumbers(table, str(cell["benchmark"]), domains, int(cell["rounds"]))
    return None


def with_paper(table: Table, runs: Runs) -> Table:
    """The table with two more columns: the mean and the gain that the paper prints."""
    numbers = paper_numbers(runs)
    if numbers is None:
        cell = runs.cells.iloc[0]
        where = f"{BENCHMARKS.display_name(cell['benchmark'])}, {notes.setting_label(cell)}"
        note = f"The paper has no numbers for {where}, {notes.counted(cell['rounds'], 'round')}."
        return replace(table, footnotes=(*table.footnotes, note))
    quoted = {row.name: row.method for row in rows(runs) if _is_quotable(row, numbers)}
    source = numbers.mean("source")
    means = [numbers.mean(quoted.get(str(name), "")) for name in table.frame.index]
    gains = [metric_of(runs).gain(source, mean) for mean in means]
    extra = [
        (Entry(_text(mean)), Entry(signed(gain))) for mean, gain in zip(means, gains, strict=True)
    ]
    return replace(
        table,
        frame=table.frame.assign(paper=means, paper_gain=gains),
        header=(*table.header, PAPER, "paper gain"),
        lines=tuple(
            (label, (*entries, *more))
            for (label, entries), more in zip(table.lines, extra, strict=True)
        ),
        footnotes=(*table.footnotes, QUOTED, *numbers.errata(list(dict.fromkeys(quoted.values())))),
    )


@TABLES.register_module("paper", place=50, against="paper", heading="Compared with the paper")
def paper_table(runs: Runs) -> Table | None:
    """Measured numbers and those of the paper in alternate rows, by round and domain if printed."""
    numbers = paper_numbers(runs)
    found = [] if numbers is None else [row for row in rows(runs) if _is_quotable(row, numbers)]
    if numbers is None or not found:
        return None
    domains = domain_labels(runs)
    rounds = numbers.printed_rounds
    by_round = len(rounds) > 1
    lines: list[tuple[str, str, npt.NDArray[np.float64]]] = []
    for row in found:
        quoted = _printed_line(row.method, numbers)
        lines.append((row.name, row.label, _measured_line(row, by_round)))
        lines.append((f"{row.name}, {PAPER}", f"{row.label}, {PAPER}", quoted))
    spans = [(f"round {name}", len(domains) + 1) for name in rounds] if by_round else []
    names = [f"{over} {name}" for over, _ in spans for name in (*domains, "mean")]
    frame = pd.DataFrame(
        [values for _, _, values in lines],
        index=[name for name, _, _ in lines],
        columns=[*(names or domains), "mean"],
    )
    heads = domains.values()
    return Table(
        name=f"{notes.table_name(runs)}-{PAPER}",
        caption=f"Compared with the paper: {notes.title(runs)}. "
        f"{notes.upper_first(metric_of(runs).text)}. {QUOTED}",
        frame=frame,
        header=("method", *([*heads, "mean"] * len(spans) or heads), "mean"),
        lines=tuple((label, tuple(Entry(_text(v)) for v in values)) for _, label, values in lines),
        footnotes=tuple(numbers.errata(list(dict.fromkeys(row.method for row in found)))),
        spans=(("", 1), *spans, ("all rounds", 1)) if spans else (),
    )


def _measured_line(row: Row, by_round: bool) -> npt.NDArray[np.float64]:
    if not by_round:
        return np.append(row.over(axis=1), row.mean)
    each = np.concatenate([row.by_round(), row.over(axis=2)[:, None]], axis=1)
    return np.append(each.ravel(), row.mean)


def _printed_line(method: str, numbers: PaperNumbers) -> npt.NDArray[np.float64]:
    rounds = numbers.printed_rounds
    domains = [*numbers.domains, "mean"] if len(rounds) > 1 else numbers.domains
    each = [numbers.value(method, name, domain) for name in rounds for domain in domains]
    return np.array([*each, numbers.mean(method)])


def _is_quotable(row: Row, numbers: PaperNumbers) -> bool:
    """Whether the paper has the method of the row; none of several hyper-parameters is quoted."""
    preset = str(row.cells["preset"].iloc[0])
    is_whole = row.name in (row.method, f"{row.method} ({preset})")
    return is_whole and row.method in set(numbers.cells["method"])


def _num_rounds(table: pd.DataFrame) -> int:
    """The number of rounds of a reference table: 3 for `1 2 3 all`, 10 for `mean of 10`."""
    if "mean of 10" in set(table["round"]):
        return 10
    return len(set(table["round"]) - _OVER_ROUNDS)


def paper_label(method: str) -> str:
    """The display name of a method of the paper: `PAID (layers=qk)` for `paid:layers=qk`."""
    name, _, variant = method.partition(":")
    return METHODS.display_name(name) + (f" ({variant.replace('+', ', ')})" if variant else "")


def _text(value: float) -> str:
    return MISSING if np.isnan(value) else printed(value)


@functools.cache
def reference() -> pd.DataFrame:
    """Every number of the paper's result tables; the columns are in analysis/reference."""
    return pd.read_csv(_REFERENCE / f"reference_{RESULTS_TABLE_FILE}", dtype={"round": str})


def cost_reference() -> pd.DataFrame:
    """The table of computational cost of the paper, one row per method."""
    return pd.read_csv(_REFERENCE / "reference_cost.csv")


@functools.cache
def _remarks() -> pd.DataFrame:
    return pd.read_csv(_REFERENCE / "remarks.csv")
