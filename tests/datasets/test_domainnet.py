"""DomainNet-126 and ImageNet-D109: listed images, domains by source, and the model's layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ctta_bench.config.validation import validate
from ctta_bench.datasets.domainnet import D109, ORDERS
from ctta_bench.datasets.fetching.verify import verify
from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.imagenet import synsets
from ctta_bench.datasets.rehearsal import benchmarks as rehearsal
from ctta_bench.errors import DataError
from ctta_bench.registry import BENCHMARKS
from ctta_bench.source_models.pretrained import build

LISTED = ["domainnet126", "imagenet_d109"]


def made(name: str, root: Path, **settings: Any) -> Any:
    entry = BENCHMARKS.get(name)
    return entry(validate(entry.Settings, settings, "benchmark"), root)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both rehearsals: ten images in each domain, one of each class."""
    folder = tmp_path_factory.mktemp("rehearsal")
    for name in LISTED:
        rehearsal.rehearse(name, folder, images=10)
    return folder


@pytest.mark.parametrize("name", LISTED)
def test_the_rehearsal_is_read_whole_with_the_labels_of_the_lists(name: str, root: Path) -> None:
    benchmark = made(name, root)
    assert benchmark.problems() == []
    assert {finding.verdict for finding in verify(name, root)} == {"whole"}
    for domain in benchmark.domain_names():
        images = benchmark.domain(domain)
        lines = (root / f"{name}_lists" / f"{domain}_list.txt").read_text().splitlines()
        pairs = zip(images.names, images.labels.tolist(), strict=True)
        assert [f"{domain}/{n} {label}" for n, label in pairs] == lines
        assert images.load(np.array([9])).shape == (1, 3, 224, 224)
    assert "rehearsal images" in benchmark.provenance


def test_the_stream_is_the_other_three_domains(root: Path) -> None:
    assert made("domainnet126", root).domain_names() == ("clipart", "painting", "sketch")
    for source, others in ORDERS.items():
        benchmark = made("domainnet126", root, source=source)
        assert benchmark.domain_names() == others and {source, *others} == set(ORDERS)
        assert benchmark.source().folder == root / "DomainNet-126" / source
        assert benchmark.source_settings()["source"] == source


def test_the_source_of_d109_is_imagenet_with_the_labels_of_the_lists(root: Path) -> None:
    benchmark = made("imagenet_d109", root)
    assert len(set(D109)) == 109 == benchmark.num_classes
    assert benchmark.model_classes() == D109
    images = benchmark.source()
    for name, label in zip(images.names, images.labels.tolist(), strict=True):
        assert name.partition("/")[0] == synsets()[D109[label]]
    assert benchmark.hold_out_domains() == () and "quickdraw" in benchmark.extra_domains()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("real/bird/a.jpg 3", "is not clipart/CLASS/FILE LABEL"),
        ("clipart/bird/a.jpg 126", "with a label from 0 to 125"),
        ("clipart/../a.jpg 3", "is not clipart/CLASS/FILE LABEL"),
        ("", "lists no images"),
        ("clipart/bird/nowhere.jpg 11", "lacks 1 of the 1 images of clipart_list.txt, first bird"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "DomainNet-126").mkdir()
    file = tmp_path / "domainnet126_lists" / "clipart_list.txt"
    file.parent.mkdir()
    file.write_text(f"{line}\n")
    with pytest.raises(DataError, match=words):
        made("domainnet126", tmp_path).domain("clipart")


def test_missing_data_are_named_with_what_to_do(tmp_path: Path) -> None:
    (sentence,) = made("imagenet_d109", tmp_path).problems()
    assert f"no folder {tmp_path / 'imagenet-d'}" in sentence
    (tmp_path / "imagenet-d").mkdir()
    problems = made("imagenet_d109", tmp_path).problems()
    assert len(problems) == 5 and "imagenet_d109_lists/clipart_list.txt" in problems[0]


def test_a_squashed_image_is_resized_to_a_square_and_cropped() -> None:
    image = Image.fromarray(np.tile(np.arange(40, dtype=np.uint8), (20, 1)))
    theirs = image.resize((16, 16), Image.Resampling.BILINEAR).crop((2, 2, 14, 14))
    assert np.array_equal(Geometry(12, "squash", 16).apply(image), theirs)
    assert Geometry(12, "squash").apply(image).size == (12, 12)


def test_the_last_layer_of_a_checkpoint_is_its_length_times_its_direction() -> None:
    with torch.device("meta"):
        network: Any = build("domainnet126_resnet50")
    # A ResNet-50 without its head, 2048 to 256, BatchNorm, 256 to 126.
    count = 23_508_032 + 2049 * 256 + 2 * 256 + 257 * 126
    assert sum(p.numel() for p in network.parameters()) == count
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(256, 126), dim=0)
    weight = layer.weight.detach().clone()
    parts = layer.parametrizations.weight
    stored = {
        "fc.weight_g": 3 * parts.original0,
        "fc.weight_v": parts.original1,
        "fc.bias": layer.bias,
    }
    read = network.read_layout(stored, Path("x.pth"))
    assert set(read) == {"fc.weight", "fc.bias"}
    assert torch.allclose(read["fc.weight"], 3 * weight, atol=1e-6)
    assert network.read_layout(read, Path("x.pth")) is read
