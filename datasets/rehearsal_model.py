"""Weights for the rehearsal of a benchmark on its true network, ViT-B/16, without a download.

The network keeps the random weights of its initialisation; its head is fitted to the rehearsal's
source images, so that it knows the classes better than chance. Its errors mean nothing.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ctta_bench.datasets.files import atomic
from ctta_bench.errors import ConfigError
from ctta_bench.registry import BENCHMARKS

BATCH = 10
RIDGE = 1e-3  # of the mean eigenvalue of the features' Gram matrix: the fit is nearly exact
# The network, its classes, and the name that `run` looks for in ROOT/models.
NETWORKS = {
    "imagenet_c": ("vit_base_patch16_224", 1000, "vit_base_patch16_224.augreg_in21k_ft_in1k"),
    "cifar10_c": ("vit_base_patch16_384", 10, "cifar10_vit_base"),
    "cifar100_c": ("vit_base_patch16_384", 100, "cifar100_vit_base"),
}


def write_rehearsal_model(layout: str, root: Path) -> Path:
    """Write ROOT/models/NAME.safetensors (half precision, 172 MB) unless it is there.

    Needs the rehearsal under `root`. Raises ConfigError for a layout without one.
    """
    if layout not in NETWORKS:
        raise ConfigError(f"--with-model: no network is known for {layout!r}.")
    architecture, classes, name = NETWORKS[layout]
    file = root / "models" / f"{name}.safetensors"
    if file.exists():
        return file
    import timm
    import torch
    from safetensors.torch import save_file

    source = BENCHMARKS.get(layout)(None, root).source()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        network = timm.create_model(architecture, pretrained=False, num_classes=classes).eval()
        features = [
            _features(network, source.load(part))
            for part in np.array_split(np.arange(len(source.labels)), len(source.labels) // BATCH)
        ]
        weight, bias = fit_head(np.concatenate(features), np.asarray(source.labels), classes)
        head = {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}
        network.get_submodule("head").load_state_dict(head)
    tensors = {key: value.half().contiguous() for key, value in network.state_dict().items()}
    with atomic(file) as temporary:
        save_file(tensors, temporary, metadata={"rehearsal": "random weights, fitted head"})
        temporary.chmod(0o644)  # safetensors makes files for their owner alone
    return file


def _features(network: Any, images: Any) -> np.ndarray:
    """What the head sees of uint8 images [n, 3, H, W]; normalised as the true weights want it."""
    import torch

    side = network.patch_embed.img_size
    inputs = torch.nn.functional.interpolate(images.float() / 255, size=side, mode="bilinear")
    hidden = network.forward_head(network.forward_features((inputs - 0.5) / 0.5), pre_logits=True)
    return hidden.double().numpy()


def fit_head(
    features: np.ndarray, labels: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression on one-hot labels: weight [classes, d] and bias [classes], float32.

    Classes that no image has get a weight of 0 and a bias of -1.
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
