"""The errata in analysis/reference/README.md, recomputed from the quoted cells."""

from pathlib import Path

import pandas as pd
import pytest

import ctta_bench.analysis
from ctta_bench.config.experiment import load_experiment

FOLDER = Path(ctta_bench.analysis.__file__).parent / "reference"


@pytest.fixture(scope="module")
def results():
    return pd.read_csv(FOLDER / "reference_results.csv")


def test_classification_means_agree_with_their_cells(results):
    errors = results[results["metric"] == "error"]
    keys = ["table", "benchmark", "method", "round"]
    recomputed = errors[errors["domain"] != "mean"].groupby(keys)["value"].mean()
    printed = errors[errors["domain"] == "mean"].set_index(keys)["value"]
    gaps = (printed - recomputed).dropna()  # some tables print means alone
    assert len(gaps) == len(recomputed)
    assert gaps.abs().max() <= 0.05 + 1e-9


@pytest.mark.parametrize(
    ("method", "printed", "recomputed"),
    [("paid", 62.2, 61.9), ("vida", 61.9, 61.8), ("cmae", 61.8, 61.8), ("dept", 53.4, 53.6)],
)
def test_segmentation_means_are_those_of_the_errata(results, method, printed, recomputed):
    rows = results[(results["benchmark"] == "cityscapes_acdc") & (results["method"] == method)]
    rows = rows[rows["metric"] == "miou"]
    mean = rows[(rows["domain"] == "mean") & (rows["round"] == "all")]
    assert mean["value"].tolist() == [printed]
    assert round(rows.loc[rows["domain"] != "mean", "value"].mean(), 1) == recomputed


def test_the_experiment_of_acdc_has_the_paper_s_methods_and_rounds(results):
    experiment = load_experiment("paper/main_acdc")
    rows = results[results["table"] == "acdc"]
    assert {entry.name for entry in experiment.methods} == set(rows["method"])
    rounds = {name for name in rows["round"] if name.isdigit()}
    assert experiment.set["benchmark.rounds"] == len(rounds)
    assert experiment.benchmarks == ("cityscapes_acdc",)
