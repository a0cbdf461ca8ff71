"""PAID: wangkunyu241/PAID, its ImageNet and CIFAR forms, with recorded start values."""

from typing import Any

import torch
from torch import Tensor

from ctta_bench.method import Method
from ctta_bench.methods.official import Case, Recorded, Translation, optimizer

# Names of adapted tensors: theirs, ours.
RENAMED = ((".hra_u", ".vectors"), (".m", ".magnitude"))
IDLE = {"name": "AdamW", "lr": 0.0}


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code; cases with forward passes only take no step."""
    settings = case["hyper_parameters"]
    return optimizer(settings.get("optimizer", IDLE)) | {
        "rank": settings["rank"],
        "std_weight": settings.get("lambda", 1.0),
        "paired_init": settings["paired_init"],
        "chunks": 4 if settings.get("code") == "cifar" else 1,
        "source_samples": 3000,
        "faithful": True,
    }


@torch.no_grad()
def set_initial_state(method: Method, case: Case, recorded: Recorded) -> None:
    """Recorded columns of U (each twice if paired), and factors on m."""
    paired = case["hyper_parameters"]["paired_init"]
    for key, value in recorded.items():
        if key.startswith("aux/start_m_factor/"):
            name = key.removeprefix("aux/start_m_factor/").removesuffix(".m")
            magnitude = method.trainable[f"{name}.magnitude"]
            magnitude.mul_(value.to(magnitude).reshape(magnitude.shape))
        elif key.startswith("aux/start/"):
            name = key.removeprefix("aux/start/").removesuffix(".hra_u")
            vectors = method.trainable[f"{name}.vectors"]
            vectors.copy_((value.repeat_interleave(2, 1) if paired else value).to(vectors))


def tensors(method: Method) -> dict[str, Tensor]:
    """Adapted tensors by the official names."""
    found = {}
    for name, tensor in method.trainable.items():
        for theirs, ours in RENAMED:
            if name.endswith(ours):
                name = name.removesuffix(ours) + theirs
        found[name] = tensor.detach()
    return found


def statistics(case: Case) -> dict[str, Any]:
    """Settings for source statistics; ln(1000)/2 - 1 excludes no image of 10 classes."""
    settings = case["hyper_parameters"]
    return {
        "source_samples": settings["num_samples"],
        "entropy_filter": "1000" not in settings["threshold"],
    }


def source_tensors(method: Any) -> dict[str, Tensor]:
    """The source statistics by their recorded names."""
    return {
        "aux/source_mean": method.source_statistics.mean,
        "aux/source_std": method.source_statistics.std,
    }


TRANSLATIONS = (
    *(
        Translation("wangkunyu241/PAID", words, "paid", official, set_initial_state, tensors)
        for words in ("DORA_ALIGN", "HRAInjectedLinear")
    ),
    Translation("wangkunyu241/PAID", "obtain_src_stat", "paid", statistics, tensors=source_tensors),
)
