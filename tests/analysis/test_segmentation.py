"""Cells of segmentation: their mIoU recounted, tabled, tested and kept apart from errors."""

import json

import numpy as np
import pandas as pd
import pytest

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.read.measure import metric_named
from ctta_bench.analysis.read.statistics import paired_difference
from ctta_bench.analysis.report.write import write_report
from ctta_bench.analysis.tables.main import main_table, round_table, significance_table
from ctta_bench.errors import RunError
from tests.analysis.street_cells import IGNORE, row, scores, write_street_cell

pytestmark = pytest.mark.usefixtures("undrawn")

# Classes 0 to 3. Labels 0 0 1 1; predictions 0 1 1 1: IoU of 0 is 1/2, of 1 is 2/3.
HALF = (row(0, 0, 1, 1), row(0, 1, 1, 1))
RIGHT = (row(0, 0, 1, 1), row(0, 0, 1, 1))
ONLY_PREDICTED = (row(0, 0, 1, 1), row(0, 0, 1, 3))  # IoU 1, 1/2 and 0 for class 3
UNLABELLED = (row(*[IGNORE] * 4), row(0, 1, 0, 1))
HALF_MIOU = 100 * (1 / 2 + 2 / 3) / 2
ONLY_PREDICTED_MIOU = 100 * (1 + 1 / 2 + 0) / 3


@pytest.fixture
def streets(runs_dir):
    def write(method, maps, **options):
        return write_street_cell(runs_dir, method, maps, **options)

    return write


def values(runs, metric):
    found = runs.results[runs.results["metric"] == metric]
    return dict(zip(found["domain"], found["value"], strict=True))


def entry(table, label, head):
    return dict(table.lines)[label][table.heads.index(head) - 1].text


def test_results_have_miou_and_the_iou_of_each_class_by_domain(streets, runs_dir):
    streets("tent", {"fog": [HALF], "night": [ONLY_PREDICTED]})
    runs = load(runs_dir)
    assert runs.left_out == []
    assert values(runs, "miou") == pytest.approx({"fog": HALF_MIOU, "night": ONLY_PREDICTED_MIOU})
    assert values(runs, "iou/road") == {"fog": 50, "night": 100}
    assert values(runs, "iou/train")["night"] == 0
    assert np.isnan(values(runs, "iou/train")["fog"])
    assert values(runs, "pixel_accuracy") == {"fog": 75, "night": 75}
    assert runs.cells["metric"].tolist() == ["miou"]


def test_the_confusion_of_a_domain_is_summed_before_its_iou_is_taken(streets, runs_dir):
    streets("tent", {"fog": [HALF, RIGHT, UNLABELLED]})
    # Summed: 3 of 4 hits for class 0 (union 4), 4 for class 1 (union 5).
    assert values(load(runs_dir), "miou")["fog"] == pytest.approx(100 * (3 / 4 + 4 / 5) / 2)


def test_a_pixel_without_a_valid_prediction_is_wrong_for_its_label_alone(streets, runs_dir):
    streets("tent", {"fog": [(row(0, 0, 1), row(0, -1, 1))]}, pictures=False)
    assert values(load(runs_dir), "miou")["fog"] == pytest.approx(75)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: r["rounds"][0]["domains"][0].update(pixels=3), "3 pixels in 1 images in"),
        (lambda r: r["rounds"][0]["domains"][0].update(n=2), "4 pixels in 2 images in"),
        (
            lambda r: r["rounds"][0]["domains"][0].update(miou=60.0),
            "miou is 60.0 % in result.json, but 58.33 %",
        ),
        (lambda r: r["rounds"][0]["domains"][0].update(miou=None), "miou is None"),
        (lambda r: r.update(mean=50.0), "the mean is 50.0 in result.json, but 58.33"),
        (lambda r: r.update(mean=None), "the mean is None"),
        (lambda r: r.update(classes=["road"]), "4 classes, result.json has 1"),
        (
            lambda r: r.update(metric="error"),
            "the metric of result.json is error, that of the benchmark",
        ),
        (lambda r: r.update(metric="dice"), "the metric 'dice'"),
    ],
)
def test_a_contradictory_result_is_left_out(streets, runs_dir, edit_json, change, reason):
    edit_json(streets("tent", {"fog": [HALF]}) / "result.json", change)
    ((_, said),) = load(runs_dir).left_out
    assert reason in said


def test_a_domain_without_a_labelled_pixel_is_not_in_the_mean_and_is_named(streets, runs_dir):
    streets("source", {"fog": [HALF], "night": [UNLABELLED]})
    streets("tent", {"fog": [RIGHT], "night": [UNLABELLED]})
    table = main_table(load(runs_dir))
    assert table.frame.loc["source", "mean"] == pytest.approx(HALF_MIOU)
    assert entry(table, "Source", "night") == "n/a"
    assert any("no labelled pixel in night" in note for note in table.footnotes)
    assert table.frame.loc["tent", "gain"] == pytest.approx(100 - HALF_MIOU)


def test_higher_is_better_for_order_marks_and_gain(streets, runs_dir):
    streets("source", {"fog": [ONLY_PREDICTED]})
    streets("worse", {"fog": [(row(0, 0, 1, 1), row(1, 1, 0, 0))]})
    streets("better", {"fog": [RIGHT]})
    table = main_table(load(runs_dir))
    assert list(table.frame.index) == ["source", "better", "worse"]
    assert dict(table.lines)["better"][0].best
    assert dict(table.lines)["Source"][0].second
    assert entry(table, "better", "gain") == "+50.0"
    assert entry(table, "worse", "gain") == "−50.0"
    assert "MIoU" not in table.caption
    assert "mIoU in % (higher is better)" in table.caption
    assert "Gain: method minus source" in table.caption


def test_the_caption_states_scale_inference_and_batch_size(streets, runs_dir):
    streets("source", [{"fog": [HALF]}] * 3, scale=(540, 960))
    caption = main_table(load(runs_dir)).caption
    for part in (
        "streets_mini, Continual – SegFormer-B0",
        "batch size 1",
        "3 rounds",
        "seed 0",
        "images of 540 x 960 (height x width)",
        "inference whole: bilinear logits, then argmax, at label size",
    ):
        assert part in caption
    assert "task" not in caption


def test_another_scale_is_another_table(streets, runs_dir):
    streets("source", {"fog": [HALF]}, scale=(540, 960))
    streets("tent", {"fog": [HALF]}, scale=(270, 480))
    assert len(load(runs_dir).groups()) == 2


def test_rounds_and_domains_stand_in_one_table_as_papers_print_it(streets, runs_dir):
    streets("source", [{"fog": [HALF], "night": [RIGHT]}, {"fog": [RIGHT], "night": [RIGHT]}])
    table = round_table(load(runs_dir))
    assert table.header == (
        "method",
        "fog",
        "night",
        "mean",
        "fog",
        "night",
        "mean",
        "mean",
        "gain",
    )
    assert table.spans == (("", 1), ("round 1", 3), ("round 2", 3), ("all rounds", 2))
    first = (HALF_MIOU + 100) / 2
    assert entry(table, "Source", "round 1 fog") == f"{HALF_MIOU:.1f}"
    assert table.frame.loc["source", "round 1"] == pytest.approx(first)
    assert table.frame.loc["source", "mean"] == pytest.approx((first + 100) / 2)
    assert r"& \multicolumn{3}{c}{round 1} & \multicolumn{3}{c}{round 2} &" in table.to_latex()
    assert r"\cmidrule(lr){2-4}\cmidrule(lr){5-7}" in table.to_latex()
    assert "| method | round 1 fog |" in table.to_markdown()


def test_ten_rounds_are_tabled_by_their_means(streets, runs_dir):
    streets("source", [{"fog": [HALF], "night": [RIGHT]}] * 10)
    assert round_table(load(runs_dir)).header[:3] == ("method", "round 1", "round 2")


def noisy(rate, seed, images=30):
    """Images of 40 pixels of three classes of which a share is predicted wrong."""
    labels = np.random.default_rng(0).integers(0, 3, (images, 1, 40))
    wrong = np.random.default_rng(seed).random(labels.shape) < rate
    return list(zip(labels, np.where(wrong, (labels + 1) % 3, labels), strict=True))


def test_a_clear_difference_in_miou_excludes_zero(streets):
    a = streets("tent", {"fog": noisy(0.1, 1), "night": noisy(0.1, 2)})
    b = streets("source", {"fog": noisy(0.4, 3), "night": noisy(0.4, 4)})
    mean_a, mean_b = (json.loads((run / "result.json").read_text())["mean"] for run in (a, b))
    found = paired_difference([a], [b], metric="miou")
    assert found.mean == pytest.approx(mean_a - mean_b)
    assert 0 < found.low < found.mean < found.high
    assert found.p < 0.001


def test_the_interval_is_that_of_images_drawn_one_by_one(streets):
    pairs_a, pairs_b = noisy(0.2, 1, 12), noisy(0.3, 2, 12)
    a, b = streets("tent", {"fog": pairs_a}), streets("source", {"fog": pairs_b})
    generator = np.random.default_rng(7)
    differences = []
    for _ in range(4000):
        drawn = generator.integers(0, 12, 12)
        differences.append(slow_miou(pairs_a, drawn) - slow_miou(pairs_b, drawn))
    found = paired_difference([a], [b], metric="miou")
    unbiased = np.std(differences) * np.sqrt(12 / 11)
    assert found.standard_error == pytest.approx(unbiased, rel=0.05)
    assert found.half_width == pytest.approx(2.201 * unbiased, rel=0.05)  # t of 11 degrees


def slow_miou(pairs, drawn):
    """mIoU over drawn images, from their pixels."""
    label = np.concatenate([pairs[i][0].ravel() for i in drawn])
    said = np.concatenate([pairs[i][1].ravel() for i in drawn])
    return 100 * np.mean(
        [((label == k) & (said == k)).sum() / ((label == k) | (said == k)).sum() for k in range(3)]
    )


def test_rounds_and_seeds_of_an_image_are_drawn_together(streets):
    images, other = noisy(0.2, 1), noisy(0.4, 2)
    once = paired_difference(
        [streets("a", {"fog": images})], [streets("b", {"fog": other})], metric="miou"
    )
    again = paired_difference(
        [streets("c", [{"fog": images}] * 2, seed=s, order=range(29, -1, -1)) for s in (0, 1)],
        [streets("d", [{"fog": other}] * 2, seed=s) for s in (0, 1)],
        metric="miou",
    )
    assert (again.mean, again.low, again.high) == pytest.approx((once.mean, once.low, once.high))


def test_runs_on_other_images_cannot_be_paired(streets):
    a, b = streets("a", {"fog": [HALF]}), streets("b", {"fog": [HALF, HALF]})
    with pytest.raises(RunError, match="did not see the same images"):
        paired_difference([a], [b], metric="miou")


def test_the_table_of_significance_says_which_sign_is_good(streets, runs_dir):
    streets("source", {"fog": noisy(0.4, 1)})
    streets("tent", {"fog": noisy(0.1, 2)})
    table = significance_table(load(runs_dir))
    assert (
        "mean mIoU of the method minus that of Source, in points (positive: the method is better)"
        in table.caption
    )
    assert table.frame.loc["tent", "difference"] > 0
    assert dict(table.lines)["TENT"][0].best


def test_classification_and_segmentation_are_never_averaged_together(streets, cell, runs_dir):
    for method, rate, maps in (("source", 0.5, HALF), ("tent", 0.2, RIGHT)):
        cell(method, {"fog": rate})
        streets(method, {"fog": [maps]})
    report = write_report(runs_dir)
    means = {table.caption.split(",")[0]: table.frame["mean"].to_dict() for table in report.tables}
    assert means == {
        "mini_c": {"source": 50, "tent": 20},
        "streets_mini": {"source": pytest.approx(HALF_MIOU), "tent": 100},
    }
    results = pd.read_csv(report.results)
    assert set(results.loc[results["benchmark"] == "mini_c", "metric"]) == {
        "error", "class_error", "ece", "nll", "brier",
    }  # fmt: skip
    page = report.page.read_text()
    assert "TENT is better than Source by 30.0 points [" in page
    assert "No method differs from Source (best: TENT, +" in page  # a single image


def test_an_unfinished_cell_of_segmentation_knows_its_metric(streets, runs_dir):
    streets("tent", {"fog": [HALF]}, unfinished=True)
    assert load(runs_dir).cells["metric"].tolist() == ["miou"]
    assert "mIoU in %" in main_table(load(runs_dir)).caption


def test_a_gain_is_positive_where_the_method_is_better():
    assert metric_named("error").gain(50, 20) == 30
    assert metric_named("miou").gain(50, 20) == -30


def test_the_writer_of_these_cells_counts_as_by_hand():
    matrix = np.array([[1, 1, 0, 0, 0], [0, 2, 0, 0, 0], [0] * 5, [0] * 5])
    assert scores(matrix)["iou"] == [50, 100 * 2 / 3, None, None]


def test_a_batch_without_a_labelled_pixel_is_a_gap_in_the_curve_of_the_page(streets, runs_dir):
    streets("tent", {"fog": [HALF, UNLABELLED], "night": [UNLABELLED, RIGHT]})
    assert "null" in write_report(runs_dir).page.read_text().partition('"lines":')[2][:200]
