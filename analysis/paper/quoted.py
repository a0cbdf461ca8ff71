"""The result tables of the paper of PAID, quoted, with each mean recomputed from its cells."""

from pathlib import Path

import numpy as np
import pandas as pd

from ctta_bench.analysis.paper.printed import (
    COST_ERRATA,
    QUOTED,
    PaperNumbers,
    cost_reference,
    paper_label,
    reference,
)
from ctta_bench.analysis.read.measure import metric_named, metric_names
from ctta_bench.analysis.table.notes import MARKS, upper_first
from ctta_bench.analysis.table.table import (
    MISSING,
    Entry,
    Table,
    best_two,
    citation_keys,
    signed,
    write_references,
)
from ctta_bench.registry import BENCHMARKS, domain_display_names
from ctta_bench.scoring.metric import printed

_TITLES = {  # of the paper's tables, by their names in the reference
    "10_round": "Ten rounds, ",
    "component": "Components of PAID, ",
    "layer": "Layers that PAID adapts, ",
}
_RECOMPUTED = "mean of cells"
_COST_HEADS = ("method", "parameters", "extra", "FP", "BP", "time", "error")


def quoted_tables() -> list[Table]:
    """Every result table of the paper, in its order, and the table of computational cost.

    The last columns are the printed mean and the mean of the printed cells. Where the two differ
    by more than rounding, there is a footnote.
    """
    results = reference()
    tables = [
        _quoted(str(name), str(benchmark), part)
        for name, of_table in results.groupby("table", sort=False)
        for benchmark, part in of_table.groupby("benchmark", sort=False)
    ]
    return [*tables, _cost()]


def write_quoted(folder: Path, citations: bool = False) -> list[Path]:
    """Write each quoted table as Markdown, LaTeX and CSV, and references.bib; returns the tables.

    With `citations`, the methods in LaTeX tables are followed by a `\\citep`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = quoted_tables()
    methods = [name.partition(":")[0] for name in reference()["method"].unique()]
    write_references(folder, methods)
    for table in tables:
        table.write(folder, citation_keys(methods) if citations else {})
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
    short = domain_display_names(benchmark, domains)
    heads = [*([*short, "mean"] * len(rounds) if by_round else short)]
    last = [column for column in frame.columns if column in ("mean", _RECOMPUTED, "gain")]
    spans = (
        (("", 1), *((f"round {n}", len(short) + 1) for n in rounds), ("all rounds", len(last)))
        if by_round
        else ()
    )
    return Table(
        name=f"paper-{name.replace('_', '-')}-{benchmark}",
        caption=f"{_TITLES.get(name, '')}{BENCHMARKS.display_name(benchmark)}, as printed in the "
        f"paper. {upper_first(metric.text)}. Mean: as printed. Mean of cells: recomputed from the "
        f"printed cells. {QUOTED} {MARKS}",
        frame=frame,
        header=("method", *heads, *last),
        lines=tuple(
            (_row_label(str(method)), tuple(entries[line] for entries in columns.values()))
            for line, method in enumerate(frame.index)
        ),
        footnotes=tuple(numbers.errata(list(dict.fromkeys(cells["method"])))),
        spans=spans,
        unit=metric.head,
    )


def _by_methods(numbers: PaperNumbers) -> pd.DataFrame:
    """One row per method: the domains (with several rounds, of each round), then the means."""
    rounds = numbers.printed_rounds
    several = len(rounds) > 1
    wanted = [*numbers.domains, *(["mean"] if several else [])]
    heads = [f"round {step} {name}" if several else name for step in rounds for name in wanted]
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
    """One row per method and round, for a table with a single round and the mean of many."""
    lines = {}
    for method in dict.fromkeys(numbers.cells["method"]):
        for step in dict.fromkeys(numbers.cells["round"]):
            values = [numbers.value(method, step, domain) for domain in numbers.domains]
            where = step if step.startswith("mean") else f"round {step}"
            stated = numbers.value(method, step, "mean")
            lines[f"{method}, {where}"] = [*values, stated, float(np.mean(values))]
    columns = [*numbers.domains, "mean", _RECOMPUTED]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns)


def _ranked(values: "pd.Series[float]", higher: bool) -> list[Entry]:
    texts = [MISSING if np.isnan(value) else printed(value) for value in values]
    best, second = best_two(texts, higher)
    return [Entry(text, text == best, text == second) for text in texts]


def _cost() -> Table:
    frame = cost_reference().set_index("method")
    return Table(
        name="paper-cost",
        caption=(
            "Computational cost, as printed in the paper. Parameters: learnable ones. Extra: "
            "whether the method stores others in addition. FP, BP: forward and backward passes. "
            f"Time: relative to TENT. Error: mean in %. {QUOTED}"
        ),
        frame=frame,
        header=_COST_HEADS,
        lines=tuple(
            (paper_label(str(method)), tuple(Entry(_plain(value)) for value in values))
            for method, values in zip(frame.index, frame.itertuples(index=False), strict=True)
        ),
        footnotes=COST_ERRATA,
    )


def _row_label(name: str) -> str:
    """The label of `METHOD` or `METHOD, round 1`."""
    method, comma, where = name.partition(",")
    return paper_label(method) + comma + where


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
