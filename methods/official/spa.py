"""SPA: mr-eggplant/SPA, alone and with its hosts, with recorded masks and noise."""

import math
from typing import Any

import torch
from torch import Tensor

from ctta_bench.methods.official import Case, Recorded, Settings, Translation

CLASSES = 10  # of the small models; the recorded margin is a number of nats
PATCH = 8  # of the small ViT, in place of 16 pixels
FIRST, SIDE = 13, 7  # of the recorded square of masks


def shared(settings: Settings, form: str) -> dict[str, Any]:
    """Settings of every host; the momentum of 0.9 is fixed."""
    settings.require({"form": form})
    return {
        "lr": settings["lr"],
        "predictor_lr": settings["lr_predictor"],
        "mask_ratio": settings["freq_mask_ratio"],
        "noise_ratio": settings["noise_ratio"],
        "noise_patch": PATCH,
        "faithful": True,
    }


def alone(case: Case) -> dict[str, Any]:
    """Settings without a host."""
    return shared(case["hyper_parameters"], "spa")


def tent(case: Case) -> dict[str, Any]:
    """Settings with TENT."""
    return shared(case["hyper_parameters"], "tent")


def eta(case: Case) -> dict[str, Any]:
    """Settings with ETA."""
    settings = case["hyper_parameters"]
    return shared(settings, "eta") | {
        "margin": settings["e_margin"] / math.log(CLASSES),
        "max_similarity": settings["d_margin"],
    }


class RecordedDraws:
    """The recorded masks and noise, one draw of each per batch."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded, self.drawn = recorded, {"mask": 0, "noise": 0}

    def next(self, what: str) -> Tensor:
        """The next recorded draw."""
        number = self.drawn[what]
        self.drawn[what] += 1
        return self.recorded[f"aux/{what}_{number}"]

    def masks(self, count: int, height: int, width: int, ratio: float) -> Tensor:
        """The masks [n, 3, H, W]; their code rolls images by n // 2 and channels by 1."""
        masks = torch.ones(count, 3, height, width)
        inside = slice(FIRST, FIRST + SIDE)
        masks[..., inside, inside] = self.next("mask").float().roll((-(count // 2), -1), (0, 1))
        return masks

    def noise(self, height: int, width: int) -> Tensor:
        """The noise [3, H, W]."""
        return self.next("noise")


def set_initial_state(method: Any, case: Case, recorded: Recorded) -> None:
    """Recorded masks and noise."""
    draws = RecordedDraws(recorded)
    method.draw_masks, method.draw_noise = draws.masks, draws.noise


def tensors(method: Any) -> dict[str, Tensor]:
    """The adapted tensors, and the strengths of the noise."""
    adapted = {name: tensor.detach() for name, tensor in method.trainable.items()}
    return adapted | {"patch_alpha": method.strengths}


REPOSITORY = "mr-eggplant/SPA"
TRANSLATIONS = tuple(
    Translation(REPOSITORY, words, name, settings, set_initial_state, tensors)
    for words, name, settings in (
        ("SPA with use_tent", "spa_tent", tent),
        ("SPA with use_eata", "spa_eta", eta),
        ("spa.py: SPA", "spa", alone),
    )
)
