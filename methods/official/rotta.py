"""RoTTA: BIT-DA/RoTTA (BatchNorm) and mariodoebler's (LayerNorm)."""

from typing import Any

from torch import Tensor, nn

from ctta_bench.method import Method
from ctta_bench.methods.official import (
    Case,
    Recorded,
    RecordedAugmentation,
    Translation,
    mario_optimizer,
    optimizer,
)

# Names of a norm's statistics: ours, theirs.
STATISTICS = {"mean": "source_mean", "var": "source_var"}


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code."""
    settings = case["hyper_parameters"]
    return optimizer(settings["optimizer"]) | {
        "memory_size": settings["memory_size"],
        "update_every": settings["update_frequency"],
        "teacher_rate": settings["nu"],
        "statistics_rate": settings["alpha"],
        "age_weight": settings["lambda_t"],
        "uncertainty_weight": settings["lambda_u"],
    }


def mario(case: Case) -> dict[str, Any]:
    """Settings of the second implementation and, where unset, its defaults."""
    cfg = case["hyper_parameters"]["cfg"]
    return mario_optimizer(cfg) | {
        "memory_size": cfg.get("ROTTA.MEMORY_SIZE", 64),
        "update_every": cfg.get("ROTTA.UPDATE_FREQUENCY", 64),
        "teacher_rate": cfg.get("ROTTA.NU", 0.001),
        "statistics_rate": cfg.get("ROTTA.ALPHA", 0.05),
        "age_weight": cfg.get("ROTTA.LAMBDA_T", 1.0),
        "uncertainty_weight": cfg.get("ROTTA.LAMBDA_U", 1.0),
    }


def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded views."""
    method.augment = RecordedAugmentation()


def named_tensors(network: nn.Module) -> dict[str, Tensor]:
    """All tensors of a network; the statistics of its norms have the official names."""
    found = {name: parameter.detach() for name, parameter in network.named_parameters()}
    for name, buffer in network.named_buffers():
        layer, _, own = name.rpartition(".")
        found[f"{layer}.{STATISTICS[own]}"] = buffer
    return found


def tensors(method: Method) -> dict[str, Tensor]:
    """The student's tensors."""
    return named_tensors(method.model.network)


TRANSLATIONS = (
    Translation("BIT-DA/RoTTA", "rotta.py: RoTTA", "rotta", official, set_initial_state, tensors),
    Translation(
        "mariodoebler/test-time-adaptation",
        "methods/rotta.py: RoTTA",
        "rotta",
        mario,
        set_initial_state,
        tensors,
    ),
)
