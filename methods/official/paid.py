"""PAID: wangkunyu241/PAID, its ImageNet and CIFAR forms, with recorded start values."""

import math
import re
from typing import Any

import torch
from torch import Tensor

from ctta_bench.errors import DataError
from ctta_bench.method import Method
from ctta_bench.methods.official import Case, Recorded, Settings, Translation, optimizer

# Names of adapted tensors: theirs, ours.
RENAMED = ((".hra_u", ".vectors"), (".m", ".magnitude"))
IDLE = {"name": "AdamW", "lr": 0.0}


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code; cases with forward passes only take no step."""
    settings = case["hyper_parameters"]
    return (
        optimizer(settings.get("optimizer", IDLE))
        | {
            "rank": settings["rank"],
            "std_weight": settings.get("lambda", 1.0),
            "paired_init": settings["paired_init"],
            "chunks": 4 if settings.get("code") == "cifar" else 1,
            "faithful": True,
        }
        | statistics(case)
    )


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
    """Settings for source statistics; cases without a threshold have no filter."""
    settings = case["hyper_parameters"]
    found = {"source_samples": settings.get("num_samples", 3000)}
    if "threshold" in settings:
        found |= {"entropy_filter": True, "entropy_limit": threshold(settings)}
    return found


def threshold(settings: Settings) -> float:
    """The entropy limit in nats: a number, or the official formula with the number of classes."""
    written = str(settings["threshold"])
    formula = re.fullmatch(r"math\.log\((\d+)\) */ *2 *- *1", written)
    try:
        return math.log(int(formula[1])) / 2 - 1 if formula else float(written)
    except ValueError:
        raise DataError(
            f"the setting 'threshold' is {written!r}; write a number of nats, or "
            "math.log(CLASSES)/2-1."
        ) from None


def source_tensors(method: Any) -> dict[str, Tensor]:
    """The source statistics by their recorded names."""
    return {
        "aux/source_mean": method.source_statistics.mean,
        "aux/source_std": method.source_statistics.std,
    }


TRANSLATIONS = (
    *(
        Translation(
            "wangkunyu241/PAID",
            words,
            "paid",
            official,
            set_initial_state,
            tensors,
            facts=frozenset({"u_seed", "n_batches"}),
        )
        for words in ("DORA_ALIGN", "HRAInjectedLinear")
    ),
    Translation("wangkunyu241/PAID", "obtain_src_stat", "paid", statistics, tensors=source_tensors),
)
