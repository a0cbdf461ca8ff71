from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.models import PretrainedCfg
from torchvision import transforms

from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.model import SourceModel
from ctta_bench.model.preprocessing import Preprocessing, recorded_preprocessing
from tests.test_model import IMAGENET, Linear, tiny_vit

HALVES = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


def network_of(size: int, **statistics: Any) -> Linear:
    network = Linear()
    network.pretrained_cfg = {**statistics, "input_size": (3, size, size)}
    return network


def published(image: np.ndarray) -> torch.Tensor:
    """What the loaders of the published tables make of an image file."""
    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
    return transforms.Compose(steps)(Image.fromarray(image))


@pytest.mark.parametrize("size", [(224, 224), (300, 340), (225, 500)])
def test_lineage_at_224_pixels_is_resize_256_and_crop_224_without_normalisation(
    size: tuple[int, int],
) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    given = recorded_preprocessing(network_of(224, **HALVES), "lineage")
    ours = SourceModel(network_of(224, **HALVES), preprocessing=given).preprocess(
        torch.from_numpy(image).permute(2, 0, 1)[None] / 255
    )
    # Pillow rounds to whole grey levels after each of its two passes.
    torch.testing.assert_close(ours[0], published(image), rtol=0, atol=1.01 / 255)
    assert given.record()["enlarge"] == 256


@pytest.mark.parametrize(
    ("regime", "size", "told"),
    [
        ("true", 224, "true (mean 0.5, std 0.5, 224x224)"),
        ("lineage", 224, "lineage (raw [0, 1], short side 256, 224x224)"),
        ("lineage", 384, "lineage (raw [0, 1], 384x384)"),
    ],
)
def test_only_lineage_at_224_pixels_enlarges(regime: str, size: int, told: str) -> None:
    given = recorded_preprocessing(network_of(size, **HALVES), regime)
    assert ("enlarge" in given.record()) == ("short side" in told)
    assert str(given) == told


def test_true_leaves_the_geometry_of_images_of_the_right_size() -> None:
    images = torch.rand(1, 3, 224, 224)
    model = SourceModel(network_of(224, **HALVES))
    torch.testing.assert_close(model.preprocess(images), 2 * images - 1)


def test_lineage_enlarges_cifar_images_bilinearly_between_pixel_centres() -> None:
    row = torch.tensor([0.0, 1.0]).expand(1, 3, 2, 2)
    given = Preprocessing("lineage", size=(4, 4))
    # Centres of the four new pixels lie at -1/4, 1/4, 3/4 and 5/4 of the two old ones.
    assert given.resize(row)[0, 0, 0].tolist() == [0.0, 0.25, 0.75, 1.0]


@pytest.mark.parametrize("regime", ["true", "lineage"])
def test_a_normalisation_built_into_the_network_holds_under_both_regimes(regime: str) -> None:
    network = network_of(32, **HALVES, built_in_normalisation=True)
    given = recorded_preprocessing(network, regime)
    assert (given.regime, given.mean, given.std) == (regime, HALVES["mean"], HALVES["std"])


def test_the_name_of_a_size_distinguishes_channels() -> None:
    assert "mean 0.485/0.456/0.406" in str(Preprocessing(**IMAGENET))


@pytest.mark.parametrize("regime", ["true", "lineage"])
@pytest.mark.parametrize("statistics", [HALVES, IMAGENET])
def test_the_normalisation_used_is_that_of_each_models_own_record(
    statistics: dict[str, Any], regime: str
) -> None:
    network = tiny_vit()
    network.pretrained_cfg = PretrainedCfg(**statistics, input_size=(3, 16, 16))
    images = torch.rand(2, 3, 16, 16)
    mean, std = (torch.tensor(statistics[k]).view(3, 1, 1) for k in ("mean", "std"))
    expected = {"true": (images - mean) / std, "lineage": images}[regime]
    model = SourceModel(network, preprocessing=recorded_preprocessing(network, regime))
    torch.testing.assert_close(model.preprocess(images), expected)


@pytest.mark.usefixtures("toy")
def test_the_regime_is_part_of_a_cells_identity_and_stands_in_its_record() -> None:
    cells = {
        regime: resolve(CellRequest(method="source", benchmark="toy", preprocessing=regime))
        for regime in ("true", "lineage")
    }
    assert cells["true"].id != cells["lineage"].id
    assert cells["true"].record["preprocessing"]["mean"] == [0.5, 0.5, 0.5]
    assert cells["lineage"].record["preprocessing"]["mean"] == [0.0, 0.0, 0.0]
    assert {c.record["model"]["sha256"] for c in cells.values()} == {
        cells["true"].record["model"]["sha256"]
    }
