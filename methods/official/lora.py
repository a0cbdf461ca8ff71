"""LoRA and DoRA: one linear layer of huggingface/peft."""

from typing import Any

import torch
from torch import Tensor, nn

from ctta_bench.methods.official import Case, Recorded, Translation
from ctta_bench.model import SourceModel
from ctta_bench.parts.adapters.injected import InjectedLinear
from ctta_bench.parts.adapters.injection import merge
from ctta_bench.registry import METHODS

# Names of parameters: theirs, ours.
RENAMED = {"A": "down", "B": "up", "m": "magnitude"}
LAYER = frozenset({"in_features", "out_features", "peft_version"})


def lora(case: Case) -> dict[str, Any]:
    """Rank and scale; peft divides α by the rank, or by its root."""
    settings = case["hyper_parameters"]
    rank = settings["rank"]
    divisor = rank**0.5 if settings["use_rslora"] else rank
    return {"rank": rank, "scale": settings["lora_alpha"] / divisor}


def dora(case: Case) -> dict[str, Any]:
    """The same; peft passes no gradient through the norm."""
    return lora(case) | {"detach_norm": True}


def lora_function(case: Case, inputs: Recorded) -> Recorded:
    """Output, gradients and merged layer with given A and B."""
    hp = METHODS.get("lora").Hyperparameters(**lora(case))
    return layer_outputs(METHODS.get("lora").adapter(inputs["weight"], hp), inputs)


def dora_function(case: Case, inputs: Recorded) -> Recorded:
    """Magnitude at the start; output, gradients and merged layer with given A, B and m."""
    hp = METHODS.get("dora").Hyperparameters(**dora(case))
    adapter = METHODS.get("dora").adapter(inputs["weight"], hp)
    start = adapter.magnitude.detach().flatten().clone()
    return layer_outputs(adapter, inputs) | {"m_at_start": start}


def layer_outputs(adapter: Any, inputs: Recorded) -> Recorded:
    """Outputs of a linear layer with this adapter, with the recorded parameters."""
    learning = {n: getattr(adapter, ours) for n, ours in RENAMED.items() if n in inputs}
    with torch.no_grad():
        for name, parameter in learning.items():
            parameter.copy_(inputs[name].reshape(parameter.shape))
    base = nn.Linear(inputs["x"].shape[-1], len(inputs["bias"])).to(inputs["x"].dtype)
    base.load_state_dict({"weight": inputs["weight"], "bias": inputs["bias"]})
    network = nn.Sequential(InjectedLinear(base, "m", {"m": adapter}))
    x = inputs["x"].clone().requires_grad_()
    y = network(x)
    found = {"y": y} | gradients((inputs["G"] * y).sum(), inputs, learning | {"x": x})
    merge(SourceModel(network))
    merged: Any = network[0]
    found |= {"merged_weight": merged.weight, "y_merged": merged(inputs["x"])}
    return {name: tensor.detach() for name, tensor in found.items()}


def gradients(loss: Tensor, inputs: Recorded, learning: dict[str, Tensor]) -> Recorded:
    """Gradients by the official names and shapes."""
    found = torch.autograd.grad(loss, list(learning.values()))
    return {f"grad_{n}": g.reshape(inputs[n].shape) for n, g in zip(learning, found, strict=True)}


TRANSLATIONS = (
    Translation(
        "huggingface/peft",
        "get_peft_model(LoraConfig)",
        "lora",
        lora,
        run_function=lora_function,
        facts=LAYER,
    ),
    Translation(
        "huggingface/peft",
        "with use_dora",
        "dora",
        dora,
        run_function=dora_function,
        facts=LAYER,
    ),
)
