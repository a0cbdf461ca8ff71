"""docs/results/streets.md says what follows from its stored runs, docs/results/streets/*.zip."""

import re
from pathlib import Path

import pandas as pd
import pytest

from ctta_bench.analysis.read.collect import Runs, load
from ctta_bench.analysis.tables.main import round_table
from ctta_bench.config.experiment_file import load_experiment
from ctta_bench.config.presets import preset_values
from tests.test_scenes_results import assert_stored, surely

PAGE = Path(__file__).parents[1] / "docs" / "results" / "streets.md"
STORED = PAGE.with_suffix("")
TIE = 0.05  # points of mIoU; docs/results/streets.md

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_tables_on_the_page_are_those_of_the_stored_predictions(
    runs: Runs, board: pd.DataFrame
) -> None:
    assert_stored(board, STORED / "leaderboard.csv")
    table = round_table(runs)
    assert table is not None
    stored = pd.read_csv(STORED / "rounds.csv", index_col=0)
    pd.testing.assert_frame_equal(stored, table.frame, check_names=False, rtol=1e-6)


def test_every_method_has_three_seeds(runs: Runs) -> None:
    planned = load_experiment("streets")
    assert set(runs.cells["method"]) == {entry.name for entry in planned.methods}
    found = runs.cells.groupby(["method", "starts_from", "hyperparameters"])
    assert len(found) == len(planned.methods) + 1  # BECoTTA's warm-up has a row of its own
    for _, of_row in found:
        assert sorted(of_row["seed"]) == sorted(planned.seeds)


def test_the_page_names_the_methods_that_are_better_beyond_doubt(board: pd.DataFrame) -> None:
    (stated,) = re.findall(r"<!-- better: (.*?) -->", PAGE.read_text(encoding="utf-8"))
    assert stated == (", ".join(sorted(surely(board, 1))) or "none")


def test_each_weather_costs_the_source_model_half_of_its_miou(board: pd.DataFrame) -> None:
    source = board.loc["source"]
    for domain in ("fog", "night", "rain", "snow"):
        assert 20 < float(source[domain]) < 74.7 / 2  # of clear scenes: docs/streets.md


@pytest.fixture(scope="module")
def holdout() -> pd.DataFrame:
    """The mIoU of each rate by round, on the hold-out weather."""
    (group,) = load(STORED / "holdout.zip").groups()
    table = round_table(group)
    assert table is not None
    return table.frame


def test_the_table_of_rates_is_that_of_the_stored_predictions(holdout: pd.DataFrame) -> None:
    stored = pd.read_csv(STORED / "holdout.csv", index_col=0)
    pd.testing.assert_frame_equal(stored, holdout, check_names=False, rtol=1e-6)


def test_each_default_rate_is_the_largest_of_the_best_in_the_last_round(
    holdout: pd.DataFrame,
) -> None:
    searched = [e for e in load_experiment("holdout_streets").methods if e.sweep]
    planned = {e.name for e in load_experiment("streets").methods} - {"source"}
    assert {entry.name for entry in searched} == planned
    for entry in searched:
        ((key, rates),) = entry.sweep.items()
        last = {rate: float(holdout.loc[f"{entry.name} {key}={rate}", "round 3"]) for rate in rates}
        chosen = max(rate for rate, miou in last.items() if miou >= max(last.values()) - TIE)
        assert chosen < max(rates)
        assert preset_values(entry.name, "default", "streets_acdc")[key] == chosen
