import copy
import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.errors import DataError
from ctta_bench.model import SourceModel
from ctta_bench.source_models.weights import load_weights, recorded_beside, weight_file
from tests.conftest import TOY
from tests.methods import pictures, toy
from tests.test_model import Linear, Wrapped, tiny_vit


def weights() -> dict[str, Tensor]:
    return toy.toy_vit().state_dict()


def prefixed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"module.{key}": value for key, value in tensors.items()}


@pytest.mark.parametrize(
    "wrap",
    [
        dict, OrderedDict, prefixed,
        lambda t: {f"model.{key}": value for key, value in t.items()},
        lambda t: {f"module._orig_mod.{key}": value for key, value in t.items()},
        lambda t: {"state_dict": t, "epoch": 3},
        lambda t: {"model": t, "optimizer": {"state": {}}},
        lambda t: {"state_dict": prefixed(t)},
    ],
    ids=["plain", "ordered", "module.", "model.", "compiled", "state_dict", "model", "both"],
)  # fmt: skip
def test_the_usual_wrappings_of_a_checkpoint_give_the_same_bits(wrap: Any, tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    torch.save(wrap(weights()), file)
    network = tiny_vit_like_toy()
    load_weights(network, file)
    loaded, expected = SourceModel(network.eval()), SourceModel(toy.toy_vit().eval())
    loaded.preprocess = expected.preprocess
    assert torch.equal(loaded(pictures(2)), expected(pictures(2)))
    assert loaded.sha256() == expected.sha256()


def tiny_vit_like_toy() -> nn.Module:
    return VisionTransformer(
        img_size=16, patch_size=8, embed_dim=24, depth=4, num_heads=2, num_classes=10
    )


def test_safetensors_are_read(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(weights(), file)
    network = tiny_vit_like_toy()
    load_weights(network, file)
    assert SourceModel(network).sha256() == SourceModel(toy.toy_vit()).sha256()


def without(key: str) -> dict[str, Tensor]:
    return {k: v for k, v in weights().items() if k != key}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: without("norm.bias"), r"VisionTransformer: key 'norm\.bias' is missing\."),
        (
            lambda: (
                weights() | {"head.weight": torch.zeros(100, 24), "head.bias": torch.zeros(100)}
            ),
            r"'head\.weight' has shape \(100, 24\) where the model has \(10, 24\); ",
        ),
        (lambda: weights() | {"fc.bias": torch.zeros(1)}, "key 'fc.bias' belongs to no layer"),
        (lambda: weights() | {"norm.bias": torch.full((24,), torch.nan)}, "norm.bias holds values"),
        (
            lambda: {"epoch": 3},
            "holds no tensors under state_dict or model; its top-level keys are epoch; give a file",
        ),
        (lambda: [torch.zeros(1)], "holds no state dict, but a list"),
        (
            lambda: weights() | {"blocks.0.attn.qkv.vida_down.weight": torch.zeros(1, 24)},
            "it holds ViDA's adapters .* give the source model's own weights",
        ),
    ],
    ids=["missing", "shape", "extra", "nan", "no tensors", "list", "adapters"],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_not_half_loaded(
    content: Any, message: str, tmp_path: Path
) -> None:
    file, network = tmp_path / "weights.pth", tiny_vit_like_toy()
    before = SourceModel(network).sha256()
    torch.save(content(), file)
    with pytest.raises(DataError, match=message) as caught:
        load_weights(network, file)
    assert str(caught.value).startswith(f"{file}: ")
    assert SourceModel(network).sha256() == before


class Hostile:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("hostile"),)


@pytest.mark.parametrize(
    "save",
    [
        lambda file: torch.save({"state_dict": weights(), "config": Hostile()}, file),
        lambda file: torch.save(tiny_vit(), file),
        lambda file: file.write_bytes(pickle.dumps(Hostile(), protocol=2)),
        lambda file: file.write_text("<!DOCTYPE html>"),
    ],
    ids=["object", "module", "pickle", "html"],
)
def test_a_file_with_more_than_tensors_is_refused_and_runs_nothing(
    save: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(Path("weights.pth"))
    with pytest.raises(DataError, match=r"^weights\.pth: holds more than tensors and is refused"):
        load_weights(tiny_vit(), Path("weights.pth"))
    assert not Path("hostile").exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_cut_off_file_is_an_error_in_one_sentence(suffix: str, tmp_path: Path) -> None:
    whole, file = tmp_path / f"whole{suffix}", tmp_path / f"cut{suffix}"
    save = {".pth": torch.save, ".safetensors": safetensors.torch.save_file}[suffix]
    save(weights(), whole)
    file.write_bytes(whole.read_bytes()[:1000])
    with pytest.raises(DataError, match="is not a complete file of weights"):
        load_weights(tiny_vit(), file)
    with pytest.raises(DataError, match=r"missing\.pth: no such file of weights"):
        load_weights(tiny_vit(), tmp_path / "missing.pth")


def test_the_fingerprint_changes_with_any_weight_and_any_name() -> None:
    seen = {SourceModel(Linear()).sha256() for _ in range(2)}
    network = Linear()
    seen.add(SourceModel(network).sha256())
    assert SourceModel(copy.deepcopy(network)).sha256() in seen
    with torch.no_grad():
        network[1].bias[1] += 1e-6
    seen.add(SourceModel(network).sha256())
    seen.add(SourceModel(Wrapped(network)).sha256())
    seen.add(SourceModel(copy.deepcopy(network).double()).sha256())
    assert len(seen) == 6


def test_the_fingerprint_distinguishes_types_of_equal_bytes() -> None:
    network = Linear().requires_grad_(False)
    network[1].weight.zero_()
    network[1].bias.zero_()
    half, brain = (SourceModel(copy.deepcopy(network).to(d)) for d in (torch.half, torch.bfloat16))
    assert half.sha256() != brain.sha256()


class Counter:
    """What a trainer logged: an object with arrays, as mmengine's HistoryBuffer."""


def test_what_trainers_log_beside_the_weights_is_passed_over(tmp_path: Path) -> None:
    from mmengine.logging.history_buffer import HistoryBuffer

    beside = {
        "meta": {"best": np.float64(0.93), "epoch": np.int64(7), "config": "lr = 0.1"},
        "message_hub": {"log_scalars": {"loss": HistoryBuffer([1.0, 0.5], [1, 1])}},
        "rng": np.random.get_state(),
        "generators": [np.random.default_rng(0), np.random.RandomState(0), torch.get_rng_state()],
        "values": [np.float32(1), np.int32(1), np.uint8(1), np.bool_(True), np.arange(3)],
        "place": Path("runs") / "one",
    }
    file = tmp_path / "mm.pth"
    torch.save({"state_dict": weights(), **beside}, file)
    with pytest.raises(pickle.UnpicklingError, match="Unsupported"):
        torch.load(file, weights_only=True)
    network = tiny_vit_like_toy()
    load_weights(network, file)
    assert SourceModel(network).sha256() == SourceModel(toy.toy_vit()).sha256()


class Command:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch hostile",)


@pytest.mark.parametrize("archive", [True, False], ids=["torch 1.6 and later", "torch before 1.6"])
def test_a_file_that_would_run_a_command_ends_the_call_with_its_type(
    archive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {"state_dict": weights(), "odd": Command()}
    torch.save(content, "odd.pth", _use_new_zipfile_serialization=archive)
    call = ["run", "source", "toy", "--model", "toy_vit", "--weights", "odd.pth"]
    done = CliRunner().invoke(app, [*call, "--plugin", str(TOY)])
    assert done.exit_code == 2
    assert f"odd.pth: holds more than tensors and is refused ({os.name}.system)" in done.output
    assert not Path("hostile").exists()


def test_a_refused_file_is_reported_with_the_types_that_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "odd.pth"
    torch.save({"state_dict": weights(), "log": Counter(), "rng": np.random.get_state()}, file)
    refused = r"refused \(tests\.source_models\.test_weights\.Counter\); save only"
    with pytest.raises(DataError, match=refused):
        load_weights(tiny_vit_like_toy(), file)


def jax_arrays(network: VisionTransformer) -> dict[str, np.ndarray]:
    """The tensors of a ViT under the names and in the layouts of Google's checkpoints."""
    state = {k: v.detach().numpy() for k, v in network.state_dict().items()}
    width, heads = network.embed_dim, network.blocks[0].attn.num_heads
    arrays = {
        "cls": state["cls_token"],
        "embedding/kernel": state["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "Transformer/posembed_input/pos_embedding": state["pos_embed"],
        "head/kernel": state["head.weight"].T,
        "head/bias": state["head.bias"],
    }
    norms = {"Transformer/encoder_norm": "norm"}
    for number in range(len(network.blocks)):
        there, here = f"Transformer/encoderblock_{number}", f"blocks.{number}"
        norms |= {f"{there}/LayerNorm_0": f"{here}.norm1", f"{there}/LayerNorm_2": f"{here}.norm2"}
        attention = f"{there}/MultiHeadDotProductAttention_1"
        for part, name in enumerate(("query", "key", "value")):
            rows = slice(part * width, (part + 1) * width)
            weight, bias = (state[f"{here}.attn.qkv.{k}"][rows] for k in ("weight", "bias"))
            arrays[f"{attention}/{name}/kernel"] = weight.T.reshape(width, heads, -1)
            arrays[f"{attention}/{name}/bias"] = bias.reshape(heads, -1)
        out = state[f"{here}.attn.proj.weight"].T
        arrays[f"{attention}/out/kernel"] = out.reshape(heads, -1, width)
        arrays[f"{attention}/out/bias"] = state[f"{here}.attn.proj.bias"]
        for dense, layer in enumerate(("fc1", "fc2")):
            place = f"{there}/MlpBlock_3/Dense_{dense}"
            arrays[f"{place}/kernel"] = state[f"{here}.mlp.{layer}.weight"].T
            arrays[f"{place}/bias"] = state[f"{here}.mlp.{layer}.bias"]
    for there, here in norms.items():
        arrays |= {
            f"{there}/scale": state[f"{here}.weight"],
            f"{there}/bias": state[f"{here}.bias"],
        }
    return arrays


def test_googles_npz_files_are_read_bit_identically(tmp_path: Path) -> None:
    source, network = tiny_vit(), tiny_vit()
    np.savez(tmp_path / "vit.npz", **jax_arrays(source))
    load_weights(network, tmp_path / "vit.npz")
    assert SourceModel(network).sha256() == SourceModel(source).sha256()


@pytest.mark.parametrize(
    ("change", "network", "message"),
    [
        ({"head/kernel": np.zeros((8, 7)), "head/bias": np.zeros(7)}, tiny_vit, "for head.weight"),
        (
            {"Transformer/posembed_input/pos_embedding": np.zeros((1, 17, 8))},
            tiny_vit,
            "5,237 values where the model has 5,141",  # 12 positions of 8 too many
        ),
        ({"embedding/kernel": np.array([Path()])}, tiny_vit, "does not fit VisionTransformer"),
        ({}, Linear, "Linear cannot read .npz"),
    ],
    ids=["head", "grid", "pickle", "no reader"],
)
def test_an_npz_file_that_does_not_fit_is_refused_and_never_resampled(
    change: Any, network: Any, message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "vit.npz", **jax_arrays(tiny_vit()) | change)
    target = network()
    before = SourceModel(target).sha256()
    with pytest.raises(DataError, match=message):
        load_weights(target, tmp_path / "vit.npz")
    assert SourceModel(target).sha256() == before


def test_a_folder_stands_for_its_one_file_of_weights(tmp_path: Path) -> None:
    torch.save(weights(), tmp_path / "pytorch_model.bin")
    (tmp_path / "README.md").write_text("")
    assert weight_file(tmp_path) == tmp_path / "pytorch_model.bin"
    safetensors.torch.save_file(weights(), tmp_path / "model.safetensors")
    assert weight_file(tmp_path) == tmp_path / "model.safetensors"
    network = tiny_vit_like_toy()
    load_weights(network, tmp_path)
    assert SourceModel(network).sha256() == SourceModel(toy.toy_vit()).sha256()


def test_a_folder_of_several_or_no_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"does not hold exactly one file of weights \(none of .safetensors"
    ):
        weight_file(tmp_path)
    for name in ("a.pth", "b.pth"):
        (tmp_path / name).touch()
    with pytest.raises(
        DataError, match=r"does not hold exactly one file of weights \(a.pth, b.pth\)"
    ):
        weight_file(tmp_path)


def test_what_is_noted_with_the_weights_is_read(tmp_path: Path) -> None:
    noted = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    (tmp_path / "config.json").write_text(
        json.dumps({"pretrained_cfg": noted, "architecture": "x"})
    )
    torch.save(weights(), tmp_path / "model.bin")
    assert recorded_beside(tmp_path) == noted
    safetensors.torch.save_file({}, tmp_path / "own.safetensors", {"ctta_bench": json.dumps(noted)})
    assert recorded_beside(tmp_path / "own.safetensors") == noted
    assert recorded_beside(tmp_path / "model.bin") == {}
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match="the record next to the weights is damaged"):
        recorded_beside(tmp_path)
