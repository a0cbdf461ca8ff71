"""SegFormer against mmsegmentation's own classes, and what methods find in it."""

import importlib.util
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config
from torch import Tensor, nn

from ctta_bench.errors import ConfigError, MethodError
from ctta_bench.model import SourceModel
from ctta_bench.parts.adapters.injection import inject, merge, role_layers
from ctta_bench.parts.adapters.weights import LowRankWeight
from ctta_bench.registry import METHODS, MODELS
from ctta_bench.run.export import plain_state, write_model
from ctta_bench.source_models.pretrained import load_source_model
from ctta_bench.source_models.segformer import (
    SIZES,
    MixVisionTransformer,
    SegFormer,
    Size,
)
from ctta_bench.source_models.segformer_layouts import published
from ctta_bench.source_models.segformer_parts import Attention, MixMLP
from ctta_bench.source_models.weights import load_weights
from ctta_bench.stream import ArrayMaps, SourceData
from tests.methods import changed, declared, tensors

SMALL = Size(8, (1, 2, 1, 1), heads=(1, 2, 2, 4), decoder=16, authors_decoder=24)
MMSEG = importlib.util.find_spec("mmseg")
CONFIGS = Path(MMSEG.origin or "").parent / ".mim" / "configs" / "segformer"
# Our module has imported mmsegmentation, without the warnings that importing it gives.
mit = sys.modules[MixVisionTransformer.__module__]


def shaken(network: Any, seed: int = 0) -> Any:
    """The network in eval mode with random values in every parameter and every statistic."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        for name, statistic in network.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                statistic.copy_(0.5 + torch.rand(statistic.shape, generator=generator))
    return network.eval()


def images(count: int = 1, height: int = 64, width: int = 96, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, height, width, generator=generator)


def small(form: Any = "mmseg", seed: int = 0) -> Any:
    return shaken(SegFormer(SMALL, form=form), seed)


def source_data() -> SourceData:
    pictures = (images(4, 32, 48, seed=5) * 255).byte().numpy()
    maps = np.zeros((4, 32, 48), np.uint8)
    cpu = torch.device("cpu")
    return SourceData(
        ArrayMaps(pictures, maps), labelled=False, seed=0, device=cpu, dtype=torch.float32
    )


def small_model() -> SourceModel:
    return SourceModel(small(), name="small").eval()


def build_mmseg(config: str, **backbone: Any) -> Any:
    """The segmentor of one of mmsegmentation's configuration files, without its download."""
    model = Config.fromfile(CONFIGS / config).model
    model.backbone.update(init_cfg=None, **backbone)
    model.decode_head.norm_cfg.type = "BN"
    model.decode_head.loss_decode.avg_non_ignore = True
    model.data_preprocessor = None
    return mit.MODELS.build(model)


# -- equal to mmsegmentation


def both(packed: nn.Module, ours: nn.Module, shape: tuple[int, int], width: int) -> tuple[Any, Any]:
    """Outputs and gradients of a packed module and of ours on the same map, in float64."""
    results = []
    for module in (packed.double(), ours.double()):
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(2, shape[0] * shape[1], width, generator=generator, dtype=torch.float64)
        x.requires_grad_()
        y = module(x, shape, identity=2 * x)
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
        results.append((y.detach(), x.grad))
    return results[0], results[1]


@pytest.mark.parametrize(
    ("width", "heads", "reduction", "shape"),
    [
        (8, 1, 8, (8, 17)),
        (16, 2, 4, (9, 6)),
        (40, 5, 2, (4, 6)),
        (32, 8, 1, (3, 4)),
        (6, 2, 1, (1, 1)),
    ],
)
def test_attention_equals_the_packed_one_in_value_and_gradient(
    width: int, heads: int, reduction: int, shape: tuple[int, int]
) -> None:
    norm = {"type": "LN", "eps": 1e-6}
    packed = mit.EfficientMultiheadAttention(
        width, heads, qkv_bias=True, norm_cfg=norm, sr_ratio=reduction
    )
    shaken(packed)
    ours = Attention(packed).eval()

    theirs, got = both(packed, ours, shape, width)

    torch.testing.assert_close(got, theirs, atol=1e-12, rtol=1e-9)
    gradients = [layer.weight.grad for layer in (ours.q, ours.k, ours.v)]
    expected = packed.attn.in_proj_weight.grad
    torch.testing.assert_close(torch.cat(gradients), expected, atol=1e-12, rtol=1e-9)
    expected = packed.attn.out_proj.weight.grad
    torch.testing.assert_close(ours.proj.weight.grad, expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize(("width", "shape"), [(8, (8, 12)), (40, (4, 9)), (5, (1, 1))])
def test_the_mlp_equals_that_of_1x1_convolutions_in_value_and_gradient(
    width: int, shape: tuple[int, int]
) -> None:
    packed = shaken(mit.MixFFN(width, 4 * width))
    ours = MixMLP(packed).eval()

    theirs, got = both(packed, ours, shape, width)

    torch.testing.assert_close(got, theirs, atol=1e-12, rtol=1e-9)
    for layer, number in ((ours.fc1, 0), (ours.fc2, 4)):
        expected = packed.layers[number].weight.grad.flatten(1)
        torch.testing.assert_close(layer.weight.grad, expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize(("height", "width"), [(64, 96), (33, 70)])
def test_the_network_gives_the_logits_of_mmsegmentations_own(height: int, width: int) -> None:
    theirs = build_mmseg("segformer_mit-b0_8xb1-160k_cityscapes-1024x1024.py").eval()
    ours = shaken(SegFormer(SIZES["b0"]))
    theirs.load_state_dict(published(ours.state_dict()), strict=True)
    x = images(2, height, width).double()
    with torch.no_grad():
        expected = theirs.double().decode_head(theirs.backbone(x))
        got = ours.double()(x)
    assert got.shape == (2, 19, -(-height // 4), -(-width // 4))
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("number", range(6))
def test_every_size_is_as_mmsegmentations_configuration_says(number: int) -> None:
    config = Config.fromfile(
        CONFIGS / f"segformer_mit-b{number}_8xb1-160k_cityscapes-1024x1024.py"
    ).model
    size = SIZES[f"b{number}"]
    assert size.width == config.backbone.embed_dims
    assert list(size.depths) == config.backbone.num_layers
    assert list(size.heads) == config.backbone.num_heads
    assert size.widths == config.decode_head.in_channels
    assert size.decoder == config.decode_head.channels


def parameters(size: Size) -> int:
    """Parameters of a SegFormer with mmsegmentation's head, by the paper's description of it."""
    total, channels = 0, 3
    for d, depth, reduction in zip(size.widths, size.depths, (8, 4, 2, 1), strict=True):
        kernel = 7 if channels == 3 else 3
        embed = channels * d * kernel**2 + d + 2 * d
        reduced = (d * d * reduction**2 + d + 2 * d) * (reduction > 1)
        attention, mlp = 4 * (d * d + d), 2 * 4 * d * d + 4 * d + d + 4 * d * (9 + 1)
        total += embed + depth * (2 * 2 * d + attention + reduced + mlp) + 2 * d
        channels = d
    inside = 256
    head = sum(size.widths) * inside + 4 * inside * inside + 5 * 2 * inside + (inside + 1) * 19
    return total + head


@pytest.mark.parametrize("number", range(6))
def test_the_listing_states_the_number_of_parameters(number: int) -> None:
    doc = MODELS.get(f"segformer_b{number}").__doc__
    assert f"({parameters(SIZES[f'b{number}']):,} parameters)" in doc


def test_a_network_has_as_many_parameters_as_its_description() -> None:
    assert sum(p.numel() for p in SegFormer(SIZES["b0"]).parameters()) == parameters(SIZES["b0"])


@pytest.fixture(scope="module")
def b5() -> SourceModel:
    return SourceModel(SegFormer(SIZES["b5"], form="nvlabs"), name="b5").eval()


# -- as a source model


@pytest.mark.parametrize("regime", ["true", "lineage"])
def test_images_are_normalised_by_imagenets_statistics_and_not_resized(regime: Any) -> None:
    model = SourceModel(small(), preprocessing=regime)
    x = images(1, 224, 224)
    mean = torch.tensor([123.675, 116.28, 103.53]).view(3, 1, 1) / 255
    std = torch.tensor([58.395, 57.12, 57.375]).view(3, 1, 1) / 255
    torch.testing.assert_close(model(x), model.network((x - mean) / std))
    assert model.preprocessing.size is None


def test_rows_are_the_pixels_of_the_maps() -> None:
    model, x = small_model(), images(2)
    logits = model(x)
    rows = model.rows(logits)
    assert model.task == "segmentation" and model.num_classes == 19
    assert rows.shape == (2 * 16 * 24, 19)
    assert torch.equal(rows[16 * 24 + 24 * 3 + 5], logits[1, :, 3, 5])


def test_features_are_the_rows_of_the_deepest_map_behind_its_norm() -> None:
    model, x = small_model(), images(2)
    maps = model.feature_maps(x)
    assert [m.shape[1:] for m in maps] == [(8, 16, 24), (16, 8, 12), (16, 4, 6), (32, 2, 3)]
    norm = model.network.encoder_stages[3].norm
    expected = norm.weight, norm.bias
    tokens = (model.features(x) - expected[1]) / expected[0]
    torch.testing.assert_close(tokens.mean(1), torch.zeros(12), atol=1e-5, rtol=0)
    features, logits = model.features_and_logits(x)
    assert torch.equal(features, model.rows(maps[3])) and torch.equal(logits, model(x))


def test_passes_are_counted_once_however_the_network_is_called() -> None:
    model, x = small_model(), images(2)
    _, logits = model.features_and_logits(x)
    logits.mean().backward()
    assert (model.passes.forward_images, model.passes.backward_images) == (2, 2)
    model.features(x).mean().backward()
    model(x).mean().backward()
    assert (model.passes.forward_images, model.passes.backward_images) == (6, 6)


def test_a_classifier_has_no_maps() -> None:
    model = SourceModel(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), name="plain")
    with pytest.raises(MethodError, match="plain is a classifier: it has no feature maps"):
        model.feature_maps(torch.rand(1, 3, 2, 2))
    assert model.task == "classification"


def test_dropout_and_stochastic_depth_act_in_training_alone() -> None:
    model, x = small_model(), images(8)
    assert torch.equal(model(x), model(x))
    torch.manual_seed(0)
    model.network.decode_head.train()
    assert not torch.equal(model(x), model(x))
    model.eval().network.backbone.train()
    assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize(("skipped", "norms", "values"), [(0, 162, 94_336), (1, 154, 86_144)])
def test_b5_of_the_authors_has_their_norms(
    b5: SourceModel, skipped: int, norms: int, values: int
) -> None:
    layers = b5.norm_layers(skip_last_blocks=skipped)
    assert len(b5.blocks) == 4  # stages, so that the last one can be left out
    assert len(layers) == norms
    chosen = b5.norm_parameters(skip_last_blocks=skipped).values()
    assert sum(p.numel() for p in chosen) == values
    encoder = b5.norm_layers(skip_last_blocks=skipped, skip_final=True)
    assert set(layers) - set(encoder) == {"decode_head.linear_fuse.bn"}


def test_b5_loads_from_the_authors_names(b5: SourceModel, tmp_path: Path) -> None:
    file = tmp_path / "segformer.b5.1024x1024.city.160k.pth"
    state = b5.network.state_dict()
    torch.save({"state_dict": published(state)}, file)
    loaded = load_source_model("segformer_b5", weights=file, num_classes=19).network.state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[key], state[key]) for key in state)


# -- adapters


def test_every_encoder_block_has_its_six_linear_layers_and_nothing_else_is_one(
    b5: SourceModel,
) -> None:
    layers = role_layers(b5)
    assert Counter(layer.roles for layer in layers) == dict.fromkeys("qkvo", 52) | {"m": 104}
    assert Counter(layer.block for layer in layers) == {0: 18, 1: 36, 2: 240, 3: 18}
    rank = 12  # r inputs and one output per layer: 9 (r + 1) d in every block
    sizes = [rank * x.module.in_features + x.module.out_features for x in layers]
    assert sum(sizes) == 1_789_632


def test_adapters_begin_at_the_source_move_every_role_and_merge_into_plain_layers() -> None:
    model, x = small_model(), images()
    with torch.no_grad():
        before, keys = model(x), set(model.network.state_dict())
        trainable = inject(model, "qkvom", lambda w: LowRankWeight(w, rank=2, scale=1.0))
        torch.testing.assert_close(model(x), before, atol=1e-5, rtol=0)
        moved = before
        for name in [n for n in trainable if n.endswith(".up")]:
            trainable[name].add_(0.2)
            last, moved = moved, model(x)
            assert not torch.equal(moved, last), name
        merge(model)
        torch.testing.assert_close(model(x), moved, atol=1e-5, rtol=1e-5)
    assert len(trainable) == 2 * 6 * 5
    assert set(model.network.state_dict()) == keys


def test_the_values_alone_change_where_they_alone_are_asked_for() -> None:
    model = small_model()
    before = tensors(model.network)
    trainable = inject(model, "v", lambda w: LowRankWeight(w, rank=2))
    values = {name for name in before if name.endswith("attn.v.weight")}
    assert len(values) == 1 + 2 + 1 + 1  # blocks
    # A row for each input and each output.
    count = sum(p.numel() for p in trainable.values())
    assert count == sum(2 * sum(before[name].shape) for name in values)
    with torch.no_grad():
        for parameter in trainable.values():
            parameter.fill_(0.5)
    merge(model)
    assert changed(before, model.network) == values


@pytest.mark.parametrize("form", ["mmseg", "nvlabs"])
@pytest.mark.parametrize("name", ["paid", "tent"])
def test_an_adapted_network_is_kept_under_its_own_names_and_exported_under_published_ones(
    form: Any, name: str, tmp_path: Path
) -> None:
    kind = METHODS.get(name)
    method = kind(SourceModel(small(form), name="small"), kind.Hyperparameters(lr=0.01))
    method.start(source_data())
    for x in images(3, 32, 32).split(1):
        method(x)
    kept, file = plain_state(method), tmp_path / "adapted.safetensors"
    write_model(file, published(kept), {})
    loaded = SourceModel(small(form, seed=9)).eval()
    load_weights(loaded.network, file)
    assert kept.keys() == loaded.network.state_dict().keys()
    x = images(1, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), method.predict(x), atol=1e-5, rtol=1e-5)
        assert (loaded(x) - SourceModel(small(form))(x)).abs().max() > 1e-3


@pytest.mark.parametrize("form", ["mmseg", "nvlabs"])
def test_source_leaves_every_statistic_as_it_was(form: Any) -> None:
    kind = METHODS.get("source")
    method = kind(SourceModel(small(form), name="small"), kind.Hyperparameters())
    before = tensors(method.model)
    for x in images(3).split(1):
        method(x)
    assert changed(before, method.model) == set()


# -- without the extra


def test_without_mmsegmentation_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "ctta_bench.source_models.segformer")
    monkeypatch.setitem(sys.modules, "mmseg.models.backbones", None)
    with pytest.raises(ConfigError, match=r"pip install 'ctta-bench\[seg\]'"):
        MODELS.get("segformer_b0")()


# -- at full size


def step(network: nn.Module, x: Tensor) -> float:
    """Seconds of a forward and a backward pass through the norms."""
    begun = time.perf_counter()
    logits = network(x)
    (logits.softmax(1) * logits.log_softmax(1)).sum(1).mean().backward()
    return time.perf_counter() - begun


def norms_of(network: nn.Module) -> list[nn.Module]:
    return [m for m in network.modules() if isinstance(m, nn.LayerNorm | nn.BatchNorm2d)]


def only_norms(network: nn.Module) -> nn.Module:
    """The network in eval mode with gradients of its norms alone, as TENT trains it."""
    network.eval().requires_grad_(False)
    for norm in norms_of(network):
        norm.requires_grad_(True)
    return network


@pytest.mark.slow
def test_a_step_of_b0_costs_no_more_than_one_of_mmsegmentations() -> None:
    packed = build_mmseg("segformer_mit-b0_8xb1-160k_cityscapes-1024x1024.py")
    theirs = nn.Sequential(packed.backbone, packed.decode_head)
    x = images(1, 540, 960)
    nets = [only_norms(theirs), only_norms(SegFormer(SIZES["b0"]))]
    rounds = [[step(network, x) for network in nets] for _ in range(4)]
    reference, ours = (min(times) for times in zip(*rounds, strict=True))
    assert ours < 1.1 * reference


@pytest.mark.slow
def test_b5_is_loaded_and_takes_a_step_on_an_image_of_540x960(
    b5: SourceModel, tmp_path: Path
) -> None:
    file = tmp_path / "segformer.b5.1024x1024.city.160k.pth"
    torch.save({"state_dict": published(b5.network.state_dict())}, file)
    model = load_source_model("segformer_b5", weights=file, num_classes=19)
    method = METHODS.get("tent")(model, METHODS.get("tent").Hyperparameters(lr=100.0))
    before = tensors(model)
    logits = method(images(1, 540, 960))
    assert logits.shape == (1, 19, 135, 240)
    assert method.counters["skipped_updates"] == 0
    assert len(method.trainable) == 2 * 162
    # Every norm moves, and nothing else does.
    assert changed(before, model) == declared(method)
