"""The data that the page's script draws."""

import numpy as np
import pandas as pd
import pytest

from ctta_bench.analysis.figures.stream import stream_figure
from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.read.statistics import paired_by_domain, paired_difference
from ctta_bench.analysis.report import interactive
from ctta_bench.analysis.report.interactive import comparison_data, shades, stream_data
from ctta_bench.analysis.table.table import Table
from ctta_bench.scoring.metric import printed
from tests.analysis.street_cells import row as maps_row
from tests.analysis.street_cells import write_street_cell

RATES = {"fog": 0.2, "snow": 0.6}


def curves_of(runs_dir, tmp_path):
    (group,) = load(runs_dir).groups()
    return stream_data(pd.read_csv(stream_figure(group, tmp_path / "stream")[2]), group)


def test_a_curve_has_the_error_of_each_batch(cell, runs_dir, tmp_path):
    cell("source", {"fog": 0.5, "snow": 0.6}, n=100, batch_size=30)
    cell("tent", RATES, n=100, batch_size=30, shuffle_errors=True)
    data = curves_of(runs_dir, tmp_path)
    assert data["x"] == [30, 60, 90, 100, 130, 160, 190, 200]
    assert data["n"] == [30, 30, 30, 10] * 2
    assert data["every"] == 1
    source, tent = data["lines"]
    assert (source["name"], tent["name"]) == ("Source", "TENT")
    assert np.average(tent["y"][:4], weights=data["n"][:4]) == pytest.approx(20, abs=0.02)
    assert [band["end"] for band in data["bands"]] == [100, 200]


def test_a_long_curve_is_averaged_within_domains(cell, runs_dir, tmp_path, monkeypatch):
    cell("tent", RATES, n=100, batch_size=10, shuffle_errors=True)
    fine = curves_of(runs_dir, tmp_path)
    monkeypatch.setattr(interactive, "MAX_POINTS", 7)
    coarse = curves_of(runs_dir, tmp_path)
    assert coarse["every"] == 3
    assert coarse["x"] == [30, 60, 90, 100, 130, 160, 190, 200]
    assert coarse["n"] == [30, 30, 30, 10] * 2
    y = fine["lines"][0]["y"]
    expected = [*np.reshape(y[:9], (3, 3)).mean(1), y[9]]
    assert coarse["lines"][0]["y"][:4] == pytest.approx(expected, abs=0.01)


def test_each_pair_is_compared_over_all_domains_and_in_each(cell, runs_dir):
    paths = {}
    for seed in (0, 1):
        for method, rate in (("source", 0.5), ("tent", 0.2), ("sar", 0.3)):
            rates = {"fog": rate, "snow": 0.4}
            folder = cell(method, rates, n=200, seed=seed, shuffle_errors=True)
            paths.setdefault(method, []).append(folder)
    (group,) = load(runs_dir).groups()
    data = comparison_data(group)
    assert data["names"] == ["TENT", "SAR", "Source"]
    assert data["domains"] == ["mean", "fog", "snow"]
    overall = paired_difference(paths["tent"], paths["source"])
    tent_over_source = data["pairs"][1]
    assert tent_over_source[0][:3] == pytest.approx(
        [-overall.mean, -overall.high, -overall.low], abs=1e-3
    )
    for found, one in zip(
        tent_over_source[1:], paired_by_domain(paths["tent"], paths["source"]), strict=True
    ):
        expected = [-one.mean, -one.high, -one.low, one.p]
        assert found == pytest.approx(expected, abs=1e-3, rel=1e-2)
    assert tent_over_source[1][0] == 30


@pytest.mark.parametrize(
    ("value", "sent"),
    [(0.15018, 0.2), (-0.15018, -0.2), (0.24981, 0.2), (0.25, 0.3), (0.1234, 0.123)],
)
def test_the_page_shows_of_a_gain_what_the_tables_print(value, sent):
    assert interactive._shown(value) == sent
    assert f"{abs(sent):.1f}" == printed(abs(value))


def test_a_pair_without_a_common_seed_has_no_differences(cell, runs_dir):
    cell("source", RATES, seed=0)
    cell("tent", RATES, seed=1)
    (group,) = load(runs_dir).groups()
    assert comparison_data(group)["pairs"] == [[None]]


def test_one_row_is_compared_with_nothing(cell, runs_dir):
    cell("tent", RATES)
    (group,) = load(runs_dir).groups()
    assert comparison_data(group) is None


def test_in_one_domain_the_difference_by_domain_is_the_difference(cell, tmp_path):
    ours, theirs = cell("tent", {"fog": 0.2}), cell("sar", {"fog": 0.35}, shuffle_errors=True)
    assert paired_by_domain([ours], [theirs]) == [paired_difference([ours], [theirs])]
    right, wrong = maps_row(0, 0, 1, 1), maps_row(0, 1, 1, 1)
    a = write_street_cell(tmp_path, "tent", {"fog": [(right, right), (right, wrong)] * 3})
    b = write_street_cell(tmp_path, "sar", {"fog": [(right, wrong), (right, right)] * 3})
    (by_domain,) = paired_by_domain([a], [b], metric="miou")
    overall = paired_difference([a], [b], metric="miou")
    assert (by_domain.mean, by_domain.half_width) == pytest.approx(
        (overall.mean, overall.half_width)
    )


def test_shades_are_shares_of_the_largest_difference():
    frame = pd.DataFrame([[np.nan, -4.0], [4.0, np.nan]])
    table = Table("x", "", frame, ("method", "a", "b"), ())
    assert shades(table, ascending=1) == [[0, 1], [-1, 0]]
    assert shades(table, ascending=-1) == [[0, -1], [1, 0]]
