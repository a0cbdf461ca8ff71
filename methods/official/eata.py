"""EATA: its copy in mr-eggplant/SAR (without Fisher term), and mariodoebler's."""

import math
from typing import Any

from ctta_bench.methods.official import (
    Case,
    Translation,
    mario_optimizer,
    optimizer,
)

CLASSES = 10  # of the small models; the recorded margin is a number of nats


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code."""
    settings = case["hyper_parameters"]
    return optimizer(settings["optimizer"]) | {
        "margin": settings["e_margin"] / math.log(CLASSES),
        "max_similarity": settings["d_margin"],
    }


def mario(case: Case) -> dict[str, Any]:
    """Settings of the second implementation; its margin is a share of ln C."""
    cfg = case["hyper_parameters"]["cfg"]
    return mario_optimizer(cfg) | {
        "margin": cfg["EATA.MARGIN_E0"],
        "max_similarity": cfg["EATA.D_MARGIN"],
        "fisher_weight": cfg["EATA.FISHER_ALPHA"],
    }


TRANSLATIONS = (
    Translation("mr-eggplant/SAR", "eata.py: EATA", "eta", official),
    Translation("mariodoebler/test-time-adaptation", "methods/eata.py: EATA", "eata", mario),
)
