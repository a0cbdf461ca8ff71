"""RMT: mariodoebler/test-time-adaptation, with recorded views and projector."""

from typing import Any

import torch

from ctta_bench.methods.official import (
    Case,
    Recorded,
    RecordedAugmentation,
    Translation,
    given,
    mario_optimizer,
    same_names,
)


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code and, where unset, its defaults."""
    cfg = case["hyper_parameters"]["cfg"]
    cfg.require({"CONTRAST.MODE": "all", "RMT.NUM_SAMPLES_WARM_UP": 0})
    weights = {"SRC": "source_weight", "TRG": "target_weight"}
    names = {f"RMT.LAMBDA_CE_{place}": ours for place, ours in weights.items()}
    names |= {"RMT.LAMBDA_CONT": "contrast_weight"}
    return (
        mario_optimizer(cfg)
        | given(cfg, names)
        | {
            "temperature": cfg.get("CONTRAST.TEMPERATURE", 0.1),
            "projection": cfg.get("CONTRAST.PROJECTION_DIM", 128),
            "teacher_momentum": cfg.get("M_TEACHER.MOMENTUM", 0.999),
        }
    )


@torch.no_grad()
def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded views, and the start values of the projector."""
    method.augment = RecordedAugmentation()
    for name, parameter in method.projector.named_parameters():
        number, kind = name.split(".")
        parameter.copy_(recorded[f"aux/projector/{number}.{kind}"])


TRANSLATIONS = (
    Translation(
        "mariodoebler/test-time-adaptation",
        "methods/rmt.py: RMT",
        "rmt",
        official,
        set_initial_state,
        same_names,
    ),
)
