"""BECoTTA: the mixture of experts of daeunni/becotta."""

import torch
from torch import Tensor

from ctta_bench.methods.official import Case, Recorded, Translation
from ctta_bench.parts.adapters.mixture import Mixture, Routing

KINDS = {"down": "fc1.weight", "down_bias": "fc1.bias", "up": "fc2.weight", "up_bias": "fc2.bias"}


def mixture(case: Case, inputs: Recorded) -> dict[str, Tensor]:
    """Output, router sums, and gradients of the experts that have one."""
    settings, x = case["hyper_parameters"], inputs["x"].clone().requires_grad_()
    routing = Routing(faithful=True)
    routing.draw, routing.seen = lambda like: inputs["noise"], []
    router = inputs[f"f_gate.{settings['domain']}.0.weight"]
    layer = Mixture(
        settings["dim"],
        settings["rank"],
        experts=settings["experts"],
        chosen=settings["k"],
        domains=1,
        routing=routing,
    ).to(x)
    experts = range(settings["experts"])
    values = {
        name: torch.stack([inputs[f"adapter_experts.{number}.{kind}"] for number in experts])
        for name, kind in KINDS.items()
    }
    layer.load_state_dict(values | {"routers": router[None]})
    y = layer(x)
    (inputs["G"] * y).sum().backward()
    assert x.grad is not None and layer.down.grad is not None and layer.up.grad is not None
    found = {"y": y.detach(), "router_sums": routing.seen[0].detach(), "grad_x": x.grad}
    for number in range(settings["k"]):
        found[f"grad_expert_{number}_down"] = layer.down.grad[number]
        found[f"grad_expert_{number}_up"] = layer.up.grad[number]
    return found


TRANSLATIONS = (
    Translation(
        "daeunni/becotta",
        "MOEAdapterBlock",
        "becotta",
        lambda case: {},
        run_function=mixture,
        facts=frozenset({"dim", "rank", "experts", "k", "batch", "height", "width", "domain"}),
    ),
)
