"""The paper's result tables by themselves: quoted, with each mean recomputed from its cells."""

from pathlib import Path

import numpy as np
import pandas as pd

from ctta_bench.analysis.paper.printed import (
    QUOTED,
    PaperNumbers,
    cost_reference,
    half_up,
    reference,
)
from ctta_bench.analysis.read.measure import metric_named, metric_names
from ctta_bench.analysis.table.rows import domain_labels
from ctta_bench.analysis.table.table import MISSING, Entry, Table, best_two, signed

_TITLES = {  # the paper's tables, as they are called in the reference
    "imagenet": "ImageNet to ImageNet-C",
    "cifar10": "CIFAR10 to CIFAR10-C",
    "cifar100": "CIFAR100 to CIFAR100-C",
    "acdc": "Cityscapes to ACDC",
    "10_round": "Ten rounds",
    "component": "Components of PAID",
    "layer": "Layers that PAID adapts",
}
_RECOMPUTED = "mean of cells"
_COST_HEADS = ("method", "parameters", "extra", "FP", "BP", "time", "error")


def quoted_tables() -> list[Table]:
    """Every result table of the paper, in its order, and that of computation at the end.

    The last columns hold the printed mean and the one that its printed cells give; where the two
    differ by more than rounding can, a footnote says so.
    """
    results = reference()
    tables = [
        _quoted(str(name), str(benchmark), part)
        for name, of_table in results.groupby("table", sort=False)
        for benchmark, part in of_table.groupby("benchmark", sort=False)
    ]
    return [*tables, _cost()]


def write_quoted(folder: Path) -> list[Path]:
    """Write each quoted table as Markdown, LaTeX and CSV; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = quoted_tables()
    for table in tables:
        table.write(folder)
    endings = ("csv", "md", "tex")
    return sorted(folder / f"{table.name}.{end}" for table in tables for end in endings)


def _quoted(name: str, benchmark: str, part: pd.DataFrame) -> Table:
    names = metric_names().values()
    metric = metric_named(next(name for name in part["metric"] if name in names))
    cells = part[part["metric"] == metric.name]
    domains = [domain for domain in dict.fromkeys(cells["domain"]) if domain != "mean"]
    numbers = PaperNumbers(cells, benchmark, domains, num_rounds=cells["round"].nunique())
    gains = part[part["metric"] == "gain"].set_index("method")["value"].to_dict()
    frame = _by_rounds(numbers) if name == "10_round" else _by_methods(numbers)
    if gains:
        frame["gain"] = [gains.get(label, np.nan) for label in frame.index]
    values = [column for column in frame.columns if column != "gain"]
    columns = {column: _ranked(frame[column], metric.higher_is_better) for column in values}
    if gains:
        columns["gain"] = [Entry(signed(value)) for value in frame["gain"]]
    rounds = numbers.printed_rounds if len(numbers.printed_rounds) > 1 else []
    by_round = bool(rounds) and name != "10_round"
    short = domain_labels(domains)
    heads = [*([*short, "mean"] * len(rounds) if by_round else short)]
    last = [column for column in frame.columns if column in ("mean", _RECOMPUTED, "gain")]
    spans = (
        (("", 1), *((f"round {n}", len(short) + 1) for n in rounds), ("all rounds", len(last)))
        if by_round
        else ()
    )
    return Table(
        name=f"paper-{name.replace('_', '-')}-{benchmark}",
        caption=f"{_TITLES.get(name, name)} ({benchmark}), as printed: {metric.text}. {QUOTED}",
        frame=frame,
        header=("method", *heads, *last),
        lines=tuple(
            (str(label), tuple(entries[line] for entries in columns.values()))
            for line, label in enumerate(frame.index)
        ),
        footnotes=tuple(numbers.errata(list(dict.fromkeys(cells["method"])))),
        spans=spans,
        unit=metric.head,
    )


def _by_methods(numbers: PaperNumbers) -> pd.DataFrame:
    """A row a method: domains (of each round with its mean, of several), then the means."""
    rounds, short = numbers.printed_rounds, domain_labels(numbers.domains)
    several = len(rounds) > 1
    wanted = [*numbers.domains, *(["mean"] if several else [])]
    names = [*short, *(["mean"] if several else [])]
    heads = [f"round {step} {name}" if several else name for step in rounds for name in names]
    methods = list(dict.fromkeys(numbers.cells["method"]))
    lines = [
        [numbers.value(method, step, domain) for step in rounds for domain in wanted]
        for method in methods
    ]
    frame = pd.DataFrame(lines, index=methods, columns=heads if numbers.domains else [])
    frame["mean"] = [numbers.mean(method) for method in methods]
    if numbers.domains:
        frame[_RECOMPUTED] = [numbers.recomputed(method) for method in methods]
    return frame


def _by_rounds(numbers: PaperNumbers) -> pd.DataFrame:
    """A row a method and round, for a table that prints one round and the mean of many."""
    lines = {}
    for method in dict.fromkeys(numbers.cells["method"]):
        for step in dict.fromkeys(numbers.cells["round"]):
            values = [numbers.value(method, step, domain) for domain in numbers.domains]
            where = step if step.startswith("mean") else f"round {step}"
            printed = numbers.value(method, step, "mean")
            lines[f"{method}, {where}"] = [*values, printed, float(np.mean(values))]
    columns = [*domain_labels(numbers.domains), "mean", _RECOMPUTED]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns)


def _ranked(values: "pd.Series[float]", higher: bool) -> list[Entry]:
    texts = [MISSING if np.isnan(value) else half_up(value) for value in values]
    best, second = best_two(texts, higher)
    return [Entry(text, text == best, text == second) for text in texts]


def _cost() -> Table:
    frame = cost_reference().set_index("method")
    return Table(
        name="paper-cost",
        caption=(
            "Computation, as printed: learnable parameters, whether more are kept beside them, "
            f"forward and backward passes, time relative to TENT, mean error %. {QUOTED}"
        ),
        frame=frame,
        header=_COST_HEADS,
        lines=tuple(
            (str(label), tuple(Entry(_plain(value)) for value in values))
            for label, values in zip(frame.index, frame.itertuples(index=False), strict=True)
        ),
        footnotes=(
            "Erratum of the paper, paid: 1.24M parameters belong to rank 14 on 12 blocks, the "
            "CIFAR10 configuration; the ImageNet one has 1.08M (text) or 0.81M (official code).",
            "Erratum of the paper, tent: the 25 LayerNorms of ViT-B hold 38,400 parameters.",
        ),
    )


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
