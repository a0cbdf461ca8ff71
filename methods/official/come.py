"""COME: BlueWhaleLab/COME, its TENT, its EATA with Fisher term, and its SAR."""

import math
from typing import Any

from ctta_bench.methods.official import Case, Settings, Translation, optimizer

CLASSES = 10  # of the small models; the recorded margins are numbers of nats
# The official code skips blocks 9 to 11 by name; the small models have four, and skip none.
NO_BLOCK_SKIPPED = {"skip_last_blocks": 0}


def shared(settings: Settings, form: str) -> dict[str, Any]:
    """Settings of every host. Cases with a K of their own have it in place of the code's 1000."""
    settings.require({"form": form})
    released = settings["opinion_constant"] == 1000
    own = {} if released else {"prior_weight": settings["opinion_constant"]}
    return optimizer(settings["optimizer"]) | own | {"faithful": True}


def tent(case: Case) -> dict[str, Any]:
    """Settings of its TENT."""
    return shared(case["hyper_parameters"], "tent")


def eata(case: Case) -> dict[str, Any]:
    """Settings of its EATA."""
    settings = case["hyper_parameters"]
    return shared(settings, "eata") | {
        "margin": settings["e_margin"] / math.log(CLASSES),
        "max_similarity": settings["d_margin"],
        "fisher_weight": settings["fisher_beta"],
    }


def sar(case: Case) -> dict[str, Any]:
    """Settings of its SAR."""
    settings = case["hyper_parameters"]
    return (
        NO_BLOCK_SKIPPED
        | shared(settings, "sar")
        | {"margin": settings["margin_e0"] / math.log(CLASSES), "rho": settings["rho"]}
    )


TRANSLATIONS = (
    Translation("BlueWhaleLab/COME", "tent_come.py: Tent_COME", "come_tent", tent),
    Translation("BlueWhaleLab/COME", "eata_come.py: EATA_COME", "come_eata", eata),
    Translation("BlueWhaleLab/COME", "sar_come.py: SAR_COME", "come_sar", sar),
)
