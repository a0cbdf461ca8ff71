"""Equal values print equally, are ranked alike, and are never -0."""

import numpy as np
import pandas as pd
import pytest

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.table.table import csv_text, ranked, signed
from ctta_bench.analysis.tables.main import main_table
from ctta_bench.scoring.metric import printed


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (12.35, 1, "12.4"),
        (12.349999999999998, 1, "12.4"),
        (12.45, 1, "12.5"),
        (0.25, 1, "0.3"),
        (-0.25, 1, "-0.3"),
        (-0.04, 1, "0.0"),
        (-0.0, 1, "0.0"),
        (2.675, 2, "2.68"),
        (5e-324, 3, "0.000"),
        (1234567.5, 0, "1234568"),
        (1e30, 0, "1000000000000000019884624838656"),
        (float("inf"), 1, "inf"),
    ],
)
def test_halves_round_alike_and_zero_has_no_sign(value, decimals, text):
    assert printed(value, decimals) == text


def test_equal_means_from_different_sums_share_their_mark():
    one, other = 12.35, float(np.nextafter(12.35, 13))
    assert f"{one:.1f}" != f"{other:.1f}"
    entries = ranked(pd.Series({"a": one, "b": other, "c": 20.0}), higher=False)
    assert [(e.text, e.best) for e in entries] == [("12.4", True), ("12.4", True), ("20.0", False)]


def test_a_signed_half_rounds_as_the_value_does():
    assert [signed(v) for v in (0.25, -0.25, -0.04, 0.0)] == ["+0.3", "−0.3", "0.0", "0.0"]


def test_a_csv_has_no_minus_zero():
    frame = pd.DataFrame({"method": ["a", "b"], "gain": [-0.0, -1.5]})
    assert csv_text(frame) == "method,gain\na,0\nb,-1.5\n"


def test_rows_of_equal_means_are_in_the_order_of_their_names(cell, runs_dir):
    # The same mean 1/3 of 3 domains, summed in another order: 0.1 + 0.2 + 0.7 and 0.7 + 0.2 + 0.1.
    cell("b", {"x": 0.1, "y": 0.2, "z": 0.7})
    cell("a", {"x": 0.7, "y": 0.1, "z": 0.2})
    cell("source", {"x": 0.2, "y": 0.7, "z": 0.1})
    table = main_table(load(runs_dir))
    assert list(table.frame.index) == ["source", "a", "b"]
    assert [str(gain) for gain in table.frame["gain"]] == ["0.0"] * 3
    assert "-0" not in table.to_csv()
