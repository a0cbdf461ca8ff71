"""Continual-MAE: RanXu2000/continual-mae, its CIFAR-10 form, and its HOG targets."""

from typing import Any

import torch
from torch import Tensor

from ctta_bench.methods.official import (
    Case,
    Recorded,
    RecordedAugmentation,
    RecordedRestore,
    Translation,
    optimizer,
)
from ctta_bench.parts.hog import oriented_gradients, patch_targets


def official(case: Case) -> dict[str, Any]:
    """Settings of the official code."""
    settings = case["hyper_parameters"]
    return optimizer(settings["optimizer"]) | {
        "views": settings["n_aug"],
        "mask_ratio": settings["mask_ratio"],
        "hog_ratio": settings["hog_ratio"],
        "restore_probability": settings["rst"],
        "faithful": True,
    }


@torch.no_grad()
def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded projection, views, restored entries, and a tensor that breaks ties of gradients."""
    method.augment = RecordedAugmentation()
    weights = dict(method.model.network.named_parameters())
    source = {name: value.clone() for name, value in weights.items()}
    if case["restore_order"]:
        method.stochastic_restore = RecordedRestore(weights, source, case, recorded)
    if "aux/start_projection_weight" in recorded:
        method.projection.weight.copy_(recorded["aux/start_projection_weight"])
    adapt, unequal = method.adapt, recorded["aux/tiebreak"].to(method.model.mean)
    method.adapt = lambda images: adapt(images + unequal)


def targets(case: Case, inputs: Recorded) -> dict[str, Tensor]:
    """Histograms, and the targets of the masked patches."""
    histograms = oriented_gradients(inputs["images"], case["hyper_parameters"]["cell"])
    return {
        "hog": histograms,
        "targets_of_masked_patches": patch_targets(histograms)[inputs["mask"]],
    }


TRANSLATIONS = (
    Translation(
        "RanXu2000/continual-mae",
        "continual_mae.py: Continual_MAE",
        "cmae",
        official,
        set_initial_state,
        facts=frozenset({"tiebreak_seed"}),
    ),
    Translation(
        "RanXu2000/continual-mae",
        "_get_hog_label_2d",
        "cmae",
        lambda case: {},
        run_function=targets,
        facts=frozenset({"size", "cell"}),
    ),
)
