"""REM: pilsHan/rem, its scripts for ImageNet and for CIFAR."""

from typing import Any

from ctta_bench.methods.official import Case, Translation, optimizer


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code. It skips blocks 9 to 11, which the small model lacks."""
    settings = case["hyper_parameters"]
    return optimizer(settings["optimizer"]) | {
        "mask_step": settings["m"],
        "views": settings["n"],
        "margin": settings["margin"],
        "rank_weight": settings["lambda"],
        "skip_last_blocks": 0,
        "faithful": settings.choose("code", {"imagenet": True, "cifar": False}),
    }


TRANSLATIONS = (Translation("pilsHan/rem", "rem.py: REM", "rem", official),)
