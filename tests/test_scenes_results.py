"""docs/results/scenes.md says what follows from its stored runs, docs/results/scenes/runs.zip."""

import csv
import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest

from ctta_bench import list_methods
from ctta_bench.analysis.figures.by_setting import gains
from ctta_bench.analysis.read.collect import Runs, load
from ctta_bench.analysis.read.error_model import LEVEL, Estimate
from ctta_bench.analysis.sharing.site import write_site
from ctta_bench.analysis.table.compared import difference
from ctta_bench.analysis.table.rows import metric_of, rows
from ctta_bench.analysis.tables.by_setting import setting_tables, settings_of
from ctta_bench.analysis.tables.leaderboard import leaderboard
from ctta_bench.analysis.tables.main import round_table
from ctta_bench.analysis.tables.order_sensitivity import order_tables
from ctta_bench.config.experiment_file import load_experiment
from ctta_bench.config.presets import preset_values
from ctta_bench.registry import METHODS

PAGE = Path(__file__).parents[1] / "docs" / "results" / "scenes.md"
STORED = PAGE.with_suffix("")
ORDERS = STORED.with_name("scenes_orders")
CLEAN = 17.3  # error on clean scenes in %, docs/scenes.md
FAMILIES = {
    "entropy": {"tent", "sar", "eata", "eta", "deyo", "roid", "cmf", "rdumb", "come_tent",
                "come_eata", "come_sar", "rem", "pseudo_label", "palm", "asr_tent", "asr_eta",
                "asr_roid", "reservoir", "ecotta"},
    "teacher": {"cotta", "rotta", "rmt", "santa", "vida", "petal"},
    "alignment": {"paid", "lora", "dora"},
    "prompts and shifts": {"foa", "foa_shift", "foa_bp", "dpcore", "vdp", "kff", "dept"},
    "logits": {"lame", "t3a"},
    "reconstruction": {"cmae"},
    "deteriorated views": {"spa", "spa_tent", "spa_eta", "spa_eata"},
}  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def assert_stored(board: pd.DataFrame, file: Path) -> None:
    """The numbers of a leaderboard are those of the stored table."""
    with file.open(encoding="utf-8", newline="") as table:
        stored = {row["method"]: row for row in csv.DictReader(table)}
    assert list(stored) == list(board.index)
    for method, row in board.iterrows():
        for column in ("mean", "half_interval", "gain", "low", "high", "p_holm"):
            text = stored[str(method)][column]
            assert (text == "") == bool(pd.isna(row[column]))
            assert text == "" or float(text) == pytest.approx(row[column], rel=1e-6, abs=1e-8)


def surely(board: pd.DataFrame, sign: int) -> set[str]:
    """The methods that are better (1) or worse (-1) than Source after Holm's correction."""
    gain, p = board["gain"].astype(float), board["p_holm"].astype(float)
    return set(board.index[(p < LEVEL) & (sign * gain > 0)])


def test_the_table_on_the_page_is_that_of_the_stored_predictions(board: pd.DataFrame) -> None:
    assert_stored(board, STORED / "leaderboard.csv")


def test_every_method_has_three_seeds_and_its_searched_values(runs: Runs) -> None:
    planned = load_experiment("scenes")
    cells = runs.cells
    assert set(cells["method"]) == {entry.name for entry in planned.methods}
    for (method, start), of_row in cells.groupby(["method", "starts_from"]):
        assert sorted(of_row["seed"]) == sorted(planned.seeds)
        if start != "warm-up":  # such a cell has the values of the warm-up alone
            searched = preset_values(str(method), "default", "scenes_c", "scenes_vit")
            for text in of_row["hyperparameters"]:
                assert searched.items() <= json.loads(text).items()


def test_every_method_for_a_vit_is_ranked(board: pd.DataFrame) -> None:
    classes = {name: METHODS.get(name) for name in list_methods()}
    fitting = {
        name
        for name, method in classes.items()
        if "classification" in method.tasks and not method.needs_batch_norm
    }
    alone = {name for name in board.index if name.endswith("(warm-up only)")}
    assert set(board.index) - alone == fitting - {"finetune"}  # with labels, before the stream


def test_no_corruption_is_hopeless_or_harmless_for_the_source_model(board: pd.DataFrame) -> None:
    facts = board.columns[: list(board.columns).index("warmup") + 1]
    by_domain = board.drop(columns=facts).loc["source"].astype(float)
    assert len(by_domain) == 15
    assert by_domain.max() < 85
    assert by_domain.min() > CLEAN + 2


def test_the_page_names_the_families_that_are_better_beyond_doubt(board: pd.DataFrame) -> None:
    sure = surely(board, 1)
    better = {name: sorted(members & sure) for name, members in FAMILIES.items()}
    (stated,) = re.findall(r"<!-- better: (.*?) -->", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert " ".join(stated.split()) == "; ".join(
        f"{name}: {', '.join(members) or 'none'}" for name, members in better.items()
    )
    prose = PAGE.read_text(encoding="utf-8").partition("## How to read it")[2]
    for method in sure:
        assert METHODS.display_name(method) in prose


def test_one_method_is_worse_beyond_doubt_and_its_warm_up_alone_is_as_bad(
    board: pd.DataFrame,
) -> None:
    assert surely(board, -1) == {"dept", "dept (warm-up only)"}
    gain = board["gain"].astype(float)
    assert gain["dept"] == pytest.approx(gain["dept (warm-up only)"], abs=0.05)


def test_what_foa_searches_gains_no_more_than_its_shift_alone(runs: Runs) -> None:
    found = {row.method: row for row in rows(runs)}
    more = difference(found["foa_shift"], found["foa"], metric_of(runs))
    assert isinstance(more, Estimate)
    assert more.low < 0 < more.high


@pytest.mark.parametrize(
    ("stored", "bundle", "model"),
    [
        ("scenes/settings", "scenes/when", "scenes_vit"),
        ("scenes/recurring", "scenes/recurring", "scenes_vit"),
        ("scenes/batchnorm", "scenes/breakdowns", "scenes_cnn"),
        ("scenes/groupnorm", "scenes/breakdowns", "scenes_cnn_gn"),
        ("scenes_cnn/settings", "scenes_cnn/when", "scenes_cnn"),
        ("scenes_cnn/settings_gn", "scenes_cnn/when", "scenes_cnn_gn"),
    ],
)
def test_a_table_by_setting_is_that_of_the_stored_predictions(
    stored: str, bundle: str, model: str
) -> None:
    tables = setting_tables(load(PAGE.parent / f"{bundle}.zip"))
    (table,) = (table for table in tables if table.name == f"scenes_c-{model}-settings")
    found = pd.read_csv(PAGE.parent / f"{stored}.csv", index_col=0)
    pd.testing.assert_frame_equal(found, table.frame, check_names=False, rtol=1e-6)


@pytest.mark.parametrize(
    ("experiment", "bundle"),
    [
        ("scenes_settings", "scenes/when"),
        ("scenes_batch_size", "scenes/when"),
        ("scenes_orders", "scenes_orders/runs"),
        ("scenes_cnn_orders", "scenes_orders/cnn"),
        ("scenes_rounds", "scenes/rounds"),
        ("scenes_cnn_settings", "scenes_cnn/when"),
        ("scenes_cnn_batch_size", "scenes_cnn/when"),
        ("scenes_cnn_rounds", "scenes_cnn/rounds"),
    ],
)
def test_what_an_experiment_lists_is_stored(experiment: str, bundle: str) -> None:
    cells = load(PAGE.parent / f"{bundle}.zip").cells
    stored = cells[cells["experiment"] == experiment]
    planned = load_experiment(experiment)
    for named in planned.models:
        model = named or "scenes_vit"  # the first model of the benchmark
        listed = {e.name for e in planned.methods if not e.models or model in e.models}
        adapted = (stored["model"] == model) & (stored["starts_from"] != "warm-up")
        counts = stored["method"][adapted].value_counts()
        assert set(counts.index) == listed
        assert (counts == math.prod(map(len, planned.sweep.values()))).all()


def gains_by_setting(bundle: Path, model: str) -> pd.DataFrame:
    """Gain and corrected p of each method on a model, by method and setting."""
    (columns,) = (
        columns
        for columns in settings_of(load(bundle))
        if next(iter(columns.values())).cells["model"].iloc[0] == model
    )
    frame = gains(columns).set_index(["name", "setting"])
    return frame.astype({"gain": float, "p_holm": float})


def sure_by_setting(frame: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """The methods that are better and those that are worse beyond doubt, largest change first."""
    found = {}
    for stream, of_stream in frame.reset_index("name").groupby(level="setting"):
        sure = of_stream[of_stream["p_holm"] < LEVEL].sort_values("gain")
        better, worse = sure[sure["gain"] > 0].iloc[::-1], sure[sure["gain"] < 0]
        found[str(stream)] = tuple(
            ", ".join(METHODS.display_name(name) for name in names["name"]) or "none"
            for names in (better, worse)
        )
    return found


def stated_by_setting(page: Path, mark: str) -> dict[str, tuple[str, ...]]:
    """What the table after a mark of a page says of them."""
    table = page.read_text("utf-8").partition(f"<!-- {mark} -->\n\n")[2].partition("\n\n")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {stream: tuple(words) for stream, *words in lines}


@pytest.fixture(scope="module")
def by_setting() -> pd.DataFrame:
    """Gain and corrected p of each method on the ViT, by setting."""
    return gains_by_setting(STORED / "when.zip", "scenes_vit")


def test_the_page_says_who_is_better_and_who_is_worse_in_each_stream(
    by_setting: pd.DataFrame,
) -> None:
    assert stated_by_setting(PAGE, "sure by setting") == sure_by_setting(by_setting)


def test_entropy_gains_little_and_fails_in_small_batches(by_setting: pd.DataFrame) -> None:
    gain = by_setting["gain"].unstack("setting")
    whole = gain.loc[
        sorted(FAMILIES["entropy"] & set(gain.index)), ["Continual", "Continual, batch 200"]
    ]
    assert len(whole) == 19
    assert whole.abs().max(axis=None) < 0.85
    small = gain[["Continual, batch 1", "Continual, batch 10"]]
    assert (small.loc[["sar", "deyo", "spa"]] < -3).all(axis=None)
    assert (small.loc[["come_sar", "come_eata", "roid", "cmf"]] > -0.1).all(axis=None)


def test_teachers_without_views_equal_source_and_fail_in_batches_of_one(
    by_setting: pd.DataFrame,
) -> None:
    gain = by_setting.loc[["cotta", "petal"], "gain"].unstack("setting")
    small = gain.pop("Continual, batch 1")
    assert (small < -50).all()
    of_ten = gain.pop("Continual, batch 10")
    assert of_ten["petal"] < -13
    assert gain.abs().max(axis=None) < 0.1


@pytest.fixture(scope="module")
def statistics() -> pd.DataFrame:
    """Gain and corrected p of each method on the CNN with BatchNorm, by setting."""
    return gains_by_setting(STORED / "breakdowns.zip", "scenes_cnn")


@pytest.mark.parametrize("method", ["norm", "tent"])
def test_batch_statistics_gain_unless_classes_are_correlated(
    statistics: pd.DataFrame, method: str
) -> None:
    assert statistics.loc[(method, "Continual, batch 50"), "gain"] > 5
    row = statistics.loc[(method, "Correlated, batch 50")]
    assert row["gain"] < -10
    assert row["p_holm"] < LEVEL


def test_entropy_on_batch_statistics_fails_in_batches_of_one(statistics: pd.DataFrame) -> None:
    row = statistics.loc[("tent", "Continual, batch 1")]
    assert row["gain"] < -40
    assert row["p_holm"] < LEVEL
    assert 0 < statistics.loc[("norm", "Continual, batch 1"), "gain"] < 5


def test_lame_gains_under_correlated_classes_and_loses_without(statistics: pd.DataFrame) -> None:
    gain = statistics["gain"]
    assert gain[("lame", "Correlated, batch 50")] > 5
    assert gain[("lame", "Continual, batch 50")] < -2


@pytest.mark.parametrize("method", ["lora", "dora", "paid"])
def test_alignment_fails_in_batches_of_one_image(by_setting: pd.DataFrame, method: str) -> None:
    row = by_setting.loc[(method, "Continual, batch 1")]
    assert row["gain"] < -40
    assert row["p_holm"] < LEVEL


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_alignment_fails_in_batches_of_one_class(by_setting: pd.DataFrame, method: str) -> None:
    row = by_setting.loc[(method, "Correlated")]
    assert row["gain"] < -20
    assert row["p_holm"] < LEVEL


@pytest.mark.parametrize("method", ["tent", "sar"])
def test_entropy_fails_at_large_rates(method: str) -> None:
    (group,) = load(STORED / "rates.zip").groups()
    frame = leaderboard(group).frame
    of_method = frame[frame.index.str.startswith(f"{method} ")].sort_values("gain", ascending=False)
    assert len(of_method) == 3
    assert of_method["gain"].iloc[0] > 0
    assert of_method["gain"].iloc[1] < 0
    assert of_method["gain"].iloc[2] < -40
    assert of_method["p_holm"].iloc[2] < LEVEL


def test_over_ten_rounds_some_gain_and_some_drift() -> None:
    (group,) = load(STORED / "rounds.zip").groups()
    table = round_table(group)
    assert table is not None
    stored = pd.read_csv(STORED / "rounds.csv", index_col=0)
    pd.testing.assert_frame_equal(stored, table.frame, check_names=False, rtol=1e-6)
    first, last = (table.frame[f"round {number}"].astype(float) for number in (1, 10))
    assert last["paid"] < first["paid"] - 1
    assert last["rmt"] == last.min() < first["rmt"] - 2
    assert first["spa_eta"] - 1.2 > last["spa_eta"]
    by_round = table.frame.loc[:, "round 1":"round 10"].astype(float)
    assert by_round.loc["come_eata"].idxmin() == "round 2"
    assert by_round.loc["come_sar"].idxmin() == "round 3"
    assert by_round.loc["rem"].idxmin() == "round 4"
    assert (last[["rem", "come_sar"]] > last["source"]).all()
    assert (last[["foa_bp", "deyo"]] > first[["foa_bp", "deyo"]] + 5).all()
    eta = group.cells.set_index("method").loc["eta"]
    assert eta["skipped_updates"] == 1500 - 7
    board = leaderboard(group).frame
    assert surely(board, 1) == {"paid", "rmt", "spa_tent", "foa_shift"}
    assert surely(board, -1) == {"vdp", "deyo", "rotta", "sar", "dora", "lora"}
    still = ["tent", "santa", "pseudo_label", "cotta", "petal", "ecotta", "asr_tent"]
    assert board["gain"][still].astype(float).abs().max() < 0.2
    assert by_round.loc["spa_tent"].idxmin() == "round 8"
    drifting = ["lora", "dora", "sar", "rotta"]
    assert (last[drifting] > first[drifting] + 10).all()


@pytest.mark.parametrize(
    ("bundle", "model", "file"),
    [
        ("runs", "scenes_vit", "orders"),
        ("cnn", "scenes_cnn", "batchnorm"),
        ("cnn", "scenes_cnn_gn", "groupnorm"),
    ],
)
def test_the_table_of_orders_is_that_of_the_stored_predictions(
    bundle: str, model: str, file: str
) -> None:
    tables = order_tables(load(ORDERS / f"{bundle}.zip"))
    (table,) = (table for table in tables if f"-{model}-" in table.name)
    stored = pd.read_csv(ORDERS / f"{file}.csv", index_col=0)
    pd.testing.assert_frame_equal(stored, table.frame, check_names=False, rtol=1e-6)
    assert (table.frame["orders"] == 10).all()


def boards_of_orders(bundle: str, model: str) -> list[pd.DataFrame]:
    """The leaderboard of each order on a model."""
    groups = load(ORDERS / f"{bundle}.zip").groups()
    return [leaderboard(g).frame for g in groups if g.cells["model"].iloc[0] == model]


def test_what_the_page_says_of_ten_orders() -> None:
    boards = boards_of_orders("runs", "scenes_vit")
    means = pd.DataFrame([board["mean"].astype(float) for board in boards])
    gain = -means.sub(means["source"], axis=0).reset_index(drop=True)
    less = (gain > 1e-6).sum()  # a mean over domains is exact to rounding
    always = means.mean()[less == 10].sort_values()
    alone = {"petal (warm-up only)", "ecotta (warm-up only)"}
    assert set(always.index[16:]) == {"pseudo_label", "petal", *alone}
    assert gain[[*always.index[16:]]].max(axis=None) < 0.1
    always = always[:16]
    assert list(always.index) == list(means.mean().sort_values().index[:16])
    assert (always.index[0], always.index[2], always.index[-1]) == ("paid", "lora", "come_tent")
    p_values = pd.DataFrame([board["p_holm"].astype(float) for board in boards])
    sure = p_values.reset_index(drop=True) < LEVEL
    better = (sure & (gain > 0)).sum().sort_values(ascending=False)
    assert better[:3].to_dict() == {"paid": 10, "rmt": 6, "foa_shift": 5}
    assert (better.iloc[3], better["lora"]) == (3, 0)
    some = ["t3a", "reservoir", "eata", "spa_eta", "spa_tent", "asr_eta", "eta", "spa", "foa_bp"]
    assert less[[*some, "spa_eata", "kff"]].tolist() == [9, 9, 8, 8, 8, 7, 6, 6, 3, 2, 0]
    still = ["ecotta", "asr_tent", "palm", "santa", "tent", "vdp", "cotta", "lame"]
    assert gain[still].abs().max(axis=None) < 0.3
    span = means.max() - means.min()
    assert span.idxmax() == "spa_eata"
    assert (sure & (gain < 0)).sum()[["spa_eata", "kff"]].tolist() == [2, 0]
    assert span[always.index].idxmin() == "cmf"
    ranks = means.drop(columns="source").rank(axis=1, method="min")
    assert (ranks["paid"] <= 3).sum() == 9
    assert ranks["paid"].max() == 4
    assert (ranks[["lora", "dora"]] <= 3).sum().tolist() == [8, 8]
    assert (ranks["dora"] == 1).sum() == 5
    assert ranks["dora"].max() == 17
    assert always.index[3] == "rotta"
    board = pd.read_csv(STORED / "leaderboard.csv", index_col=0)
    assert board.loc["rotta", "gain"] < 0
    usual = pd.read_csv(STORED / "settings.csv", index_col=0)["Continual"]
    names = ["foa_shift", "t3a", "lora", "eta", "come_sar", "foa_bp", "paid"]
    assert means[names].gt(usual[names] + 1e-6).sum().tolist() == [10, 10, 8, 8, 8, 8, 0]


def test_what_the_page_says_of_ten_orders_with_batchnorm() -> None:
    boards = boards_of_orders("cnn", "scenes_cnn")
    means = pd.DataFrame([board["mean"].astype(float) for board in boards]).reset_index(drop=True)
    ranks = means.rank(axis=1, method="min")
    assert (ranks["cotta"] == 1).all()
    assert (ranks[["santa", "deyo"]] <= 3).all(axis=None)
    assert means[["cotta", "santa", "deyo"]].lt(means["norm"], axis=0).all(axis=None)
    gain = -means.sub(means["source"], axis=0)
    shift = [board.loc["foa_shift"] for board in boards]
    assert [round(gain["foa_shift"].min(), 1), round(gain["foa_shift"].max(), 1)] == [0.3, 1.4]
    assert sum(row["p_holm"] < LEVEL for row in shift) == 5
    assert (gain["rotta"] > 0).sum() == 7
    span = means.max() - means.min()
    assert span.idxmax() == "rotta"
    assert (gain["t3a"] < 0).all()


def test_what_the_page_says_of_ten_orders_with_groupnorm() -> None:
    boards = boards_of_orders("cnn", "scenes_cnn_gn")
    means = pd.DataFrame([board["mean"].astype(float) for board in boards]).reset_index(drop=True)
    gain = -means.sub(means["source"], axis=0)
    p_values = pd.DataFrame([board["p_holm"].astype(float) for board in boards])
    sure = p_values.reset_index(drop=True) < LEVEL
    assert means.idxmin(axis=1).value_counts().to_dict() == {"foa_shift": 8, "rmt": 2}
    assert sure["foa_shift"].all()
    trains = ["rmt", "rotta", "santa", "cmf", "deyo"]
    assert (gain[["foa_shift", *trains]] > 0).all(axis=None)
    assert (sure & (gain > 0))[trains].sum().tolist() == [6, 9, 2, 3, 3]
    assert gain[trains].mean().round(1).tolist() == [1.6, 0.8, 0.5, 0.4, 0.4]
    first = pd.read_csv(STORED.with_name("scenes_cnn") / "rounds_gn.csv", index_col=0)["round 1"]
    usual = first["source"] - first
    assert usual[trains].round(1).tolist() == [0.6, 0.1, -0.5, 0.0, 0.1]
    assert (means.max() - means.min()).idxmax() == "rmt"
    assert usual["t3a"] > 0.8 > 0 > gain["t3a"].max()
    assert sure["t3a"].sum() == 6
    assert gain[["sar", "tent", "eata", "lame", "roid"]].abs().max(axis=None) < 0.3


@pytest.mark.parametrize("setting", ["Continual", "PTTA"])
def test_over_twenty_visits_resets_cost_a_host_that_does_not_collapse(setting: str) -> None:
    (columns,) = settings_of(load(STORED / "recurring.zip"))
    found = gains(columns).set_index(["setting", "name"]).loc[setting]
    assert found.loc["come_eata", "gain"] > 2.5
    for host in ("roid", "cmf"):
        assert found.loc[host, "gain"] > 1.5
        assert found.loc[host, "p_holm"] < LEVEL
    assert found.loc["asr_roid", "gain"] < found.loc["roid", "gain"] - 0.5
    assert found.loc["rotta", "gain"] < 0


def test_cotta_costs_several_times_what_source_costs() -> None:
    with (STORED / "cost.csv").open(encoding="utf-8", newline="") as table:
        costs = {row["method"]: row for row in csv.DictReader(table)}
    assert float(costs["cotta"]["forward_per_image"]) >= 3
    assert float(costs["cotta"]["to_reference"]) > 3 * float(costs["source"]["to_reference"])


def test_the_leaderboard_of_the_documentation_has_the_same_numbers(
    board: pd.DataFrame, tmp_path: Path
) -> None:
    write_site([STORED / "runs.zip"], tmp_path)
    entries = [json.loads(file.read_text("utf-8")) for file in tmp_path.glob("entries/*.json")]
    alone = " (warm-up only)"
    named = {e["method"] + alone * e["label"].endswith(alone): e for e in entries}
    assert len(named) == len(entries)
    assert named.keys() == set(board.index)
    for name, entry in named.items():
        row = board.loc[name]
        for column in ("mean", "half_interval", "gain", "low", "high"):
            value = entry["values"][column]
            assert value == pytest.approx(row[column]) or (value is None and pd.isna(row[column]))
