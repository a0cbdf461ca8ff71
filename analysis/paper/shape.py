"""The tables of the paper of PAID in the shape in which they are printed, filled with any numbers.

`tables(quoted())` are the printed tables, `tables(numbers)` the same of runs (`of_runs.py`), and
`tables(ours, quoted())` both, with their difference.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ctta_bench.analysis.paper.grid import Cell, Grid, Line, both, count, decimal, parameters
from ctta_bench.analysis.paper.printed import (
    COST_ERRATA,
    QUOTED,
    PaperNumbers,
    cost_reference,
    reference,
)
from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.analysis.table.table import CHOSEN, Table, signed
from ctta_bench.registry import BENCHMARKS, METHODS, domain_display_names

OURS = "paid"
SOURCE = "source"
_NAMES = {OURS: "Ours", "pseudo_label": "Pseudo"}  # where the paper's differ from the suite's
_HEADS = {"brightness": "Bright", "pixelate": "Pixel"}
COMPONENTS = {  # of Table 5, by their names in the reference: magnitude, direction, orthogonal
    "paid:magnitude": "✓✗✗",
    "paid:direction": "✗✓✗",
    "paid:magnitude+direction": "✓✓✗",
    "paid:orthogonal": "✗✗✓",
    "paid:magnitude+orthogonal": "✓✗✓",
}
BASELINE = "paid:none"
COST = "cost"  # the name of Table 6, whose numbers are in the other file
MAIN = {  # numbers of the compact and the fine table, by their name in the reference
    "imagenet": (1, 9),
    "cifar100": (2, 10),
    "cifar10": (3, 11),
    "acdc": (4, 12),
}
_MEAN, _GAIN = "mean", "gain"


@dataclass(frozen=True, eq=False)
class Numbers:
    """What fills the tables, in the columns of analysis/reference.

    results: table, benchmark, method, round, domain, metric, value. cost: one row per method. of:
    whose numbers they are, a part of captions. regime: how they were run, if not as published; the
    ending of the tables' names. footnotes: by the name of a table. marked: (table,
    method) of rows with a value that the paper does not give.
    """

    results: pd.DataFrame
    cost: pd.DataFrame
    of: str
    regime: str = ""
    footnotes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    marked: Collection[tuple[str, str]] = ()

    @functools.cached_property
    def _values(self) -> dict[tuple[str, ...], float]:
        keys = ["table", "benchmark", "method", "round", "domain", "metric"]
        return dict(self.results.set_index(keys)["value"])

    def value(self, *key: str) -> float:
        """The number of a table, benchmark, method, round, domain and metric; NaN without one."""
        return float(self._values.get(key, np.nan))

    def has(self, table: str) -> bool:
        """Whether there is any number of a table."""
        return bool(len(self.cost) if table == COST else (self.results["table"] == table).any())


@functools.cache
def quoted() -> Numbers:
    """The numbers that the paper prints."""
    results = reference()
    footnotes: dict[str, list[str]] = {COST: [*COST_ERRATA, QUOTED]}
    for (table, benchmark), part in results.groupby(["table", "benchmark"], sort=False):
        cells = part[part["metric"] != _GAIN]
        domains = [name for name in dict.fromkeys(cells["domain"]) if name != _MEAN]
        numbers = PaperNumbers(cells, str(benchmark), domains, num_rounds=1)
        methods = list(dict.fromkeys(cells["method"]))
        errata = [*numbers.errata(methods)] if domains else []
        footnotes.setdefault(str(table), []).extend(errata)
        if table in MAIN:
            footnotes[_fine_name(str(table))] = [*errata, *numbers.marks(methods)]
    for table in footnotes.keys() - {COST}:
        footnotes[table].append(QUOTED)
    return Numbers(results, cost_reference(), "as printed", "", footnotes)


def tables(numbers: Numbers, against: Numbers | None = None) -> list[Table]:
    """The tables 1 to 12 of which there is any number, in their order.

    against: other numbers, in a line of its own below each, followed by a line of differences.
    """
    found = [grid for name in _order() if numbers.has(name) for grid in _grids(numbers, name)]
    if against is not None:
        others = {grid.number: grid for name in _order() for grid in _grids(against, name)}
        found = [both(grid, others[grid.number]) for grid in found]
    in_order = sorted(found, key=lambda grid: grid.number)
    return [grid.table(numbers.regime) for grid in in_order]


def _fine_name(table: str) -> str:
    """The name of footnotes of the fine table alone, where they are not those of both."""
    return f"{table}, fine"


def name_of(method: str) -> str:
    """The name of a method in the paper's tables: `Ours` of PAID."""
    return _NAMES.get(method) or METHODS.display_name(method)


def methods_of(table: str) -> list[str]:
    """The methods of a table of the paper, in its order."""
    if table == COST:
        return list(cost_reference()["method"])
    results = reference()
    return list(dict.fromkeys(results.loc[results["table"] == table, "method"]))


def domains_of(benchmark: str) -> list[str]:
    """The domains of a benchmark in the paper, in its order."""
    results = reference()
    names = dict.fromkeys(results.loc[results["benchmark"] == benchmark, "domain"])
    return [name for name in names if name != _MEAN]


# -- the tables ------------------------------------------------------------------------------------


def _order() -> list[str]:
    """The names of the tables in the reference, and that of costs."""
    return [*dict.fromkeys(reference()["table"]), COST]


def _grids(numbers: Numbers, name: str) -> list[Grid]:
    """The tables that a table of the reference fills: the compact and the fine form, or one."""
    if name in MAIN:
        return [_compact(numbers, name), _fine(numbers, name)]
    make = {"component": _components, "layer": _layers, "10_round": _ten_rounds, COST: _cost}[name]
    return [make(numbers)]


def _label(numbers: Numbers, table: str, method: str) -> str:
    return name_of(method) + CHOSEN * ((table, method) in numbers.marked)


def _facts(table: str) -> tuple[str, str, list[str], list[str]]:
    """The benchmark of a table, its metric, its domains and their heads."""
    results = reference()
    benchmark = str(results.loc[results["table"] == table, "benchmark"].iloc[0])
    metric = "miou" if benchmark == "cityscapes_acdc" else "error"
    domains = domains_of(benchmark)
    shown = domain_display_names(benchmark, domains)
    heads = [_HEADS.get(name, head) for name, head in zip(domains, shown, strict=True)]
    return benchmark, metric, domains, heads


def _last(table: str) -> str:
    """The name of the round of the mean over everything."""
    return "all" if table == "acdc" else "1"


def _mean_and_gain(numbers: Numbers, table: str, method: str) -> list[Cell]:
    benchmark, name, *_ = _facts(table)
    mean, gain = (
        numbers.value(table, benchmark, method, _last(table), _MEAN, metric)
        for metric in (name, _GAIN)
    )
    return [Cell(mean, better=-metric_named(name).ascending), Cell(gain, signed, better=1)]


def _mean_head(metric: str) -> str:
    return "Mean↑" if metric_named(metric).higher_is_better else "Mean↓"


def _compact(numbers: Numbers, table: str) -> Grid:
    """Methods as columns, a line of means and a line of gains."""
    benchmark, metric, *_ = _facts(table)
    methods = methods_of(table)
    means, gains = zip(*(_mean_and_gain(numbers, table, m) for m in methods), strict=True)
    return Grid(
        MAIN[table][0],
        f"mean {metric_named(metric).text}, gain in points, {BENCHMARKS.display_name(benchmark)}",
        numbers.of,
        ("Metric" if table == "acdc" else "Method", *(_label(numbers, table, m) for m in methods)),
        methods,
        [(_MEAN, _mean_head(metric), [*means]), (_GAIN, "Gain↑", [*gains])],
        tuple(numbers.footnotes.get(table, ())),
        by_line=True,
    )


def _fine(numbers: Numbers, table: str) -> Grid:
    """A line for each method, by domain; for ACDC by round and condition; Ours below a rule."""
    benchmark, metric, domains, heads = _facts(table)
    rounds = ["1", "2", "3"] if table == "acdc" else ["1"]
    several = len(rounds) > 1
    wanted = [*domains, _MEAN] if several else domains
    better, methods = -metric_named(metric).ascending, methods_of(table)
    lines: list[Line] = []
    for method in methods:
        cells = [
            Cell(numbers.value(table, benchmark, method, step, domain, metric), better=better)
            for step in rounds
            for domain in wanted
        ]
        cells += _mean_and_gain(numbers, table, method)
        lines.append((method, _label(numbers, table, method), cells))
    above = [f"round {step} {name}" if several else name for step in rounds for name in wanted]
    inner = [*heads, _mean_head(metric)] * len(rounds) if several else heads
    spans = [(f"Round {step}", len(wanted)) for step in rounds] if several else []
    return Grid(
        MAIN[table][1],
        f"{metric_named(metric).text}, {BENCHMARKS.display_name(benchmark)}",
        numbers.of,
        ("Method", *inner, _mean_head(metric), "Gain↑"),
        [*above, _MEAN, _GAIN],
        lines,
        tuple(numbers.footnotes.get(_fine_name(table), numbers.footnotes.get(table, ()))),
        rules=(methods.index(OURS),),
        spans=(("", 1), *spans, ("", 1), ("", 1)) if several else (),
    )


def _components(numbers: Numbers) -> Grid:
    """Table 5: which part of the weights moves, with ticks."""
    lines: list[Line] = []
    for method in methods_of("component"):
        mean, gain = _mean_and_gain(numbers, "component", method)
        ticks = COMPONENTS.get(method, "")
        label = ticks[:1] or ("Baseline" if method == BASELINE else "")
        label = label or _label(numbers, "component", method)
        own = [Cell(tick) for tick in ticks[1:]] or [Cell(""), Cell("")]
        plain = [dataclasses.replace(cell, better=0) for cell in (mean, gain)]
        lines.append((method, label, [*own, *plain]))
    return Grid(
        5,
        "error in % and gain in points of PAID's components, and of LoRA and DoRA, ImageNet-C",
        numbers.of,
        ("Adjust Magn.?", "Adjust Dir.?", "Inject Orth.?", "Mean↓", "Gain↑"),
        ["direction", "orthogonal", _MEAN, _GAIN],
        lines,
        tuple(numbers.footnotes.get("component", ())),
        rules=(1, 1 + len(COMPONENTS)),
    )


def _cost(numbers: Numbers) -> Grid:
    """Table 6: parameters, passes, time relative to TENT, and mean error."""
    columns = list(cost_reference().columns[1:])
    shows = (parameters, decimal, count, count, decimal, decimal)
    known = numbers.cost.set_index("method")
    methods = methods_of(COST)
    lines: list[Line] = []
    for method in methods:
        values = [known[c].get(method, np.nan) for c in columns]
        cells = [
            Cell("✓" if value == "yes" else "" if value == "no" else value, show)
            for value, show in zip(values, shows, strict=True)
        ]
        lines.append((method, _label(numbers, COST, method), cells))
    return Grid(
        6,
        "learnable parameters, whether there are others, forward and backward passes per image, "
        "time relative to TENT, and mean error in %, ImageNet-C",
        numbers.of,
        ("Method", "#Param.", "#Extra Param.", "#FP", "#BP", "Time", "Err. Mean↓"),
        columns,
        lines,
        tuple(numbers.footnotes.get(COST, ())),
        rules=(methods.index(OURS),),
    )


def _layers(numbers: Numbers) -> Grid:
    """Table 7: which linear layers PAID adapts, by their letters."""
    benchmark, metric, domains, heads = _facts("layer")
    lines: list[Line] = [
        (
            method,
            method.partition("=")[2],
            [
                Cell(numbers.value("layer", benchmark, method, "1", domain, metric))
                for domain in (*domains, _MEAN)
            ],
        )
        for method in methods_of("layer")
    ]
    return Grid(
        7,
        "error in % by the layers that PAID adapts, ImageNet-C",
        numbers.of,
        ("Ablation", *heads, "Mean↓"),
        [*domains, _MEAN],
        lines,
        tuple(numbers.footnotes.get("layer", ())),
    )


def _ten_rounds(numbers: Numbers) -> Grid:
    """Table 8: PAID after one round and over ten, jointly for three benchmarks."""
    _, metric, domains, heads = _facts("10_round")
    results = reference()
    benchmarks = dict.fromkeys(results.loc[results["table"] == "10_round", "benchmark"])
    names = {"1": "1-Round", "mean of 10": "10-Round"}
    lines: list[Line] = [
        (
            f"{benchmark}, {setting}",
            BENCHMARKS.display_name(benchmark).replace("CIFAR-", "CIFAR") if step == "1" else "",
            [
                Cell(setting),
                *(
                    Cell(numbers.value("10_round", benchmark, OURS, step, domain, metric))
                    for domain in (*domains, _MEAN)
                ),
            ],
        )
        for benchmark in benchmarks
        for step, setting in names.items()
    ]
    return Grid(
        8,
        "error in % of PAID after one round and on average over ten",
        numbers.of,
        ("Dataset", "Setting", *heads, "Mean↓"),
        ["setting", *domains, _MEAN],
        lines,
        tuple(numbers.footnotes.get("10_round", ())),
        rules=(2, 4),
    )
