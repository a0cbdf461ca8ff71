"""Curves over a swept hyper-parameter, and over batch sizes."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from ctta_bench.analysis.figure.canvas import SCREEN
from ctta_bench.analysis.figures.sweeps import (
    batch_size_sweeps,
    sweep_figure,
    sweeps,
    swept_figures,
)
from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.tables.main import main_table


def only_group(runs_dir):
    (group,) = load(runs_dir).groups()
    return group


def test_a_swept_value_makes_a_curve_with_its_spread(runs_dir, cell):
    for rank, errors in ((2, (0.30, 0.34)), (8, (0.20, 0.20)), (12, (0.10, 0.12))):
        for seed, rate in enumerate(errors):
            cell("paid", {"noise": rate}, seed=seed, hyperparameters={"rank": rank, "lr": 0.1})
    cell("source", {"noise": 0.5})
    (sweep,) = sweeps(only_group(runs_dir))
    assert sweep.key == "rank"
    assert sweep.source == 50.0
    assert sweep.points["value"].tolist() == [2, 8, 12]
    np.testing.assert_allclose(sweep.points["mean"], [32.0, 20.0, 11.0])
    np.testing.assert_allclose(sweep.points["std"], [2 * 2**0.5, 0.0, 2**0.5], atol=1e-9)


def test_a_second_swept_value_makes_a_line_each(runs_dir, cell):
    for lr in (0.1, 0.2, 0.4):
        for weight in (0, 1):
            cell("paid", {"noise": lr}, hyperparameters={"lr": lr, "weight": weight})
    (sweep,) = sweeps(only_group(runs_dir))
    assert sweep.key == "lr"
    assert sorted(set(sweep.points["line"])) == ["paid weight=0", "paid weight=1"]


def test_a_switch_beside_the_swept_value_makes_a_line_each(runs_dir, cell):
    for samples in (50, 100, 300):
        for is_on in (False, True):
            settings = {"source_samples": samples, "entropy_filter": is_on}
            cell("paid", {"noise": 0.1 + 0.2 * is_on}, hyperparameters=settings)
    (sweep,) = sweeps(only_group(runs_dir))
    lines = sweep.points.groupby("line")["mean"].unique().to_dict()
    assert {line: means.tolist() for line, means in lines.items()} == {
        "paid entropy_filter=false": [pytest.approx(10)],
        "paid entropy_filter=true": [pytest.approx(30)],
    }


def test_two_values_and_words_make_no_curve(runs_dir, cell):
    for rank, layers in ((2, "qv"), (4, "qk"), (4, "qkv")):
        cell("paid", {"noise": 0.1}, hyperparameters={"rank": rank, "layers": layers})
    assert sweeps(only_group(runs_dir)) == []


def test_a_row_without_the_value_is_no_point_and_no_value(runs_dir, cell):
    cell("paid", {"noise": 0.3}, hyperparameters={}, preset="bare")
    for preset, lr in (("default", 0.1), ("published", 0.2)):
        cell("paid", {"noise": lr}, hyperparameters={"lr": lr, "steps": 1}, preset=preset)
    assert sweeps(only_group(runs_dir)) == []
    cell("paid", {"noise": 0.1}, hyperparameters={"lr": 0.4, "steps": 1}, preset="third")
    (sweep,) = sweeps(only_group(runs_dir))
    assert (set(sweep.points["line"]), len(sweep.points)) == ({"paid"}, 3)


def test_batch_sizes_of_one_protocol_stand_in_one_figure(runs_dir, cell):
    for size, rate in ((1, 0.9), (4, 0.5), (16, 0.2)):
        cell("tent", {"noise": rate}, batch_size=size)
        cell("source", {"noise": 0.4}, batch_size=size)
    cell("tent", {"noise": 0.7}, batch_size=16, severity=3)
    (sweep,) = batch_size_sweeps(load(runs_dir))
    tent = sweep.points[sweep.points["line"] == "tent"]
    assert tent["value"].tolist() == [1, 4, 16]
    np.testing.assert_allclose(tent["mean"], [90.0, 50.0, 20.0])


def test_a_table_of_a_sweep_follows_the_swept_value_with_source_first(runs_dir, cell):
    for rank, rate in ((12, 0.1), (2, 0.3), (4, 0.2), (8, 0.4)):
        cell("paid", {"noise": rate}, hyperparameters={"rank": rank})
    cell("source", {"noise": 0.5})
    cell("tent", {"noise": 0.15})
    cell("sar", {"noise": 0.45})
    assert list(main_table(only_group(runs_dir)).frame.index) == [
        "source",
        *(f"paid rank={rank}" for rank in (2, 4, 8, 12)),
        "tent",
        "sar",
    ]


def test_a_long_title_stays_inside_its_figure(tmp_path):
    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    figure.subplots()
    text = "fashion_c, continual, severity 5 – fashion_vit (a1295d7b), pre-processing W"
    SCREEN.title(figure, text)
    figure.savefig(tmp_path / "figure.png")
    box = figure._suptitle.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1


def test_the_figure_writes_what_it_draws(runs_dir, cell, tmp_path):
    for rank in (0, 1, 100):
        cell("paid", {"noise": 0.3}, hyperparameters={"rank": rank})
    (sweep,) = sweeps(only_group(runs_dir))
    paths = sweep_figure(sweep, tmp_path / "rank")
    assert [path.suffix for path in paths] == [".png", ".pdf", ".csv"]
    assert pd.read_csv(paths[2])["value"].tolist() == [0, 1, 100]


def test_bars_of_a_sweep_are_the_interval_and_its_text_says_so(cell, runs_dir, tmp_path):
    for lr, rate in ((0.1, 0.4), (0.2, 0.3), (0.3, 0.2)):
        cell("tent", {"fog": rate}, hyperparameters={"lr": lr})
    (group,) = load(runs_dir).groups()
    ((text, (_, _, drawn)),) = swept_figures(group, tmp_path / "trial")
    assert "bars: ± half the 95 % interval, for other images, not for other seeds" in text
    halves = pd.read_csv(drawn)["half_interval"].tolist()
    assert halves == pytest.approx([9.77, 9.14, 7.98], abs=0.01)  # 1.984 sqrt(p (1 - p) / 99)
