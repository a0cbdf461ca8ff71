"""DPCore: zybeich/DPCore (the same as yunbeizhang/DPCore), with recorded initial prompts."""

import math
from typing import Any

import torch
from torch import Tensor

from ctta_bench.methods.official import Case, Recorded, Translation
from ctta_bench.parts.source.moments import source_statistics

CLASSES, BATCH = 10, 16  # of the small models and of their source images


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code; its entropy limit is a number of nats."""
    settings = case["hyper_parameters"]
    return {
        "prompts": settings["num_prompts"],
        "temperature": settings["tau"],
        "similarity": settings["rho"],
        "core_rate": settings["alpha"],
        "steps": settings["steps_ood"],
        "source_samples": settings["source_samples"],
        "max_entropy": min(1.0, settings["source_entropy_below"] / math.log(CLASSES)),
        "std_weight": settings.get("lambda", 1.0),
        "faithful": True,
    }


@torch.no_grad()
def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded prompts, with which the source images are filtered again."""
    start = recorded["aux/start_prompts"][0]
    method.start_prompts.copy_(start)
    method.prompts.copy_(start)
    method.source = source_statistics(
        method.model,
        recorded["source_images"].split(BATCH),
        samples=method.hp.source_samples,
        entropy_limit=case["hyper_parameters"]["source_entropy_below"],
        asked=method.predict,
    )


def prompts(method: Any) -> dict[str, Tensor]:
    """The prompts by the official name."""
    return {"prompts": method.prompts.detach()[None]}


TRANSLATIONS = (
    Translation(
        "zybeich/DPCore",
        "dpcore.py: DPCore",
        "dpcore",
        official,
        set_initial_state,
        prompts,
        facts=frozenset({"prompt_seed", "prompt_bound"}),
    ),
)
