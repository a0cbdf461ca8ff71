"""The sentence over a table: who differs from source, and what the data can show."""

import json
import re

import pytest
from typer.testing import CliRunner

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.report.headline import headline
from ctta_bench.cli import app

pytestmark = pytest.mark.usefixtures("undrawn")


def sentence(runs_dir) -> str:
    (group,) = load(runs_dir).groups()
    return str(headline(group))


def test_no_method_differs(cell, runs_dir):
    cell("source", {"fog": 0.40}, n=300, shuffle_errors=True)
    cell("tent", {"fog": 0.39}, n=300, seed=0, shuffle_errors=False)
    cell("sar", {"fog": 0.41}, n=300)
    text = sentence(runs_dir)
    assert text.startswith("No method differs from Source (best: TENT, +1.0 points, [−")
    assert "]; 1 seed, 300 images per domain). This is of one seed" in text
    assert " Differences below " in text and text.endswith(" points cannot be seen here.")


def test_better_alike_and_worse_are_told_apart(cell, runs_dir):
    for seed in (0, 1):
        cell("source", {"fog": 0.40}, n=400, seed=seed)
        cell("tent", {"fog": 0.20}, n=400, seed=seed)
        cell("cotta", {"fog": 0.30}, n=400, seed=seed)
        cell("sar", {"fog": 0.40}, n=400, seed=seed)
        cell("eata", {"fog": 0.3975}, n=400, seed=seed)
        cell("rdumb", {"fog": 0.60}, n=400, seed=seed)
    text = sentence(runs_dir)
    assert re.match(
        r"TENT is better than Source by 20\.0 points \[1\d\.\d, 2\d\.\d\] at 1\.0 ×", text
    )
    assert text.endswith(
        ". 2 of 5 methods are better than Source, 1 is worse and 2 are not distinguishable from it "
        "(2 seeds, 400 images per domain)."
    )


def test_methods_that_are_not_distinguishable_from_the_best_are_named(cell, runs_dir):
    cell("source", {"fog": 0.5}, n=400)
    cell("tent", {"fog": 0.20}, n=400)
    cell("sar", {"fog": 0.2025}, n=400)
    cell("eata", {"fog": 0.30}, n=400)
    assert " its time; SAR is not distinguishable from TENT. 3 of 3 methods are" in sentence(
        runs_dir
    )


def test_equal_gains_have_no_winner(cell, runs_dir):
    for method in ("source", "tent", "sar", "cotta"):
        cell(method, {"fog": 0.3}, n=400)
    assert sentence(runs_dir).startswith(
        "No method differs from Source (best: CoTTA, SAR and TENT, 0.0 points; 1 seed, 400 images"
    )


def test_the_seeds_of_the_sentence_are_those_of_the_comparisons(cell, runs_dir):
    cell("source", {"fog": 0.4}, n=400)
    for seed in (0, 1, 2):
        cell("tent", {"fog": 0.2}, n=400, seed=seed)
    text = sentence(runs_dir)
    assert "(1 seed, 400 images per domain)" in text
    assert "This is of one seed and says nothing about other seeds." in text


def test_what_can_be_seen_is_not_that_of_a_method_that_hardly_changes_a_prediction(cell, runs_dir):
    cell("source", {"fog": 0.4}, n=8000)
    cell("tent", {"fog": 0.4}, n=8000, shuffle_errors=True)
    cell("sar", {"fog": 0.4 + 1 / 8000}, n=8000)
    (least,) = re.findall("ifferences below (.*?) points cannot be seen", sentence(runs_dir))
    assert float(least) > 1


def test_methods_that_are_only_worse(cell, runs_dir):
    cell("source", {"fog": 0.20}, n=300)
    cell("tent", {"fog": 0.40}, n=300)
    text = sentence(runs_dir)
    assert text.startswith("No method is better than Source; TENT is worse (1 seed, 300 images")


def test_few_images_are_a_warning_in_words(cell, runs_dir):
    cell("source", {"fog": 0.8}, n=100)
    cell("tent", {"fog": 0.2}, n=100)
    text = sentence(runs_dir)
    assert "With fewer than 200 images per domain, differences below " in text


def test_a_single_image_has_no_interval(cell, runs_dir):
    cell("source", {"fog": 1.0}, n=1)
    cell("tent", {"fog": 0.0}, n=1)
    assert sentence(runs_dir).startswith(
        "No method differs from Source (best: TENT, +100.0 points;"
    )


def test_without_source_there_is_only_the_best(cell, runs_dir):
    cell("tent", {"fog": 0.2})
    assert sentence(runs_dir).startswith(
        "TENT has the lowest error, 20.0 %. There is no complete run of source to compare with. "
    )


def test_without_a_result_there_is_none(cell, runs_dir):
    cell("tent", {"fog": 0.2}, unfinished=True)
    assert sentence(runs_dir) == (
        "No method has a complete result yet. 1 of 1 cell is missing (1 incomplete)."
    )


def test_a_single_batch_per_domain_and_missing_cells_are_warnings(cell, runs_dir):
    for seed in (0, 1):
        cell("source", {"fog": 0.5}, n=20, seed=seed)
    cell("tent", {"fog": 0.2}, n=20)
    cell("tent", {"fog": 0.2}, n=20, seed=1, unfinished=True)
    text = sentence(runs_dir)
    assert "Each domain is a single batch, so hardly any adaptation can be seen here." in text
    assert text.endswith("1 of 4 cells is missing (1 incomplete).")
    assert "This is of one seed" in text  # the only one that both have


def test_a_larger_gain_that_is_not_sure_is_named(cell, runs_dir):
    for seed, rate in ((0, 0.05), (1, 0.45)):
        cell("source", {"fog": 0.5}, n=400, seed=seed)
        cell("tent", {"fog": 0.3}, n=400, seed=seed)
        cell("sar", {"fog": rate}, n=400, seed=seed)
    text = sentence(runs_dir)
    assert text.startswith("TENT is better than Source by 20.0 points [")
    assert "; for SAR the larger gain is not distinguishable from 0. 1 of 2 methods is" in text


@pytest.mark.parametrize("format", ["text", "json"])
def test_terminal_and_page_have_the_same_sentence(cell, runs_dir, format):
    cell("source", {"fog": 0.4}, n=300)
    cell("tent", {"fog": 0.2}, n=300)
    result = CliRunner().invoke(app, ["report", str(runs_dir), "--format", format])
    expected = sentence(runs_dir)
    if format == "json":
        assert [t["headline"] for t in json.loads(result.stdout)["tables"]] == [expected]
    else:
        assert expected in " ".join(result.stdout.split())
    page = (runs_dir / "report" / "index.html").read_text()
    assert all(part in page for part in expected.split(". "))
