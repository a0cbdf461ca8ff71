"""Kept models, as tests write them: found, compared with their source, tabled and drawn."""

import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from safetensors.numpy import save_file

from ctta_bench.analysis.figures.attention import AttentionGrid, Picture, attention_figure
from ctta_bench.analysis.figures.geometry import by_domain, domain_figure, logarithmic, raw_figure
from ctta_bench.analysis.kept_models.geometry import compare, source_layer
from ctta_bench.analysis.kept_models.geometry_runs import read_geometry
from ctta_bench.analysis.kept_models.stored import kept_models, linear_layers
from ctta_bench.analysis.paper.components import with_labels
from ctta_bench.analysis.paper.settings import settings_figure
from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.report.kept_models import visualisations
from ctta_bench.analysis.report.write import write_report
from ctta_bench.analysis.tables.geometry import CIRCULAR, geometry_table
from ctta_bench.errors import RunError

pytestmark = pytest.mark.usefixtures("undrawn")

RATES = {"gaussian_noise": 0.6, "fog": 0.4}
FILES = ("00-gaussian_noise", "01-fog")


def network(seed=0, scale=0.0):
    """A tiny network's tensors: a fixed one, plus noise of this scale in its blocks."""
    fixed, noise = np.random.default_rng(0), np.random.default_rng(seed)
    shapes = {
        "patch_embed.proj.weight": (6, 3, 2, 2),
        "blocks.0.attn.qkv.weight": (18, 6),
        "blocks.0.attn.qkv.bias": (18,),
        "blocks.0.norm1.weight": (6,),
        "blocks.10.mlp.fc1.weight": (8, 6),
        "blocks.2.mlp.fc1.weight": (8, 6),
        "head.weight": (4, 6),
    }
    return {
        name: (
            fixed.normal(size=shape) + ("blocks" in name) * scale * noise.normal(size=shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def keep(folder, tensors, stem):
    (folder / "models").mkdir(exist_ok=True)
    save_file(tensors, folder / "models" / f"{stem}.safetensors")
    return folder


@pytest.fixture
def runs(write, runs_dir):
    """Source, PAID, its free form, and a fine-tuned model, all with their models."""
    keep(write(runs_dir, "source", RATES), network(), "last")
    for number, (component, scale) in enumerate(
        [("magnitude_orthogonal", 0.1), ("direction", 0.2)]
    ):
        cell = write(runs_dir, "paid", RATES, hyperparameters={"component": component})
        for place, stem in enumerate(FILES):
            keep(cell, network(10 * number + place + 1, scale), stem)
    tuned = write(runs_dir, "finetune", {"turns": 0.1}, hyperparameters={"adapter": "none"})
    keep(tuned, network(99, 0.5), "00-turns")
    return runs_dir


def test_kept_models_are_found_in_the_order_of_the_stream(tmp_path):
    for stem in ("10-fog", "02-snow", "last", "notes"):
        keep(tmp_path, network(), stem)
    found = [(kept.visit, kept.domain) for kept in kept_models(tmp_path)]
    assert found == [(2, "snow"), (10, "fog"), (-1, "last")]
    assert kept_models(tmp_path / "nowhere") == []


def test_linear_layers_are_those_of_the_blocks_with_q_k_and_v_apart(tmp_path):
    tensors = network()
    keep(tmp_path, tensors, "last")
    layers = linear_layers(tmp_path / "models" / "last.safetensors")
    assert list(layers) == [
        *(f"blocks.0.attn.qkv.{role}" for role in "qkv"),
        "blocks.2.mlp.fc1",
        "blocks.10.mlp.fc1",
    ]
    assert np.array_equal(layers["blocks.0.attn.qkv.k"], tensors["blocks.0.attn.qkv.weight"][6:12])


def test_the_bare_weights_of_torch_s_attention_are_layers_too(tmp_path):
    name = "encoder.layers.encoder_layer_0.self_attention"
    keep(tmp_path, {f"{name}.in_proj_weight": np.ones((6, 2), np.float32)}, "last")
    layers = linear_layers(tmp_path / "models" / "last.safetensors")
    assert list(layers) == [f"{name}.in_proj.{role}" for role in "qkv"]


def test_a_file_without_linear_layers_or_cut_is_refused(tmp_path):
    file = keep(tmp_path, {"features.0.weight": np.ones((2, 3, 3, 3), np.float32)}, "last")
    file = file / "models" / "last.safetensors"
    with pytest.raises(RunError, match="no linear layer"):
        linear_layers(file)
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(RunError, match=r"last.safetensors: cannot be read .*--force"):
        linear_layers(file)


def test_every_kept_model_is_compared_with_the_one_that_source_kept(runs):
    (geometry,), left_out = read_geometry(runs)
    assert left_out == []
    rows = geometry.models.set_index(["label", "domain"])
    assert list(rows.index) == [
        ("PAID (2) direction", "gaussian_noise"),
        ("PAID (2) direction", "fog"),
        ("PAID (5) magnitude, rotation", "gaussian_noise"),
        ("PAID (5) magnitude, rotation", "fog"),
        ("semantic, free", "turns"),
    ]
    assert rows["kind"].tolist() == ["corruption"] * 4 + ["semantic"]
    assert rows["invariant"].tolist() == [False, False, True, True, False]
    before, after = network(), network(11, 0.2)
    name = "blocks.2.mlp.fc1"
    expected = compare(source_layer(before[f"{name}.weight"]), after[f"{name}.weight"])
    layers = geometry.layers.set_index(["label", "domain", "layer"])
    found = layers.loc[("PAID (2) direction", "gaussian_noise", name)]
    assert found["delta_s"] == pytest.approx(expected["delta_s"])
    assert found["delta_m"] == pytest.approx(expected["delta_m"])


def test_a_control_is_also_measured_at_the_size_of_paid_s_change(runs):
    rows = read_geometry(runs)[0][0].models.set_index(["label", "domain"])
    free, paid = ("PAID (2) direction", "fog"), ("PAID (5) magnitude, rotation", "fog")
    assert rows.loc[paid, "matched_delta_s_per_pair"] == rows.loc[paid, "delta_s_per_pair"]
    before, after = network(), network(12, 0.2)
    factor = rows.loc[paid, "change"] / rows.loc[free, "change"]
    sums, pairs = 0.0, 0
    for layer, weight in linear_layers_of(before).items():
        scaled = weight + factor * (linear_layers_of(after)[layer] - weight.astype(np.float64))
        sums += compare(source_layer(weight), scaled)["delta_s"]
        pairs += len(weight) * (len(weight) - 1)
    assert rows.loc[free, "matched_delta_s_per_pair"] == pytest.approx(sums / pairs)
    noise = rows["random_delta_s_per_pair"]
    assert noise.loc[free] == noise.loc[paid] > 0
    assert np.isnan(rows.loc[("semantic, free", "turns"), "matched_delta_s_per_pair"])


def linear_layers_of(tensors):
    from ctta_bench.analysis.kept_models.stored import split_layers

    return dict(split_layers(tensors))


def test_the_table_tells_what_follows_from_construction(runs):
    table = geometry_table(read_geometry(runs)[0][0])
    assert [label for label, _ in table.lines][-1] == "semantic, free"
    assert "PAID (5) magnitude, rotation *" in [label for label, _ in table.lines]
    assert table.footnotes == (CIRCULAR,)
    assert "by construction" in table.to_markdown()
    assert r"$\Delta$S" in table.to_latex()
    means = table.frame.loc["PAID (2) direction"]
    rows = read_geometry(runs)[0][0].models
    assert means["delta_m"] == pytest.approx(
        rows[rows["label"] == "PAID (2) direction"]["delta_m"].mean()
    )


def test_a_line_has_the_values_by_domain_and_semantic_shifts_stand_behind_a_gap(runs, tmp_path):
    (geometry,), _ = read_geometry(runs)
    drawn = by_domain(geometry.models)
    of = drawn[drawn["measure"] == "delta_m"].set_index(["label", "domain"])
    assert of.loc["PAID (2) direction", "place"].to_dict() == {"gaussian_noise": 0, "fog": 1}
    assert of.loc["semantic, free", "place"].tolist() == [3]
    rows = geometry.models.set_index(["label", "domain"])
    assert of.loc[("PAID (2) direction", "fog"), "value"] == pytest.approx(
        rows.loc[("PAID (2) direction", "fog"), "delta_m"]
    )
    assert (drawn["drawn"] > 0).all()  # on a logarithmic axis
    paths = domain_figure(geometry, tmp_path / "figure")
    assert [path.suffix for path in paths] == [".png", ".pdf", ".csv"]
    np.testing.assert_allclose(pd.read_csv(paths[2])["value"], drawn["value"], rtol=1e-9)


@pytest.mark.parametrize("draw", [domain_figure, raw_figure])
def test_a_figure_says_in_itself_what_follows_from_construction(runs, monkeypatch, draw):
    drawn = []
    monkeypatch.setattr(
        "ctta_bench.analysis.figures.geometry.save_figure", lambda figure, *_: drawn.append(figure)
    )
    draw(read_geometry(runs)[0][0], runs / "figure")
    caption = drawn[0].get_supxlabel().replace("\n", " ")
    assert "keep every angle between neurons by construction" in caption
    shown = [label.get_text() for label in drawn[0].axes[0].get_yticklabels()]
    shown += [text.get_text() for legend in drawn[0].legends for text in legend.get_texts()]
    assert "PAID (5) magnitude, rotation *" in shown
    assert "PAID (2) direction" in shown


def test_without_kept_models_there_is_nothing_to_compare(write, runs_dir):
    write(runs_dir, "source", RATES)
    with pytest.raises(RunError, match="--keep-models domains"):
        read_geometry(runs_dir)


def test_without_source_weights_the_reason_is_given_and_a_loader_helps(write, runs_dir):
    keep(write(runs_dir, "paid", RATES), network(1, 0.1), "last")
    with pytest.raises(RunError, match="run source with --keep-models last"):
        read_geometry(runs_dir)
    asked = []

    def load_source(model, sha256):
        asked.append((model, sha256))
        return linear_layers_of(network())

    (geometry,), _ = read_geometry(runs_dir, load_source)
    assert asked == [("mini_vit", "a" * 64)]
    assert geometry.models["domain"].tolist() == ["last"]


def test_a_model_kept_by_a_run_on_another_network_is_left_out_by_name(write, runs_dir):
    keep(write(runs_dir, "source", RATES), network(), "last")
    tensors = network(1, 0.1) | {"blocks.3.mlp.fc1.weight": np.ones((8, 6), np.float32)}
    keep(write(runs_dir, "paid", RATES), tensors, "last")
    with pytest.raises(RunError, match=r"mini_vit .*paid-mini_c.*not those of the source model"):
        read_geometry(runs_dir)


def test_cells_that_share_a_name_keep_the_report_s_own_label(write, runs_dir):
    for lr in (0.1, 0.2):
        write(runs_dir, "paid", RATES, hyperparameters={"component": "direction", "lr": lr})
    write(runs_dir, "paid", RATES, hyperparameters={"component": "magnitude", "lr": 0.1})
    labels = with_labels(load(runs_dir).cells)["label"].tolist()
    assert labels == [
        "PAID (1) magnitude",
        "paid component=direction, lr=0.1",
        "paid component=direction, lr=0.2",
    ]


def test_a_report_shows_geometry_and_attention_where_models_were_kept(runs):
    drawn = []

    def draw_attention(found, folder, canvas):
        drawn.append(len(found.cells))
        (folder / "maps.png").write_bytes(b"png")
        return [("what it shows", [folder / "maps.png"])]

    report = write_report(runs, draw_attention=draw_attention)
    page = report.page.read_text()
    names = {path.name for path in report.table_files + report.figure_files}
    assert drawn == [4]
    assert "Geometry of adapted weights – mini_vit" in page
    assert "by construction" in page
    assert "what it shows" in page
    assert {
        f"geometry-mini_vit-aaaaaaaa{x}" for x in (".md", ".tex", ".csv", "-layers.csv")
    } < names
    assert {"geometry-mini_vit-aaaaaaaa-geometry.png", "geometry-mini_vit-aaaaaaaa-raw.pdf"} < names


@pytest.mark.parametrize("which", ["x", "y"])
def test_an_axis_within_a_decade_has_a_few_numbers(which):
    figure = Figure()
    axes = figure.subplots()
    axes.plot([1.6e-4, 2.5e-4], [1.6e-4, 2.5e-4])
    logarithmic(axes, which)
    figure.draw_without_rendering()
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = sorted(axis.get_view_interval())
    shown = [text for text in axis.get_ticklabels(which="both") if text.get_text()]
    within = [text for text in shown if low <= text.get_position()[which == "y"] <= high]
    assert 2 <= len(within) <= 4


def test_what_cannot_be_drawn_is_said_and_takes_nothing_from_the_report(write, runs_dir):
    def draw_attention(found, folder, canvas):
        raise RunError("this network has no attention.")

    keep(write(runs_dir, "paid", RATES), network(), "last")
    found = visualisations(load(runs_dir), runs_dir, draw_attention)
    assert [part.title for part in found] == ["Geometry left out", "Attention maps left out"]
    assert "run source with --keep-models last" in found[0].text
    assert found[1].text == "this network has no attention."


def test_a_report_without_kept_models_asks_for_no_attention(write, runs_dir):
    write(runs_dir, "source", RATES)
    report = write_report(runs_dir, draw_attention=lambda *_: pytest.fail("asked"))
    assert "Geometry" not in report.page.read_text()


def test_the_five_settings_are_drawn_beside_source_with_their_numbers(write, runs_dir, tmp_path):
    rates = {"gaussian_noise": 0.6, "fog": 0.4, "snow": 0.2}
    write(runs_dir, "source", rates)
    write(runs_dir, "tent", rates)
    for component, factor in (("magnitude_orthogonal", 0.5), ("magnitude", 0.75)):
        scaled = {name: rate * factor for name, rate in rates.items()}
        write(runs_dir, "paid", scaled, hyperparameters={"component": component})
    paths = settings_figure(load(runs_dir), tmp_path / "settings")
    drawn = pd.read_csv(paths[2], index_col="setting")
    assert list(drawn.index) == ["source", "PAID (1) magnitude", "PAID (5) magnitude, rotation"]
    assert drawn.loc["PAID (1) magnitude", ["gaussian_noise", "fog", "snow", "mean"]].tolist() == [
        45,
        30,
        15,
        30,
    ]


def test_a_single_setting_of_paid_makes_no_figure_of_settings(write, runs_dir, tmp_path):
    write(runs_dir, "source", RATES)
    write(runs_dir, "paid", RATES)
    assert settings_figure(load(runs_dir), tmp_path / "settings") == []


def grid(side):
    generator = np.random.default_rng(0)
    maps = generator.random((2, side, side))
    image = generator.random((16, 16, 3))
    picture = Picture(
        domain="fog",
        index=3,
        label=1,
        clean=None,
        corrupted=image,
        maps=maps / maps.sum((1, 2), keepdims=True),
        predictions=np.array([1, 2]),
        spreads=np.array([0.25, 0.75]),
    )
    return AttentionGrid("attention-x", "title", "how", ["source", "paid"], [picture])


def test_the_attention_figure_leaves_its_maps_and_what_was_predicted(tmp_path):
    made = grid(4)
    paths = attention_figure(made, tmp_path / "maps")
    assert [path.suffix for path in paths] == [".png", ".pdf", ".csv", ".npz"]
    with np.load(paths[3], allow_pickle=False) as arrays:
        assert np.array_equal(arrays["maps"], made.pictures[0].maps[None])
        assert arrays["model"].tolist() == ["source", "paid"]
    rows = pd.read_csv(paths[2])
    first, second = made.pictures[0].maps
    assert json.loads(rows.drop(columns="moved").to_json(orient="values")) == [
        ["fog", 3, 1, "source", 1, 0.25],
        ["fog", 3, 1, "paid", 2, 0.75],
    ]
    # What is more in one place is less in another: half of all differences has moved.
    expected = [0, np.maximum(second - first, 0).sum()]
    np.testing.assert_allclose(rows["moved"], expected, rtol=1e-9)
    assert attention_figure(made, tmp_path / "again")[3].read_bytes() == paths[3].read_bytes()


@pytest.mark.parametrize(("side", "words"), [(8, "8 x 8 patches, too few"), (14, "")])
def test_maps_too_coarse_to_read_say_so(side, words):
    assert words in grid(side).warning()
    assert grid(side).is_readable == (not words)
