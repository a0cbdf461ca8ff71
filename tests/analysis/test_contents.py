"""A table or figure of a report registers itself: one file adds one."""

from pathlib import Path

import pandas as pd
import pytest

from ctta_bench import registry
from ctta_bench.analysis.report.write import write_report
from ctta_bench.errors import ConfigError
from ctta_bench.registry import FIGURES, TABLES, load_plugin

pytestmark = pytest.mark.usefixtures("undrawn")

RATES = {"fog": 0.2, "snow": 0.4}
PLUGIN = '''
"""The widest gap between domains, as a table and a figure."""

import pandas as pd

from ctta_bench.analysis.figure.canvas import save_figure
from ctta_bench.analysis.table.rows import rows
from ctta_bench.analysis.table.table import Entry, Table
from ctta_bench.registry import FIGURES, TABLES


@TABLES.register_module("gap", place=25)
def gap_table(runs):
    """Worst minus best domain of each method."""
    gaps = {row.label: float(row.over(axis=1).max() - row.over(axis=1).min()) for row in rows(runs)}
    return Table(
        name="gap",
        caption="How far domains are apart.",
        frame=pd.DataFrame({"gap": gaps}),
        header=("method", "gap"),
        lines=tuple((label, (Entry(f"{gap:.1f}"),)) for label, gap in gaps.items()),
    )


@FIGURES.register_module("gap", place=5, text="How far domains are apart")
def gap_figure(runs, stem, canvas):
    """The same as a figure."""
    figure = canvas.figure((3, 2), 2)
    figure.subplots().bar(["gap"], [1.0])
    return save_figure(figure, gap_table(runs).frame, stem)
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of a plug-in, which is forgotten after the test."""
    monkeypatch.setattr(registry, "_plugins", {})
    for entries in (TABLES, FIGURES):
        monkeypatch.setattr(entries, "_plugin_entries", {})
    file = tmp_path / "gap.py"
    file.write_text(PLUGIN)
    return str(file)


def test_one_file_adds_a_table_and_a_figure_at_their_places(cell, runs_dir, plugin):
    cell("tent", RATES)
    load_plugin(plugin)
    report = write_report(runs_dir)
    assert pd.read_csv(runs_dir / "report/tables/gap.csv")["gap"].tolist() == [20]
    page = report.page.read_text()
    assert page.index("mini_c, Continual") < page.index("How far domains are apart.")
    assert page.index("How far domains are apart.") < page.index("Calibration:")
    figures = page[page.index('alt="How far domains are apart: ') :]
    assert 'alt="Gain of each method over source' in figures
    assert len([path for path in report.figure_files if path.stem.endswith("-gap")]) == 4


def test_a_name_of_the_report_is_taken_once(plugin, tmp_path):
    other = tmp_path / "other.py"
    other.write_text(
        PLUGIN.replace('TABLES.register_module("gap"', 'TABLES.register_module("cost"')
    )
    with pytest.raises(ConfigError, match=r"tables\.cost has registered already"):
        load_plugin(str(other))


def test_every_table_and_figure_has_a_place_of_its_own():
    for entries in (TABLES, FIGURES):
        found = [entry.attributes for entry in entries.entries().values()]
        places = [(facts.get("of"), facts["place"]) for facts in found]
        assert len(set(places)) == len(places) > 5
        for name in entries.names():
            assert callable(entries.get(name))
