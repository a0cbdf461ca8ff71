"""SAR: mr-eggplant/SAR and mariodoebler's."""

import math
from typing import Any

from ctta_bench.methods.official import Case, Translation, given

CLASSES = 10  # of the small models; the recorded margin is a number of nats
# The official code skips blocks 9 to 11 by name; the small models have four, and skip none.
NO_BLOCK_SKIPPED = {"skip_last_blocks": 0}


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code."""
    settings = case["hyper_parameters"]
    return NO_BLOCK_SKIPPED | {
        "lr": settings["lr"],
        "momentum": settings["momentum"],
        "rho": settings["rho"],
        "margin": settings["margin_e0"] / math.log(CLASSES),
        "recovery_threshold": settings["reset_constant_em"],
        "faithful": True,
    }


def mario(case: Case) -> dict[str, Any]:
    """Settings of the second implementation, which uses 1e-3 for some names of architectures."""
    cfg = case["hyper_parameters"]["cfg"]
    forced = any(name in cfg.get("MODEL.ARCH", "") for name in ("vit_", "swin_"))
    rate, momentum = cfg.get("OPTIM.LR", 1e-3), given(cfg, {"OPTIM.MOMENTUM": "momentum"})
    return (
        NO_BLOCK_SKIPPED
        | momentum
        | {
            "lr": 1e-3 if forced else rate,
            "margin": cfg.get("EATA.MARGIN_E0", 0.4),
            "recovery_threshold": cfg.get("SAR.RESET_CONSTANT_EM", 0.2),
            "faithful": "mariodoebler",
        }
    )


TRANSLATIONS = (
    Translation("mr-eggplant/SAR", "sar.py: SAR", "sar", official),
    Translation(
        "mariodoebler/test-time-adaptation",
        "methods/sar.py: SAR",
        "sar",
        mario,
        facts=frozenset({"OPTIM.METHOD", "OPTIM.NESTEROV"}),  # it always uses plain SGD
    ),
)
