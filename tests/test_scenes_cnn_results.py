"""docs/results/scenes_cnn.md says what follows from its stored runs, scenes_cnn/runs.zip."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ctta_bench import load_benchmark, load_method, load_model
from ctta_bench.analysis.read.collect import Runs, load
from ctta_bench.analysis.read.error_model import LEVEL, Estimate
from ctta_bench.analysis.table.compared import compared_with, difference
from ctta_bench.analysis.table.rows import metric_of, rows
from ctta_bench.analysis.tables.leaderboard import leaderboard
from ctta_bench.analysis.tables.main import round_table
from ctta_bench.config.experiment_file import load_experiment
from ctta_bench.config.presets import preset_values
from ctta_bench.record.bundle import runs_folder
from ctta_bench.stream.benchmark import Stream, batch_domains
from tests.test_scenes_results import (
    assert_stored,
    gains_by_setting,
    stated_by_setting,
    sure_by_setting,
    surely,
)

PAGE = Path(__file__).parents[1] / "docs" / "results" / "scenes_cnn.md"
STORED = PAGE.with_suffix("")
DEFOCUS = 3  # its number in the order of the stream
ADAPTED = "cotta lr=0.0049, restore_probability=0.01"
VIEWS_ALONE = "cotta lr=0.0, restore_probability=0.0"
FILES = {"scenes_cnn": "batchnorm", "scenes_cnn_gn": "groupnorm"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def networks() -> dict[str, Runs]:
    """The runs on each network."""
    groups = load(STORED / "runs.zip").groups()
    return {FILES[group.cells["model"].iloc[0]]: group for group in groups}


@pytest.fixture(scope="module")
def boards(networks: dict[str, Runs]) -> dict[str, pd.DataFrame]:
    """The leaderboard of each network."""
    return {name: leaderboard(group).frame for name, group in networks.items()}


@pytest.mark.parametrize("network", FILES.values())
def test_the_table_on_the_page_is_that_of_the_stored_predictions(
    boards: dict[str, pd.DataFrame], network: str
) -> None:
    assert_stored(boards[network], STORED / f"{network}.csv")


@pytest.mark.parametrize("model", FILES)
def test_every_method_has_three_seeds_and_its_searched_values(
    networks: dict[str, Runs], model: str
) -> None:
    planned = load_experiment("scenes_cnn")
    cells = networks[FILES[model]].cells
    names = {entry.name for entry in planned.methods if not entry.models or model in entry.models}
    assert set(cells["method"]) == names
    for (method, start, text), of_row in cells.groupby(
        ["method", "starts_from", "hyperparameters"]
    ):
        assert sorted(of_row["seed"]) == sorted(planned.seeds)
        values = json.loads(str(text))
        if start != "warm-up":  # such a cell has the values of the warm-up alone
            searched = preset_values(str(method), "default", "scenes_c", model)
            if method == "cotta" and values["lr"] == 0:  # its views alone
                searched |= {"lr": 0, "restore_probability": 0}
            assert searched.items() <= values.items()


@pytest.mark.parametrize("network", FILES.values())
@pytest.mark.parametrize(("word", "sign"), [("better", 1), ("worse", -1)])
def test_the_page_names_the_methods_that_differ_beyond_doubt(
    boards: dict[str, pd.DataFrame], network: str, word: str, sign: int
) -> None:
    text = PAGE.read_text("utf-8")
    (stated,) = re.findall(rf"<!-- {word}, {network}: (.*?) -->", text, re.DOTALL)
    assert stated.split() == (", ".join(sorted(surely(boards[network], sign))) or "none").split()


def test_only_methods_that_average_views_are_better_than_the_statistics_of_the_batch(
    networks: dict[str, Runs],
) -> None:
    group = networks["batchnorm"]
    found = {row.name: row for row in rows(group)}
    own = found.pop("norm")
    # Error of BN adapt minus that of the method: its gain over BN adapt.
    gains = {name: difference(own, row, metric_of(group)) for name, row in found.items()}
    assert all(isinstance(gain, Estimate) for gain in gains.values())
    sure = {name: gain.mean for name, gain in gains.items() if gain.p * len(gains) < LEVEL}
    better = [name for name in sorted(sure, key=lambda name: -sure[name]) if sure[name] > 0]
    assert better == [ADAPTED, VIEWS_ALONE, "petal", "petal (warm-up only)"]
    adds = difference(found[VIEWS_ALONE], found[ADAPTED], metric_of(group))
    assert isinstance(adds, Estimate)
    assert 0 < adds.mean < gains[VIEWS_ALONE].mean
    assert adds.p * len(gains) < LEVEL
    for name in ("pseudo_label", "spa", "spa_tent", "come_tent", "come_eata", "come_sar", "asr_eta",
                 "reservoir", "ecotta"):  # fmt: skip
        assert sure[name] < 0


@pytest.fixture(scope="module")
def when() -> pd.DataFrame:
    """Gain and corrected p of each method with BatchNorm, by setting and batch size."""
    return gains_by_setting(STORED / "when.zip", "scenes_cnn")


# What has no statistics of the batch as it predicts; all others start from those of BN adapt.
WITHOUT_STATISTICS = ["foa_shift", "lame", "rotta", "t3a", "vdp"]


def test_statistics_of_the_batch_help_where_it_shows_one_corruption_and_many_classes(
    when: pd.DataFrame,
) -> None:
    gain, sure = when["gain"].unstack(), when["p_holm"].unstack() < LEVEL
    names = ["Continual", "Continual, batch 10", "Continual, batch 200", "Reset per domain"]
    fitting = [*names, next(name for name in gain if name.startswith("Gradual"))]
    trains = gain.index.difference([*WITHOUT_STATISTICS, "norm"])
    assert len(trains.difference(["ecotta (warm-up only)"])) == 21
    for name in fitting:
        helped = gain.loc[[*trains, "norm"], name].drop("spa")
        assert (helped > 3.7).all()
        assert sure.loc[[*trains, "norm"], name].all()
        assert gain[name].idxmax() == "cotta"
    spa = gain.loc["spa", fitting]
    assert spa.pop("Continual, batch 10") < -4.5
    assert (spa > 3.5).all()
    assert gain.loc[trains, "Correlated"].between(-32, -28).all()
    assert sure.loc[trains, "Correlated"].all()
    assert gain.loc["norm", "Correlated"] < -22
    assert set(gain.index[sure["Correlated"] & (gain["Correlated"] > 0)]) == {"foa_shift"}
    assert gain.loc["vdp"].drop("Continual, batch 1").max() < 0.1


def test_in_batches_of_one_statistics_help_until_something_trains_on_them(
    when: pd.DataFrame,
) -> None:
    of_one = when.xs("Continual, batch 1", level="setting")
    gain, sure = of_one["gain"], of_one["p_holm"] < LEVEL
    trains = gain.index.difference([*WITHOUT_STATISTICS, "norm"])
    assert 0 < gain["norm"] < 2
    single_class = gain.index[gain < -53]
    assert set(trains.difference(single_class)) == {"come_sar", "come_tent", "rmt"}
    assert gain[["come_sar", "come_tent"]].between(-37, -35).all()
    assert gain["rmt"] < -15
    assert gain["vdp"] < -6
    assert sure[[*trains, "norm", "vdp"]].all()


def test_mixed_corruptions_have_statistics_that_fit_none(when: pd.DataFrame) -> None:
    gain, sure = when["gain"].unstack(), when["p_holm"].unstack() < LEVEL
    mixed = gain["Mixed domains"][sure["Mixed domains"]]
    assert sorted(mixed.index) == ["asr_tent", "deyo", "palm", "pseudo_label", "rdumb", "rmt",
                                   "santa", "sar", "t3a", "tent"]  # fmt: skip
    assert (mixed < -1.3).all()


def test_three_methods_without_statistics_of_the_batch_by_setting(when: pd.DataFrame) -> None:
    gain, sure = when["gain"].unstack(), when["p_holm"].unstack() < LEVEL
    still = ["Continual, batch 200", "Mixed domains"]
    assert sure.loc["foa_shift"].drop(still).all()
    assert not sure.loc["foa_shift", still].any()
    assert gain.loc["foa_shift"].drop(still).between(2.4, 3.7).all()
    assert not sure.loc["rotta", "Correlated"]
    helped = gain.columns[sure.loc["rotta"]]
    assert [name.split(",")[0] for name in helped] == ["Gradual", "Reset per domain"]
    spared = ["Continual, batch 200", "Reset per domain"]
    loses = [name for name in gain if name not in spared and not name.startswith("Gradual")]
    assert sure.loc["t3a", loses].all()
    assert gain.loc["t3a", loses].between(-1.9, -1.2).all()


def test_the_readme_says_what_cotta_gains_and_loses(
    boards: dict[str, pd.DataFrame], when: pd.DataFrame
) -> None:
    gained = float(boards["batchnorm"].loc[ADAPTED, "gain"])
    lost = -when.loc[("cotta", "Correlated"), "gain"]
    text = (PAGE.parents[2] / "README.md").read_text("utf-8")
    assert f"CoTTA gains {gained:.1f}, and [loses {lost:.0f}]" in text


@pytest.fixture(scope="module")
def when_gn() -> pd.DataFrame:
    """Gain and corrected p of each method with GroupNorm, by setting and batch size."""
    return gains_by_setting(STORED / "when.zip", "scenes_cnn_gn")


def test_the_page_says_who_differs_with_groupnorm_in_each_stream(when_gn: pd.DataFrame) -> None:
    assert stated_by_setting(PAGE, "sure by setting, groupnorm") == sure_by_setting(when_gn)


def test_with_groupnorm_the_prior_alone_gains_under_correlated_classes(
    when_gn: pd.DataFrame,
) -> None:
    gain = when_gn["gain"].unstack()["Correlated"]
    values = {
        name: preset_values(name, "default", "scenes_c", "scenes_cnn_gn")
        for name in ("roid", "cmf")
    }
    assert (values["roid"]["prior"], values["cmf"]["prior"]) == ("logits", "off")
    assert gain["roid"] > 4.5
    assert abs(gain["cmf"]) < 0.2


def test_with_groupnorm_small_batches_break_what_trains(when_gn: pd.DataFrame) -> None:
    gain, sure = when_gn["gain"].unstack(), when_gn["p_holm"].unstack() < LEVEL
    one, ten = "Continual, batch 1", "Continual, batch 10"
    assert (gain.loc[["palm", "come_tent", "cotta", "pseudo_label"], one] < -7).all()
    assert gain.loc["spa", ten] < -10
    assert sure.loc["spa", ten]
    assert 0.9 < gain.loc["cotta", ten] < 1.1
    assert (gain.loc["foa_shift"] > 1.4).all()
    assert sure.loc["foa_shift"].all()


@pytest.fixture(scope="module")
def rounds() -> dict[str, Runs]:
    """The runs of ten rounds on each network."""
    groups = load(STORED / "rounds.zip").groups()
    return {FILES[group.cells["model"].iloc[0]]: group for group in groups}


@pytest.mark.parametrize(
    ("network", "file"), [("batchnorm", "rounds.csv"), ("groupnorm", "rounds_gn.csv")]
)
def test_over_ten_rounds_nothing_collapses(
    rounds: dict[str, Runs], network: str, file: str
) -> None:
    table = round_table(rounds[network])
    assert table is not None
    stored = pd.read_csv(STORED / file, index_col=0)
    pd.testing.assert_frame_equal(stored, table.frame, check_names=False, rtol=1e-6)
    first, last = (table.frame[f"round {number}"].astype(float) for number in (1, 10))
    assert (last < first + 3).all()
    assert surely(leaderboard(rounds[network]).frame, -1) == {"t3a"}
    if network == "batchnorm":
        assert (first - last)[["cotta", "rmt", "tent"]].gt(2.4).all()


def test_over_ten_rounds_four_methods_add_to_the_statistics_of_the_batch(
    rounds: dict[str, Runs],
) -> None:
    group = rounds["batchnorm"]
    found = {row.name: row for row in rows(group)}
    own = found.pop("norm")
    gains = compared_with(own, [*found.values()], metric_of(group))
    better = {g.row.name for g in gains if g.differs and g.estimate and g.estimate.mean < 0}
    assert better == {"cotta", "rmt", "santa", "tent"}


def test_over_ten_rounds_five_methods_gain_with_groupnorm(rounds: dict[str, Runs]) -> None:
    better = surely(leaderboard(rounds["groupnorm"]).frame, 1)
    assert better == {"foa_shift", "rmt", "cotta", "cmf", "sar"}


def test_the_searched_thresholds_select_the_corruptions_on_the_page() -> None:
    benchmark = load_benchmark("scenes_c", examples=50)
    benchmark.prepare_data(lambda *_: None, 1)
    stream = Stream(batch_domains(benchmark), benchmark.settings, 0)
    model = load_method("norm", load_model("scenes_cnn"))
    confidence = {
        stream.domain_names[int(batch.domain[0])]: model(batch.images).softmax(-1).amax(-1).mean()
        for batch in stream.batches()
    }
    noise = {name for name in confidence if name.endswith("noise")}
    selected = {
        method: {name for name, mean in confidence.items() if mean < threshold(method)}
        for method in ("cotta", "petal")
    }
    assert selected["cotta"] == noise
    assert selected["petal"] == noise | {"snow", "fog", "pixelate", "jpeg_compression"}


def threshold(method: str) -> float:
    """The searched threshold on the network with BatchNorm, below which views are averaged."""
    values = preset_values(method, "default", "scenes_c", "scenes_cnn")
    return float(values["confidence_threshold"])


def test_averaged_statistics_lag_where_blur_follows_noise(boards: dict[str, pd.DataFrame]) -> None:
    defocus = boards["batchnorm"]["defocus_blur"].astype(float)
    assert defocus["rotta"] > defocus["source"] + 30
    assert defocus["foa_shift"] > defocus["source"] + 5
    assert (defocus[["norm", "tent", "rmt"]] < defocus["source"]).all()


@pytest.mark.parametrize(("method", "first", "last"), [("rotta", 72, 42), ("foa_shift", 32, 16)])
def test_within_the_blur_the_error_falls(method: str, first: int, last: int) -> None:
    folder = runs_folder(STORED / "runs.zip")
    (file,) = folder.rglob(f"{method}-scenes_c-scenes_cnn-seed0-*/predictions.npz")
    arrays = np.load(file)
    wrong = (arrays["prediction"] != arrays["label"])[arrays["domain"] == DEFOCUS]
    by_batch = 100 * wrong.reshape(10, 50).mean(axis=1)
    assert by_batch[[0, -1]].tolist() == pytest.approx([first, last])


def test_one_method_is_better_than_source_on_all_three_networks(
    boards: dict[str, pd.DataFrame],
) -> None:
    vit = pd.read_csv(STORED.with_name("scenes") / "leaderboard.csv", index_col=0)
    better = [surely(board, 1) for board in (vit, *boards.values())]
    assert set.intersection(*better) == {"foa_shift"}
