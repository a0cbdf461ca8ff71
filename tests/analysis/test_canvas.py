"""Figures for a screen and for one and two columns of a paper."""

import numpy as np
import pytest
from matplotlib.text import Text

from ctta_bench.analysis.figure import canvas as canvas_module
from ctta_bench.analysis.figure.canvas import COLUMN_WIDTHS, SCREEN, Canvas
from ctta_bench.analysis.figures.means import mean_figure
from ctta_bench.analysis.figures.ranks import rank_figure
from ctta_bench.analysis.figures.rounds import round_figure
from ctta_bench.analysis.figures.stream import stream_figure
from ctta_bench.analysis.figures.sweeps import sweep_figure, sweeps
from ctta_bench.analysis.figures.tradeoff import tradeoff_figure
from ctta_bench.analysis.paper.settings import settings_figure
from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.report.contents import made_figures
from ctta_bench.analysis.tables.ranks import all_ranks
from ctta_bench.errors import ConfigError

SMALLEST = 6.0  # points that are still read in print
DOMAINS = ("gaussian_noise", "fog", "snow", "frost", "contrast")
COMPONENTS = ("magnitude", "direction", "orthogonal", "magnitude_orthogonal")


@pytest.fixture(scope="module")
def runs(write, tmp_path_factory):
    """Three rounds of five domains for source, four settings of PAID, and a sweep of ranks."""
    folder = tmp_path_factory.mktemp("runs")
    rounds = [{name: 0.1 * k + 0.1 for k, name in enumerate(DOMAINS)}] * 3
    write(folder, "source", rounds, n=20)
    for place, component in enumerate(COMPONENTS):
        rates = [dict.fromkeys(DOMAINS, 0.05 * (place + 1))] * 3
        cost = {"seconds": 10.0 + place, "trainable_parameters": 100 * place}
        write(folder, "paid", rates, n=20, cost=cost, hyperparameters={"component": component})
    for rank in (2, 4, 8):
        write(folder, "lora", rounds, n=20, hyperparameters={"rank": rank})
    return load(folder)


DRAWN = {
    "means": mean_figure,
    "stream": stream_figure,
    "rounds": round_figure,
    "tradeoff": tradeoff_figure,
    "settings": settings_figure,
    "ranks": lambda runs, stem, canvas: rank_figure(all_ranks(runs)[0], stem, canvas),
    "sweep": lambda runs, stem, canvas: sweep_figure(sweeps(runs)[0], stem, canvas),
}


def draw(name, runs, tmp_path, monkeypatch, canvas):
    """The figure itself, laid out as it is saved."""
    made = []
    monkeypatch.setattr(DRAWN_IN[name], lambda figure, *_: made.append(figure) or [])
    with canvas.drawing():
        DRAWN[name](runs, tmp_path / name, canvas)
        (figure,) = made
        figure.draw_without_rendering()
    return figure


DRAWN_IN = {
    "means": "ctta_bench.analysis.figures.means.save_figure",
    "stream": "ctta_bench.analysis.figures.stream.save_figure",
    "rounds": "ctta_bench.analysis.figures.rounds.save_figure",
    "tradeoff": "ctta_bench.analysis.figures.tradeoff.save_figure",
    "settings": "ctta_bench.analysis.paper.settings.save_figure",
    "ranks": "ctta_bench.analysis.figures.ranks.save_figure",
    "sweep": "ctta_bench.analysis.figures.sweeps.save_figure",
}


def texts(figure):
    return [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("name", DRAWN)
def test_on_paper_a_figure_has_its_final_width_and_text_that_can_be_read(
    name, columns, runs, tmp_path, monkeypatch
):
    figure = draw(name, runs, tmp_path, monkeypatch, Canvas(columns))
    assert figure.get_figwidth() == COLUMN_WIDTHS[columns]
    assert figure.get_figheight() <= 9  # a page
    assert min(text.get_fontsize() for text in texts(figure)) >= SMALLEST
    assert figure._suptitle is None
    box = figure.get_tightbbox()  # in inches: nothing is cut
    assert box.x0 >= -0.01 and box.x1 <= figure.get_figwidth() + 0.01
    assert box.y0 >= -0.01 and box.y1 <= figure.get_figheight() + 0.01
    heights = [axes.get_position().height * figure.get_figheight() for axes in figure.axes]
    assert min(heights) > 0.9  # inches: a legend leaves room for the curves
    if name in ("rounds", "stream", "sweep"):  # and so do names, whatever their length
        widths = [axes.get_position().width * figure.get_figwidth() for axes in figure.axes]
        assert min(widths) > 0.55 * figure.get_figwidth()


@pytest.fixture(scope="module")
def many(write, tmp_path_factory):
    """Fifty methods, some of them with long names."""
    folder = tmp_path_factory.mktemp("many")
    write(folder, "source", dict.fromkeys(DOMAINS, 0.6), n=20)
    for place in range(49):
        cost = {"seconds": 10.0 + place, "trainable_parameters": 100 * place}
        name = f"a_method_with_a_long_name_{place}"
        write(folder, name, dict.fromkeys(DOMAINS, 0.01 * place), n=20, cost=cost)
    return load(folder)


@pytest.mark.parametrize("name", ["means", "stream", "tradeoff", "ranks"])
def test_on_a_screen_fifty_methods_fit_into_a_figure(name, many, tmp_path, monkeypatch):
    figure = draw(name, many, tmp_path, monkeypatch, SCREEN)
    box = figure.get_tightbbox()
    assert box.x0 >= -0.01 and box.x1 <= figure.get_figwidth() + 0.01
    assert box.y0 >= -0.01 and box.y1 <= figure.get_figheight() + 0.01
    widths = [axes.get_position().width * figure.get_figwidth() for axes in figure.axes]
    assert min(widths) > 2.0


def test_on_a_screen_a_figure_has_a_title(runs, tmp_path, monkeypatch):
    figure = draw("means", runs, tmp_path, monkeypatch, SCREEN)
    assert figure._suptitle.get_text().startswith("mini_c, Continual")


def test_fonts_are_embedded_as_they_are(tmp_path):
    with Canvas(1).drawing():
        figure = Canvas(1).figure((5, 3), 2.0)
        figure.subplots().set_xlabel("error in %")
        _, pdf, _ = canvas_module.save_figure(figure, canvas_module.pd.DataFrame(), tmp_path / "f")
    content = pdf.read_bytes()
    assert b"/FontFile2" in content and b"/Subtype /Type3" not in content
    width = float(content.split(b"/MediaBox [ 0 0 ")[1].split()[0])
    assert np.isclose(width, 72 * COLUMN_WIDTHS[1])


def test_three_columns_are_refused():
    with pytest.raises(ConfigError, match="1 or 2 columns"):
        Canvas(3)


@pytest.mark.parametrize(
    "columns", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (None, 2))]
)
@pytest.mark.parametrize(
    "methods", [("source",), ("tent",), pytest.param(("source", "tent"), marks=pytest.mark.slow)]
)
def test_one_or_two_methods_have_room_in_every_figure(methods, columns, cell, runs_dir):
    for method in methods:
        cell(method, [{"fog": 0.3, "snow": 0.2}] * 3, n=20)
    (group,) = load(runs_dir).groups()
    drawn = made_figures(group, runs_dir / "x", Canvas(columns))  # a warning would be an error
    assert [figure.entry for figure in drawn] == ["means", "rounds", "stream"]
