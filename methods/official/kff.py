"""KFF: zhoujiahuan1991/NeurIPS2025-KFF, with recorded prompts of the start and of new classes."""

from typing import Any

import torch
from torch import Tensor

from ctta_bench.methods.official import Case, Recorded, Translation

SOURCE_IMAGES = 64  # all of them; the cases have no filter


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code; the weight of the entropy is a constant there."""
    settings = case["hyper_parameters"]
    return {
        "prompts": settings["num_prompts"],
        "lr": settings["lr_domain"],
        "lr_class": settings["lr_class"],
        "mean_weight": settings["lambda_mean"],
        "temperature": settings["tau"],
        "key_rate": settings["alpha_domain"],
        "class_key_rate": settings["alpha_class"],
        "steps": settings["steps_ood"],
        "max_classes": settings["max_class_prompts"],
        "max_domains": settings["max_domain_prompts"],
        "class_similarity": settings["threshold_class"],
        "domain_distance": settings["threshold_domain"],
        "max_entropy": settings["threshold_entropy"],
        "source_samples": SOURCE_IMAGES,
    }


@torch.no_grad()
def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded prompts of the start, and of new classes batch by batch."""
    start = recorded["aux/start_prompts"][0]
    method.start_prompts.copy_(start)
    method.prompts.copy_(start)
    drawn = iter(range(len(case["per_batch"])))

    def new_class_prompts(count: int) -> Tensor:
        return recorded[f"aux/new_class_prompts_{next(drawn)}"].to(method.prompts)

    method.new_class_prompts = new_class_prompts


def prompts(method: Any) -> dict[str, Tensor]:
    """The prompts by the official name."""
    return {"prompts": method.prompts.detach()[None]}


TRANSLATIONS = (
    Translation(
        "zhoujiahuan1991/NeurIPS2025-KFF", "ours.py: Ours", "kff", official, set_initial_state,
        prompts,
    ),
)  # fmt: skip
