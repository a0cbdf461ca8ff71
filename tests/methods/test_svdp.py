"""SVDP: where its prompt is placed, what its teacher labels, and what it refuses."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ctta_bench.authoring.parity import collect
from ctta_bench.errors import MethodError
from ctta_bench.model import Preprocessing, SourceModel
from ctta_bench.parts.prompts.placed import (
    dropout_uncertainty,
    most_uncertain,
    prompt_count,
    prompt_image,
    prompt_momentum,
)
from ctta_bench.registry import METHODS
from ctta_bench.testing import tiny_segmentor
from tests.methods import toy

GOLDEN = collect([Path(__file__).parents[1] / "parity"])["svdp_prompt"]


@pytest.mark.parametrize(("rate", "count"), [(0.001, 518), (0.0001, 51), (0.25, 129_600)])
def test_the_prompted_pixels_of_the_published_rates_are_counted(rate: float, count: int) -> None:
    assert prompt_count(540, 960, rate) == count


@pytest.mark.parametrize(("height", "width"), [(6, 8), (12, 16), (9, 12)])
def test_exactly_k_pixels_are_prompted_at_every_scale(height: int, width: int) -> None:
    uncertainty = torch.rand(12, 16, generator=torch.Generator().manual_seed(0))
    positions = most_uncertain(uncertainty, height, width, 7)
    image = prompt_image(torch.ones(7, 3), positions, height, width)
    assert image.sum((1, 2)).tolist() == [7.0, 7.0, 7.0]


def test_vectors_go_to_the_largest_uncertainties_in_ascending_order() -> None:
    uncertainty = torch.tensor([[0.1, 0.9, 0.2], [0.8, 0.0, 0.7]])
    assert most_uncertain(uncertainty, 2, 3, 3).tolist() == [[1, 2], [1, 0], [0, 1]]
    assert most_uncertain(uncertainty, 2, 3, 0).tolist() == []


def test_passes_that_agree_are_certain_and_leave_the_momentum() -> None:
    agreed = torch.full((10, 19, 4, 4), 1 / 19)
    assert not dropout_uncertainty(agreed).any()
    assert prompt_momentum(dropout_uncertainty(agreed), 0.1) == 0.999


def test_the_uncertainty_is_a_population_variance_summed_over_the_classes() -> None:
    two = torch.tensor([[0.2, 0.8], [0.4, 0.6]]).view(2, 2, 1, 1)
    assert dropout_uncertainty(two).item() == pytest.approx(2 * 0.1**2)


def test_the_rate_of_the_prompts_average_equals_the_official_one() -> None:
    uncertainty = GOLDEN.recorded()["in/uncertainty64"]
    expected = GOLDEN.read()["figures"]["prompt_ema_rate"]
    assert math.isclose(prompt_momentum(uncertainty, 0.1), expected, abs_tol=1e-8)


def svdp(network: nn.Module | None = None, **hyperparameters: Any) -> Any:
    """SVDP on the checks' tiny segmentor, images of 16 x 16, one view in two directions."""
    entry = METHODS.get("svdp")
    few = {"image_size": (16, 16), "density": 0.05, "scales": (1.0,), "dropout_passes": 3}
    method = entry(
        SourceModel(network or tiny_segmentor()), entry.Hyperparameters(**few | hyperparameters)
    )
    method.start()
    return method


def scenes(count: int = 2) -> Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def test_scores_are_log_probabilities_at_the_size_of_the_labels() -> None:
    logits = svdp()(scenes())
    assert logits.shape == (2, 10, 32, 32)
    torch.testing.assert_close(logits.exp().sum(1), torch.ones(2, 32, 32))


@pytest.mark.parametrize("train_prompt", [False, True])
def test_only_the_papers_prompt_learns(train_prompt: bool) -> None:
    method = svdp(train_prompt=train_prompt, lr_prompt=0.01)
    start = method.prompt.detach().clone()
    assert start.shape == (12, 3)  # 5 % of 256 pixels
    for _ in range(4):
        method(scenes())
    assert torch.equal(method.prompt, start) != train_prompt
    assert ("prompt" in method.trainable) == train_prompt
    assert torch.equal(method.teacher_prompt, start) != train_prompt


@pytest.mark.parametrize(("confidence", "certain"), [(0.0, True), (1.0, False)])
def test_the_label_is_of_the_plain_view_where_the_anchor_is_sure_else_of_all(
    confidence: float, certain: bool
) -> None:
    method, images = svdp(anchor_confidence=confidence), scenes()
    uncertainty = torch.rand(2, 32, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        shown = images + method.prompts(method.teacher_prompt, uncertainty, 1.0)
        plain, mirrored = (
            nn.functional.interpolate(tiny_segmentor()(x), size=(32, 32), mode="bilinear").softmax(
                1
            )
            for x in (shown, shown.flip(-1))
        )
    expected = plain if certain else (plain + mirrored.flip(-1)) / 2
    torch.testing.assert_close(
        method.teacher_log_probabilities(images, uncertainty).exp(), expected
    )


def test_the_prompt_is_added_to_normalised_images() -> None:
    network = tiny_segmentor()
    entry = METHODS.get("svdp")
    scaled = Preprocessing(mean=(0.5,) * 3, std=(0.25,) * 3)
    hyperparameters = entry.Hyperparameters(image_size=(16, 16), density=0.05)
    method = entry(SourceModel(network, preprocessing=scaled), hyperparameters)
    images, uncertainty = scenes(), torch.rand(2, 32, 32)
    shown = images + method.prompts(method.prompt.detach(), uncertainty, 1.0)
    added = method.model.preprocess(shown) - method.model.preprocess(images)
    values = added[0].flatten(1).T[added[0].flatten(1).T.abs().sum(1) > 1e-5]
    torch.testing.assert_close(values.sum(0), method.prompt.detach().sum(0), atol=1e-4, rtol=1e-4)


def test_the_head_alone_passes_under_dropout_and_without_it_nothing_is_uncertain() -> None:
    method = svdp()
    calls = {"stages.0": 0, "decode_head": 0}

    def count(name: str) -> Any:
        return lambda *_: calls.update({name: calls[name] + 1})

    for name in calls:
        method.teacher.network.get_submodule(name).register_forward_hook(count(name))
    assert method.uncertainty(scenes()).shape == (2, 32, 32)
    assert calls == {"stages.0": 1, "decode_head": 3}
    assert not svdp(dropout=0.0).uncertainty(scenes()).any()
    assert not method.teacher.network.training


def test_seventeen_passes_are_made_of_an_image() -> None:
    method = svdp(scales=(0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0))
    method(scenes())
    assert (method.passes.forward_images, method.passes.backward_images) == (2 * 17, 2)


def test_the_teacher_follows_the_student_before_it_is_restored() -> None:
    method = svdp(restore_probability=1.0, teacher_momentum=0.5, lr=0.1)
    method(scenes())
    source = dict(tiny_segmentor().named_parameters())
    for name, parameter in method.model.network.named_parameters():
        assert torch.equal(parameter, source[name])
        followed = method.teacher.network.get_parameter(name) - source[name]
        assert 0 < float(followed.detach().abs().max()) <= 0.05 + 1e-6


@pytest.mark.parametrize(
    ("network", "hyperparameters", "words"),
    [
        ("toy_vit", {}, "SVDP does not support .*, a model for classification"),
        ("toy_cnn", {}, "SVDP does not support .*, a model for classification"),
        ("segmentor", {"scales": (0.5,)}, "needs 1.0 among `scales`"),
        ("segmentor", {"density": 1e-3}, "prompts at least one pixel"),
    ],
)
def test_what_it_cannot_serve_is_refused_at_construction(
    network: str, hyperparameters: dict[str, Any], words: str
) -> None:
    made = tiny_segmentor() if network == "segmentor" else getattr(toy, network)()
    with pytest.raises(MethodError, match=words):
        svdp(made, **hyperparameters)


def test_images_of_another_size_than_the_prompts_are_refused() -> None:
    with pytest.raises(MethodError, match="images of 8 x 16 pixels, but its prompt is for 16 x 16"):
        svdp()(scenes()[:, :, :8])
