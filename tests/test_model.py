import copy
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from timm.models.resnet import BasicBlock, ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ctta_bench.errors import ConfigError, DataError, MethodError
from ctta_bench.model import Preprocessing, SourceModel, load_source_model
from ctta_bench.registry import MODELS
from ctta_bench.weights import load_weights
from tests.methods import pictures, toy

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


class Linear(nn.Sequential):
    """The smallest classifier: 2 x 2 pixels to two logits."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(12, 2))


def tiny_resnet() -> nn.Module:
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10, channels=[4, 4, 8, 8], stem_width=4)


def tiny_vit(**options: Any) -> VisionTransformer:
    return VisionTransformer(
        img_size=16, patch_size=8, embed_dim=8, depth=4, num_heads=2, num_classes=5, **options
    )


class Wrapped(nn.Module):
    """A network inside another, as wrappers put it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.module = network

    def forward(self, images: Tensor) -> Tensor:
        return self.module(images)


# -- pre-processing


def test_images_are_normalised_by_what_is_recorded_with_the_checkpoint() -> None:
    network = Linear()
    network.pretrained_cfg = {**IMAGENET, "input_size": (3, 2, 2)}
    model = SourceModel(network)
    images = torch.rand(4, 3, 2, 2)
    mean, std = (torch.tensor(IMAGENET[k]).view(3, 1, 1) for k in ("mean", "std"))
    torch.testing.assert_close(model(images), network((images - mean) / std))
    assert model.preprocessing.regime == "true"


def test_each_timm_model_uses_its_own_statistics() -> None:
    import timm

    found = timm.create_model("test_vit", num_classes=2).pretrained_cfg
    assert SourceModel(timm.create_model("test_vit")).preprocessing.mean == found["mean"]
    network = tiny_vit()
    network.pretrained_cfg = timm.models.PretrainedCfg(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert SourceModel(network).preprocessing.mean == (0.1, 0.2, 0.3)


def test_the_lineage_regime_feeds_raw_images_at_the_recorded_size() -> None:
    network = Linear()
    network.pretrained_cfg = {**IMAGENET, "input_size": (3, 2, 2)}
    model = SourceModel(network, preprocessing="lineage")
    images = torch.rand(4, 3, 2, 2)
    torch.testing.assert_close(model(images), network(images))
    assert model.preprocessing.record() == {
        "regime": "lineage", "mean": [0.0] * 3, "std": [1.0] * 3, "size": [2, 2],
        "interpolation": "bilinear",
    }  # fmt: skip


def test_a_network_without_a_record_gets_raw_images() -> None:
    network = Linear()
    images = torch.rand(4, 3, 2, 2)
    torch.testing.assert_close(SourceModel(network)(images), network(images))


def test_another_regime_is_refused() -> None:
    with pytest.raises(ConfigError, match="preprocessing 'raw': choose 'true' or 'lineage'"):
        SourceModel(Linear(), preprocessing="raw")


def test_images_of_another_size_are_resized_bilinearly() -> None:
    model = SourceModel(Linear(), preprocessing=Preprocessing(size=(2, 2)))
    rows = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(1, 3, 4, 4)
    # Each pixel of the half-size image lies amid four of the large one.
    assert model.preprocess(rows).tolist() == [[[[0.0, 1.0]] * 2] * 3]


def test_precision_of_the_statistics_follows_the_model() -> None:
    model = SourceModel(toy.toy_vit()).double()
    assert model(pictures(1).double()).dtype == torch.float64


# -- layers


@pytest.mark.parametrize(
    "wrap", [lambda n: n, Wrapped, nn.Sequential, lambda n: Wrapped(Wrapped(n))]
)
def test_norm_layers_are_chosen_by_type_under_any_name(wrap: Any) -> None:
    model = SourceModel(wrap(tiny_vit()))
    assert len(model.norm_layers()) == 2 * 4 + 1
    assert len(model.norm_layers(skip_final=True)) == 2 * 4
    assert len(model.norm_layers(skip_last_blocks=1)) == 2 * 3 + 1
    assert len(model.norm_layers(skip_last_blocks=1, skip_final=True)) == 2 * 3
    assert len(model.norm_layers(skip_last_blocks=9)) == 1
    assert len(model.blocks) == 4


def test_norm_parameters_have_their_names_in_the_network() -> None:
    network = tiny_vit()
    named = dict(network.named_parameters())
    found = SourceModel(network).norm_parameters()
    assert len(found) == 2 * (2 * 4 + 1)
    assert all(named[name] is parameter for name, parameter in found.items())


@pytest.mark.parametrize(
    "norm",
    [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.InstanceNorm2d(4, affine=True)],
)
def test_every_kind_of_norm_layer_counts(norm: nn.Module) -> None:
    assert list(SourceModel(nn.Sequential(norm, Linear())).norm_parameters()) == [
        "0.weight",
        "0.bias",
    ]


def test_norm_layers_without_affine_parameters_do_not_count() -> None:
    assert SourceModel(nn.Sequential(nn.LayerNorm(4, elementwise_affine=False))).norm_layers() == {}


@pytest.fixture(scope="module")
def vit_base() -> SourceModel:
    """ViT-B/16 without memory for its weights."""
    import timm

    with torch.device("meta"):
        return SourceModel(timm.create_model("vit_base_patch16_224"))


def test_the_norm_groups_of_vit_base_have_the_published_sizes(vit_base: SourceModel) -> None:
    everything = vit_base.norm_parameters()
    sar = vit_base.norm_parameters(skip_last_blocks=3, skip_final=True)
    assert (len(everything), sum(p.numel() for p in everything.values())) == (50, 38_400)
    assert (len(sar), sum(p.numel() for p in sar.values())) == (36, 27_648)
    assert sum(p.numel() for p in vit_base.network.parameters()) == 86_567_656


def test_batch_statistics_replace_the_sources() -> None:
    model, training = SourceModel(toy.toy_cnn()), toy.toy_cnn().train()
    assert model.use_batch_statistics()
    images = pictures(8)
    torch.testing.assert_close(model(images), training(images * 2 - 1))
    assert not SourceModel(toy.toy_vit()).use_batch_statistics()


@pytest.mark.parametrize(
    "network", [toy.toy_vit, toy.toy_cnn, tiny_resnet, lambda: tiny_vit(global_pool="avg")]
)
def test_features_and_head_make_the_logits(network: Any) -> None:
    network = network().eval()
    model = SourceModel(network)
    images = pictures(3)
    with torch.no_grad():
        features = model.features(images)
        expected = network(model.preprocess(images))
        assert features.shape == (3, model.classifier.in_features)
        torch.testing.assert_close(model.head(features), expected)
        torch.testing.assert_close(model(images), expected)
    assert model.num_classes == expected.shape[1]


def test_features_of_a_vit_are_its_class_token_after_the_final_norm() -> None:
    network = toy.toy_vit().eval()
    model = SourceModel(network)
    with torch.no_grad():
        tokens = network.forward_features(model.preprocess(pictures(2)))
        torch.testing.assert_close(model.features(pictures(2)), tokens[:, 0])


def test_a_network_without_a_last_linear_layer_still_classifies() -> None:
    model = SourceModel(nn.Sequential(nn.Conv2d(3, 5, 2), nn.Flatten()), name="conv")
    assert model(torch.rand(2, 3, 2, 2)).shape == (2, 5)
    with pytest.raises(MethodError, match="conv has no last linear layer"):
        model.features(torch.rand(2, 3, 2, 2))


@pytest.mark.parametrize("network", [toy.toy_vit, toy.toy_cnn])
def test_passes_are_counted_in_images_and_shared_with_copies(network: Any) -> None:
    model = SourceModel(network())
    model(pictures(3)).sum().backward()
    with torch.no_grad():
        model.head(model.features(pictures(2)))
        copy.deepcopy(model)(pictures(4))
    assert model.passes.forward_images == 3 + 2 + 4
    assert model.passes.backward_images == 3


def test_a_copy_has_a_classifier_of_its_own() -> None:
    model = SourceModel(toy.toy_vit())
    twin = copy.deepcopy(model)
    assert twin.classifier is twin.network.head
    assert twin.classifier is not model.classifier


# -- weights


def weights() -> dict[str, Tensor]:
    return toy.toy_vit().state_dict()


def prefixed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"module.{key}": value for key, value in tensors.items()}


@pytest.mark.parametrize(
    "wrap",
    [
        dict, OrderedDict, prefixed,
        lambda t: {"state_dict": t, "epoch": 3},
        lambda t: {"model": t, "optimizer": {"state": {}}},
        lambda t: {"state_dict": prefixed(t)},
    ],
    ids=["plain", "ordered", "module.", "state_dict", "model", "both"],
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
            r"'head\.weight' has shape \(100, 24\) where the model has \(10, 24\) \(and 1 more\)",
        ),
        (lambda: weights() | {"fc.bias": torch.zeros(1)}, "key 'fc.bias' belongs to no layer"),
        (lambda: weights() | {"norm.bias": torch.full((24,), torch.nan)}, "norm.bias holds values"),
        (lambda: {"epoch": 3}, r"key 'cls_token' is missing \(and"),
        (lambda: [torch.zeros(1)], "holds no state dict, but a list"),
    ],
    ids=["missing", "shape", "extra", "nan", "no tensors", "list"],
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
    with pytest.raises(DataError, match="is not a whole file of weights"):
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


def test_the_fingerprint_tells_types_of_equal_bytes_apart() -> None:
    network = Linear().requires_grad_(False)
    network[1].weight.zero_()
    network[1].bias.zero_()
    half, brain = (SourceModel(copy.deepcopy(network).to(d)) for d in (torch.half, torch.bfloat16))
    assert half.sha256() != brain.sha256()


# -- models by name


@pytest.fixture
def plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model registered by a user who knows nothing of pretrained_cfg."""
    monkeypatch.setattr(MODELS, "_plugin_entries", dict(MODELS._plugin_entries))

    @MODELS.register_module("plain_model")
    def plain_model() -> nn.Module:
        return Linear()


@pytest.mark.usefixtures("plain_model")
def test_a_registered_model_needs_neither_a_record_nor_a_file(tmp_path: Path) -> None:
    assert load_source_model("plain-model").name == "plain-model"
    network = Linear()
    torch.save(network.state_dict(), tmp_path / "own.pth")
    loaded = load_source_model("plain_model", weights=tmp_path / "own.pth")
    assert loaded.sha256() == SourceModel(network).sha256()


def test_a_registered_model_loads_its_own_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(MODELS, "_plugin_entries", dict(MODELS._plugin_entries))
    source = Linear()
    torch.save(source.state_dict(), tmp_path / "own.pth")

    @MODELS.register_module("model_with_file")
    def model_with_file() -> nn.Module:
        network = Linear()
        network.pretrained_cfg = {"file": tmp_path / "own.pth"}
        return network

    assert load_source_model("model_with_file").sha256() == SourceModel(source).sha256()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:vit_bas_patch16_224", "timm knows .* Did you mean timm:vit_base_patch16_224"),
        ("timm:test_vit.nope", r"timm knows no 'test_vit\.nope'\. Did you mean timm:test_vit"),
        ("toy_vitt", "unknown model 'toy_vitt', did you mean 'toy_vit'"),
    ],
)
def test_unknown_models_are_refused_with_close_names(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_source_model(name)


def test_a_timm_model_needs_its_weights_given_and_downloads_nothing(tmp_path: Path) -> None:
    import timm

    with pytest.raises(DataError, match="needs a file of weights: nothing is downloaded unasked"):
        load_source_model("timm:test_vit.r160_in1k")
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "w.pth")
    model = load_source_model("timm:test_vit.r160_in1k", weights=tmp_path / "w.pth")
    assert model.preprocessing.size == (160, 160)
