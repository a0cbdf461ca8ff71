"""Your own network: pre-processing, features, heads, and which methods support it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import ctta_bench
from ctta_bench.api import Result
from ctta_bench.errors import ConfigError, CttaBenchError, MethodError
from ctta_bench.registry import load_plugin
from tests.conftest import TOY

toy: Any = load_plugin(str(TOY))
IMAGES, LABELS = toy.labelled(1, "toy_vit")
BATCH = torch.tensor(IMAGES[:8]).float() / 255


def plain_vit() -> nn.Module:
    network = toy.toy_vit()
    network.pretrained_cfg = {}
    return network.eval()


class Wrapped(nn.Module):
    """A backbone that gives tokens, and a linear head on the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = toy.toy_vit()
        self.other = nn.Linear(3, 7)  # the last linear layer, which is not the head
        self.head, self.backbone.head = self.backbone.head, nn.Identity()
        self.head_first = self.head
        self.backbone.global_pool = ""

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(images)[:, 0])
        return logits


class Cosine(nn.Module):
    """The head of a CLIP-like model: a scaled cosine with an embedding per class."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("texts", torch.randn(10, width, generator=generator))

    def forward(self, features: Tensor) -> Tensor:
        rows = nn.functional.normalize(features, dim=-1)
        return 10 * rows @ nn.functional.normalize(self.texts, dim=-1).T


def run(model: Any, method: str = "source", **more: Any) -> Result:
    return ctta_bench.evaluate(method, (IMAGES, LABELS), model=model, **more)


def test_mean_std_and_size_are_part_of_the_model() -> None:
    whole = ctta_bench.load_model(plain_vit(), mean=0.5, std=(0.5, 0.5, 0.5), name="mine")
    assert run(whole).accuracy == 100 > run(plain_vit()).accuracy
    assert run(whole).model == "mine" and "normalisation true (mean 0.5" in repr(whole)
    network = plain_vit()
    larger = ctta_bench.load_model(network, mean=0.5, std=0.5, size=16)
    assert larger(torch.rand(2, 3, 40, 50)).shape == (2, 10)
    assert larger.trained_preprocessing() == larger.preprocessing
    assert ctta_bench.load_model(network).preprocessing.mean == (0, 0, 0)  # nothing is kept in it


def test_an_own_preprocessing_is_applied_and_told_apart_in_the_record() -> None:
    def normalised(images: Tensor) -> Tensor:
        return images * 2 - 1

    found = run(ctta_bench.load_model(plain_vit(), preprocessing=normalised))
    assert found.accuracy == 100
    recorded = found.cell["preprocessing"]
    assert recorded["regime"] == "own" and "normalised" in recorded["transform"]
    other = run(ctta_bench.load_model(plain_vit(), preprocessing=lambda x: x * 2 - 0.9))
    assert other.name != found.name
    text = ctta_bench.compare(found).table.caption + found.summary()
    assert "own" in text
    tent = run(ctta_bench.load_model(plain_vit(), preprocessing=normalised), "tent")
    assert len(ctta_bench.compare(found, tent).to_frame()) == 2


def test_an_own_preprocessing_may_be_of_a_network_of_one_size() -> None:
    def normalised(images: Tensor) -> Tensor:
        return images * 2 - 1

    def larger(images: Tensor) -> Tensor:
        return nn.functional.interpolate(images, size=(16, 16)) * 2 - 1

    network = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=12, depth=1, num_heads=2,
        num_classes=10,
    )  # fmt: skip
    network.pretrained_cfg = {}
    assert network.patch_embed.strict_img_size
    for function, size in ((normalised, None), (larger, None), (normalised, 16)):
        model = ctta_bench.load_model(
            network, preprocessing=function, size=size, features="norm", head="head"
        )
        assert model.preprocessing.size == (16, 16)
        assert model.point is not None and model.point.pool == "class token"
        assert torch.equal(model(BATCH), network(BATCH * 2 - 1))


def test_features_at_a_module_of_ones_own_are_those_of_the_head() -> None:
    model = ctta_bench.load_model(
        Wrapped(), mean=0.5, std=0.5, size=16, features="backbone.norm", head="head"
    )
    features, logits = model.features_and_logits(BATCH)
    assert features.shape == (8, 24) and torch.allclose(logits, model(BATCH), atol=1e-5)
    assert model.point is not None and model.point.pool == "class token"
    assert ctta_bench.check_model(model, ["lame"]).supported == ["lame"]
    plain = ctta_bench.load_model(toy.toy_vit())
    assert torch.allclose(features, plain.features(BATCH), atol=1e-5)
    found = run(model, "lame")
    assert found.cell["model"]["features"] == "backbone.norm"
    assert not np.array_equal(found.scores.nll, run(toy.toy_vit()).scores.nll)  # type: ignore[union-attr]


def test_a_clip_like_model_is_a_backbone_with_a_head() -> None:
    backbone = toy.toy_vit()
    backbone.head = nn.Identity()
    model = ctta_bench.load_model(backbone, head=Cosine(), mean=0.5, std=0.5, name="zero_shot")
    assert model.known_classes == 10
    assert torch.allclose(model.head(model.features(BATCH)), model(BATCH), atol=1e-5)
    checked = ctta_bench.check_model(model)
    assert {"tent", "lame", "sar", "cotta"} <= set(checked.supported)
    assert "no linear layer" in checked.refused["t3a"]
    assert "t3a" in repr(checked) and not checked.to_frame().loc["t3a", "supported"]
    assert run(model, "lame").error > 0
    other = Cosine()
    other.texts.neg_()
    assert (
        ctta_bench.load_model(backbone, head=other).sha256()
        != ctta_bench.load_model(backbone, head=Cosine()).sha256()
    )


def test_a_network_with_group_norm_runs() -> None:
    network = timm.create_model("resnet18", num_classes=10, norm_layer="groupnorm").eval()
    checked = ctta_bench.check_model(network, ["tent", "sar", "norm"], size=32)
    assert {"tent", "sar"} <= set(checked.supported)
    assert "norm" in checked.refused


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = toy.toy_vit()

    def forward(self, images: Tensor) -> Any:
        return self.body(images), images


class Maps(Two):
    def forward(self, images: Tensor) -> Any:
        return images


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ctta_bench.load_model(Two(), size=16), ConfigError, "returns tuple, not logits"),
        (lambda: ctta_bench.load_model(Maps()), ConfigError, "wrap it in a module whose forward"),
        (lambda: ctta_bench.load_model("fashion_vit", mean=0.5), ConfigError, "for a module"),
        (lambda: ctta_bench.load_model(plain_vit(), mean=0.5), ConfigError, "mean and std"),
        (lambda: ctta_bench.load_model(plain_vit(), mean=127, std=1), ConfigError, "by 255"),
        (
            lambda: ctta_bench.load_model(plain_vit(), mean=0.5, std=1, preprocessing="lineage"),
            ConfigError,
            "leave them out",
        ),
        (
            lambda: ctta_bench.load_model(plain_vit(), weights="x.pth"),
            ConfigError,
            "weights= is for names",
        ),
        (
            lambda: ctta_bench.load_model(Wrapped(), features="backbone.nrom", head="head"),
            MethodError,
            "has no such module",
        ),
        (
            lambda: ctta_bench.load_model(plain_vit(), features="blocks.0"),
            MethodError,
            "does not give the logits [2, 10]",
        ),
        (
            lambda: ctta_bench.load_model(plain_vit(), preprocessing=lambda x: x.flatten(1)),
            ConfigError,
            "must return images",
        ),
        (
            lambda: ctta_bench.load_model(plain_vit(), preprocessing=lambda x: x + torch.rand(1)),
            ConfigError,
            "the same for every call",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(make: Any, error: type[CttaBenchError], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        make()


def test_the_recipes_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "models.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "9,600" in printed and "no linear layer" in printed
