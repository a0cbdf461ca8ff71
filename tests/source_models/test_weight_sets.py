"""Files with several sets of weights: which is read, what is said, and how to take another."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.errors import DataError
from ctta_bench.record.folder import RunFolder
from ctta_bench.run.engine import run_cell
from ctta_bench.source_models.pretrained import load_source_model
from ctta_bench.source_models.shared import Models
from ctta_bench.source_models.weight_sets import located
from ctta_bench.source_models.weights import load_weights
from tests.conftest import TOY
from tests.methods import toy

pytestmark = pytest.mark.usefixtures("toy")
Tensors = dict[str, Tensor]


def raw() -> Tensors:
    return toy.toy_vit().state_dict()


def averaged() -> Tensors:
    return {name: value + 0.01 for name, value in raw().items()}


def prefixed(tensors: Tensors, prefix: str) -> Tensors:
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def saved(contents: Any, folder: Path) -> Path:
    torch.save(contents, folder / "w.pth")
    return folder / "w.pth"


def loaded(path: Path | str) -> tuple[Tensors, str]:
    network = toy.toy_vit()
    for parameter in network.parameters():
        parameter.data.fill_(9)
    note = load_weights(network, Path(path))
    return network.state_dict(), note


def same(first: Tensors, second: Tensors) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


TRAINING = {"optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []}, "epoch": 3}


@pytest.mark.parametrize(
    ("contents", "taken", "other"),
    [
        (lambda: {"state_dict": raw(), "params_ema": averaged()}, "state_dict", "params_ema"),
        (lambda: {"model_ema": averaged(), "model": raw()}, "model", "model_ema"),
        (lambda: {"model": raw(), "ema": {"module": averaged(), "n": 9}}, "model", "ema.module"),
        (lambda: {"state_dict": raw(), "model": averaged()}, "state_dict", "model"),
        (lambda: {"model": raw(), "teacher": prefixed(averaged(), "module")}, "model", "teacher"),
        (lambda: {**raw(), "ema": averaged()}, "the top level", "ema"),
        (lambda: {"model": {"state_dict": raw()}, "ema": averaged()}, "model.state_dict", "ema"),
    ],
)  # fmt: skip
def test_the_set_that_is_read_and_the_others_are_named_and_a_key_takes_another(
    contents: Callable[[], dict[str, Any]], taken: str, other: str, tmp_path: Path
) -> None:
    file = saved(contents() | TRAINING, tmp_path)
    tensors, note = loaded(file)
    assert same(tensors, raw())
    assert note == (
        f"w.pth holds several sets of weights: {taken} is used, not {other}; --weights "
        f"w.pth#{other} takes another"
    )
    tensors, note = loaded(f"{file}#{other}")
    assert same(tensors, averaged())
    assert note.startswith(f"w.pth holds several sets of weights: {other} is used, not {taken};")


@pytest.mark.parametrize(
    "contents",
    [raw, lambda: {"state_dict": raw()} | TRAINING, lambda: {"model": prefixed(raw(), "module")}],
)
def test_a_file_with_one_set_needs_no_note(contents: Any, tmp_path: Path) -> None:
    tensors, note = loaded(saved(contents(), tmp_path))
    assert same(tensors, raw())
    assert note == ""


def test_an_average_without_buffers_is_another_set_but_the_optimiser_is_none(
    tmp_path: Path,
) -> None:
    by_name = {"optimizer": {"exp_avg": {name: v.flatten() for name, v in [*raw().items()][:3]}}}
    half = dict([*averaged().items()][::2])
    _, note = loaded(saved({"model": raw(), "shadow": half} | by_name, tmp_path))
    assert "model is used, not shadow;" in note


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (
            lambda: {"net": raw(), "epoch": 3},
            r"holds no tensors under state_dict or model; its top-level keys are net, epoch; "
            r"choose with --weights w\.pth#KEY, e\.g\. #net\.",
        ),
        (lambda: {"student": raw(), "teacher": averaged()}, "keys are student, teacher; choose"),
        (lambda: {"epoch": 3}, "its top-level keys are epoch; give a file with the weights"),
        (dict, "holds no tensors .*; it is empty"),
        (
            lambda: {"state_dict": prefixed(raw(), "model") | prefixed(averaged(), "ema_model")},
            r"weights with a prefix \(model, ema_model\); choose .*w\.pth#model or #ema_model\.",
        ),
        (lambda: prefixed(raw(), "backbone"), r"a prefix \(backbone\); .* w\.pth#backbone\."),
    ],
)
def test_other_wrappings_are_refused_with_the_keys_of_the_file(
    contents: Any, message: str, tmp_path: Path
) -> None:
    file = saved(contents(), tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        loaded(file)
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize("key", ["net", "a.b", "student"])
def test_a_key_reads_such_a_file(key: str, tmp_path: Path) -> None:
    contents = {
        "net": averaged(),
        "a": {"b": {"state_dict": prefixed(averaged(), "module")}},
        "state_dict": prefixed(averaged(), "student") | prefixed(raw(), "teacher"),
    }
    assert same(loaded(f"{saved(contents, tmp_path)}#{key}")[0], averaged())


def test_a_prefix_chooses_in_a_safetensors_file(tmp_path: Path) -> None:
    both = prefixed(raw(), "model") | prefixed(averaged(), "ema")
    safetensors.torch.save_file(both, tmp_path / "w.safetensors")
    tensors, note = loaded(tmp_path / "w.safetensors#ema")
    assert same(tensors, averaged())
    assert "ema is used, not model;" in note


def test_an_unknown_key_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    file = saved({"state_dict": raw(), "epoch": 3}, tmp_path)
    with pytest.raises(DataError, match=r"no weights under 'ema'; its top-level keys are state_d"):
        loaded(f"{file}#ema")
    with pytest.raises(DataError, match=r"no such file of weights"):
        loaded(f"{file}#")
    (tmp_path / "w.npz").touch()
    with pytest.raises(DataError, match=r"an \.npz holds one set"):
        loaded(tmp_path / "w.npz#ema")


def test_a_file_with_that_name_is_the_file(tmp_path: Path) -> None:
    torch.save(raw(), tmp_path / "run#3.pth")
    assert same(loaded(tmp_path / "run#3.pth")[0], raw())
    assert located(tmp_path / "run#3.pth") == (tmp_path / "run#3.pth", "")
    assert located(tmp_path / "run#3.pth#ema") == (tmp_path / "run#3.pth", "ema")


def test_the_choice_is_in_the_identity_and_the_note_in_the_record(tmp_path: Path) -> None:
    file = saved({"model": raw(), "model_ema": averaged()}, tmp_path)
    models = Models()

    def cell(weights: Path) -> Any:
        small = {"benchmark.examples": 8, "benchmark.domains": ["clean"]}
        request = CellRequest(
            method="source", benchmark="toy", model="toy_vit", weights=weights, set=small
        )
        return resolve(request, models)

    usual, other = cell(file), cell(Path(f"{file}#model_ema"))
    plain = tmp_path / "plain.pth"
    torch.save(raw(), plain)
    assert usual.id == cell(plain).id != other.id
    assert usual.notes == (
        "w.pth holds several sets of weights: model is used, not model_ema; --weights "
        "w.pth#model_ema takes another",
    )
    run_cell(usual, RunFolder(tmp_path / "run"))
    assert "model is used, not model_ema" in (tmp_path / "run/cell.yaml").read_text("utf-8")


def test_models_show_tells_the_same(tmp_path: Path) -> None:
    file = saved({"model": raw(), "model_ema": averaged()}, tmp_path)
    options = ["models", "show", "toy_vit", "--weights", f"{file}#model_ema", "--plugin", TOY]
    text = CliRunner().invoke(app, options)
    assert "w.pth holds several sets of weights: model_ema is used, not model;" in text.stdout
    told = json.loads(CliRunner().invoke(app, [*options, "--format", "json"]).stdout)
    assert told["weights_note"] in text.stdout


def test_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    saved({"model": raw(), "ema": averaged()}, tmp_path)
    models = Models()
    for written, expected in (("~/w.pth", raw()), ("~/w.pth#ema", averaged()), ("~", raw())):
        read = load_source_model("toy_vit", weights=Path(written))
        assert same(read.network.state_dict(), expected)
        request = CellRequest(
            method="source", benchmark="toy", model="toy_vit", weights=Path(written)
        )
        assert resolve(request, models).record["model"]["sha256"] == read.sha256()
    with pytest.raises(DataError, match=f"{tmp_path}/missing.pth: no such file"):
        load_source_model("toy_vit", weights=Path("~/missing.pth"))
