"""CoTTA: qinenergy/cotta, its CIFAR and ImageNet forms, and mariodoebler's."""

from typing import Any

import torch

from ctta_bench.methods.official import (
    Case,
    Recorded,
    RecordedAugmentation,
    RecordedRestore,
    Translation,
    mario_optimizer,
    optimizer,
)


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code; each of its forms has its own loss."""
    settings = case["hyper_parameters"]
    return optimizer(settings["optimizer"]) | {
        "loss": "symmetric" if "imagenet" in case["function"] else "cross_entropy",
        "views": settings["n_aug"],
        "confidence_threshold": settings["ap"],
        "teacher_momentum": settings["mt"],
        "restore_probability": settings["rst"],
        "faithful": True,
    }


def mario(case: Case) -> dict[str, Any]:
    """Settings of the second implementation, which selects the loss by the data set."""
    cfg = case["hyper_parameters"]["cfg"]
    imagenet = "imagenet" in cfg.get("CORRUPTION.DATASET", "")
    return mario_optimizer(cfg) | {
        "loss": "symmetric" if imagenet else "cross_entropy",
        "views": cfg["TEST.N_AUGMENTATIONS"],
        "confidence_threshold": cfg["COTTA.AP"],
        "teacher_momentum": cfg["M_TEACHER.MOMENTUM"],
        "restore_probability": cfg["COTTA.RST"],
    }


@torch.no_grad()
def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded views and restored entries, and a factor on the teacher, if there is one."""
    method.augment = RecordedAugmentation()
    source = dict(method.anchor.network.named_parameters())
    method.stochastic_restore = RecordedRestore(method.trainable, source, case, recorded)
    for parameter in method.teacher.parameters():
        parameter.mul_(case["hyper_parameters"].get("teacher_factor", 1.0))


TRANSLATIONS = (
    Translation(
        "qinenergy/cotta",
        "cotta.py: CoTTA",
        "cotta",
        official,
        set_initial_state,
        facts=frozenset({"teacher_factor"}),
    ),
    Translation(
        "mariodoebler/test-time-adaptation",
        "methods/cotta.py: CoTTA",
        "cotta",
        mario,
        set_initial_state,
    ),
)
