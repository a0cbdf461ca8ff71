from pathlib import Path

import pytest
import torch
from torch import nn

from ctta_bench.datasets.cifar_models import CifarResNeXt, WideResNet
from ctta_bench.errors import DataError
from ctta_bench.model import SourceModel
from ctta_bench.registry import MODELS
from ctta_bench.source_models.pretrained import build, load_source_model

# As their papers and RobustBench count them.
PARAMETERS = {
    "cifar10_vit_base": 86_098_186,
    "cifar100_vit_base": 86_167_396,
    "cifar10_wrn28_10": 36_479_194,
    "cifar10_wrn40_2": 2_243_546,
    "cifar100_wrn40_2": 2_255_156,
    "cifar10_resnext29": 6_807_882,
    "cifar100_resnext29": 6_900_132,
}


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_the_networks_have_their_published_number_of_parameters(name: str, count: int) -> None:
    with torch.device("meta"):
        network = build(name)
    assert sum(p.numel() for p in network.parameters()) == count


def test_a_wide_residual_network_has_the_names_of_robustbench() -> None:
    with torch.device("meta"):
        names = {k for k, _ in WideResNet(40, 2, 10).named_parameters()}
    expected = {"conv1.weight", "bn1.weight", "bn1.bias", "fc.weight", "fc.bias"}
    for group in (1, 2, 3):
        for block in range(6):
            place = f"block{group}.layer.{block}"
            expected |= {f"{place}.{k}.weight" for k in ("conv1", "conv2", "bn1", "bn2")}
            expected |= {f"{place}.{k}.bias" for k in ("bn1", "bn2")}
        expected.add(f"block{group}.layer.0.convShortcut.weight")
    assert names == expected


def test_a_resnext_has_the_names_of_robustbench() -> None:
    with torch.device("meta"):
        names = {k for k, _ in CifarResNeXt(10).named_parameters()}
    expected = {"conv_1_3x3.weight", "bn_1.weight", "bn_1.bias"}
    expected |= {"classifier.weight", "classifier.bias"}
    for stage in (1, 2, 3):
        for block in range(3):
            place = f"stage_{stage}.{block}"
            layers = ("conv_reduce", "conv_conv", "conv_expand", "bn_reduce", "bn", "bn_expand")
            expected |= {f"{place}.{k}.weight" for k in layers}
            expected |= {f"{place}.{k}.bias" for k in layers[3:]}
        shortcut = f"stage_{stage}.0.downsample"
        expected |= {f"{shortcut}.{k}" for k in ("0.weight", "1.weight", "1.bias")}
    assert names == expected


def test_a_block_adds_its_residual_to_the_input_or_to_the_shortcut() -> None:
    network = WideResNet(10, 1, 10).eval()
    same, wider = network.get_submodule("block1.layer.0"), network.get_submodule("block2.layer.0")
    with torch.no_grad():
        same.conv2.weight.zero_()  # type: ignore[union-attr,operator]
        wider.conv2.weight.zero_()  # type: ignore[union-attr,operator]
        x = torch.randn(2, 16, 8, 8)
        assert torch.equal(same(x), x)
        active = nn.functional.relu(x / (1 + 1e-5) ** 0.5)  # BatchNorm as it is made
        torch.testing.assert_close(wider(x), wider.convShortcut(active))  # type: ignore[operator]


def test_a_checkpoint_in_robustbenchs_wrapping_loads_and_normalises_as_there(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    network = build("cifar10_wrn40_2").eval()
    state = {f"module.{k}": v for k, v in network.state_dict().items()}
    torch.save({"epoch": 99, "state_dict": state}, tmp_path / "wrn.pt")
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected = network((images - 0.5) / 0.5)
        for regime in ("true", "lineage"):
            model = load_source_model(
                "cifar10_wrn40_2",
                weights=tmp_path / "wrn.pt",
                preprocessing=regime,  # type: ignore[arg-type]
            ).eval()
            torch.testing.assert_close(model(images), expected)


def test_standard_of_robustbench_takes_raw_images() -> None:
    with torch.device("meta"):
        assert "mean" not in MODELS.get("cifar10_wrn28_10")().pretrained_cfg


def test_the_vits_enlarge_images_to_384_and_record_the_statistics_of_their_start() -> None:
    with torch.device("meta"):
        network = build("cifar100_vit_base")
    given = SourceModel(network).preprocessing
    assert (given.size, given.mean, given.std) == ((384, 384), (0.5,) * 3, (0.5,) * 3)
    assert SourceModel(network, preprocessing="lineage").preprocessing.enlarge is None


@pytest.mark.parametrize("name", [n for n in PARAMETERS if "vit" not in n])
def test_without_their_weights_they_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"needs its weights .*RobustBench"):
        load_source_model(name, root=tmp_path)
