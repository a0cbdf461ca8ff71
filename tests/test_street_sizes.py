"""Street pictures of true and of small sizes through the engine: scale, label size, norm mode."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.nn.functional import interpolate
from typer.testing import CliRunner

from ctta_bench.analysis.read.collect import load
from ctta_bench.analysis.tables.main import main_table
from ctta_bench.api import load_model
from ctta_bench.cli import app
from ctta_bench.config.cell import Cell, CellRequest, resolve
from ctta_bench.datasets.streets_acdc import SCALE, Streets
from ctta_bench.errors import DataError
from ctta_bench.record.folder import RunFolder
from ctta_bench.registry import BENCHMARKS, METHODS, load_plugin
from ctta_bench.run.engine import run_cell
from ctta_bench.run.open import norm_statistics, open_cell
from tests.conftest import TOY
from tests.datasets.test_cityscapes_acdc import save
from tests.methods import changed, tensors, toy

FULL, HALF = (540, 960), (270, 480)


@pytest.fixture(autouse=True)
def _toys() -> None:
    load_plugin(str(TOY))
    load_plugin("tests.toy_maps")


def lay(root: Path, height: int, width: int, seen: tuple[int, int]) -> Path:
    """A picture of fog with its labels, and two of Cityscapes without, all smooth."""
    random = np.random.RandomState(0)

    def smooth(high: int, wide: int) -> np.ndarray:
        coarse = torch.from_numpy(random.rand(1, 3, 9, 16))
        large = interpolate(coarse, size=(high, wide), mode="bilinear")[0]
        return (large * 255).byte().movedim(0, -1).contiguous().numpy()

    place = "fog/train/GOPR0475/GOPR0475_frame_000002"
    save(root / f"rgb_anon/{place}_rgb_anon.png", smooth(height, width))
    label = np.repeat(np.arange(19, dtype=np.uint8), -(-width // 19))[:width]
    label = np.tile(label, (height, 1))
    label[: height // 4] = 255
    save(root / f"gt/{place}_gt_labelTrainIds.png", label)
    for number in range(2):
        name = f"leftImg8bit/train/ulm/ulm_00000{number}_000019_leftImg8bit.png"
        save(root / name, smooth(*seen))
    return root


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of ACDC's and of Cityscapes' true sizes."""
    return lay(tmp_path_factory.mktemp("large"), 1080, 1920, (1024, 2048))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay(tmp_path_factory.mktemp("small"), 64, 64, (64, 64))


def cell(root: Path, method: str = "source", model: str = "toy_streets", **values: Any) -> Cell:
    chosen = {"benchmark.domains": ["fog"], "benchmark.rounds": 1} | values
    return resolve(
        CellRequest(
            method=method, benchmark="cityscapes_acdc", model=model, data_root=root, set=chosen,
            workers=0,
        )
    )  # fmt: skip


def run(made: Cell, runs: Path) -> Path:
    """The folder of a cell that ran."""
    run_cell(made, RunFolder(runs / made.id))
    return runs / made.id


def predicted_by_hand(root: Path, scale: tuple[int, int], *, resized_first: bool) -> torch.Tensor:
    """Pixels by label and prediction of the picture, from the model's logits alone."""
    entry = BENCHMARKS.get("cityscapes_acdc")
    domain = entry(entry.Settings(scale=scale), root).domain("fog")
    image, label = domain.load(np.array([0])), domain.maps(np.array([0]))[0].long()
    with torch.no_grad():
        logits = load_model("toy_streets").eval()(image.float() / 255)
    if resized_first:
        found = interpolate(logits, size=label.shape, mode="bilinear").argmax(1)[0]
    else:
        found = interpolate(logits.argmax(1)[None].float(), size=label.shape)[0, 0].long()
    valid = label != 255
    return torch.bincount(label[valid] * 19 + found[valid], minlength=19 * 19).view(19, 19)


@pytest.mark.parametrize(
    "scale", [pytest.param(FULL, marks=pytest.mark.slow), HALF], ids=["protocol", "half"]
)
def test_predictions_have_the_labels_size_and_are_the_argmax_of_resized_logits(
    scale: tuple[int, int], large: Path, tmp_path: Path
) -> None:
    made = cell(large) if scale == FULL else cell(large, **{"benchmark.scale": list(scale)})
    assert made.record["benchmark"]["scale"] == list(scale)
    folder = run(made, tmp_path)
    with np.load(folder / "predictions.npz", allow_pickle=False) as arrays:
        counted = torch.from_numpy(arrays["confusion"][0]).long()
    assert counted.sum() == 1080 * 1920 * 3 // 4  # a fourth is ignored
    assert torch.equal(counted[:, :-1], predicted_by_hand(large, scale, resized_first=True))
    other = predicted_by_hand(large, scale, resized_first=False)
    assert not torch.equal(counted[:, :-1], other)


def test_another_scale_is_another_cell_and_a_footnote(small: Path, tmp_path: Path) -> None:
    full, half = cell(small), cell(small, **{"benchmark.scale": [32, 32]})
    assert full.id != half.id
    run(half, tmp_path)
    table = main_table(load(tmp_path))
    assert "images of 32 x 32 (height x width)" in table.caption
    assert "Images at 32x32 pixels instead of 960x540." in table.footnotes


MODES = {"source": {}, "tent": {}, "cotta": {"views": 2}, "paid": {"source_samples": 2}}


@pytest.mark.parametrize("size", ["small", pytest.param("large", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", MODES)
def test_a_segformer_runs_one_picture_on_a_cpu_and_the_record_states_its_norms(
    method: str, size: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    root, scale = request.getfixturevalue(size), (64, 64) if size == "small" else FULL
    values = MODES[method] | {"benchmark.scale": list(scale)}
    folder = run(cell(root, method, "toy_segformer", **values), tmp_path)
    record = yaml.safe_load((folder / "cell.yaml").read_text("utf-8"))
    assert record["norm_statistics"] == "source"
    result = json.loads((folder / "result.json").read_text("utf-8"))
    assert result["mean"] is not None
    assert result["counters"]["skipped_updates"] == 0


def test_source_leaves_the_running_statistics_of_a_segformer_as_they_were(small: Path) -> None:
    made = cell(small, model="toy_segformer", **{"benchmark.scale": [64, 64]})
    method = open_cell(made).method()
    before = tensors(method.model)
    for _ in range(3):
        method(torch.rand(1, 3, 64, 64))
    assert any("running_var" in name for name in before)
    assert changed(before, method.model) == set()


@pytest.mark.parametrize(
    ("method", "model", "values", "mode"),
    [
        ("source", "toy_cnn", {}, "source"),
        ("tent", "toy_cnn", {}, "batch"),
        ("cotta", "toy_cnn", {}, "batch"),
        ("paid", "toy_vit", {}, None),
        ("norm", "toy_cnn", {}, "batch"),
        ("norm", "toy_cnn", {"faithful": True}, "batch"),
        ("norm", "toy_cnn", {"statistics": "alpha"}, "mixed"),
        ("norm", "toy_cnn", {"statistics": "ema"}, "moving"),
        ("norm", "toy_vit", {"allow_noop": True}, None),
        ("rotta", "toy_cnn", {}, "moving"),
        ("rotta", "toy_vit", {}, None),
    ],
)
def test_the_norm_mode_is_the_methods_decision(
    method: str, model: str, values: dict[str, Any], mode: str | None
) -> None:
    kind = METHODS.get(method)
    built = kind(load_model(model), kind.Hyperparameters(**values))
    assert norm_statistics(built) == mode


@pytest.mark.parametrize("method", ["source", "tent", "cotta"])
def test_a_network_with_a_synchronised_norm_runs_without_a_group(method: str) -> None:
    network, plain = toy.toy_cnn(), toy.toy_cnn()
    network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    assert any(isinstance(m, nn.SyncBatchNorm) for m in network.modules())
    kind = METHODS.get(method)
    logits = []
    for given in (network, plain):
        built = kind(load_model(given), kind.Hyperparameters())
        logits = [*logits, [built(images) for images in toy.pictures(4, seed=1).split(2)][-1]]
    torch.testing.assert_close(logits[0], logits[1])


def test_the_embedded_streets_record_their_scale() -> None:
    record = resolve(CellRequest(method="source", benchmark="streets_acdc")).record
    assert record["benchmark"]["scale"] == [128, 256] == list(SCALE)
    assert Streets("fog", 1).load(np.array([0])).shape[-2:] == SCALE


def test_pictures_of_which_attention_would_see_nothing_are_refused_in_a_sentence(
    small: Path,
) -> None:
    network = load_model("toy_segformer").network
    with torch.no_grad():
        assert network(torch.rand(1, 3, 29, 29)).shape == (1, 19, 8, 8)
    for height, width in ((28, 64), (64, 28)):
        with pytest.raises(DataError, match=f"at least 29 x 29 pixels, but got {height} x {width}"):
            network(torch.rand(1, 3, height, width))
    words = ["run", "source", "cityscapes_acdc", "--model", "toy_segformer", "--device", "cpu"]
    places = ["--plugin", "tests.toy_maps", "--data-root", str(small), "--out", str(small / "runs")]
    chosen = ["--set", "domains=[fog]", "--set", "scale=[20, 20]", "--workers", "0"]
    told = CliRunner().invoke(app, [*words, *places, *chosen])
    assert told.exit_code == 2
    assert "at least 29 x 29 pixels, but got 20 x 20" in " ".join(told.stderr.split())
