"""The mean over all images has a name of its own; the headline mean is over domains."""

import json

import numpy as np
import pytest

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.tables.main import main_table
from ctta_bench.registry import METRICS

EQUAL = {"gaussian_noise": 0.4, "fog": 0.2}


def drop_images(folder, domain, kept):
    """Keep the first images of a domain, which changes predictions.npz and result.json."""
    with np.load(folder / "predictions.npz") as stored:
        arrays = dict(stored)
    keep = (arrays["domain"] != domain) | (arrays["index"] < kept)
    arrays = {name: values[keep] for name, values in arrays.items()}
    np.savez(folder / "predictions.npz", **arrays)
    result = json.loads((folder / "result.json").read_text())
    entry = result["rounds"][0]["domains"][domain]
    here = arrays["domain"] == domain
    errors = int((arrays["prediction"] != arrays["label"])[here].sum())
    entry |= {"n": int(here.sum()), "errors": errors, "error": 100 * errors / int(here.sum())}
    of_domains = [entry["error"] for entry in result["rounds"][0]["domains"]]
    result["mean"] = sum(of_domains) / len(of_domains)
    (folder / "result.json").write_text(json.dumps(result))


@pytest.fixture
def unlike(cell, runs_dir):
    """Two domains of 100 and 50 images with 40 and 20 errors: 40 % on average, 40 % over images."""
    for method in ("source", "tent"):
        drop_images(cell(method, EQUAL), 1, 50)
    return runs_dir


def test_the_micro_mean_is_over_images_and_the_mean_over_domains(unlike):
    table = main_table(load(unlike))
    row = table.frame.loc["tent"]
    assert row["mean"] == 40.0  # (40 + 40) / 2: the errors are the first images
    assert row["micro_mean"] == pytest.approx(100 * 60 / 150)
    drop_images(next(unlike.glob("*/tent-*")), 1, 10)  # 10 images, all wrong
    row = main_table(load(unlike)).frame.loc["tent"]
    assert row["mean"] == 70.0
    assert row["micro_mean"] == pytest.approx(100 * 50 / 110)


def test_it_has_a_column_where_domains_have_unlike_numbers_of_images(unlike):
    table = main_table(load(unlike))
    assert "micro mean" in table.header
    assert "Micro mean: over all images" in table.caption


def test_it_has_none_where_all_domains_have_as_many(cell, runs_dir):
    cell("tent", EQUAL)
    table = main_table(load(runs_dir))
    assert "micro mean" not in table.header
    assert "Micro mean" not in table.caption
    assert table.frame.loc["tent", "micro_mean"] == 30.0


def test_cells_have_it(unlike):
    assert load(unlike).cells["micro_mean"].tolist() == [40.0, 40.0]


def test_the_micro_mean_of_sums_is_of_all_pixels():
    metric = METRICS.get("segmentation")()
    confusion = np.array([[[3, 1, 0], [0, 0, 0]], [[1, 0, 0], [1, 1, 0]]])
    arrays = {"confusion": confusion, "round": np.zeros(2), "domain": np.array([0, 1])}
    # Of all pixels: class 0 has 4 hits of a union of 6, class 1 has 1 hit of a union of 3.
    assert metric.micro_mean(arrays, {}) == pytest.approx((100 * 4 / 6 + 100 / 3) / 2)
