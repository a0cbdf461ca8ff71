"""EcoTTA: the community's code, Lily-Le/EcoTTA, with recorded start values."""

from typing import Any

import torch
from torch import Tensor

from ctta_bench.method import Method
from ctta_bench.methods.official import Case, Recorded, Translation

# Names of the tensors of a meta network: theirs, ours.
RENAMED = (
    ("meta_part.meta_bn.", "meta.norm."),
    ("meta_part.conv_block.conv.", "meta.conv."),
    ("meta_part.conv_block.bn.", "meta.conv_norm."),
)


def official(case: Case) -> dict[str, Any]:
    """Settings of the community's code."""
    settings = case["hyper_parameters"]
    return {
        "lr": settings["lr"],
        "momentum": settings["momentum"],
        "regularizer": settings["lambda_reg"],
        "margin": settings["e_margin_factor"],
        "steps": "two",
        "faithful": True,
    }


def their_name(name: str) -> str:
    """The official name of one of our tensors, `SEGMENT.meta.…`."""
    for theirs, ours in RENAMED:
        name = name.replace(f".{ours}", f".{theirs}")
    return f"encoders.{name}"


def tensors(method: Any) -> dict[str, Tensor]:
    """Tensors of the meta networks and the frozen statistics, by the official names."""
    found = {their_name(n): t for n, t in method.parts.state_dict().items()}
    for name, buffer in method.model.network.named_buffers():
        block, _, rest = name.partition(".")
        found[f"encoders.{int(block.removeprefix('block')) - 1}.original_part.0.{rest}"] = buffer
    return found


@torch.no_grad()
def set_initial_state(method: Method, case: Case, recorded: Recorded) -> None:
    """Recorded start values of the meta networks."""
    for name, parameter in method.trainable.items():
        parameter.copy_(recorded[f"aux/start/{their_name(name)}"])


TRANSLATIONS = (
    Translation(
        "Lily-Le/EcoTTA",
        "main.py: adapt",
        "ecotta",
        official,
        set_initial_state,
        tensors,
        facts=frozenset({"conv_scale"}),
    ),
)
