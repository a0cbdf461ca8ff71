"""Weights for rehearsals with the networks of the published tables, without a download.

A ViT-B/16 or SegFormer-B5 has the random weights of its initialisation; only its last layer is
fitted to the rehearsal's source images, so that it passes the check of its accuracy. A ViT is
fitted to normalised images and to raw ones in [0, 1], which the published rows were run with. Its
errors are meaningless.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.files import atomic
from ctta_bench.datasets.io.imagenet import train_images
from ctta_bench.datasets.rehearsal.streets import LAYOUT as STREETS
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.registry import BENCHMARKS, MODELS

BATCH = 10
RIDGE = 1e-3  # of the mean eigenvalue of the features' Gram matrix: the fit is nearly exact
MARGIN = 15.0  # of the best class over the mean of all, in nats, on average over source images
PIXELS = 4000  # of each source image that the last layer of a segmentation network is fitted to
NOTE = "random weights, head fitted to both normalisations"
EARLIER_NOTE = "random weights, fitted head"


@dataclass(frozen=True)
class Network:
    """An architecture, its number of classes, and the name of its file in ROOT/models.

    The architecture is one of timm, or a model of segmentation of the suite.
    """

    architecture: str
    classes: int
    name: str


# The networks of the published tables.
IMAGENET = Network("vit_base_patch16_224", 1000, "vit_base_patch16_224.augreg_in21k_ft_in1k")
NETWORKS = {
    "cifar10_c": Network("vit_base_patch16_384", 10, "cifar10_vit_base"),
    "cifar100_c": Network("vit_base_patch16_384", 100, "cifar100_vit_base"),
    STREETS: Network("segformer_b5", 19, "segformer_b5"),
}
OWN_SOURCE = (*NETWORKS, "domainnet126")  # whose source images have the labels of the head


def network_of(layout: str) -> Network:
    """The network of a rehearsal. Raises ConfigError for a layout without a network."""
    if layout in NETWORKS:
        return NETWORKS[layout]
    if layout == "ccc" or layout.startswith("imagenet_"):
        return IMAGENET
    raise ConfigError(f"--with-model: no network is known for {layout!r}.")


def write_rehearsal_model(
    layout: str,
    root: Path,
    network: Network | None = None,
    *,
    scale: tuple[int, int] | None = None,
) -> Path:
    """Write ROOT/models/NAME.safetensors in half precision (ViT-B/16: 172 MB, SegFormer-B5: 164).

    network: by default that of the published tables. scale: a second size (height, width) at which
    a network of segmentation will see its images, and to which it is fitted, too. The rehearsal
    must be under `root`; the weights are made again if its source images have changed. Raises
    ConfigError for a layout without a network, DataError if other weights are in the way.
    """
    network = network or network_of(layout)
    file = root / "models" / f"{network.name}.safetensors"
    sources = [_source(layout, root), *([_source(layout, root, scale=scale)] if scale else [])]
    labels_of = np.asarray(sources[0].labels, "<i8").tobytes()
    seen = hashlib.sha256(labels_of + str(scale or "").encode()).hexdigest()
    if _is_fitted_to(file, seen):
        return file
    import torch
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        built, last, features, labels = (
            _streets(network, sources) if layout == STREETS else _images(network, sources[0])
        )
        weight, bias = confident(*fit_head(features, labels, network.classes), features)
        last.weight.copy_(torch.from_numpy(weight).view_as(last.weight))
        last.bias.copy_(torch.from_numpy(bias))
    tensors = {
        key: (value.half() if value.is_floating_point() else value).contiguous()
        for key, value in built.state_dict().items()
    }
    with atomic(file) as temporary:
        save_file(tensors, temporary, metadata={"rehearsal": NOTE, "source_labels": seen})
        temporary.chmod(0o644)  # safetensors makes files that only their owner can read
    return file


def _source(layout: str, root: Path, **settings: Any) -> Any:
    """Source images with labels of the network's head: for ImageNet sets, of all 1,000 classes."""
    if layout in OWN_SOURCE:
        benchmark = BENCHMARKS.get(layout)
        return benchmark(benchmark.Settings(**settings), root).source()
    return train_images(root, Geometry(224, "crop", 256))


def _is_fitted_to(file: Path, seen: str) -> bool:
    """Whether the file exists and is fitted to these source images; DataError for other weights."""
    if not file.exists():
        return False
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as content:
            noted = content.metadata() or {}
    except (OSError, SafetensorError):
        noted = {}
    if noted.get("rehearsal") not in (NOTE, EARLIER_NOTE):
        raise DataError(
            f"{file}: is not a rehearsal's file, and nothing is overwritten; choose another --root "
            "or move it away."
        )
    return noted.get("source_labels") == seen and noted["rehearsal"] == NOTE


_Fitted = tuple[Any, Any, np.ndarray, np.ndarray]  # network, last layer, features [n, d], labels


def _images(network: Network, source: Any) -> _Fitted:
    """A timm network, and features of the source images, normalised to [-1, 1] and raw."""
    import timm

    built: Any = timm.create_model(
        network.architecture, pretrained=False, num_classes=network.classes
    ).eval()
    count = len(source.labels)
    features = [
        _features(built, source.load(numbers), shift)
        for shift in (0.5, 0.0)
        for numbers in np.array_split(np.arange(count), max(1, count // BATCH))
    ]
    return built, built.get_classifier(), np.concatenate(features), np.tile(source.labels, 2)


def _features(network: Any, images: Any, shift: float) -> np.ndarray:
    """The head's input for uint8 images [n, 3, H, W]: normalised with shift 0.5, raw with 0."""
    import torch

    side = network.patch_embed.img_size
    inputs = torch.nn.functional.interpolate(images.float() / 255, size=side, mode="bilinear")
    inputs = (inputs - shift) / (1 - shift)
    hidden = network.forward_head(network.forward_features(inputs), pre_logits=True)
    return hidden.double().numpy()


def _streets(network: Network, sources: list[Any]) -> _Fitted:
    """A SegFormer, and features of PIXELS pixels of each source image, normalised as published.

    sources: the source images at each size.
    """
    import torch

    built: Any = MODELS.get(network.architecture)().eval()
    facts, last = built.pretrained_cfg, built.decode_head.conv_seg
    mean, std = (torch.tensor(facts[key]).view(3, 1, 1) for key in ("mean", "std"))
    seen: list[Any] = []
    hook = last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    features, labels = [], []
    shown = [(source, number) for source in sources for number in range(len(source.labels))]
    for source, number in shown:
        index = np.array([number])
        built((source.load(index).float() / 255 - mean) / std)
        maps = seen.pop()
        ids = source.maps(index)[None].float()
        ids = torch.nn.functional.interpolate(ids, maps.shape[2:], mode="nearest").long().ravel()
        known = torch.nonzero(ids < network.classes).ravel()
        known = known[torch.randperm(len(known))[:PIXELS]]
        features.append(maps.flatten(2)[0].T[known].double().numpy())
        labels.append(ids[known].numpy())
    hook.remove()
    return built, last, np.concatenate(features), np.concatenate(labels)


def confident(
    weight: np.ndarray, bias: np.ndarray, features: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same decisions with logits as far apart as those of trained networks.

    Filters by entropy would leave no source image of a regression on one-hot labels.
    """
    logits = features @ weight.T + bias
    scale = MARGIN / float((logits.max(axis=1) - logits.mean(axis=1)).mean())
    return weight * np.float32(scale), bias * np.float32(scale)


def fit_head(
    features: np.ndarray, labels: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression on one-hot labels: weight [classes, d] and bias [classes], float32.

    Classes without images get weight 0 and bias -1.
    """
    mean, present = features.mean(axis=0), np.unique(labels)
    centred = features - mean
    wanted = (labels[:, None] == present).astype(np.float64)
    # The smaller of the two equal systems: of the images, or of the features.
    wide = len(centred) <= centred.shape[1]
    gram = centred @ centred.T if wide else centred.T @ centred
    right = wanted - wanted.mean(axis=0)
    ridge = RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
    solved = np.linalg.solve(gram + ridge, right if wide else centred.T @ right)
    weight, bias = np.zeros((classes, features.shape[1])), np.full(classes, -1.0)
    weight[present] = solved.T @ centred if wide else solved.T
    bias[present] = wanted.mean(axis=0) - weight[present] @ mean
    return weight.astype(np.float32), bias.astype(np.float32)
