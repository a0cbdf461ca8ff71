"""Every method on every kind of model, as a user runs it: it works, or is refused in one sentence.

With what users of such code asked for most: which tensors are really updated, which logits are
scored, what of the source data is read, whose hyper-parameters these are, and what becomes of
batches of one image.
"""

import copy
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from rich.console import Console
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from typer.testing import CliRunner, Result

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.tables.main import tables
from ctta_bench.api.compatibility import compatibility
from ctta_bench.cli import app
from ctta_bench.cli.terminal.progress import ConsoleProgress
from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.errors import ConfigError, DataError, MethodError
from ctta_bench.model import SourceModel
from ctta_bench.record.folder import RunFolder
from ctta_bench.registry import BENCHMARKS, METHODS, MODELS, load_plugin
from ctta_bench.run.engine import run_cell
from ctta_bench.run.open import source_data
from ctta_bench.run.options import RunOptions
from ctta_bench.stream import ArrayImages, ImageSet
from tests.conftest import TOY
from tests.methods import WITH, build, pictures, tensors

# Without the controls that are trained on labels.
ALL = [name for name in METHODS.names() if not METHODS.get(name).learns_labels]
EMBEDDED = {"domains": ["brightness", "contrast"], "examples": 20}
TOYS = {"domains": ["dark", "noise"], "examples": 20}
NEEDS_A_VIT = {"cmae", "dept", "dora", "dpcore", "foa", "foa_bp", "kff", "lora", "paid", "rem",
               "vida"}  # fmt: skip
NEEDS_BATCHNORM = {"norm"}
SEGMENTS = {name for name in ALL if METHODS.get(name).tasks == {"segmentation"}}


@pytest.fixture(scope="module", autouse=True)
def models() -> Iterator[None]:
    """Small networks of timm with random weights, which label the toy benchmark themselves."""
    load_plugin(str(TOY))
    known = dict(MODELS._plugin_entries)
    for build_network in (small_resnet, small_vit):
        MODELS.register_module(build_network.__name__)(build_network)
    yield
    MODELS._plugin_entries = known


def seeded(network: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = network()
        for parameter in made.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    made.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "input_size": (3, 16, 16)}
    return made.eval()


def small_resnet() -> nn.Module:
    """timm's ResNet of four stages, eight channels and up."""
    return seeded(
        lambda: timm.models.resnet.ResNet(
            timm.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=10, channels=(8, 8, 16, 16)
        )
    )


def small_vit() -> nn.Module:
    """timm's ViT with a class token and fused attention."""
    return seeded(
        lambda: VisionTransformer(
            img_size=16, patch_size=4, embed_dim=24, depth=4, num_heads=2, num_classes=10
        )
    )


# The defaults but for amounts: what takes long and makes no difference here.
FEW = {"source_samples": 50, "views": 2, "warmup_epochs": 0, "candidates": 5}
FEW |= {"style_network": "random", "source_styles": 4, "style_batch_size": 8}


def request(method: str, model: str, **more: Any) -> CellRequest:
    values = EMBEDDED if model.startswith("fashion") else TOYS | {"labeller": model}
    known = METHODS.get(method).Hyperparameters.model_fields
    values = values | {f"method.{key}": n for key, n in FEW.items() if key in known}
    values |= {"method.prior": "l2"} if method == "petal" else {}  # the other one is a warm-up's
    return CellRequest(
        method=method,
        benchmark="fashion_c" if model.startswith("fashion") else "toy",
        model=model,
        set=values | more,
    )


REFUSED = {
    *((method, model) for method in NEEDS_A_VIT for model in ("fashion_cnn", "small_resnet")),
    *((method, model) for method in NEEDS_BATCHNORM for model in ("fashion_vit", "small_vit")),
}


@pytest.mark.parametrize(
    "model",
    [
        pytest.param("fashion_vit", marks=pytest.mark.slow),
        pytest.param("fashion_cnn", marks=pytest.mark.slow),
        "small_resnet",
        pytest.param("small_vit", marks=pytest.mark.slow),  # test_method.py has another ViT
    ],
)
@pytest.mark.parametrize("method", ALL)
def test_every_pair_runs_or_is_refused_in_one_sentence(
    method: str, model: str, tmp_path: Path
) -> None:
    if method in SEGMENTS:
        with pytest.raises(ConfigError, match=f"method '{method}' supports segmentation"):
            resolve(request(method, model))
        return
    cell = resolve(request(method, model))
    if (method, model) in REFUSED:
        with pytest.raises(MethodError) as refusal:
            run_cell(cell, RunFolder(tmp_path))
        sentence = str(refusal.value)
        assert METHODS.display_name(method) in sentence and model in sentence
        assert sentence.count(". ") == 0 and sentence.endswith(".")
        return
    result = run_cell(cell, RunFolder(tmp_path))
    assert [d["n"] for d in result["rounds"][0]["domains"]] == [20, 20]
    assert all(math.isfinite(d["nll"]) for d in result["rounds"][0]["domains"])
    # What it names as updated, with sizes, is what the method says on a fresh model.
    cost, network = result["cost"], SourceModel(MODELS.get(model)(), name=model)
    updated = METHODS.get(method)(network, cell.hyperparameters).trainable
    assert cost["trainable_tensors"] == {n: p.numel() for n, p in updated.items()}
    assert cost["trainable_parameters"] == sum(cost["trainable_tensors"].values())
    assert json.loads((tmp_path / "result.json").read_text())["cost"] == cost


def test_a_transformer_without_any_record_gets_images_of_the_only_size_that_it_takes() -> None:
    bare = VisionTransformer(img_size=16, patch_size=4, embed_dim=8, depth=1, num_heads=1)
    assert SourceModel(bare).preprocessing.size == (16, 16)
    flexible = VisionTransformer(
        img_size=16, patch_size=4, embed_dim=8, depth=1, num_heads=1, dynamic_img_size=True
    )
    assert SourceModel(flexible).preprocessing.size is None


# -- which tensors are really updated


# Norm layers of the ViT: two a block and the last, width 48, weight and bias; of the BatchNorm
# network: six, 448 channels in all.
@pytest.mark.parametrize(
    "name",
    [
        "tent",
        "pseudo_label",
        "eta",
        "eata",
        "rdumb",
        "rotta",
        "roid",
        "cmf",
        "come_tent",
        "come_eata",
        "asr_eta",
        "asr_roid",
    ],
)
@pytest.mark.parametrize(
    ("model", "count", "tensors"), [("toy_vit", 9 * 2 * 24, 18), ("toy_cnn", 2 * (12 + 24), 4)]
)
def test_methods_of_norm_layers_report_these_and_no_other(
    name: str, model: str, count: int, tensors: int
) -> None:
    found = compatibility(name, SourceModel(MODELS.get(model)(), name=model))
    assert (found.parameters, len(found.trainable)) == (count, tensors)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("source", 0),
        ("lame", 0),
        ("sar", 6 * 2 * 24),  # a quarter of four blocks is left out, and the last norm
        ("deyo", 6 * 2 * 24),  # as sar
        ("come_sar", 6 * 2 * 24),
        ("vdp", 2 * 3 * 3 * 5**2),  # a third of 16 pixels
        ("paid", 4 * 9 * 24 * (12 + 1)),  # per block 9 (r + 1) d
        ("lora", 4 * 9 * 24 * 2 * 6),
        ("t3a", 0),
        ("foa", 3 * 24),
        ("foa_bp", 9 * 2 * 24),
        ("dpcore", 8 * 24),
        ("palm", 9 * 2 * 24 + (3 * 8**2 + 1) * 24),  # and the patch embedding
        ("spa", 9 * 2 * 24 + 24**2),
        ("santa", 9 * 2 * 24 + (24 + 1) * 128 + (128 + 1) * 128),
    ],
)
def test_the_reported_count_is_that_of_the_formula(name: str, count: int) -> None:
    found = compatibility(name, SourceModel(MODELS.get("toy_vit")(), name="toy_vit"))
    assert found.parameters == count


def test_cotta_reports_the_whole_network_but_class_token_and_position_table() -> None:
    network = MODELS.get("toy_vit")()
    found = compatibility("cotta", SourceModel(network, name="toy_vit"))
    whole = sum(p.numel() for p in network.parameters())
    assert found.parameters == whole - 24 - 5 * 24


# -- which source data is read


@pytest.fixture
def without_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BENCHMARKS.get("toy"), "source", lambda self: None)
    place = "the folder ROOT/source, of CLASS/IMAGE"
    monkeypatch.setattr(BENCHMARKS.get("toy"), "source_location", lambda self: place)


@pytest.mark.usefixtures("without_source")
@pytest.mark.parametrize(
    "name",
    # One stands for those that need none.
    ["tent", *(n for n in ALL if n not in SEGMENTS and METHODS.get(n).source_access != "none")],
)
def test_without_source_data_a_method_either_needs_none_or_says_where_it_belongs(
    name: str, tmp_path: Path
) -> None:
    model = "toy_cnn" if name in NEEDS_BATCHNORM else "toy_vit"
    cell = resolve(request(name, model, domains=["dark"]))
    method = METHODS.get(name)(SourceModel(MODELS.get(model)()), cell.hyperparameters)
    if method.source_access == "none":
        assert run_cell(cell, RunFolder(tmp_path))["source_access"] == "none"
        return
    with pytest.raises(DataError) as refusal:
        run_cell(cell, RunFolder(tmp_path))
    assert "source data" in str(refusal.value)
    assert "put it in the folder ROOT/source, of CLASS/IMAGE." in str(refusal.value)


class Watched:
    """Source images that note whether images or labels were looked at; a count is no look."""

    def __init__(self, images: ImageSet) -> None:
        self.images = images
        self.read: set[str] = set()

    @property
    def labels(self) -> Any:
        return self

    def __len__(self) -> int:
        return len(self.images.labels)

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        self.read.add("labels")
        return np.asarray(self.images.labels, *args, **kwargs)

    def load(self, index: np.ndarray) -> Tensor:
        self.read.add("images")
        return self.images.load(index)


@pytest.mark.parametrize("name", [n for n in ALL if n not in SEGMENTS])
def test_what_is_read_of_the_source_is_what_is_declared_and_recorded(name: str) -> None:
    benchmark = BENCHMARKS.get("toy")()
    watched = Watched(benchmark.source())
    benchmark.source = lambda: watched
    entry = METHODS.get(name)
    model = "toy_cnn" if name in NEEDS_BATCHNORM else "toy_vit"
    hyperparameters = entry.Hyperparameters(**WITH.get(name, {}))
    method = entry(SourceModel(MODELS.get(model)(), name=model), hyperparameters)
    source = source_data(benchmark, method, 0)
    method.start(source)
    expected = {"none": set(), "unlabelled": {"images"}, "labelled": {"images", "labels"}}
    assert watched.read == expected[method.source_access]


@pytest.mark.parametrize(
    "name", [n for n in ALL if "source_samples" in METHODS.get(n).Hyperparameters.model_fields]
)
def test_no_source_images_at_all_is_refused_before_anything_is_loaded(name: str) -> None:
    with pytest.raises(ConfigError, match=r"source_samples: 0: .*greater than or equal to [12]"):
        resolve(request(name, "no_such_model", **{"method.source_samples": 0}))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in ALL
        if "warmup_epochs" in METHODS.get(name).Hyperparameters.model_fields
        and name not in SEGMENTS
    ],
)
def test_a_warm_up_of_no_epochs_reads_what_the_method_itself_reads(name: str) -> None:
    entry = METHODS.get(name)
    network = SourceModel(MODELS.get("toy_vit")())
    method = entry(network, entry.Hyperparameters(warmup_epochs=0))
    assert method.source_access == entry.source_access


# -- whose hyper-parameters these are


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


FEW_IMAGES = ("--plugin", TOY, "--set", "examples=8", "--set", "domains=[dark]")


def test_a_model_that_no_preset_knows_is_said_once_and_again_below_the_table(runs: Path) -> None:
    told = "no preset for toy_cnn, using default of any benchmark"
    on_cnn = ("--set", "labeller=toy_cnn", "--model", "toy_cnn")
    for method in ("source", "tent", "sar"):
        result = invoke("run", method, "toy", *FEW_IMAGES, *on_cnn)
        assert result.exit_code == 0, result.output
        assert result.stderr.count(told) == (method != "source")  # which has nothing to set
    assert "no preset" not in invoke("run", "tent", "toy", *FEW_IMAGES).stderr
    below = [note for table in tables(load(runs)) for note in table.footnotes]
    assert below.count(f"SAR, TENT: {told}.") == 1
    assert sum("no preset" in note for note in below) == 1


def test_a_grid_says_of_all_its_cells_once_whose_presets_they_take(runs: Path) -> None:
    Path("g.yaml").write_text(
        "methods: [tent, sar]\nbenchmarks: [toy]\nmodels: [toy_cnn]\nseeds: [0, 1]\n"
        "set: {benchmark.labeller: toy_cnn, benchmark.examples: 8, benchmark.domains: [dark]}\n"
    )
    result = invoke("grid", "g.yaml", "--plugin", TOY)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("no preset for toy_cnn") == 1


def test_a_preset_of_a_model_lies_over_its_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {"default": {"any": {"lr": 1.0}, "toy": {"lr": 2.0}, "toy@toy_cnn": {"lr": 3.0}}}
    monkeypatch.setattr("ctta_bench.config.presets.presets_of", lambda method: sections)
    cells = [resolve(request("tent", model)) for model in ("toy_vit", "toy_cnn", "small_resnet")]
    assert [cell.hyperparameters.lr for cell in cells] == [2.0, 3.0, 2.0]
    assert [cell.notes for cell in cells] == [
        (),
        (),
        ("no preset for small_resnet, using default of toy (made for toy_vit)",),
    ]


def test_the_note_is_no_part_of_a_cells_identity() -> None:
    cell = resolve(request("tent", "toy_cnn"))
    assert cell.notes
    assert "notes" not in cell.record


# -- passes, rounds and batches of one image


def test_rounds_are_printed_one_by_one_and_passes_are_counted_once_an_image(runs: Path) -> None:
    result = invoke("run", "tent", "toy", *FEW_IMAGES, "--rounds", 3)
    assert all(f"(round {number})" in result.stdout for number in (1, 2, 3))
    (file,) = runs.rglob("result.json")
    cost = json.loads(file.read_text())["cost"]
    assert (cost["forward_per_image"], cost["backward_per_image"]) == (1.0, 1.0)


@pytest.mark.parametrize("name", ["tent", "norm", "lame"])
def test_batches_of_one_image_are_noted_where_a_method_lives_off_the_batch(
    name: str, runs: Path
) -> None:
    on_cnn = ("--set", "labeller=toy_cnn", "--model", "toy_cnn", "--set", "batch_size=1")
    result = invoke("run", name, "toy", *FEW_IMAGES, *on_cnn)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("from a single image") == 1
    windowed = invoke("run", name, "toy", *FEW_IMAGES, *on_cnn, "--window", 4)
    assert "that image alone" not in windowed.stderr
    below = [note for table in tables(load(runs)) for note in table.footnotes]
    assert sum("from a single image" in note for note in below) == 1


def test_the_source_accuracy_is_that_of_the_model_as_it_came(tmp_path: Path) -> None:
    # TENT makes BatchNorm use the batch: the labels of its own model in evaluation mode are right.
    cell = resolve(request("tent", "toy_cnn", domains=["dark"]))
    assert run_cell(cell, RunFolder(tmp_path))["source_accuracy"] == 100.0


# -- numbers near the edge


@pytest.mark.parametrize(
    "precision",
    ["float32", *(pytest.param(p, marks=pytest.mark.slow) for p in ("bfloat16", "float16"))],
)
@pytest.mark.parametrize("name", sorted(NEEDS_A_VIT))
def test_rows_of_zero_weights_cost_no_update_and_no_finite_number(
    name: str, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = MODELS.get("toy_vit")()
    with torch.no_grad():
        for block in network.blocks:
            block.attn.qkv.weight[5] = 0
            block.attn.proj.weight[:, 3] = 0
            block.attn.proj.weight[3] = 0
            block.mlp.fc1.weight[2] = 1e-30
    monkeypatch.setattr("tests.methods.toy.toy_vit", lambda: copy.deepcopy(network))
    method, source = build(name, precision=precision), network.eval()
    first, *rest = pictures(20).split(4)
    started = method(first)
    for images in rest:
        assert bool(method(images).isfinite().all())
    assert method.counters["skipped_updates"] == 0
    assert all(bool(t.isfinite().all()) for t in tensors(method.model).values())
    if precision == "float32" and name in ("dora", "lora", "paid"):
        with torch.no_grad():
            expected = source((first - 0.5) / 0.5)
        torch.testing.assert_close(started, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("fused", [True, False])
def test_a_collapse_is_marked_and_the_kernel_of_attention_stands_below(
    fused: bool, runs: Path
) -> None:
    was = timm.layers.use_fused_attn()
    timm.layers.set_fused_attn(fused)
    try:
        call = ("--plugin", TOY, "--set", "domains=[dark]", "--set", "lr=30", "--rounds", 3)
        assert invoke("run", "tent", "toy", *call).exit_code == 0
    finally:
        timm.layers.set_fused_attn(was)
    text = " ".join(note for table in tables(load(runs)) for note in table.footnotes)
    assert "Collapsed: in at least one round of one seed, a single class makes up" in text
    assert f"attention {'fused' if fused else 'plain'}" in text


@pytest.mark.parametrize("name", ["cotta", "rotta"])
def test_a_progress_line_and_the_size_of_the_source_change_no_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = resolve(request(name, "toy_vit"))
    run_cell(cell, RunFolder(tmp_path / "bare"))
    images = BENCHMARKS.get("toy")().source()
    fewer = ArrayImages(images.images[:30], images.labels[:30])
    monkeypatch.setattr(BENCHMARKS.get("toy"), "source", lambda self: fewer)
    watcher = ConsoleProgress(Console(force_terminal=True, file=io.StringIO()), "cell")
    run_cell(cell, RunFolder(tmp_path / "watched"), RunOptions(loggers=[watcher]))
    bare, watched = ((tmp_path / n / "predictions.npz") for n in ("bare", "watched"))
    assert bare.read_bytes() == watched.read_bytes()


# -- the list of pairs


@pytest.mark.slow  # it builds all methods on a ResNet-18
def test_the_list_tells_counts_and_refusals_for_any_model_without_its_weights() -> None:
    rows = json.loads(
        invoke("list", "methods", "--model", "timm:resnet18", "--format", "json").stdout
    )
    found = {row["method"]: row for row in rows}
    assert set(found) == set(METHODS.names())
    # Twenty BatchNorm layers, 4,800 channels.
    assert (found["tent"]["parameters"], len(found["tent"]["trainable"])) == (9600, 40)
    assert found["rotta"]["scored"] == "teacher" and found["tent"]["scored"] == "model"
    assert "linear layers of role q" in found["paid"]["refusal"]
    text = invoke("list", "methods", "--model", "fashion_vit", "--verbose").stdout
    assert "blocks.0.norm1.weight" in text and "BN adapt re-estimates" in text
    assert invoke("list", "models", "--model", "fashion_vit").exit_code == 2
    assert invoke("list", "methods", "--model", "timm:nix").exit_code == 2
