"""The public checkpoints of the paper: what is stated, and what is said to be unknown."""

import json

import pandas as pd
from typer.testing import CliRunner

from ctta_bench.analysis.paper.printed import reference
from ctta_bench.api.discover import published_checkpoints
from ctta_bench.cli import app
from ctta_bench.measuring.estimate import known_streams
from ctta_bench.registry import METHODS

SOURCES = {
    "imagenet_c": "55.8",
    "cifar10_c": "28.1",
    "cifar100_c": "35.4",
    "cityscapes_acdc": "56.7",
}


def test_every_source_model_and_adapter_of_the_paper_is_listed_with_the_same_facts() -> None:
    rows = published_checkpoints()
    models = {row["name"] for row in rows if row["kind"] == "source model"}
    assert models == {known_streams()[benchmark]["model"] for benchmark in SOURCES}
    adapters = [row["name"].split() for row in rows if row["kind"] == "adapter"]
    assert {method for method, _ in adapters} == {"vida", "paid"} <= set(METHODS.names())
    assert all(set(row) == set(rows[0]) and all(row.values()) for row in rows)
    shared = [row["published"] for row in rows if "Drive" in row["published"]]
    assert all("share" in text for text in shared)


def test_the_errors_to_expect_are_those_that_the_paper_prints() -> None:
    for benchmark, error in SOURCES.items():
        model = known_streams()[benchmark]["model"]
        (row,) = (row for row in published_checkpoints() if row["name"] == model)
        assert row["source"].startswith(error)
        printed: pd.DataFrame = reference()
        own = printed[(printed["benchmark"] == benchmark) & (printed["method"] == "source")]
        means = own[(own["domain"] == "mean") & own["metric"].isin(["error", "miou"])]
        assert float(error) in means["value"].tolist()


def test_models_list_prints_them() -> None:
    found = json.loads(CliRunner().invoke(app, ["models", "list", "--format", "json"]).stdout)
    assert found == published_checkpoints()
    lines = CliRunner().invoke(app, ["models", "list"]).stdout.splitlines()
    assert len(lines) == 1 + len(found) and lines[0].startswith("name\tkind\tpublished")
