"""`ctta-bench geometry` and `ctta-bench attention` on models that cells of the toy really kept."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.errors import RunError
from ctta_bench.measuring.attention_maps import source_layers
from ctta_bench.run.environment import environment
from ctta_bench.source_models.pretrained import load_source_model
from ctta_bench.stream import as_input
from tests.conftest import TOY
from tests.methods import toy

pytestmark = pytest.mark.usefixtures("undrawn")

EXPERIMENT = """
methods:
  - {name: source}
  - {name: paid, set: {lr: 1e-2, source_samples: 16}}
  - {name: paid, set: {lr: 1e-2, source_samples: 16, component: direction}}
benchmarks: [toy]
keep_models: domains
set: {benchmark.setting: reset, benchmark.examples: 16, benchmark.domains: [clean, dark]}
"""


def ctta(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three cells of the toy, with the model of every domain."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "toy.yaml").write_text(EXPERIMENT)
    done = ctta("grid", folder / "toy.yaml", "--out", folder / "runs", "--plugin", TOY, "-q")
    assert done.exit_code == 0, done.output
    return folder / "runs"


def test_the_geometry_of_real_cells_has_paid_s_zeros(runs, tmp_path):
    out = tmp_path / "out"
    done = ctta("geometry", runs, "--out", out, "--format", "json")
    assert done.exit_code == 0, done.output
    ((table,), left_out) = (json.loads(done.stdout)[key] for key in ("tables", "left_out"))
    rows = {row["label"]: row for row in table["rows"]}
    paid, free = rows["PAID (5) magnitude, rotation"], rows["PAID (2) direction"]
    assert left_out == []
    assert paid["models"] == free["models"] == 2
    assert paid["delta_s_per_pair"] < 1e-7 < 1e-6 < free["delta_s_per_pair"]
    assert free["delta_m"] < 1e-6 < paid["delta_m"]
    assert paid["delta_a"] > 1e-6
    names = {path.suffix for path in out.iterdir()}
    assert names == {".md", ".tex", ".bib", ".csv", ".png", ".pdf", ".svg", ".txt"}


@pytest.mark.slow
def test_source_weights_come_from_the_model_itself_where_no_source_was_kept(runs, tmp_path):
    alone = tmp_path / "runs"
    alone.mkdir()
    for cell in runs.glob("paid-*"):
        (alone / cell.name).symlink_to(cell)
    command = ("geometry", "--plugin", TOY, "--format", "json")
    kept, own = (
        json.loads(ctta(*command, folder, "--out", tmp_path / "o").stdout)["tables"]
        for folder in (runs, alone)
    )
    assert own == kept


def test_weights_that_are_not_the_runs_are_refused(toy):
    with pytest.raises(RunError, match="name the right file with --weights"):
        source_layers("toy_vit", "f" * 64)


def test_attention_maps_of_the_kept_models_are_side_by_side(runs, tmp_path):
    out = tmp_path / "out"
    arguments = ("--domain", "dark", "--image", 0, "--image", 5, "--plugin", TOY)
    done = ctta("attention", runs, *arguments, "--out", out)
    assert done.exit_code == 0, done.output
    assert "2 x 2 patches, too few" in done.stdout.replace("\n", " ")
    (maps,) = out.glob("*.npz")
    with np.load(maps, allow_pickle=False) as arrays:
        assert arrays["maps"].shape == (2, 3, 2, 2)
        np.testing.assert_allclose(arrays["maps"].sum((2, 3)), 1)
        assert arrays["model"].tolist() == [
            "source",
            "PAID (2) direction",
            "PAID (5) magnitude, rotation",
        ]
    rows = pd.read_csv(maps.with_suffix(".csv"))
    assert rows["image"].tolist() == [0] * 3 + [5] * 3


def test_looking_leaves_fused_attention_on_and_every_prediction_as_it_was(
    runs, tmp_path, monkeypatch
):
    looked = []

    def fused(*arguments, **options):
        model = load_source_model(*arguments, **options)
        for block in model.network.blocks:
            block.attn.fused_attn = True
        looked.append(model)
        return model

    monkeypatch.setattr("ctta_bench.measuring.attention_maps.load_source_model", fused)
    before = environment(torch.device("cpu"))["attention"]
    arguments = ("--domain", "dark", "--image", 3, "--image", 5, "--plugin", TOY)
    assert ctta("attention", runs, *arguments, "--out", tmp_path).exit_code == 0
    assert environment(torch.device("cpu"))["attention"] == before
    assert len(looked) == 3
    assert all(block.attn.fused_attn for model in looked for block in model.network.blocks)
    images = as_input(toy.Toy().domain("dark").load(np.array([3, 5])))
    with torch.no_grad():
        predicted = torch.stack([model(images).argmax(-1) for model in looked], 1)
    rows = pd.read_csv(next(tmp_path.glob("*.csv")))
    assert rows["prediction"].tolist() == predicted.flatten().tolist()


def test_the_model_of_the_domain_is_the_one_that_looks(runs, tmp_path):
    found = {}
    for domain in ("clean", "dark"):
        out = tmp_path / domain
        ctta("attention", runs, "--domain", domain, "--image", 0, "--plugin", TOY, "--out", out)
        with np.load(next(out.glob("*.npz")), allow_pickle=False) as arrays:
            found[domain] = arrays["maps"]
    assert not np.array_equal(found["clean"], found["dark"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--domain", "rain"), "--domain 'rain': the runs have no such domain"),
        (("--image", 40), "--image 40: clean has images 0 to 39"),
        (("--fusion", "median"), "choose mean, max or min"),
        (("--discard", 1), "discard 1.0"),
        (("--seed", 7), "no cell with seed 7"),
    ],
)
def test_a_mistake_of_the_user_is_one_sentence(runs, tmp_path, arguments, words):
    done = ctta("attention", runs, *arguments, "--plugin", TOY, "--out", tmp_path)
    assert done.exit_code == 2
    assert words in done.output.replace("\n", " ")


@pytest.mark.parametrize("command", ["geometry", "attention"])
def test_a_folder_without_kept_models_is_refused_with_the_option(command, tmp_path):
    (tmp_path / "runs").mkdir()
    done = ctta(command, tmp_path / "runs")
    assert done.exit_code == 2
    assert "--keep-models" in done.output
    assert ctta(command, tmp_path / "nowhere").exit_code == 2
    assert not (tmp_path / "nowhere").exists()
