"""Methods by settings of the stream: a table of means, and a figure of gains."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from ctta_bench.analysis.figure.canvas import COLUMN_WIDTHS, Canvas
from ctta_bench.analysis.figures import by_setting
from ctta_bench.analysis.figures.by_setting import gains, setting_figures
from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.report.write import write_report
from ctta_bench.analysis.table.notes import title
from ctta_bench.analysis.tables import leaderboard
from ctta_bench.analysis.tables.by_setting import setting_tables, settings_of
from ctta_bench.cli import app


@pytest.fixture
def under(cell):
    """Write a cell under a setting, with one version of the benchmark's images."""

    def write(method, error, setting="continual", version=1, **settings):
        folder = cell(method, {"fog": error, "snow": error}, **settings)
        record = yaml.safe_load((folder / "cell.yaml").read_text())
        record["benchmark"] |= {"setting": setting, "version": version}
        named = folder.with_name(f"{folder.name}-{setting}-{version}")
        record["id"] = named.name
        (folder / "cell.yaml").write_text(yaml.safe_dump(record))
        result = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps(result | {"cell": named.name}))
        folder.rename(named)

    return write


def test_each_setting_is_a_column_and_rows_go_by_their_mean_rank(under, runs_dir):
    for setting, errors in (("continual", (0.3, 0.2)), ("mixed", (0.4, 0.1))):
        under("source", errors[0], setting)
        under("tent", errors[1], setting)
    (table,) = setting_tables(load(runs_dir))
    assert table.header == ("method", "Continual", "Mixed domains")
    assert list(table.frame.index) == ["tent", "source"]
    assert table.frame.to_numpy() == pytest.approx(np.array([[20, 10], [30, 40]]))
    assert [entry.best for entry in table.lines[0][1]] == [True, True]
    assert table.footnotes == ()


def test_batch_sizes_tell_columns_of_one_setting_apart(under, runs_dir):
    for size in (200, 10, 1, 20):
        under("tent", 0.3, batch_size=size)
    for setting in ("correlated", "mixed", "reset", "gradual"):
        under("tent", 0.4, setting)
    (table,) = setting_tables(load(runs_dir))
    assert table.header[1:5] == (
        "Continual, batch 1", "Continual, batch 10", "Continual", "Continual, batch 200",
    )  # fmt: skip
    assert "Where a head says nothing else: batch 20. " in table.caption


def test_a_head_has_the_severities_of_a_gradual_stream(under, runs_dir):
    for setting in ("continual", "correlated", "mixed"):
        under("tent", 0.3, setting)
    under("tent", 0.4, "gradual")
    for file in runs_dir.rglob("*gradual*/cell.yaml"):
        record = yaml.safe_load(file.read_text())
        record["benchmark"]["severity"] = [1, 3, 5, 3, 1]
        file.write_text(yaml.safe_dump(record))
    runs = load(runs_dir)
    (table,) = setting_tables(runs)
    assert "Gradual, severities 1-3-5-3-1" in table.header
    (group,) = (g for g in runs.groups() if g.cells["setting"].iloc[0] == "gradual")
    assert "Gradual, severities 1-3-5-3-1 – " in title(group)


def test_a_method_without_a_result_under_a_setting_is_told(under, runs_dir):
    under("tent", 0.2)
    under("tent", 0.3, "mixed")
    under("paid", 0.1)
    (table,) = setting_tables(load(runs_dir))
    assert list(table.frame.index) == ["paid", "tent"]
    assert table.lines[0][1][1].text == "–"
    assert table.footnotes == ("PAID: no complete result under Mixed domains.",)


def test_a_method_without_any_result_has_no_row(under, runs_dir):
    under("tent", 0.2)
    under("tent", 0.3, "mixed")
    under("paid", 0.1)
    (file,) = runs_dir.rglob("paid*/result.json")
    file.unlink()
    (table,) = setting_tables(load(runs_dir))
    assert list(table.frame.index) == ["tent"]
    assert table.footnotes == ("No complete result: PAID.",)


def test_one_setting_makes_no_table(under, runs_dir):
    under("tent", 0.2)
    under("tent", 0.3, batch_size=1)
    assert setting_tables(load(runs_dir)) == []


def test_cells_on_two_versions_of_the_images_share_no_table(under, runs_dir):
    for version in (1, 2):
        for setting in ("continual", "mixed")[: 3 - version]:
            under("source", 0.3, setting, version)
            under("tent", 0.2, setting, version)
    runs = load(runs_dir)
    found = [group.cells["benchmark_version"].tolist() for group in runs.groups()]
    assert sorted(found) == [[1, 1], [1, 1], [2, 2]]
    (table,) = setting_tables(runs)  # of version 1: version 2 has one setting only
    assert table.header == ("method", "Continual", "Mixed domains")


def test_the_figure_has_the_gain_of_each_method_under_each_setting(under, runs_dir, tmp_path):
    for setting, (source, tent, paid) in {
        "continual": (0.3, 0.2, 0.35),
        "mixed": (0.4, 0.1, None),
    }.items():
        under("source", source, setting)
        under("tent", tent, setting)
        if paid is not None:
            under("paid", paid, setting)
    ((text, (png, _, csv)),) = setting_figures(load(runs_dir), tmp_path / "all")
    assert png.exists() and "under each setting" in text
    drawn = pd.read_csv(csv).set_index(["method", "setting"])["gain"]
    assert drawn.round(6).to_dict() == {
        ("TENT", "Continual"): 10, ("TENT", "Mixed domains"): 30, ("PAID", "Continual"): -5,
    }  # fmt: skip
    assert "–: not run." in png.with_suffix(".txt").read_text("utf-8")


@pytest.mark.parametrize("columns", [1, 2])
def test_on_paper_the_figure_is_two_columns_wide_and_nothing_is_cut(
    columns, under, runs_dir, tmp_path, monkeypatch
):
    for setting in ("continual", "mixed", "correlated", "reset"):
        under("source", 0.3, setting)
        under("come_eata", 0.2, setting, batch_size=1)
        under("come_eata", 0.2, setting)
    made = []
    monkeypatch.setattr(by_setting, "save_figure", lambda figure, *_: made.append(figure) or [])
    canvas = Canvas(columns)
    with canvas.drawing():
        setting_figures(load(runs_dir), tmp_path / "all", canvas)
        (figure,) = made
        figure.draw_without_rendering()
    box = figure.get_tightbbox()  # in inches
    assert figure.get_figwidth() == COLUMN_WIDTHS[2]
    assert box.x0 >= -0.01 and box.x1 <= COLUMN_WIDTHS[2] + 0.01
    assert box.y0 >= -0.01 and box.y1 <= figure.get_figheight() + 0.01


def test_a_report_on_mixed_domains_names_its_stream_mixed(tmp_path, toy):
    runs = tmp_path / "runs"
    arguments = ("run", "source", "toy", "--setting", "mixed", "--device", "cpu", "--out", runs)
    done = CliRunner().invoke(app, [*map(str, arguments), "--workers", "0"])
    assert done.exit_code == 0, done.output
    report = write_report(runs)
    assert '"domain":"mixed"' in report.page.read_text("utf-8").replace('": "', '":"')


def test_without_source_there_are_no_gains_to_draw(under, runs_dir, tmp_path):
    under("tent", 0.2)
    under("tent", 0.3, "mixed")
    assert setting_figures(load(runs_dir), tmp_path / "all") == []


def test_times_are_measured_ones_where_some_setting_has_them(under, runs_dir, monkeypatch):
    for setting in ("continual", "mixed"):
        under("source", 0.3, setting)
        under("tent", 0.2, setting)
    (columns,) = settings_of(load(runs_dir))
    assert gains(columns)["time"].tolist() == [1.0, 1.0]  # of the runs

    def measured(rows, source):
        is_continual = source.cells["setting"].iloc[0] == "continual"
        return {row.name: 2.0 for row in rows} if is_continual else {}

    monkeypatch.setattr(by_setting, "measured_times", measured)
    monkeypatch.setattr(leaderboard, "measured_times", measured)
    found = gains(columns).set_index("setting")["time"]
    assert found["Continual"] == 2.0 and np.isnan(found["Mixed domains"])
