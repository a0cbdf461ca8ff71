"""Tables in the paper's shape: of quoted numbers equal to print, and of runs with these numbers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from ctta_bench.analysis.paper.as_run import as_run
from ctta_bench.analysis.paper.of_runs import numbers_of
from ctta_bench.analysis.paper.panels import drawn_figures
from ctta_bench.analysis.paper.printed import reference
from ctta_bench.analysis.paper.shape import domains_of, quoted, tables
from ctta_bench.analysis.read.collect import CELL_COLUMNS, DOMAIN_COLUMNS, Runs
from ctta_bench.analysis.table.table import Table

PRINTED = Path(__file__).with_name("printed_tables.txt")
# Entries that print marks as best, or does not, against its own numbers: remarks.csv names them.
WRONG_MARKS = {
    (9, "SAR", "Fog"),
    (9, "EcoTTA", "Bright"),
    (9, "Ours", "Contrast"),
    (10, "C-MAE", "JPEG"),
    (11, "C-MAE", "Snow"),
    (12, "VDP", "Round 3 Fog"),
    (12, "Ours", "Round 2 Rain"),
    (12, "Ours", "Round 2 Mean↑"),
}
# The best where print has the mark at another entry.
NOT_MARKED = {
    (9, "ViDA", "Fog"),
    (9, "C-MAE", "Bright"),
    (9, "RoTTA", "Contrast"),
    (10, "ViDA", "JPEG"),
    (12, "ViDA", "Round 3 Fog"),
    (12, "ViDA", "Round 2 Rain"),
    (12, "ViDA", "Round 2 Mean↑"),
}


def as_printed() -> dict[int, list[list[str]]]:
    """The rows of each printed table; a rule is [`---`]."""
    found: dict[int, list[list[str]]] = {}
    for line in PRINTED.read_text("utf-8").splitlines():
        if line.startswith("== Table "):
            rows = found.setdefault(int(line.split()[-1]), [])
        elif not line.startswith("#"):
            rows.append([cell.strip() for cell in line.split("|")])
    return found


def laid_out(table: Table, width: int) -> list[list[str]]:
    """A table as the file has it: heads, rules, labels and entries, without marks."""
    heads = [[], [*table.header]]
    if table.spans:
        above = [name for text, count in table.spans for name in [text, *[""] * (count - 1)]]
        inner = list(table.header)
        for place in (0, -2, -1):  # one head over both lines
            above[place], inner[place] = inner[place], ""
        heads = [above, inner]
    rows = [*filter(None, heads), ["---"]]
    for number, (label, entries) in enumerate(table.lines):
        rows += [["---"]] if number in table.rules else []
        rows.append([label, *(entry.text.replace("−", "-") for entry in entries)])
    return [row if row == ["---"] else [*row, *[""] * (width - len(row))] for row in rows]


@pytest.fixture(scope="module")
def made() -> dict[int, Table]:
    return {int(table.name[-2:]): table for table in tables(quoted())}


@pytest.mark.parametrize("number", range(1, 13))
def test_a_table_of_quoted_numbers_equals_the_printed_one(number, made):
    wanted = as_printed()[number]
    width = max(map(len, wanted))
    plain = [
        row if row == ["---"] else [cell.rstrip("*") for cell in row] + [""] * (width - len(row))
        for row in wanted
    ]
    assert laid_out(made[number], width) == plain


@pytest.mark.parametrize("number", range(1, 13))
def test_bold_entries_are_those_of_print_save_the_errata(number, made):
    table = made[number]
    body = [row for row in as_printed()[number] if row != ["---"]][1 + bool(table.spans) :]
    differing = {
        (number, label, head)
        for (label, entries), row in zip(table.lines, body, strict=True)
        for head, entry, cell in zip(table.heads[1:], entries, row[1:], strict=False)
        if entry.best != cell.endswith("*")
    }
    assert differing == {where for where in WRONG_MARKS | NOT_MARKED if where[0] == number}


def test_beside_print_a_line_without_a_name_of_its_own_is_the_paper_s():
    (table,) = [one for one in tables(quoted(), quoted()) if one.name == "table-08"]
    labels = [label for label, _ in table.lines]
    assert labels[:6] == [
        "ImageNet-C",
        "ImageNet-C, paper",
        "difference",
        "",
        "paper",
        "difference",
    ]


# -- the same tables of runs that have exactly the printed numbers ---------------------------------


def runs_like_the_paper() -> Runs:
    """Cells as `paper/*` makes them, each with the errors that the paper prints by domain."""
    cells, results = [], []
    for table, benchmark, method, num_rounds, values in printed_cells():
        name, _, variant = method.partition(":")
        known = as_run(benchmark, "source" if variant == "none" else name)
        assert known is not None
        own = {**known.defaults, **known.values}
        if variant.startswith("layers="):
            own["layers"] = variant.partition("=")[2]
        elif variant and variant != "none":
            own["component"] = variant.replace("+", "_")
        cell = f"{table}-{benchmark}-{method}-{num_rounds}"
        metric = "miou" if benchmark == "cityscapes_acdc" else "error"
        names = domains_of(benchmark)
        facts = {
            "cell": cell, "method": "source" if variant == "none" else name, "preset": "paper",
            "hyperparameters": json.dumps(own, sort_keys=True), "window": 0, "starts_from": "",
            "benchmark": benchmark, "setting": "continual", "model": "vit", "seed": 0,
            "model_sha256": "a" * 64, "preprocessing": known.preprocessing, "precision": "float32",
            "normalisation": "none", "batch_size": known.batch_size, "rounds": num_rounds,
            "severity": 5, "domains": tuple(names), "details": "", "state": "done",
            "notes": (), "metric": metric, "experiment": table, "device": "a GPU",
            "group": f"{benchmark}-{num_rounds}-{known.batch_size}",
        }  # fmt: skip
        cells.append(dict.fromkeys(CELL_COLUMNS) | facts)
        results += [
            {"cell": cell, "round": step, "domain": domain, "metric": metric, "value": value}
            for step, of_round in enumerate(values)
            for domain, value in zip(names, of_round, strict=True)
        ]
    domains: pd.DataFrame = pd.DataFrame(columns=DOMAIN_COLUMNS)
    frame = pd.DataFrame(cells).drop_duplicates(["group", "method", "hyperparameters"])
    return Runs(frame.reset_index(drop=True), pd.DataFrame(results), domains, [])


def printed_cells() -> Iterator[tuple[str, str, str, int, list[list[float]]]]:
    """Table, benchmark, method, rounds and [rounds][domains] of each row; ten equal rounds for a
    mean of ten, and equal domains where only a mean is printed."""
    results = reference()
    results = results[results["metric"] != "gain"]
    for (table, benchmark, method), part in results.groupby(
        ["table", "benchmark", "method"], sort=False
    ):
        domains = domains_of(str(benchmark))
        by_round = {
            step: of_round.set_index("domain")["value"]
            for step, of_round in part.groupby("round", sort=False)
            if step != "all"
        }
        means = {step: values.get("mean") for step, values in by_round.items()}
        rows = {
            step: [float(values.get(name, means[step])) for name in domains]
            for step, values in by_round.items()
        }
        if "mean of 10" in rows:
            yield table, benchmark, method, 10, [rows.pop("mean of 10")] * 10
        yield table, benchmark, method, len(rows), [*rows.values()]


@pytest.fixture(scope="module")
def of_runs() -> dict[int, Table]:
    (numbers,) = numbers_of(runs_like_the_paper())
    return {int(table.name[-2:]): table for table in tables(numbers)}


# Printed means of ACDC that are not the mean of their cells (analysis/reference/README.md): as
# printed, and of the cells.
MEANS = {
    "TENT": ("55.7", "55.9"),
    "DePT": ("53.4", "53.6"),
    "VDP": ("58.2", "58.3"),
    "EcoTTA": ("55.8", "55.9"),
    "ViDA": ("61.9", "61.8"),
    "Ours": ("62.2", "61.9"),
}
GAINS = {
    "TENT": ("−1.0", "−0.8"),
    "DePT": ("−3.3", "−3.1"),
    "VDP": ("+1.5", "+1.6"),
    "EcoTTA": ("−0.9", "−0.8"),
    "ViDA": ("+5.2", "+5.1"),
    "Ours": ("+5.5", "+5.2"),
}
ROUNDS = {
    ("DePT", "Round 1 Mean↑"): ("56.5", "56.7"),
    ("VDP", "Round 2 Mean↑"): ("58.2", "58.3"),
    ("VDP", "Round 3 Mean↑"): ("58.2", "58.3"),  # 58.25, a half
}
FROM_CELLS = {
    **{(4, "Mean↑", name): texts for name, texts in MEANS.items()},
    **{(4, "Gain↑", name): texts for name, texts in GAINS.items()},
    **{(12, name, "Mean↑"): texts for name, texts in MEANS.items()},
    **{(12, name, "Gain↑"): texts for name, texts in GAINS.items()},
    **{(12, *key): texts for key, texts in ROUNDS.items()},
}


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12])
def test_a_table_of_runs_with_the_printed_numbers_equals_print_save_the_errata(
    number, made, of_runs
):
    ours, printed = of_runs[number], made[number]
    assert (ours.header, ours.rules, ours.spans) == (printed.header, printed.rules, printed.spans)
    assert [label for label, _ in ours.lines] == [label for label, _ in printed.lines]
    differing = {
        (number, label, head): (theirs.text, mine.text)
        for (label, own), (_, entries) in zip(ours.lines, printed.lines, strict=True)
        for head, mine, theirs in zip(ours.heads[1:], own, entries, strict=True)
        if mine.text != theirs.text
    }
    assert differing == {key: texts for key, texts in FROM_CELLS.items() if key[0] == number}


def test_rules_and_ticks_are_in_the_latex_of_a_table(made):
    fine, components = made[9].to_latex(), made[5].to_latex()
    ours = next(line for line in fine.splitlines() if line.startswith("Ours "))
    lines = fine.splitlines()
    assert lines[lines.index(ours) - 1] == r"\midrule"
    assert components.splitlines()[0] == r"% \usepackage{array,booktabs,amssymb,pifont}"
    assert r"\checkmark & \ding{55} & \ding{55} & 46.0 & +9.8 \\" in components


def test_the_figures_have_what_the_paper_states_as_stars(tmp_path):
    files = drawn_figures(tmp_path, None, with_paper=True)
    assert [file.name for file in files if file.suffix == ".png"] == [
        "figure-6.png",
        "figure-7.png",
    ]
    six, seven = (pd.read_csv(tmp_path / f"figure-{number}.csv") for number in (6, 7))
    assert set(six["panel"]) == {"rank", "source_samples", "batch_size"}
    assert set(seven["value"]) == {0.1, 1.0}
    own = six[six["panel"] == "rank"].set_index("line")["mean"]
    assert own.to_dict() == {"imagenet_c": 42.2, "cifar100_c": 24.9, "cifar10_c": 11.0}
    assert "without printing their numbers" in (tmp_path / "figure-6.txt").read_text()
