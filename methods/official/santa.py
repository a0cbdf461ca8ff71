"""SANTA: mariodoebler/test-time-adaptation, with recorded views and projector."""

from typing import Any

import torch

from ctta_bench.methods.official import (
    Case,
    Recorded,
    RecordedAugmentation,
    Translation,
    given,
    mario_optimizer,
)


def official(case: Case) -> dict[str, Any]:
    """Settings of the second implementation and, where unset, its defaults."""
    cfg = case["hyper_parameters"]["cfg"]
    cfg.require({"CONTRAST.MODE": "all"})
    names = {"SANTA.LAMBDA_CE_TRG": "anchor_weight", "SANTA.LAMBDA_CONT": "contrast_weight"}
    return (
        mario_optimizer(cfg)
        | given(cfg, names)
        | {
            "temperature": cfg.get("CONTRAST.TEMPERATURE", 0.1),
            "projection": cfg.get("CONTRAST.PROJECTION_DIM", 128),
        }
    )


@torch.no_grad()
def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded views, and the start values of the projector."""
    method.augment = RecordedAugmentation()
    for name, parameter in method.projector.named_parameters():
        parameter.copy_(recorded[f"aux/projector/{name}"])


TRANSLATIONS = (
    Translation(
        "mariodoebler/test-time-adaptation",
        "methods/santa.py: SANTA",
        "santa",
        official,
        set_initial_state,
    ),
)
