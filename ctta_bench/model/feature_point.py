"""Where a network of one's own has its features: the output of a module, and the head behind it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ctta_bench.errors import MethodError, did_you_mean

# How the output of a module becomes features [n, d], by the number of its axes; tried in order.
POOLS: dict[str, tuple[int, Any]] = {
    "as it is": (2, lambda seen: seen),
    "class token": (3, lambda seen: seen[:, 0]),
    "mean of tokens": (3, lambda seen: seen.mean(1)),
    "mean of all tokens but the first": (3, lambda seen: seen[:, 1:].mean(1)),
    "mean over the map": (4, lambda seen: seen.mean((2, 3))),
}


@dataclass(frozen=True)
class FeaturePoint:
    """The module whose output are the features, how they become [n, d], and the head's module.

    head "": the last linear layer.
    """

    at: str
    head: str
    pool: str

    def read(self, network: nn.Module, inputs: Tensor) -> Tensor:
        """The features [n, d] of inputs, by one pass of the network."""
        return POOLS[self.pool][1](_output(network, self.at, inputs)[0])

    def record(self) -> dict[str, str]:
        """Plain values for a cell's record."""
        return {"features": self.at, "pool": self.pool} | ({"head": self.head} if self.head else {})


def find_point(
    network: nn.Module,
    at: str,
    head: str,
    classifier: nn.Module | None,
    inputs: Tensor,
    tolerance: float,
    name: str,
) -> FeaturePoint:
    """The feature point at a module of this name, if its head gives the network's own logits.

    inputs: some normalised images. Raises MethodError if no way to pool its output does.
    """
    known = dict(network.named_modules())
    for what, module in (("features", at), ("head", head)):
        if module and module not in known:
            hint = did_you_mean(module, known) or f"; it has {', '.join([*known][1:7])}, ..."
            raise MethodError(f"{what}={module!r}: {name} has no such module{hint}")
    behind = known[head] if head else classifier
    if behind is None:
        raise MethodError(f"features={at!r}: name the module that gives logits of them: head=...")
    seen, logits = _output(network, at, inputs)
    limit = tolerance * float(logits.abs().max())
    for pool, (axes, function) in POOLS.items():
        if seen.ndim != axes:
            continue
        try:
            found = behind(function(seen))
        except (RuntimeError, ValueError, TypeError):
            continue  # of other sizes
        if found.shape == logits.shape and torch.allclose(found, logits, rtol=0, atol=limit):
            return FeaturePoint(at, head, pool)
    raise MethodError(
        f"features={at!r}: the output {list(seen.shape)} of this module does not give the logits "
        f"{list(logits.shape)} of {name} by {f'head={head!r}' if head else 'its last linear layer'}"
        f" ({', '.join(POOLS)} were tried); choose another module, or name the head: head=..."
    )


def _output(network: nn.Module, at: str, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The output of a module in a pass of the network, and the network's own."""
    seen: list[Tensor] = []
    handle = network.get_submodule(at).register_forward_hook(
        lambda module, arguments, output: seen.append(output)
    )
    try:
        logits = network(inputs)
    finally:
        handle.remove()
    if len(seen) != 1 or not isinstance(seen[0], Tensor):
        raise MethodError(
            f"features={at!r}: this module must run once in a pass, and return one tensor."
        )
    return seen[0], logits
