import re

import numpy as np
import pytest

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.read.statistics import mean_estimate
from ctta_bench.analysis.table.rows import domain_labels
from ctta_bench.analysis.table.table import Entry, Table, citation_keys
from ctta_bench.analysis.tables.main import main_table, round_table, significance_table, tables
from ctta_bench.registry import METHODS

SOURCE = {"gaussian_noise": 0.6, "fog": 0.4}
RATES = {"gaussian_noise": 0.4, "fog": 0.2}


def only_table(runs_dir) -> Table:
    found = tables(load(runs_dir))
    assert len(found) == 1
    return found[0]


def entry(table, label, column) -> Entry:
    return dict(table.lines)[label][table.header.index(column) - 1]


def notes(table) -> str:
    return "\n".join(table.footnotes)


def test_means_and_gains_follow_from_the_domains(cell, runs_dir):
    cell("source", SOURCE)
    cell("tent", RATES)
    frame = only_table(runs_dir).frame
    more = ["mean", "micro_mean", "std", "half_interval", "gain", "seeds"]
    assert list(frame.columns) == ["gaussian_noise", "fog", *more]
    assert frame.loc["tent", ["gaussian_noise", "fog", "mean", "gain"]].tolist() == [40, 20, 30, 20]
    assert frame.loc["source", "mean"] == 50
    assert frame.dtypes.map(lambda kind: kind.kind).isin(["f", "i"]).all()


def test_seeds_are_averaged_and_are_a_part_of_the_interval(cell, runs_dir):
    cell("tent", {"fog": 0.2}, seed=0)
    cell("tent", {"fog": 0.4}, seed=1)
    table = only_table(runs_dir)
    assert table.frame.loc["tent", "mean"] == pytest.approx(30)
    assert table.frame.loc["tent", "std"] == pytest.approx(np.sqrt(200))
    estimate = mean_estimate(load(runs_dir).cells["path"].tolist())
    assert entry(table, "TENT", "mean").text == f"30.0 ± {estimate.half_width:.1f}"
    assert "seeds 0, 1" in table.caption
    assert "±: half the 95 % interval, for other images and other seeds" in table.caption


def test_a_single_seed_has_the_interval_of_its_images(cell, runs_dir):
    cell("tent", RATES)
    table = only_table(runs_dir)
    estimate = mean_estimate(load(runs_dir).cells["path"].tolist())
    assert entry(table, "TENT", "mean").text == f"30.0 ± {estimate.half_width:.1f}"
    assert "for other images, not for other seeds (one seed was run)" in table.caption


def test_an_interval_of_no_width_is_not_printed(cell, runs_dir):
    cell("tent", {"fog": 0.0}, n=80)  # no error in 80 images does not mean that there are none
    assert entry(only_table(runs_dir), "TENT", "mean").text == "0.0"


def test_without_a_finished_source_there_is_no_gain(cell, runs_dir):
    cell("source", SOURCE, unfinished=True)
    cell("tent", RATES)
    assert "gain" not in only_table(runs_dir).frame


def test_an_unfinished_method_shows_dashes_its_reason_and_the_command(cell, runs_dir):
    cell("source", SOURCE)
    cell("tent", RATES, unfinished=True)
    cell("sar", RATES, unfinished=True)
    table = only_table(runs_dir)
    assert table.frame.loc["tent", ["gaussian_noise", "fog", "mean", "gain"]].isna().all()
    assert entry(table, "TENT", "mean").text == "–"
    assert "SAR, seed 0; TENT, seed 0 (incomplete: stopped after batch 5 of 10)" in notes(table)
    assert "`ctta-bench grid trial.yaml`" in notes(table)


def test_partly_done_seeds_are_counted_and_never_averaged_in(cell, runs_dir):
    cell("tent", {"fog": 0.2}, seed=0)
    cell("tent", {"fog": 0.8}, seed=1, unfinished=True)
    cell("sar", {"fog": 0.3}, seed=0)
    table = only_table(runs_dir)
    assert table.frame.loc["tent", "mean"] == 20
    assert entry(table, "TENT", "seeds").text == "1/2"
    assert "SAR, seed 1 (not run)" in notes(table)


def test_a_missing_domain_makes_the_mean_missing(cell, runs_dir):
    cell("tent", RATES)
    runs = load(runs_dir)
    without_fog = runs.results[runs.results["domain"] != "fog"]
    table = main_table(type(runs)(runs.cells, without_fog, runs.domains, []))
    assert table.frame.loc["tent", "gaussian_noise"] == 40
    assert np.isnan(table.frame.loc["tent", "mean"])
    assert entry(table, "TENT", "fog").text == "–"


def test_rounds_are_averaged_and_shown_one_by_one(cell, runs_dir):
    cell("tent", [{"x": 0.2, "y": 0.4}, {"x": 0.4, "y": 0.8}])
    runs = load(runs_dir)
    assert main_table(runs).frame.loc["tent", ["x", "y", "mean"]].tolist() == pytest.approx(
        [30, 60, 45]
    )
    assert round_table(runs).frame.loc["tent", ["round 1", "round 2"]].tolist() == pytest.approx(
        [30, 60]
    )


def test_a_single_round_needs_no_table_of_rounds(cell, runs_dir):
    cell("tent", RATES)
    assert round_table(load(runs_dir)) is None


def test_other_weights_of_one_name_are_another_table(cell, runs_dir):
    cell("tent", RATES, sha="a" * 64)
    cell("tent", RATES, sha="b" * 64)
    first, second = tables(load(runs_dir))
    assert {"weights aaaaaaaa" in notes(first), "weights aaaaaaaa" in notes(second)} == {
        True,
        False,
    }
    assert first.caption == second.caption  # without a hash
    assert first.name != second.name


def test_source_stands_first_and_the_rest_from_best_to_worst(cell, runs_dir):
    for method, rate in (("cotta", 0.5), ("paid", 0.2), ("source", 0.3), ("tent", 0.4)):
        cell(method, {"fog": rate})
    assert list(only_table(runs_dir).frame.index) == ["source", "paid", "tent", "cotta"]


def test_the_best_is_bold_the_second_underlined_and_equals_look_equal(cell, runs_dir):
    for method, rate in (("a", 0.20), ("b", 0.20), ("c", 0.30), ("d", 0.40)):
        cell(method, {"fog": rate})
    table = only_table(runs_dir)
    marks = {label: (e.best, e.second) for label, (e, *_) in table.lines}
    assert marks == {
        "a": (True, False),
        "b": (True, False),
        "c": (False, True),
        "d": (False, False),
    }


@pytest.mark.parametrize(
    ("first", "second", "labels"),
    [
        ({"preset": "paper"}, {"preset": "code"}, {"tent (paper)", "tent (code)"}),
        (
            {"hyperparameters": {"lr": 0.1, "m": 0.9}},
            {"hyperparameters": {"lr": 0.2, "m": 0.9}},
            {"tent lr=0.1", "tent lr=0.2"},
        ),
        ({"seed": 0}, {"seed": 1}, {"tent"}),
    ],
)
def test_rows_are_told_apart_by_what_differs(cell, runs_dir, first, second, labels):
    cell("tent", RATES, **first)
    cell("tent", RATES, **second)
    assert set(only_table(runs_dir).frame.index) == labels


def test_a_collapsed_domain_gets_a_dagger_and_a_footnote(cell, runs_dir):
    cell("tent", RATES, collapsed=["fog"])
    table = only_table(runs_dir)
    assert entry(table, "TENT", "fog") == Entry("90.0", flagged=True)
    assert not entry(table, "TENT", "gaussian noise").flagged
    assert "† Collapsed" in notes(table)
    assert "(TENT: fog)" in notes(table)
    assert "90.0†" in table.to_markdown()


def test_the_caption_states_the_protocol(cell, runs_dir):
    cell("tent", RATES)
    caption = only_table(runs_dir).caption
    for part in (
        "mini_c, Continual, severity 5 – mini_vit. ",
        "Normalisation: the checkpoint's own (mean 0.5, std 0.5). ",
        "float32, batch size 20, 100 images per domain, 2 domains, 1 round, seed 0. ",
        "Other settings: order shuffled, size 32 x 32. ",
        "Accuracy of the source model on its source domain (training images): 91.2 %. ",
        "Error in % (lower is better). Mean over domains; ±: half the 95 % interval, ",
        "Bold: best of the column, if at most three are equal; underlined: second best.",
        "Bold mean: the best, and what is not distinguishable from it.",
    ):
        assert part in caption


def test_the_caption_says_of_which_source_images_the_accuracy_is(cell, runs_dir, edit_json):
    folder = cell("tent", RATES)
    edit_json(folder / "result.json", lambda found: found.update(held_out_accuracy=88.7))
    stated = "Accuracy of the source model on its source domain (held-out images): 88.7 %. "
    assert stated in only_table(runs_dir).caption


def test_what_departs_from_the_usual_is_a_footnote(cell, runs_dir):
    env = {"attention": "fused", "corruptions": "self-made, not the published files"}
    cell("tent", RATES, regime="lineage", mean=[0.0] * 3, env=env, counters={"skipped_updates": 3})
    env = {"attention": "plain", "torch": "2.7.1"}
    cell("sar", RATES, regime="lineage", mean=[0.0] * 3, env=env, counters={"resets": 2})
    text = notes(only_table(runs_dir))
    assert "Pre-processing `lineage`" in text
    assert "Self-made, not the published files." in text
    assert "not finite (TENT, seed 0: 3)." in text
    assert "by the method itself (SAR, seed 0: 2)." in text
    assert "The cells differ in torch: 2.6.0 (TENT); 2.7.1 (SAR)." in text
    assert "The cells differ in attention: fused (TENT); plain (SAR)." in text
    assert "Made with timm 1.0.15, weights aaaaaaaa" in text


def test_rows_of_several_codes_data_and_machines_are_footnotes(cell, runs_dir):
    data = {"classes": 10, "domains": {"fog": {"images": 100, "labels": "ab"}}}
    env = {"commit": "abc", "threads": 2, "data": data, "plugin_files": {"mine.py": "1" * 64}}
    cell("tent", RATES, env=env | {"earlier": [{"commit": "000"}]})
    data = {"classes": 10, "domains": {"fog": {"images": 100, "labels": "cd"}}}
    env = {"commit": "abc", "threads": 8, "data": data, "plugin_files": {"mine.py": "2" * 64}}
    cell("sar", RATES, env=env | {"device": "cpu"})
    cell("eata", RATES)  # of an earlier release, without these facts

    text = notes(only_table(runs_dir))

    assert "The cells differ in commit: 000 then abc (TENT); abc (SAR)." in text
    assert "The cells differ in threads: 2 (TENT); 8 (SAR)." in text
    assert re.search(r"fingerprint of the streamed data: \w{8} \(\w+\); \w{8} \(\w+\)\.", text)
    assert "the plug-in file mine.py (SHA-256): 11111111 (TENT); 22222222 (SAR)." in text


def test_another_order_of_images_is_a_footnote(cell, runs_dir, edit_json):
    cell("tent", RATES)
    edit_json(cell("sar", RATES) / "result.json", lambda r: r.update(order_sha256="another"))
    assert "With seed 0 the methods did not see the images in the same order" in notes(
        only_table(runs_dir)
    )


def test_each_method_is_tested_against_source(cell, runs_dir):
    cell("source", SOURCE)
    cell("tent", RATES)
    cell("sar", SOURCE)
    table = significance_table(load(runs_dir))
    assert list(table.frame.index) == ["tent", "sar"]
    assert table.frame.loc["tent", "difference"] == pytest.approx(-20)
    assert table.frame.loc["tent", "p_holm"] == pytest.approx(2 * table.frame.loc["tent", "p"])
    assert 0 < table.frame.loc["tent", "detectable"] < 20
    assert table.frame.loc["sar", ["difference", "p_holm"]].tolist() == [0, 1]
    assert entry(table, "TENT", "difference") == Entry("−20.0", best=True)
    assert not entry(table, "SAR", "difference").best


def test_without_a_seed_in_common_nothing_is_tested(cell, runs_dir):
    cell("source", SOURCE, seed=0)
    cell("tent", RATES, seed=1)
    table = significance_table(load(runs_dir))
    assert table.frame.loc["tent"].isna().all()
    assert table.footnotes == ("TENT: no finished seed in common with Source.",)


def test_without_source_nothing_is_tested(cell, runs_dir):
    cell("tent", RATES)
    assert significance_table(load(runs_dir)) is None


def test_markdown_is_a_github_table(cell, runs_dir):
    cell("source", SOURCE)
    cell("pseudo_label", RATES)
    lines = only_table(runs_dir).to_markdown().splitlines()
    assert lines[2:6] == [
        "| method | gaussian noise | fog | mean | gain |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| Source | <u>60.0</u> | <u>40.0</u> | 50.0 ± 8.9 | 0.0 |",
        "| Pseudo-label | **40.0** | **20.0** | **30.0 ± 8.0** | +20.0 |",
    ]


def test_csv_holds_numbers_alone_and_nothing_where_one_is_missing(cell, runs_dir):
    cell("source", {"fog": 1 / 3}, n=300)
    cell("tent", {"fog": 0.2}, n=300, unfinished=True)
    assert only_table(runs_dir).to_csv() == (
        "method,fog,mean,micro_mean,std,half_interval,gain,seeds\n"
        "source,33.33333333,33.33333333,33.33333333,,5.364975244,0,1\ntent,,,,,,,0\n"
    )


def test_latex_is_a_booktabs_table_with_everything_escaped(cell, runs_dir):
    cell("source", SOURCE, collapsed=["fog"])
    cell("pseudo_label", RATES, unfinished=True)
    cell("tent", RATES)
    text = only_table(runs_dir).to_latex()
    for part in (
        r"\begin{table}",
        r"\toprule",
        r"method & gaussian noise & fog & mean & gain & seeds \\",
        r"Source & \underline{60.0} & \underline{90.0}$^\dagger$ &",
        r"TENT & \textbf{40.0} & \textbf{20.0} & \textbf{30.0 $\pm$ 8.0} & +45.0 & 1 \\",
        r"Pseudo-label & -- & -- & -- & -- & 0/1 \\",
        r"Error in \% (lower is better)",
        r"\texttt{ctta-bench grid trial.yaml}",
        r"\bottomrule",
        r"\end{table}",
    ):
        assert part in text
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    assert text.isascii()


def test_domains_have_the_display_names_of_their_benchmark(cell, runs_dir):
    cell("tent", RATES)
    runs = load(runs_dir)
    assert domain_labels(runs) == {"gaussian_noise": "gaussian noise", "fog": "fog"}
    runs.cells["benchmark"] = "imagenet_c"
    assert domain_labels(runs) == {"gaussian_noise": "Gaussian", "fog": "Fog"}


def test_a_label_names_only_what_differs(cell, runs_dir):
    """A field that joined later stands in the records that use it, and in no other."""
    common = {"lr": 0.01, "rank": 12}
    cell("paid", RATES, hyperparameters=common)
    cell("paid", RATES, hyperparameters=common | {"side": "output"})
    cell("paid", RATES, hyperparameters=common | {"warmup_epochs": 3})
    labels = set(only_table(runs_dir).frame.index)
    assert labels == {"paid", "paid side=output", "paid with warm-up"}


def test_a_label_holds_the_display_name_and_in_brackets_what_differs(cell, runs_dir):
    for preset, lr in (("paper", 0.1), ("paper", 0.2), ("code", 0.1)):
        cell("pseudo_label", RATES, preset=preset, hyperparameters={"lr": lr})
    table = only_table(runs_dir)
    names = ["pseudo_label (code)", "pseudo_label (paper) lr=0.1", "pseudo_label (paper) lr=0.2"]
    labels = ["Pseudo-label (code)", "Pseudo-label (paper, lr=0.1)", "Pseudo-label (paper, lr=0.2)"]
    assert list(table.frame.index) == names
    assert [label for label, _ in table.lines] == labels


def test_methods_with_the_same_display_name_have_different_labels(cell, runs_dir, monkeypatch):
    monkeypatch.setattr(METHODS, "display_name", lambda name: "Same")
    cell("tent", RATES)
    cell("sar", RATES)
    assert {label for label, _ in only_table(runs_dir).lines} == {"Same [sar]", "Same [tent]"}


def test_latex_cites_the_method_of_each_row_if_asked(cell, runs_dir):
    cell("tent", RATES, preset="paper")
    cell("tent", RATES, preset="code")
    cell("my_method", RATES)
    table = only_table(runs_dir)
    assert "citep" not in table.to_latex()
    text = table.to_latex(citation_keys(["tent", "my_method"]))
    assert r"TENT~\citep{wang2021tent} (paper) & " in text
    assert "\nmy\\_method & " in text
