"""The numbers of runs in the columns of the paper's: what fills each of its tables.

`match.py` finds the rows; footnotes say what differs from the published ones.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from ctta_bench.analysis.paper.match import (
    BATCH_SIZE,
    Candidate,
    Family,
    Fill,
    best,
    families,
    regime,
    regimes,
)
from ctta_bench.analysis.paper.shape import (
    BASELINE,
    COMPONENTS,
    COST,
    MAIN,
    OURS,
    SOURCE,
    Numbers,
    domains_of,
    methods_of,
    name_of,
)
from ctta_bench.analysis.read.collect import Runs
from ctta_bench.analysis.table import notes
from ctta_bench.analysis.table.missing import listed
from ctta_bench.analysis.table.rows import Row, metric_of
from ctta_bench.record.schema import NOT_IN_PAPER
from ctta_bench.scoring.metric import printed

_COMPONENT = {  # values of `component`, by their names in the reference
    name: name.partition(":")[2].replace("+", "_") for name in COMPONENTS
}


def numbers_of(runs: Runs) -> list[Numbers]:
    """The numbers of finished runs for the paper's tables: one entry for each pre-processing.

    Cells of other settings than `continual`, and of warm-ups without adaptation, are left out.
    Where the runs of a benchmark have several protocols, each table takes the one with the most of
    its rows.
    """
    found = []
    for candidates in regimes(runs):
        own = [*families(candidates)]
        results: list[tuple[Any, ...]] = []
        footnotes: dict[str, list[str]] = {}
        marked: set[tuple[str, str]] = set()
        for table, part in filled(own):
            results += part.lines
            told = footnotes.setdefault(table, [])  # by several benchmarks, of Table 8
            told += [note for note in _footnotes(part, table) if note not in told]
            marked |= {(table, name) for name in part.taken if _is_marked(part.taken[name])}
        cost, costed = _costs(own)
        if costed is not None:
            footnotes[COST] = [*_footnotes(costed, COST), *_time_notes(costed)]
        keys = ["table", "benchmark", "method", "round", "domain", "metric", "value"]
        frame: pd.DataFrame = pd.DataFrame(results, columns=keys)
        if len(frame) or len(cost):
            found.append(Numbers(frame, cost, *_of(candidates[0]), footnotes, marked))
    return found


def filled(own: list[Family]) -> Iterator[tuple[str, Family]]:
    """Each table of errors with the rows that fill it, one entry for each of its benchmarks."""
    for table in (*MAIN, "component", "layer", "10_round"):
        for part in best(own, _FILL.get(table, _main), table):
            yield table, part


# -- the tables ------------------------------------------------------------------------------------


def _main(family: Family, table: str) -> None:
    """The compact and the fine table of a benchmark."""
    methods = methods_of(table)
    if family.benchmark != _benchmark_of(table):
        return
    num_rounds = 3 if table == "acdc" else 1
    for method in methods:
        one = family.pick(method, num_rounds=num_rounds)
        if one is None:
            continue
        row = one.row
        if num_rounds == 1:
            _add(family, table, method, "1", dict(_by_domain(row, family)), row.mean)
            continue
        for step, values in enumerate(row.by_round(), 1):
            by_domain = dict(zip(domains_of(family.benchmark), values, strict=True))
            _add(family, table, method, str(step), by_domain, float(row.over(axis=2)[step - 1]))
        _add(family, table, method, "all", {}, row.mean)
    _add_gains(family, table, "all" if num_rounds > 1 else "1")


def _components(family: Family, table: str) -> None:
    """Table 5."""
    if family.benchmark != _benchmark_of(table):
        return
    for name in methods_of(table):
        if name == BASELINE:
            one = family.pick(SOURCE, name)
        elif name in _COMPONENT:
            one = family.pick(OURS, name, component=_COMPONENT[name])
        else:
            one = family.pick(name)
        if one is not None:
            _add(family, table, name, "1", {}, one.row.mean)
    if not any(name in family.taken for name in list(COMPONENTS)[:-1]):
        family.taken.clear()  # the last one alone is PAID, of the main table
    _add_gains(family, table, "1", BASELINE)


def _layers(family: Family, table: str) -> None:
    """Table 7."""
    if family.benchmark != _benchmark_of(table):
        return
    for name in methods_of(table):
        one = family.pick(OURS, name, layers=name.partition("=")[2])
        if one is not None:
            _add(family, table, name, "1", dict(_by_domain(one.row, family)), one.row.mean)


def _ten_rounds(family: Family, table: str) -> None:
    """Table 8. Without a run of one round, the first of the ten rounds, which is the same."""
    ten = family.pick(OURS, "mean of 10", 10)
    if ten is None:
        return
    _add(family, table, OURS, "mean of 10", dict(_by_domain(ten.row, family)), ten.row.mean)
    first = family.pick(OURS, "1", 1)
    if first is not None:
        _add(family, table, OURS, "1", dict(_by_domain(first.row, family)), first.row.mean)
        return
    family.remarks.append("1-Round: the first round of the run of ten.")
    values = dict(zip(domains_of(family.benchmark), ten.row.by_round()[0], strict=True))
    _add(family, table, OURS, "1", values, float(ten.row.over(axis=2)[0]))


_FILL: dict[str, Fill] = {"component": _components, "layer": _layers, "10_round": _ten_rounds}


def _costs(own: list[Family]) -> tuple[pd.DataFrame, Family | None]:
    """Table 6, in the columns of reference_cost.csv; times divided by TENT's."""
    columns = [
        "method", "learnable_params", "extra_params", "forward_passes", "backward_passes",
        "time_relative_to_tent", "imagenet_c_error_mean",
    ]  # fmt: skip

    def pick(family: Family, _: str) -> None:
        if family.benchmark == "imagenet_c":
            for method in methods_of(COST):
                family.pick(method)

    chosen = best(own, pick, COST)
    if not chosen:
        return pd.DataFrame(columns=columns), None
    taken = chosen[0].taken
    reference = _cost(taken["tent"], "seconds") if "tent" in taken else float("nan")
    lines = [
        (
            method,
            _cost(one, "trainable_parameters"),
            "yes" if _cost(one, "extra_state_bytes") > 0 else "no",
            _cost(one, "forward_per_image"),
            _cost(one, "backward_per_image"),
            _cost(one, "seconds") / reference,
            one.row.mean,
        )
        for method, one in taken.items()
    ]
    return pd.DataFrame(lines, columns=columns), chosen[0]


def _cost(one: Candidate, name: str) -> float:
    return float(pd.to_numeric(one.row.finished[name], errors="coerce").mean())


def _by_domain(row: Row, family: Family) -> Iterator[tuple[str, float]]:
    return zip(domains_of(family.benchmark), map(float, row.over(axis=1)), strict=True)


def _add(
    family: Family,
    table: str,
    method: str,
    step: str,
    by_domain: Mapping[str, float],
    mean: float,
) -> None:
    """The lines of a row of a table: a value for each domain, and the mean."""
    metric = metric_of(family.candidates[0].group).name
    key = (table, family.benchmark, method, step)
    family.lines += [(*key, domain, metric, value) for domain, value in by_domain.items()]
    family.lines.append((*key, "mean", metric, mean))


def _add_gains(family: Family, table: str, step: str, source: str = SOURCE) -> None:
    """The gains, as in print the differences of printed means."""
    if source not in family.taken:
        return
    metric = metric_of(family.candidates[0].group)
    means = {name: float(printed(one.row.mean)) for name, one in family.taken.items()}
    key = (table, family.benchmark)
    family.lines += [
        (*key, name, step, "mean", "gain", metric.gain(means[source], mean))
        for name, mean in means.items()
    ]


def _benchmark_of(table: str) -> str:
    found = {"acdc": "cityscapes_acdc", "component": "imagenet_c", "layer": "imagenet_c"}
    return found.get(table) or f"{table}_c"


# -- what a reader must know -----------------------------------------------------------------------


def _of(one: Candidate) -> tuple[str, str]:
    """Whose numbers they are, and the ending of the tables' names."""
    name = regime(one.cell)
    return f"of these runs ({name})" if name else "of these runs", name


def _is_marked(one: Candidate) -> bool:
    return any(text.startswith(NOT_IN_PAPER) for texts in one.row.cells["notes"] for text in texts)


def _footnotes(family: Family, table: str) -> Iterator[str]:
    """The protocol, batch sizes, what differs from the published rows, and what was not run."""
    taken = family.taken
    first = next(iter(taken.values()))
    images = first.cell["examples"]
    amount = "all images" if pd.isna(images) else notes.counted(int(images), "image")
    seeds = sorted({int(seed) for one in taken.values() for seed in one.row.finished["seed"]})
    yield (
        f"{notes.title(first.group)}; {amount} per domain; weights "
        f"{str(first.cell['model_sha256'])[:8]} (first digits of the SHA-256); "
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}."
    )
    sizes: dict[int, list[str]] = {}
    for name, one in taken.items():
        sizes.setdefault(int(one.cell[BATCH_SIZE]), []).append(_shown(name))
    yield from notes.corruptions(pd.concat([one.row.finished for one in taken.values()]))
    yield f"Batch sizes: {'; '.join(f'{size} ({listed(of)})' for size, of in sizes.items())}."
    for name, one in taken.items():
        differing = [f"{k}={v} (published: {p})" for k, (v, p) in one.differing().items()]
        if differing:
            yield f"{_shown(name)} was not run with the published values: {listed(differing)}."
    yield from notes.chosen([one.row for one in taken.values()], NOT_IN_PAPER)
    means = {printed(one.row.mean) for one in family.candidates if one.row.method == SOURCE}
    if len(means) > 1 and table in MAIN:
        yield f"Source has several means, by batch size: {', '.join(sorted(means))}."
    yield from family.remarks
    if table in (*MAIN, COST):
        missing = [name_of(method) for method in methods_of(table) if method not in taken]
        if missing:
            yield f"Without a finished run: {listed(missing)}."


def _shown(name: str) -> str:
    """The printed name of a row: `Ours (layers=qk)`."""
    if name in ("1", "mean of 10"):
        return "1-Round" if name == "1" else "10-Round"
    method, _, variant = name.partition(":")
    if name == BASELINE:
        return name_of(SOURCE)
    return name_of(method) + (f" ({variant.replace('+', ', ')})" if variant else "")


def _time_notes(family: Family) -> Iterator[str]:
    devices = sorted({d for one in family.taken.values() for d in one.row.finished["device"]})
    where = ", ".join(map(str, devices))
    yield f"Time: of predicting and adapting, measured cell by cell on {where}."
    if "tent" not in family.taken:
        yield "No relative time: there is no finished run of TENT."
