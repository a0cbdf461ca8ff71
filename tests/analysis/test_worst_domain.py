"""The table of the worst domain, on runs that an earlier release left."""

from pathlib import Path

import pytest

from ctta_bench.analysis import load
from ctta_bench.analysis.tables.worst_domain import worst_domain_table

STORED = Path(__file__).parents[1] / "stored" / "0.1.0" / "finished"


def test_the_worst_domain_is_named_with_its_error() -> None:
    runs = load(STORED)
    errors = runs.results[runs.results["metric"] == "error"]
    of_source = errors[errors["method"] == "source"].set_index("domain")["value"]

    table = worst_domain_table(runs)

    assert table is not None
    (source,) = [entries for label, entries in table.lines if label == "Source"]
    assert source[0].text == f"{of_source.max():.1f} ({of_source.idxmax()})"
    assert source[1].text == f"{of_source.min():.1f} ({of_source.idxmin()})"
    assert table.frame.loc["source", "apart"] == pytest.approx(of_source.max() - of_source.min())


def test_one_domain_has_no_table() -> None:
    runs = load(STORED)
    runs.cells["domains"] = [("clean",)] * len(runs.cells)

    assert worst_domain_table(runs) is None
