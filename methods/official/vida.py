"""ViDA: Yangsenqiao/vida, its ImageNet and CIFAR forms, and its layer."""

from typing import Any

import torch
from torch import Tensor

from ctta_bench.methods.official import (
    Case,
    Recorded,
    RecordedAugmentation,
    RecordedRestore,
    Translation,
    optimizer,
)

# Names of an injected layer's tensors: theirs, ours.
RENAMED = (
    ("vida_down.weight", "low_down"),
    ("vida_up.weight", "low_up"),
    ("vida_down2.weight", "high_down"),
    ("vida_up2.weight", "high_up"),
)
INJECTED = (".attn.qkv.", ".attn.proj.")
START = frozenset({"init_scale", "teacher_factor"})


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code; each of its forms has its own loss."""
    settings = case["hyper_parameters"]
    return optimizer(settings["optimizer"]) | {
        "lr": settings["lr_model"],
        "lr_adapters": settings["lr_vida"],
        "loss": "symmetric" if "imagenet" in case["function"] else "cross_entropy",
        "rank_low": settings["rank_low"],
        "rank_high": settings["rank_high"],
        "views": settings["n_aug"],
        "uncertainty_threshold": settings["unc_thr"],
        "teacher_momentum": settings["ema"],
        "adapter_momentum": settings["ema_vida"],
        "restore_probability": settings["rst"],
        "faithful": True,
    }


def layer_alone(case: Case) -> dict[str, Any]:
    """Settings of the cases with forward passes only: nothing is trained."""
    ranks = {key: case["hyper_parameters"][key] for key in ("rank_low", "rank_high")}
    return ranks | {"lr": 0.0, "lr_adapters": 0.0, "momentum": 0.0, "nesterov": False, "views": 2}


def their_name(name: str) -> str:
    """The official name of one of our tensors."""
    for theirs, ours in RENAMED:
        if name.endswith(f".{ours}"):
            return name.removesuffix(ours) + theirs
    layer, _, own = name.rpartition(".")
    return f"{layer}.linear_vida.{own}" if any(i in name for i in INJECTED) else name


def tensors(method: Any) -> dict[str, Tensor]:
    """All adapted tensors by the official names."""
    return {their_name(n): p.detach() for n, p in method.trainable.items()}


@torch.no_grad()
def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded adapters, views and restored entries, and a factor on the teacher, if given."""
    method.augment = RecordedAugmentation()
    for name, parameter in method.adapters.items():
        parameter.copy_(recorded[f"aux/start/{their_name(name)}"])
    method.ema_update_teacher(0.0, 0.0)
    for parameter in method.teacher.parameters():
        parameter.mul_(case["hyper_parameters"].get("teacher_factor", 1.0))
    student = {their_name(name): parameter for name, parameter in method.trainable.items()}
    start = {name: parameter.clone() for name, parameter in student.items()}
    if case.get("restore_order"):
        method.stochastic_restore = RecordedRestore(student, start, case, recorded)


def set_adapters_and_scales(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded adapters, and fixed scales."""
    set_initial_state(method, case, recorded)
    method.scales.low = case["hyper_parameters"]["scale1"]
    method.scales.high = case["hyper_parameters"]["scale2"]
    method.scale_by_uncertainty = lambda uncertainty: None


TRANSLATIONS = (  # the first that matches is used
    Translation(
        "Yangsenqiao/vida",
        "inject_vida.py",
        "vida",
        layer_alone,
        set_adapters_and_scales,
        tensors,
        facts=START | {"scale1", "scale2"},
    ),
    Translation(
        "Yangsenqiao/vida",
        "vida.py: ViDA",
        "vida",
        official,
        set_initial_state,
        tensors,
        facts=START,
    ),
)
