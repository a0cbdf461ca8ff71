"""docs/results/scenes.md says what follows from its stored runs, docs/results/scenes/runs.zip."""

import csv
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from ctta_bench.analysis.read.collect import Runs, load
from ctta_bench.analysis.read.error_model import LEVEL
from ctta_bench.analysis.sharing.site import write_site
from ctta_bench.analysis.tables.by_setting import setting_tables
from ctta_bench.analysis.tables.leaderboard import leaderboard
from ctta_bench.config.experiment_file import load_experiment
from ctta_bench.registry import METHODS

PAGE = Path(__file__).parents[1] / "docs" / "results" / "scenes.md"
STORED = PAGE.with_suffix("")
CLEAN = 17.3  # error on clean scenes in %, docs/scenes.md
FAMILIES = {
    "entropy": {"tent", "sar", "eata", "eta", "deyo", "roid", "cmf", "rdumb", "come_tent",
                "come_eata", "come_sar", "rem", "pseudo_label", "palm", "asr_tent", "asr_eta",
                "asr_roid", "reservoir"},
    "teacher": {"cotta", "rotta", "rmt", "santa", "vida", "petal"},
    "alignment": {"paid", "lora", "dora"},
    "prompts and shifts": {"foa", "foa_shift", "foa_bp", "dpcore", "vdp"},
    "logits": {"lame", "t3a"},
    "deteriorated views": {"spa", "spa_tent", "spa_eta", "spa_eata"},
}  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def runs() -> Runs:
    (group,) = load(STORED / "runs.zip").groups()
    return group


@pytest.fixture(scope="module")
def board(runs: Runs) -> pd.DataFrame:
    return leaderboard(runs).frame


def test_the_table_on_the_page_is_that_of_the_stored_predictions(board: pd.DataFrame) -> None:
    with (STORED / "leaderboard.csv").open(encoding="utf-8", newline="") as table:
        stored = {row["method"]: row for row in csv.DictReader(table)}
    assert list(stored) == list(board.index)
    for method, row in board.iterrows():
        for column in ("mean", "half_interval", "gain", "low", "high", "p_holm"):
            text = stored[str(method)][column]
            assert (text == "") == bool(pd.isna(row[column]))
            assert text == "" or float(text) == pytest.approx(row[column], rel=1e-6, abs=1e-8)


def test_every_method_has_three_seeds_and_its_searched_values(runs: Runs) -> None:
    planned = load_experiment("scenes")
    cells = runs.cells
    assert set(cells["method"]) <= {entry.name for entry in planned.methods}
    for _, of_method in cells.groupby("method"):
        assert sorted(of_method["seed"]) == sorted(planned.seeds)


def test_no_corruption_is_hopeless_or_harmless_for_the_source_model(board: pd.DataFrame) -> None:
    facts = board.columns[: list(board.columns).index("warmup") + 1]
    by_domain = board.drop(columns=facts).loc["source"].astype(float)
    assert len(by_domain) == 15
    assert by_domain.max() < 85
    assert by_domain.min() > CLEAN + 2


def test_the_page_names_the_families_that_are_better_beyond_doubt(board: pd.DataFrame) -> None:
    sure = board[(board["p_holm"].astype(float) < LEVEL) & (board["gain"].astype(float) > 0)]
    better = {name: sorted(members & set(sure.index)) for name, members in FAMILIES.items()}
    (stated,) = re.findall(r"<!-- better: (.*?) -->", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert " ".join(stated.split()) == "; ".join(
        f"{name}: {', '.join(members) or 'none'}" for name, members in better.items()
    )
    prose = PAGE.read_text(encoding="utf-8").partition("## How to read it")[2]
    for method in sure.index:
        assert METHODS.display_name(str(method)) in prose


def test_the_table_by_setting_is_that_of_the_stored_predictions() -> None:
    (table,) = setting_tables(load(STORED / "settings.zip"))
    stored = pd.read_csv(STORED / "settings.csv", index_col=0)
    pd.testing.assert_frame_equal(stored, table.frame, check_names=False, rtol=1e-6)


def test_the_leaderboard_of_the_documentation_has_the_same_numbers(
    board: pd.DataFrame, tmp_path: Path
) -> None:
    write_site([STORED / "runs.zip"], tmp_path)
    entries = [json.loads(file.read_text("utf-8")) for file in tmp_path.glob("entries/*.json")]
    assert {entry["method"] for entry in entries} == set(board.index)
    for entry in entries:
        row = board.loc[entry["method"]]
        for column in ("mean", "half_interval", "gain", "low", "high"):
            value = entry["values"][column]
            assert value == pytest.approx(row[column]) or (value is None and pd.isna(row[column]))
