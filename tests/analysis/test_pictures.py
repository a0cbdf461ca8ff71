"""What a report shows of segmentation beside its means: classes, pictures, and the paper."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from ctta_bench.analysis.figure.palette import CITYSCAPES, colours_of
from ctta_bench.analysis.figures.classes import class_figure
from ctta_bench.analysis.figures.pictures import (
    BETTER,
    BOTH_WRONG,
    WORSE,
    Frame,
    _width,
    picture_figures,
)
from ctta_bench.analysis.paper.printed import paper_numbers, paper_table, with_paper
from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.report.write import write_report
from ctta_bench.analysis.tables.classes import class_tables
from ctta_bench.analysis.tables.main import main_table
from ctta_bench.datasets.io.street_classes import CLASSES as STREET_CLASSES
from ctta_bench.datasets.io.street_classes import PALETTE
from ctta_bench.errors import ConfigError
from tests.analysis.street_cells import CLASSES, IGNORE, row, write_street_cell

# Classes 0 to 3: road, sky, person, train.
HALF = (row(0, 0, 1, 1), row(0, 1, 1, 1))  # IoU of road 1/2, of sky 2/3
RIGHT = (row(0, 0, 1, 1), row(0, 0, 1, 1))
ONLY_PREDICTED = (row(0, 0, 1, 1), row(0, 0, 1, 3))  # road 1, sky 1/2, train 0
CONDITIONS = ("fog", "night", "rain", "snow")


@pytest.fixture
def streets(runs_dir):
    def write(method, maps, **options):
        return write_street_cell(runs_dir, method, maps, **options)

    return write


def texts(table, label):
    entries = dict(table.lines)[label]
    return dict(zip(table.header[1:], [entry.text for entry in entries], strict=True))


def test_the_colours_are_those_of_cityscapes():
    assert tuple(CITYSCAPES) == STREET_CLASSES
    assert tuple(CITYSCAPES.values()) == PALETTE


def test_a_map_of_other_classes_has_a_colour_for_each_and_black_for_no_label():
    colours = colours_of(["road", "a", "b"])
    assert colours[0].tolist() == [128, 64, 128]
    assert len({tuple(colour) for colour in colours[:3].tolist()}) == 3
    assert colours[IGNORE].tolist() == [0, 0, 0]


def test_iou_by_class_is_tabled_for_each_domain_with_the_count_in_the_mean(streets, runs_dir):
    streets("source", {"fog": [HALF], "night": [ONLY_PREDICTED]})
    streets("tent", {"fog": [RIGHT], "night": [RIGHT]})
    overall, fog, night = class_tables(load(runs_dir))
    assert texts(fog, "Source") == {
        "road": "50.0", "sky": "66.7", "person": "–", "train": "–", "mIoU": "58.3", "classes": "2",
    }  # fmt: skip
    assert texts(night, "Source")["train"] == "0.0"
    assert texts(night, "Source")["classes"] == "3"
    assert texts(night, "Source")["mIoU"] == "50.0"
    # Over both domains where there is one: road 50 and 100, train in the night alone.
    assert overall.frame.loc["source", ["road", "train"]].tolist() == [75, 0]
    assert overall.frame.loc["source", "mIoU"] == pytest.approx((175 / 3 + 50) / 2)
    assert np.isnan(overall.frame.loc["source", "person"])
    assert dict(fog.lines)["TENT"][0].best


def test_a_column_of_equals_has_no_best(streets, runs_dir):
    streets("source", {"fog": [HALF]})
    streets("tent", {"fog": [HALF]})
    fog = class_tables(load(runs_dir))[1]
    assert not any(entry.best for _, entries in fog.lines for entry in entries)


def test_a_footnote_counts_the_classes_in_the_mean(streets, runs_dir):
    streets("source", {"fog": [HALF], "night": [HALF]})
    streets("tent", {"fog": [RIGHT], "night": [ONLY_PREDICTED]})
    assert (
        "Classes in the mean, of 4: fog 2 (without person, train); night 2 to 3 (without person; "
        "in some runs without train)." in main_table(load(runs_dir)).footnotes
    )


def test_dots_by_class_leave_their_numbers(streets, runs_dir, tmp_path):
    streets("source", {"fog": [HALF]})
    streets("tent", {"fog": [RIGHT]})
    paths = class_figure(load(runs_dir), tmp_path / "classes")
    assert [path.suffix for path in paths] == [".png", ".pdf", ".csv"]
    drawn = pd.read_csv(paths[2], index_col="class")
    assert list(drawn.index) == list(CLASSES)
    assert drawn["source"].tolist()[:2] == pytest.approx([50, 200 / 3])
    assert drawn["tent"].isna().tolist() == [False, False, True, True]
    assert "Gain in IoU over Source in points" in (tmp_path / "classes.txt").read_text()


def test_classification_has_neither_classes_nor_pictures(cell, runs_dir, tmp_path):
    cell("tent", {"fog": 0.2})
    runs = load(runs_dir)
    assert class_tables(runs) == []
    assert class_figure(runs, tmp_path / "x") == []
    assert picture_figures(runs, tmp_path / "x") == []


def large(label, prediction):
    """A pair of 20 x 30 maps of one class each."""
    return np.full((20, 30), label), np.full((20, 30), prediction)


def test_pictures_show_every_method_beside_the_truth_in_its_colours(streets, runs_dir, tmp_path):
    streets("source", {"fog": [large(1, 2)] * 3, "night": [large(1, 1)] * 3})
    streets("tent", {"fog": [large(1, 3)] * 3, "night": [large(1, 1)] * 3})
    (text, fog), (_, night) = picture_figures(load(runs_dir), tmp_path / "streets")
    assert [path.name for path in fog] == [
        f"streets-pictures-fog{ending}" for ending in (".png", ".pdf", ".csv")
    ]
    assert "fog, the first 2 pictures of the first round" in text
    numbers = pd.read_csv(fog[2])
    assert numbers["method"].tolist() == ["source", "tent"] * 2
    assert numbers["miou"].tolist() == [0] * 4
    assert pd.read_csv(night[2])["miou"].tolist() == [100] * 4
    drawn = (imread(fog[0])[..., :3] * 255).round().astype(int)
    # Sky is the truth, person the prediction of source; TENT is wrong as well.
    shares = [
        (drawn == colour).all(-1).mean()
        for colour in (CITYSCAPES["sky"], CITYSCAPES["person"], BOTH_WRONG)
    ]
    assert min(shares) > 0.1
    assert "The same as source in picture" not in text


def a_frame(label, *predictions):
    names = ["source", "tent", "sar"]
    kept = [SimpleNamespace(method=name, name=name, label=name.upper()) for name in names]
    mious = [100 * float((np.array(p) == label).mean()) for p in predictions]
    maps = [np.array(p, np.uint8) for p in predictions]
    image = np.zeros((*np.shape(label), 3), np.uint8)
    return Frame(0, image, np.array(label, np.uint8), kept[: len(maps)], maps, mious)


def test_a_difference_shows_where_a_method_is_right_or_wrong_other_than_source():
    frame = a_frame([[0, 1, 2, 3, IGNORE]], [[0, 0, 2, 0, 0]], [[0, 1, 0, 1, 1]])
    (picture,) = frame.difference(1)
    white = (255, 255, 255)
    assert list(map(tuple, picture.tolist())) == [white, BETTER, WORSE, BOTH_WRONG, white]


def test_a_method_that_equals_source_has_no_panel_and_a_tie_has_no_winner():
    label, wrong = [[0, 1]], [[0, 0]]
    alike = a_frame(label, wrong, wrong)
    assert (alike.differing, alike.best, alike.num_panels) == ([], None, 3)
    tie = a_frame(label, wrong, label, label)
    assert (tie.differing, tie.best, tie.num_panels) == ([1, 2], None, 5)
    won = a_frame(label, wrong, label, wrong)
    assert (won.differing, won.best, won.num_panels) == ([1], 1, 5)


def test_the_text_names_the_methods_that_equal_source(streets, runs_dir, tmp_path):
    maps = {"fog": [large(1, 2)] * 3}
    streets("source", maps)
    streets("tent", maps)
    streets("sar", {"fog": [large(1, 1)] * 3})
    ((text, _),) = picture_figures(load(runs_dir), tmp_path / "streets")
    assert "The same as source in picture 0: TENT; the same as source in picture 1: TENT" in text
    assert text in (tmp_path / "streets-pictures-fog.txt").read_text()


@pytest.mark.parametrize(("panels", "wide"), [(4, 4), (5, 5), (6, 6), (3, 4), (12, 4), (10, 5)])
def test_panels_leave_as_few_empty_places_as_can_be(panels, wide):
    assert _width(panels) == wide


def test_pictures_that_not_all_kept_are_left_out_and_said(streets, runs_dir, tmp_path):
    maps = {"fog": [HALF, RIGHT, HALF]}
    streets("source", maps)
    streets("tent", maps, order=[1, 2, 0])  # kept 1 and 2, source 0 and 1
    streets("sar", maps, pictures=False)
    ((text, paths),) = picture_figures(load(runs_dir), tmp_path / "streets")
    assert set(pd.read_csv(paths[2])["picture"]) == {1}
    assert text.endswith("Not shown, without pictures: SAR")


def test_the_page_has_classes_and_pictures(streets, runs_dir):
    streets("source", [{"fog": [HALF], "night": [RIGHT]}] * 2)
    streets("tent", [{"fog": [RIGHT], "night": [RIGHT]}] * 2)
    report = write_report(runs_dir)
    page = report.page.read_text()
    assert "IoU by class in each of 2 domains" in page
    assert '<figure class="pictures" id="figure-' in page
    assert '<th class="over" scope="colgroup" colspan="3">round 1</th>' in page
    names = {path.name.rsplit("-", 1)[-1] for path in (*report.table_files, *report.figure_files)}
    assert {"classes.csv", "fog.md", "night.tex", "fog.png", "night.pdf", "rounds.tex"} <= names


def acdc(streets, methods=("source", "paid"), rounds=3, **options):
    maps = [{name: [HALF] for name in CONDITIONS}] * rounds
    for method in methods:
        streets(method, maps, benchmark="cityscapes_acdc", pictures=False, **options)


def test_the_paper_stands_beside_our_acdc_with_its_errata(streets, runs_dir):
    acdc(streets, ("source", "paid", "pseudo_label", "sar"))
    runs = load(runs_dir)
    table = with_paper(main_table(runs), runs)
    assert texts(table, "PAID")["paper"] == "62.2"
    assert texts(table, "PAID")["paper gain"] == "+5.5"
    assert texts(table, "SAR")["paper gain"] == "+0.3"
    assert texts(table, "Pseudo-label")["paper"] == "–"
    notes = "\n".join(table.footnotes)
    assert (
        "Erratum of the paper, PAID: mean: 62.2 is printed, the printed cells give 61.9." in notes
    )
    assert "SAR: 67.8 for snow in round 2 is most likely a slip for 57.8" in notes
    assert "not measured here" in notes
    assert "Erratum of the paper, Source" not in notes


def test_the_paper_is_quoted_by_round_and_condition(streets, runs_dir):
    acdc(streets)
    table = paper_table(load(runs_dir))
    assert [label for label, _ in table.lines] == ["Source", "Source, paper", "PAID", "PAID, paper"]
    quoted = dict(zip(table.heads[1:], table.frame.loc["paid, paper"], strict=True))
    assert quoted["round 1 Fog"] == 69.6
    assert quoted["round 3 Night"] == 46.9
    assert quoted["round 2 mean"] == 61.7
    assert quoted["all rounds mean"] == 62.2
    assert table.frame.loc["paid", "round 1 fog"] == pytest.approx(175 / 3)


@pytest.mark.parametrize("other", [{"rounds": 2}, {"setting": "reset"}])
def test_another_protocol_has_no_numbers_in_the_paper(streets, runs_dir, other):
    acdc(streets, ("source",), **other)
    runs = load(runs_dir)
    assert paper_numbers(runs) is None
    assert paper_table(runs) is None
    assert "The paper has no numbers for Cityscapes → ACDC" in "".join(
        with_paper(main_table(runs), runs).footnotes
    )


def test_a_row_told_apart_by_its_hyperparameters_has_no_number_in_the_paper(streets, runs_dir):
    for rank in (2, 12):
        acdc(streets, ("paid",), hyperparameters={"rank": rank})
    runs = load(runs_dir)
    table = with_paper(main_table(runs), runs)
    assert texts(table, "PAID (rank=2)")["paper"] == "–"


def test_a_report_against_the_paper_says_so_and_nothing_else_is_known(streets, runs_dir):
    acdc(streets)
    report = write_report(runs_dir, against="paper")
    assert any(path.name.endswith("-paper.tex") for path in report.table_files)
    assert "Compared with the paper" in report.page.read_text()
    with pytest.raises(ConfigError, match="'peer': choose 'paper'"):
        write_report(runs_dir, against="peer")
