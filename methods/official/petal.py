"""PETAL: dhanajitb/petal, its forms FIM and SRes for CIFAR and for ImageNet.

The posterior of the cases is a formula of the source weights.
"""

from typing import Any

import torch

from ctta_bench.methods.official import (
    Case,
    Recorded,
    RecordedAugmentation,
    RecordedRestore,
    Translation,
    given,
    optimizer,
)


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code; each of its codes has its own loss."""
    settings = case["hyper_parameters"]
    losses = {"cifar": "cross_entropy", "imagenet": "symmetric"}
    return (
        optimizer(settings["optimizer"])
        | given(settings, {"perc": "restore_share", "rst": "restore_probability"})
        | {
            "loss": settings.choose("code", losses),
            "restore": settings.choose("form", {"fim": "fim", "sres": "sres"}),
            "views": settings["n_augmentations"],
            "teacher_momentum": settings["mt"],
            "confidence_threshold": settings["ap"],
            "prior": "l2",
            "prior_weight": settings["spw"],
            "faithful": True,
        }
    )


@torch.no_grad()
def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded views and restored entries, and the prior."""
    settings = case["hyper_parameters"]
    constant, relative = settings["swag_variance"]
    method.augment = RecordedAugmentation()
    method.prior_mean = [settings["swag_mean_factor"] * w for w in method.source]
    variance = (constant + relative * w.square() for w in method.source)
    method.prior_precision = [1 / (v + 1e-6) for v in variance]
    if "restore_order" in case:
        source = dict(method.anchor.network.named_parameters())
        method.stochastic_restore = RecordedRestore(method.trainable, source, case, recorded)


TRANSLATIONS = (
    Translation(
        "dhanajitb/petal",
        "petal.py: PETAL",
        "petal",
        official,
        set_initial_state,
        facts=frozenset({"swag_mean_factor", "swag_variance"}),
    ),
)
