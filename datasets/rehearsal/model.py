"""Weights for rehearsals with the networks of the published tables (ViT-B/16), without a download.

The network has the random weights of its initialisation; only its head is fitted to the rehearsal's
source images, so that its accuracy is above chance. Its errors are meaningless.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctta_bench.datasets.io.decoding import Geometry
from ctta_bench.datasets.io.files import atomic
from ctta_bench.datasets.io.imagenet import train_images
from ctta_bench.errors import ConfigError, DataError
from ctta_bench.registry import BENCHMARKS

BATCH = 10
RIDGE = 1e-3  # of the mean eigenvalue of the features' Gram matrix: the fit is nearly exact
NOTE = "random weights, fitted head"


@dataclass(frozen=True)
class Network:
    """A timm architecture, its number of classes, and the name of its file in ROOT/models."""

    architecture: str
    classes: int
    name: str


# The networks of the published tables.
IMAGENET = Network("vit_base_patch16_224", 1000, "vit_base_patch16_224.augreg_in21k_ft_in1k")
NETWORKS = {
    "cifar10_c": Network("vit_base_patch16_384", 10, "cifar10_vit_base"),
    "cifar100_c": Network("vit_base_patch16_384", 100, "cifar100_vit_base"),
}
OWN_SOURCE = (*NETWORKS, "domainnet126")  # whose source images have the labels of the head


def network_of(layout: str) -> Network:
    """The network of a rehearsal. Raises ConfigError for a layout without a network."""
    if layout in NETWORKS:
        return NETWORKS[layout]
    if layout == "ccc" or layout.startswith("imagenet_"):
        return IMAGENET
    raise ConfigError(f"--with-model: no network is known for {layout!r}.")


def write_rehearsal_model(layout: str, root: Path, network: Network | None = None) -> Path:
    """Write ROOT/models/NAME.safetensors in half precision (ViT-B/16: 172 MB).

    network: by default that of the published tables. The rehearsal must be under `root`; the
    weights are made again if its source images have changed. Raises ConfigError for a layout
    without a network, DataError if other weights are in the way.
    """
    network = network or network_of(layout)
    file = root / "models" / f"{network.name}.safetensors"
    source = _source(layout, root)
    seen = hashlib.sha256(np.asarray(source.labels, "<i8").tobytes()).hexdigest()
    if _is_fitted_to(file, seen):
        return file
    import timm
    import torch
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        built: Any = timm.create_model(
            network.architecture, pretrained=False, num_classes=network.classes
        ).eval()
        features = [
            _features(built, source.load(numbers))
            for numbers in np.array_split(
                np.arange(len(source.labels)), len(source.labels) // BATCH
            )
        ]
        labels = np.asarray(source.labels)
        weight, bias = fit_head(np.concatenate(features), labels, network.classes)
        head = {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}
        built.get_classifier().load_state_dict(head)
    tensors = {
        key: (value.half() if value.is_floating_point() else value).contiguous()
        for key, value in built.state_dict().items()
    }
    with atomic(file) as temporary:
        save_file(tensors, temporary, metadata={"rehearsal": NOTE, "source_labels": seen})
        temporary.chmod(0o644)  # safetensors makes files that only their owner can read
    return file


def _source(layout: str, root: Path) -> Any:
    """Source images with labels of the network's head: for ImageNet sets, of all 1,000 classes."""
    if layout in OWN_SOURCE:
        return BENCHMARKS.get(layout)(None, root).source()
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
    if noted.get("rehearsal") != NOTE:
        raise DataError(
            f"{file}: is not a rehearsal's file, and nothing is overwritten; choose another --root "
            "or move it away."
        )
    return noted.get("source_labels") == seen


def _features(network: Any, images: Any) -> np.ndarray:
    """The head's input features for uint8 images [n, 3, H, W], normalised to [-1, 1]."""
    import torch

    side = network.patch_embed.img_size
    inputs = torch.nn.functional.interpolate(images.float() / 255, size=side, mode="bilinear")
    hidden = network.forward_head(network.forward_features((inputs - 0.5) / 0.5), pre_logits=True)
    return hidden.double().numpy()


def fit_head(
    features: np.ndarray, labels: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression on one-hot labels: weight [classes, d] and bias [classes], float32.

    Classes without images get weight 0 and bias -1.
    """
    mean, present = features.mean(axis=0), np.unique(labels)
    centred = features - mean
    wanted = (labels[:, None] == present).astype(np.float64)
    gram = centred @ centred.T
    ridge = RIDGE * np.trace(gram) / len(gram)
    dual = np.linalg.solve(gram + ridge * np.eye(len(gram)), wanted - wanted.mean(axis=0))
    weight, bias = np.zeros((classes, features.shape[1])), np.full(classes, -1.0)
    weight[present] = dual.T @ centred
    bias[present] = wanted.mean(axis=0) - weight[present] @ mean
    return weight.astype(np.float32), bias.astype(np.float32)
