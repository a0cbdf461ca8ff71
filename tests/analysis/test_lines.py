"""Lines with names at their ends, and dots with intervals on an axis that may be cut."""

import itertools

import numpy as np
import pandas as pd
import pytest

from ctta_bench.analysis.figure.canvas import SCREEN, Canvas
from ctta_bench.analysis.figure.dots import Dot, draw_dots, limits
from ctta_bench.analysis.figure.lines import Line, caption_of, label_ends, sorted_out, spread_out
from ctta_bench.analysis.figure.palette import SOURCE_LOOK, look_of
from ctta_bench.analysis.figures.means import mean_figure
from ctta_bench.analysis.figures.stream import stream_figure
from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.tables.main import significance_table

X = np.arange(5.0)


def line(name, height):
    return Line(name, name.upper(), look_of(name), X, X + height)


def names(lines):
    return [each.name for each in lines]


def test_all_of_a_few_lines_stand_out():
    groups, rest = sorted_out([line(f"m{number}", 10 * number) for number in range(8)])
    assert (len(groups), rest) == (8, [])


def test_of_many_the_best_five_and_source_stand_out_and_the_caption_names_the_rest():
    lines = [*(line(f"m{number}", 10 * number) for number in range(9)), line("source", 95)]
    groups, rest = sorted_out(lines)
    assert [names(group) for group in groups] == [
        ["m0"],
        ["m1"],
        ["m2"],
        ["m3"],
        ["m4"],
        ["source"],
    ]
    assert caption_of(groups, rest) == "Grey: M5, M6, M7, M8."


def test_lines_that_cannot_be_told_apart_are_one():
    groups, rest = sorted_out([line("a", 0), line("b", 0.05), line("c", 5), line("source", 0)])
    assert [names(group) for group in groups] == [["a", "b", "source"], ["c"]]
    assert caption_of(groups, rest) == "The lines of A, B and SOURCE coincide."


def test_texts_are_spread_without_overlap_near_their_places():
    assert spread_out(np.array([5.0, 5.0]), [4, 4], 10) == [4, 8]
    assert spread_out(np.array([9.0, 1.0]), [2, 2], 10) == [9, 1]
    places = spread_out(np.array([3.0, 3.1, 3.2, 9.9]), [2] * 4, 10)
    assert np.diff(places).min() >= 2 and max(places) <= 9 and min(places) >= 1


@pytest.mark.parametrize("columns", [None, 1, 2])
def test_names_at_the_ends_do_not_overlap_and_are_in_the_figure(columns):
    groups = [[line(f"m{number}", 0.1 * number)] for number in range(7)]
    canvas = Canvas(columns)
    with canvas.drawing():
        figure = canvas.figure((6, 3), 2)
        axes = figure.subplots()
        for (first,) in groups:
            axes.plot(first.x, first.y)
        label_ends(figure, axes, groups, canvas)
        figure.draw_without_rendering()
    boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
    assert len(boxes) == 7
    assert all(low.y1 <= high.y0 + 1 for low, high in itertools.pairwise(boxes))
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    assert min(box.x0 for box in boxes) > axes.get_window_extent().x1


# -- dots


def dots(*values):
    return [Dot(f"m{v}", SOURCE_LOOK, v, v - 1, v + 1) for v in values]


def test_an_axis_holds_all_intervals_and_zero():
    assert limits(dots(3, 5)) == (0, 6)
    assert limits(dots(-3, 5)) == (-4, 6)


def test_an_axis_is_cut_only_if_a_far_row_would_take_most_of_it():
    assert limits(dots(1, 2, -1, -40)) == (-2, 3)
    assert limits(dots(4, 5, 6, -9)) == (-10, 7)
    assert limits([Dot("a", SOURCE_LOOK, 0, np.nan, np.nan)]) == (-1, 1)


def test_a_row_on_the_axis_has_its_whole_interval_there():
    few = [0.2] * 5
    assert limits(dots(*few, 2, -30)) == pytest.approx((-0.8, 3))  # its side is not much longer
    assert limits(dots(*few, 1.3, 50)) == pytest.approx((-0.8, 2.3))  # its dot is at the edge
    assert limits(dots(*few, 1.3, 2.4, 50)) == pytest.approx((-0.8, 3.4))  # and so is the next one


def test_a_cut_axis_says_so_and_prints_the_value():
    with SCREEN.drawing():
        figure = SCREEN.figure((5, 3), 2)
        axes = figure.subplots()
        text = draw_dots(axes, dots(1, 2, -1, -40), SCREEN)
    assert text == "The axis is cut; outside of it (arrows): m-40 (−40.0)."
    assert [text.get_text() for text in axes.texts] == ["−40.0"]


# -- in figures of runs


@pytest.fixture
def runs(cell, runs_dir):
    """Three seeds; ETA and EATA are the same, SAR is worse, ROID is like source."""
    for seed in range(3):
        for method, rate in (("source", 0.4), ("eata", 0.2), ("eta", 0.2), ("sar", 0.6)):
            cell(method, {"fog": rate, "snow": rate}, seed=seed)
        cell("roid", {"fog": 0.41, "snow": 0.39}, seed=seed, shuffle_errors=True)
    return load(runs_dir)


def test_dots_are_the_gains_and_intervals_of_the_table_of_significance(runs, tmp_path):
    _, _, csv = mean_figure(runs, tmp_path / "means")
    drawn = pd.read_csv(csv, index_col="method")
    table = significance_table(runs.groups()[0]).frame
    np.testing.assert_allclose(drawn.loc[table.index, "gain"], -table["difference"], atol=1e-8)
    np.testing.assert_allclose(drawn.loc[table.index, "low"], -table["high"], atol=1e-8)
    assert drawn["p_holm"].loc[["eata", "roid"]].lt(0.05).tolist() == [True, False]


def test_a_caption_stands_beside_a_figure(runs, tmp_path):
    paths = stream_figure(runs, tmp_path / "stream")
    text = (tmp_path / "stream.txt").read_text()
    assert text.startswith(
        "Error in % (each batch) along the stream: mini_c, Continual, severity 5"
    )
    assert "Mean over seeds. The lines of EATA and ETA coincide." in text
    assert "true" not in text and [path.suffix for path in paths] == [".png", ".pdf", ".csv"]


def test_without_source_the_dots_are_the_means(cell, runs_dir, tmp_path):
    cell("tent", {"fog": 0.2})
    _, _, csv = mean_figure(load(runs_dir), tmp_path / "means")
    assert "gain" not in pd.read_csv(csv)
    assert (
        (tmp_path / "means.txt")
        .read_text()
        .startswith("mini_c, Continual, severity 5 – mini_vit. Mean error in %")
    )
