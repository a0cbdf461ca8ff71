"""Checkpoints of SegFormer in common layouts: recognised, read bit-identically, or refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner

from ctta_bench.cli import app
from ctta_bench.errors import DataError
from ctta_bench.model import SourceModel
from ctta_bench.registry import MODELS, load_plugin
from ctta_bench.source_models.segformer import SegFormer
from ctta_bench.source_models.segformer_layouts import (
    MMSEG,
    NVLABS_HEAD,
    OURS,
    TRANSFORMERS,
    TRANSFORMERS_HEAD,
    Naming,
    published,
    write,
)
from ctta_bench.source_models.weights import load_weights
from tests.source_models.test_segformer import SMALL, images, small

State = dict[str, Tensor]


def fresh() -> SegFormer:
    """A network that is to be filled: mmsegmentation's form, other weights."""
    network: SegFormer = small(seed=9)
    return network


def saved(content: Any, folder: Path) -> Path:
    file = folder / "weights.pth"
    torch.save(content, file)
    return file


def assert_same(network: Any, expected: Any) -> None:
    with torch.no_grad():
        assert torch.equal(network(images()), expected(images()))
    assert SourceModel(network).sha256() == SourceModel(expected).sha256()


# -- the names of each, written down by hand

AUTHORS = {
    "backbone.patch_embed1.proj.weight": (8, 3, 7, 7),
    "backbone.patch_embed2.norm.bias": (16,),
    "backbone.block1.0.norm1.weight": (8,),
    "backbone.block2.1.attn.q.weight": (16, 16),
    "backbone.block2.1.attn.kv.weight": (32, 16),
    "backbone.block2.1.attn.kv.bias": (32,),
    "backbone.block2.1.attn.proj.bias": (16,),
    "backbone.block2.1.attn.sr.weight": (16, 16, 4, 4),
    "backbone.block2.1.attn.norm.weight": (16,),
    "backbone.block4.0.mlp.fc1.weight": (128, 32),
    "backbone.block4.0.mlp.dwconv.dwconv.weight": (128, 1, 3, 3),
    "backbone.block4.0.mlp.fc2.weight": (32, 128),
    "backbone.norm4.weight": (32,),
    "decode_head.linear_c1.proj.weight": (24, 8),
    "decode_head.linear_c4.proj.weight": (24, 32),
    "decode_head.linear_fuse.conv.weight": (24, 96, 1, 1),
    "decode_head.linear_fuse.bn.running_var": (24,),
    "decode_head.linear_pred.weight": (19, 24, 1, 1),
}
MMSEGS = {
    "backbone.layers.0.0.projection.weight": (8, 3, 7, 7),
    "backbone.layers.1.0.norm.bias": (16,),
    "backbone.layers.1.1.1.attn.attn.in_proj_weight": (48, 16),
    "backbone.layers.1.1.1.attn.attn.in_proj_bias": (48,),
    "backbone.layers.1.1.1.attn.attn.out_proj.weight": (16, 16),
    "backbone.layers.1.1.1.attn.sr.weight": (16, 16, 4, 4),
    "backbone.layers.3.1.0.ffn.layers.0.weight": (128, 32, 1, 1),
    "backbone.layers.3.1.0.ffn.layers.1.weight": (128, 1, 3, 3),
    "backbone.layers.3.1.0.ffn.layers.4.weight": (32, 128, 1, 1),
    "backbone.layers.3.2.weight": (32,),
    "decode_head.convs.3.conv.weight": (16, 32, 1, 1),
    "decode_head.convs.3.bn.running_mean": (16,),
    "decode_head.fusion_conv.conv.weight": (16, 64, 1, 1),
    "decode_head.conv_seg.bias": (19,),
}
HUGGING_FACE = {
    "segformer.encoder.patch_embeddings.0.proj.weight": (8, 3, 7, 7),
    "segformer.encoder.patch_embeddings.1.layer_norm.bias": (16,),
    "segformer.encoder.block.1.1.layer_norm_2.weight": (16,),
    "segformer.encoder.block.1.1.attention.self.query.weight": (16, 16),
    "segformer.encoder.block.1.1.attention.self.value.bias": (16,),
    "segformer.encoder.block.1.1.attention.self.sr.weight": (16, 16, 4, 4),
    "segformer.encoder.block.1.1.attention.self.layer_norm.weight": (16,),
    "segformer.encoder.block.1.1.attention.output.dense.weight": (16, 16),
    "segformer.encoder.block.3.0.mlp.dense1.weight": (128, 32),
    "segformer.encoder.block.3.0.mlp.dwconv.dwconv.weight": (128, 1, 3, 3),
    "segformer.encoder.layer_norm.3.weight": (32,),
    "decode_head.linear_c.0.proj.weight": (24, 8),
    "decode_head.linear_fuse.weight": (24, 96, 1, 1),
    "decode_head.batch_norm.running_mean": (24,),
    "decode_head.classifier.weight": (19, 24, 1, 1),
}


def as_transformers(network: nn.Module) -> State:
    return write(network.state_dict(), Naming(TRANSFORMERS, TRANSFORMERS_HEAD))


@pytest.mark.parametrize(
    ("form", "naming", "names"),
    [
        ("nvlabs", lambda network: published(network.state_dict()), AUTHORS),
        ("mmseg", lambda network: published(network.state_dict()), MMSEGS),
        ("nvlabs", as_transformers, HUGGING_FACE),
    ],
    ids=["NVlabs", "mmsegmentation", "transformers"],
)
def test_a_layout_has_the_names_and_shapes_of_its_program(
    form: Any, naming: Any, names: dict[str, tuple[int, ...]]
) -> None:
    network = small(form)
    state = naming(network)
    assert {name: tuple(state[name].shape) for name in names} == names
    assert sum(v.numel() for v in state.values()) == sum(
        v.numel() for v in network.state_dict().values()
    )


# -- reading


def with_prefix(prefix: str, state: State) -> State:
    return {prefix + key: value for key, value in state.items()}


def as_mmseg_0(state: State) -> Any:
    return {"meta": {"mmseg_version": "0.20.2", "CLASSES": ("road",)}, "state_dict": state}


def as_mmseg_1(state: State) -> Any:
    history = HistoryBuffer()
    history.update(0.5)
    hub = {"log_scalars": {"train/loss": history}, "runtime_info": {"iter": 160000}}
    meta = {"seed": np.int64(1), "dataset_meta": {"classes": ("road",)}, "iter": 160000}
    random_state = np.random.RandomState(0).get_state()
    return {"meta": meta, "state_dict": state, "message_hub": hub, "random": random_state}


WRAPPINGS = {
    "bare": dict,
    "module.": lambda s: with_prefix("module.", s),
    "no backbone.": lambda s: {k.removeprefix("backbone."): v for k, v in s.items()},
    "mmseg 0.x": as_mmseg_0,
    "mmseg 1.x": as_mmseg_1,
    "both": lambda s: as_mmseg_0(with_prefix("module.", s)),
}


@pytest.mark.parametrize("wrap", WRAPPINGS.values(), ids=WRAPPINGS)
@pytest.mark.parametrize("form", ["mmseg", "nvlabs"])
def test_a_published_file_gives_the_same_logits_bit_identically(
    form: Any, wrap: Any, tmp_path: Path
) -> None:
    expected, network = small(form), fresh()
    load_weights(network, saved(wrap(published(expected.state_dict())), tmp_path))
    assert_same(network, expected)


@pytest.mark.parametrize(
    ("encoder", "head"),
    [(TRANSFORMERS, TRANSFORMERS_HEAD), (MMSEG, NVLABS_HEAD), (OURS, NVLABS_HEAD)],
    ids=["transformers", "encoder renamed for mmseg", "ours"],
)
def test_the_authors_weights_are_read_under_other_names(
    encoder: Any, head: Any, tmp_path: Path
) -> None:
    expected, network = small("nvlabs"), fresh()
    state = write(expected.state_dict(), Naming(encoder, head))
    load_weights(network, saved(state, tmp_path))
    assert_same(network, expected)


def test_the_layer_that_the_authors_never_call_is_passed_over(tmp_path: Path) -> None:
    expected, network = small("nvlabs"), fresh()
    unused = {"decode_head.conv_seg.weight": torch.rand(19, 128, 1, 1)}
    load_weights(network, saved(published(expected.state_dict()) | unused, tmp_path))
    assert_same(network, expected)


def test_a_loaded_network_stays_in_eval_mode(tmp_path: Path) -> None:
    network = fresh()
    load_weights(network, saved(published(small("nvlabs").state_dict()), tmp_path))
    assert not any(module.training for module in network.modules())


# -- the authors' network, written a second time from its names alone


def authors_logits(state: State, x: Tensor, heads: tuple[int, ...]) -> Tensor:
    """Logits of the authors' SegFormer (eval mode), from the tensors of a file of theirs."""
    state = {k: v.double() for k, v in state.items()}
    x, maps = x.double(), []

    def linear(name: str, tokens: Tensor) -> Tensor:
        return F.linear(tokens, state[f"{name}.weight"].flatten(1), state[f"{name}.bias"])

    def norm(name: str, tokens: Tensor, eps: float) -> Tensor:
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        return F.layer_norm(tokens, weight.shape, weight, bias, eps)

    for stage, (count, ratio) in enumerate(zip(heads, (8, 4, 2, 1), strict=True), 1):
        embed = f"backbone.patch_embed{stage}"
        weight, stride = state[f"{embed}.proj.weight"], 4 if stage == 1 else 2
        x = F.conv2d(x, weight, state[f"{embed}.proj.bias"], stride, weight.shape[-1] // 2)
        h, w = x.shape[2:]
        x = norm(f"{embed}.norm", x.flatten(2).mT, 1e-5)
        depth = len(
            [k for k in state if k.startswith(f"backbone.block{stage}.") and "norm1.w" in k]
        )
        for number in range(depth):
            name = f"backbone.block{stage}.{number}"
            y = norm(f"{name}.norm1", x, 1e-6)
            seen = y
            if ratio > 1:
                sr = f"{name}.attn.sr"
                image = y.mT.reshape(len(y), -1, h, w)
                image = F.conv2d(image, state[f"{sr}.weight"], state[f"{sr}.bias"], ratio)
                seen = norm(f"{name}.attn.norm", image.flatten(2).mT, 1e-5)
            q = linear(f"{name}.attn.q", y)
            k, v = linear(f"{name}.attn.kv", seen).split(q.shape[-1], -1)
            q, k, v = (t.reshape(len(t), t.shape[1], count, -1).movedim(2, 1) for t in (q, k, v))
            weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
            x = x + linear(f"{name}.attn.proj", (weights @ v).movedim(1, 2).flatten(2))
            y = linear(f"{name}.mlp.fc1", norm(f"{name}.norm2", x, 1e-6))
            dw = f"{name}.mlp.dwconv.dwconv"
            image = y.mT.reshape(len(y), -1, h, w)
            weight, bias = state[f"{dw}.weight"], state[f"{dw}.bias"]
            image = F.conv2d(image, weight, bias, padding=1, groups=len(weight))
            x = x + linear(f"{name}.mlp.fc2", F.gelu(image.flatten(2).mT))
        x = norm(f"backbone.norm{stage}", x, 1e-6)
        x = x.mT.reshape(len(x), -1, h, w)
        maps.append(x)
    size, parts = maps[0].shape[2:], []
    for number in (4, 3, 2, 1):
        features = maps[number - 1]
        y = linear(f"decode_head.linear_c{number}.proj", features.flatten(2).mT)
        y = y.mT.reshape(len(y), -1, *features.shape[2:])
        parts.append(F.interpolate(y, size, mode="bilinear", align_corners=False))
    y = F.conv2d(torch.cat(parts, 1), state["decode_head.linear_fuse.conv.weight"])
    bn = "decode_head.linear_fuse.bn"
    weight, bias = state[f"{bn}.weight"], state[f"{bn}.bias"]
    y = F.batch_norm(y, state[f"{bn}.running_mean"], state[f"{bn}.running_var"], weight, bias)
    name = "decode_head.linear_pred"
    return F.conv2d(y.relu(), state[f"{name}.weight"], state[f"{name}.bias"])


def test_a_file_of_the_authors_gives_their_logits(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = published(small("nvlabs").state_dict())
    state = {k: 0.2 * torch.rand(v.shape, generator=generator) + 0.1 for k, v in shapes.items()}
    state |= {k: 0.2 * torch.randn(v.shape) for k, v in shapes.items() if v.dim() > 1}
    state |= {k: v for k, v in shapes.items() if k.endswith("num_batches_tracked")}
    network = fresh()
    load_weights(network, saved({"state_dict": state}, tmp_path))
    x = images(2, 70, 90)
    with torch.no_grad():
        got, expected = network.double()(x.double()), authors_logits(state, x, SMALL.heads)
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)


# -- refused


def without(name: str) -> Any:
    return lambda state: {k: v for k, v in state.items() if not k.startswith(name)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            without("decode_head.linear_fuse.conv"),
            r"names are those of NVlabs\): key 'decode_head\.linear_fuse\.conv\.weight' is missing",
        ),
        (
            without("backbone.block1.0.attn.kv.bias"),
            r"key 'backbone\.block1\.0\.attn\.kv\.bias' is missing",
        ),
        (without("decode_head."), r"no decode head of a SegFormer \(it starts with 'backbone"),
        (without("backbone."), r"no encoder of a SegFormer \(it starts with 'decode_head"),
        (lambda _: {}, "holds no tensors .* it is empty"),
        (
            lambda state: state | {"backbone.prompt": torch.rand(3)},
            r"key 'backbone\.prompt' belongs to no layer",
        ),
        (
            lambda state: state | {"backbone.norm4.weight": torch.rand(31)},
            r"'backbone\.norm4\.weight' has shape \(31,\) where the model has \(32,\)",
        ),
        (
            lambda state: state | {"backbone.block1.0.attn.kv.weight": torch.rand(8, 8)},
            r"attn\.kv\.weight' has shape \(8, 8\) where the model has \(16, 8\)",
        ),
        (
            lambda state: state | {"backbone.norm4.weight": torch.full((32,), math.nan)},
            r"backbone\.norm4\.weight holds values that are not finite",
        ),
    ],
)
@pytest.mark.parametrize("form", ["mmseg", "nvlabs"])
def test_a_file_that_does_not_fit_is_refused_and_changes_nothing(
    form: Any, change: Any, message: str, tmp_path: Path
) -> None:
    network = small(form, seed=9)
    before, logits = SourceModel(network).sha256(), network(images())
    file = saved(change(published(small("nvlabs").state_dict())), tmp_path)
    with pytest.raises(DataError, match=message):
        load_weights(network, file)
    assert SourceModel(network).sha256() == before
    assert torch.equal(network(images()), logits)


def test_a_refusal_says_what_file_is_expected(tmp_path: Path) -> None:
    state = published(small("nvlabs").state_dict())
    file = saved(without("decode_head.linear_fuse.conv")(state), tmp_path)
    expected = r"give a complete SegFormer of this size, encoder and decode head, as its authors"
    with pytest.raises(DataError, match=expected) as caught:
        load_weights(fresh(), file)
    assert str(caught.value).startswith(f"{file}: does not fit")


@pytest.mark.parametrize("wrap", [as_mmseg_0, as_mmseg_1], ids=["mmseg 0.x", "mmseg 1.x"])
def test_a_call_with_half_a_decode_head_ends_with_the_missing_name(
    wrap: Any, tmp_path: Path
) -> None:
    load_plugin("tests.toy_maps")
    state = published(MODELS.get("toy_segformer")().state_dict())
    file = saved(wrap(without("decode_head.fusion_conv.conv")(state)), tmp_path)
    words = ["run", "source", "cityscapes_acdc", "--model", "toy_segformer", "--weights", str(file)]
    done = CliRunner().invoke(app, [*words, "--plugin", "tests.toy_maps"])
    assert done.exit_code == 2
    told = " ".join(done.stderr.split())
    assert "key 'decode_head.fusion_conv.conv.weight' is missing" in told
    assert "give a complete SegFormer of this size" in told


# -- writing


@pytest.mark.parametrize("form", ["mmseg", "nvlabs"])
def test_what_is_published_is_read_back_from_safetensors(form: Any, tmp_path: Path) -> None:
    expected, network = small(form), fresh()
    file = tmp_path / "adapted.safetensors"
    safetensors.torch.save_file(published(expected.state_dict()), file)
    load_weights(network, file)
    assert_same(network, expected)


def test_other_networks_keep_their_names() -> None:
    state = {"fc.weight": torch.rand(2, 2)}
    assert published(state) == state
