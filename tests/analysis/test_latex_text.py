"""The LaTeX of a table as text: its order, groups, marks, labels and what stands elsewhere."""

from dataclasses import replace

import pandas as pd
import pytest

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.report.audit import audit
from ctta_bench.analysis.report.write import write_report
from ctta_bench.analysis.table.latex import COLUMN, PAGE, stable_label
from ctta_bench.analysis.table.table import Entry, Table, ranked
from ctta_bench.analysis.tables.main import main_table
from ctta_bench.errors import ConfigError

pytestmark = pytest.mark.usefixtures("undrawn")


def table(columns=2, lines=3, groups=(), name="mini-1a2b3c4d", text="10.0", **options):
    names = ["source", "tent", "my_own (paper) rank=2", *(f"m{n}" for n in range(lines - 3))]
    labels = ["Source", "TENT", "Mine (paper, rank=2)", *(f"M{n}" for n in range(lines - 3))]
    entries = tuple(Entry(text) for _ in range(columns))
    return Table(
        name,
        "All about it. Batch size 50.",
        pd.DataFrame(index=names[:lines]),
        header=("method", *(f"d{n}" for n in range(columns))),
        lines=tuple((label, entries) for label in labels[:lines]),
        footnotes=("† Collapsed: fog.", "Made with `torch` 2.6."),
        groups=groups,
        **options,
    )


def rows(text):
    return [line for line in text.splitlines() if "&" in line and not line.startswith("%")]


def test_a_narrow_table_has_one_column_and_a_wide_one_two():
    assert r"\begin{table}[t]" in table().to_latex()
    wide = table(columns=16).to_latex()
    assert r"\begin{table*}[t]" in wide and r"\rotatebox{90}{d15}" in wide
    assert wide.count(r"\begin{tabular}") == 1


def test_a_table_that_is_too_wide_is_split_into_even_parts_that_repeat_the_names():
    text = table(columns=40).to_latex()
    parts = text.split(r"\begin{tabular}")[1:]
    heads = [part.split(r"\midrule")[0].count("&") for part in parts]
    assert sum(heads) == 40 and max(heads) - min(heads) <= 1
    assert all("TENT" in part for part in parts)
    assert text.count(r"\begin{table*}") == 1  # three rows: all parts have room in one float


def test_a_long_table_goes_on_in_another_float_under_the_same_number():
    text = table(lines=100).to_latex()
    assert text.count(r"\begin{table}") == 2
    assert text.count(r"\label{") == 1
    assert r"\addtocounter{table}{-1}" in text and r"\caption{Continued.}" in text


def test_long_text_is_broken_into_lines():
    text = table(
        columns=3, text="a very long text of several words that no column holds"
    ).to_latex()
    assert r">{\raggedright\arraybackslash}p{" in text


def test_widths_are_those_of_a_conference_page():
    assert (pytest.approx(3.25 * 72, abs=1), pytest.approx(6.75 * 72, abs=2)) == (COLUMN, PAGE)


def test_source_stands_first_then_groups_then_the_own_method_below_a_rule():
    groups = ("", "With source data", "Without source data", "Without source data")
    text = table(lines=4, groups=groups).to_latex(ours="my_own")
    assert [row.partition(" &")[0] for row in rows(text)] == [
        "method", "Source", "M0", "TENT", "Mine (paper, rank=2)",
    ]  # fmt: skip
    lines = text.splitlines()
    assert lines[lines.index(rows(text)[4]) - 1] == r"\midrule"
    assert lines.index(r"\midrule\multicolumn{1}{@{}l}{\emph{Without source data}} \\") == (
        lines.index(rows(text)[2]) - 1
    )


def test_one_group_needs_no_name():
    text = table(groups=("", "Without source data", "Without source data")).to_latex()
    assert "Without" not in text


def test_a_table_without_groups_has_source_first_and_the_own_method_below_a_rule_too():
    text = table(lines=4).to_latex(ours="tent")
    assert [row.partition(" &")[0] for row in rows(text)][1:] == [
        "Source", "Mine (paper, rank=2)", "M0", "TENT",
    ]  # fmt: skip
    lines = text.splitlines()
    assert lines[lines.index(rows(text)[-1]) - 1] == r"\midrule"


def test_a_matrix_of_methods_keeps_its_order():
    square = table(columns=3)
    names = ["tent", "source", "my_own"]
    square = replace(square, frame=pd.DataFrame(index=names, columns=names, dtype=float))
    found = [row.partition(" &")[0] for row in rows(square.to_latex(ours="tent"))]
    assert found[1:] == [label for label, _ in square.lines]


def test_the_caption_is_one_sentence_and_the_protocol_a_comment():
    text = table().to_latex()
    assert r"\caption{All about it.}" in text
    assert "% All about it. Batch size 50." in text
    assert r"\raggedright $^\dagger$ Collapsed: fog." in text
    assert "\nMade with" not in text  # in the comment and the appendix
    assert r"\caption{In short.}" in table(brief="In short").to_latex()


def test_files_of_a_table_have_stable_labels_and_an_appendix(tmp_path):
    for name in ("mini-1a2b3c4d-cost", "mini-5e6f7a8b-cost"):
        table(name=name).write(tmp_path)
    assert r"\label{tab:mini-cost}" in (tmp_path / "mini-1a2b3c4d-cost.tex").read_text()
    assert r"\label{tab:mini-cost-2}" in (tmp_path / "mini-5e6f7a8b-cost.tex").read_text()
    assert (tmp_path / "mini-5e6f7a8b-cost-appendix.tex").read_text() == (
        r"\paragraph{Table~\ref{tab:mini-cost-2}.} All about it. Batch size 50. $^\dagger$ "
        "Collapsed: fog. Made with \\texttt{torch} 2.6.\n"
    )


def test_a_label_is_stable():
    assert stable_label("fashion_c-mixed-vit-1a2b3c4d-cost") == "fashion_c-mixed-vit-cost"
    assert stable_label("protocols") == "protocols"


def test_at_most_three_equal_values_are_bold():
    three = ranked(pd.Series([1.0, 1.0, 1.0, 2.0]), higher=False)
    assert [entry.best for entry in three] == [True, True, True, False]
    four = ranked(pd.Series([1.0, 1.0, 1.0, 1.0, 2.0]), higher=False)
    assert not any(entry.best or entry.second for entry in four)


def test_a_bold_mean_is_the_best_or_not_distinguishable_from_it(cell, runs_dir):
    cell("source", {"fog": 0.6}, shuffle_errors=True)
    cell("tent", {"fog": 0.20}, shuffle_errors=True)
    cell("sar", {"fog": 0.21}, shuffle_errors=True)
    entries = {label: line[-2].best for label, line in main_table(load(runs_dir)).lines}
    assert entries == {"Source": False, "TENT": True, "SAR": True}


def test_no_mean_is_bold_if_none_is_distinguishable(cell, runs_dir):
    for method in ("source", "tent", "sar"):
        cell(method, {"fog": 0.5})
    assert not any(line[-2].best for _, line in main_table(load(runs_dir)).lines)


def test_rows_are_grouped_by_what_they_read_of_the_source_data(cell, runs_dir, edit_json):
    cell("source", {"fog": 0.6})
    cell("tent", {"fog": 0.4})
    read = cell("my_method", {"fog": 0.3}) / "result.json"
    edit_json(read, lambda result: result.update(source_access="unlabelled"))
    cell("eata", {"fog": 0.2})  # an older record: the method declares it
    table = main_table(load(runs_dir))
    assert dict(zip([label for label, _ in table.lines], table.groups, strict=True)) == {
        "Source": "",
        "EATA": "With source data",
        "my_method": "With source data",
        "TENT": "Without source data",
    }


def test_a_report_knows_the_own_method_and_its_audit_does_too(cell, runs_dir):
    for method, rate in (("source", 0.6), ("tent", 0.3), ("sar", 0.4)):
        cell(method, {"fog": rate})
    report = write_report(runs_dir, ours="TENT", citations=True)
    of_methods = []
    for file in report.table_files:
        if file.suffix != ".tex" or file.stem.endswith(("-appendix", "-pairs")):
            continue
        found = [row.partition("~")[0].partition(" &")[0] for row in rows(file.read_text())]
        if "TENT" in found:
            assert found[-1] == "TENT" and found.index("SAR") == len(found) - 2
            assert "Source" not in found or found.index("Source") < found.index("SAR")
            of_methods.append(file.stem.rpartition("-")[2])
    assert {"leaderboard", "cost", "calibration"} <= {*of_methods}
    assert "--ours tent --citations" in report.page.read_text()
    assert not any(".tex" in finding for finding in audit(runs_dir).findings)


def test_an_own_method_without_runs_is_refused(cell, runs_dir):
    cell("tent", {"fog": 0.3})
    with pytest.raises(ConfigError, match=r"--ours mine: no run is of this method; there are tent"):
        write_report(runs_dir, ours="mine")
