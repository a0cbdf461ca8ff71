import copy
from typing import Any

import pytest
import timm
import torch
from timm.models.resnet import BasicBlock, ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ctta_bench.errors import ConfigError, MethodError
from ctta_bench.model import Preprocessing, SourceModel
from ctta_bench.registry import METHODS
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
    with pytest.raises(MethodError, match="conv offers no features: its logits"):
        model.features(torch.rand(2, 3, 2, 2))


class Scaled(nn.Module):
    """A network whose logits are not the output of its last linear layer."""

    def __init__(self, network: nn.Module, size: tuple[int, int] | None = (16, 16)) -> None:
        super().__init__()
        self.network = network
        if size:
            self.pretrained_cfg = {"input_size": (3, *size)}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 2 * self.network(images)


class LearntScale(VisionTransformer):
    """A timm model whose own forward does more than its last layer."""

    def forward(self, x: torch.Tensor, attn_mask: Any = None) -> torch.Tensor:
        return 2 * super().forward(x)


SMALL_OF_TIMM = {
    "deit_tiny_distilled_patch16_224": {"embed_dim": 24, "depth": 2, "num_heads": 2},
    "levit_128s": {"embed_dim": (16, 24, 32), "num_heads": (2, 2, 2), "depth": (1, 1, 1)},
    "resnetv2_50": {"layers": [1, 1, 1, 1], "channels": [8, 8, 16, 16], "stem_chs": 8},
}


def without_features(name: str) -> nn.Module:
    match name:
        case "scaled":
            return Scaled(toy.toy_cnn())
        case "learnt scale":
            return LearntScale(
                img_size=16, patch_size=8, embed_dim=8, depth=2, num_heads=2, num_classes=5
            )
    return timm.create_model(name, num_classes=5, **SMALL_OF_TIMM[name])  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", [*SMALL_OF_TIMM, "scaled", "learnt scale"])
def test_the_forward_pass_is_the_networks_own_and_features_are_refused(name: str) -> None:
    network = without_features(name).train()
    model = SourceModel(network, name=name)
    assert all(module.training for module in network.modules())  # as it came
    model.eval()
    images = torch.rand(2, 3, *(model.preprocessing.size or (16, 16)))
    with torch.no_grad():
        expected = network(model.preprocess(images))
        assert torch.equal(model(images), expected)
        assert model.passes.forward_images == 2  # the check is no cost
        assert (model.has_classifier, model.num_classes) == (False, expected.shape[1])
        for of_features in (model.features, model.features_and_logits):
            with pytest.raises(MethodError, match=f"{name} offers no features"):
                of_features(images)
        twin = copy.deepcopy(model)
        twin.keep_classes([3, 1])
        assert torch.equal(twin(images), expected[:, [3, 1]])
        assert twin.num_classes == 2
    assert twin.sha256() == model.sha256()


@pytest.mark.parametrize("method", ["t3a", "lame", "paid", "foa", "dpcore", "santa", "rmt"])
def test_methods_that_use_features_refuse_such_a_model_before_the_stream(method: str) -> None:
    network = timm.create_model("vit_tiny_patch16_224", embed_dim=24, depth=2, num_heads=2)
    network.head = nn.Sequential(nn.Linear(24, 5), nn.Softmax(-1))
    model = SourceModel(network, name="soft")
    entry = METHODS.get(method)
    with pytest.raises(MethodError, match=r"soft.* offers no features"):
        entry(model, entry.Hyperparameters())


@pytest.mark.parametrize("method", ["source", "tent", "sar"])
def test_other_methods_take_it(method: str) -> None:
    model = SourceModel(Scaled(toy.toy_vit()))
    entry = METHODS.get(method)
    adapted = entry(model, entry.Hyperparameters())
    adapted.start(None)
    assert adapted(pictures(3)).shape == (3, 10)


def test_without_a_known_input_size_features_are_checked_when_they_are_used() -> None:
    model = SourceModel(Scaled(toy.toy_cnn(), None), name="scaled")
    with pytest.raises(MethodError, match="scaled offers no features"):
        model.features(pictures(2))


def test_the_check_of_features_draws_nothing_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    SourceModel(toy.toy_vit())
    assert torch.equal(torch.get_rng_state(), before)


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
