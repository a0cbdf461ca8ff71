"""Linear layers by role, swapped for adaptable ones and merged back.

Roles: q, k, v (attention's inputs), o (its output), m (both layers of the MLP). A fused
projection is one matrix product over three row blocks, each with an adapter of its own, so that
PAID, LoRA and DoRA see q, k and v as independent layers at the cost of one.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ctta_bench.errors import MethodError
from ctta_bench.model import SourceModel

# What the last parts of a layer's name say about its roles, in the order of its rows.
_ROLES: tuple[tuple[str, str], ...] = (
    (r"attn\.qkv$", "qkv"),
    (r"(attn|attention)\.(q|q_proj|query)$", "q"),
    (r"(attn|attention)\.(k|k_proj|key)$", "k"),
    (r"(attn|attention)\.(v|v_proj|value)$", "v"),
    (r"(attn|attention)\.(proj|out_proj|o_proj)$", "o"),
    (r"mlp\.(fc1|fc2)$", "m"),
)


@dataclass(frozen=True)
class RoleLayer:
    """A linear layer of one encoder block and the roles of its equal row blocks."""

    name: str
    module: nn.Linear
    block: int
    roles: str


class WeightAdapter(nn.Module):
    """Turns a frozen weight [out, in] into the adapted one; holds its own trainable parameters."""

    def forward(self) -> Tensor:
        """The effective weight [out, in], with gradient to the adapter's parameters."""
        raise MethodError(f"{type(self).__name__} computes no weight.")


class LowRankWeight(WeightAdapter):
    """W + s B A (LoRA): A [rank, in] starts as a linear layer does, B [out, rank] at zero."""

    def __init__(self, weight: Tensor, rank: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight: Tensor
        self.register_buffer("weight", weight, persistent=False)
        self.scale = scale
        self.down = nn.Parameter(weight.new_empty(rank, weight.shape[1]))
        self.up = nn.Parameter(weight.new_zeros(weight.shape[0], rank))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def forward(self) -> Tensor:
        """The effective weight [out, in]: at the start W to the bit."""
        # In full precision: the product is small, and what is merged must be what was computed.
        with torch.autocast(self.weight.device.type, enabled=False):
            return self.weight + self.scale * (self.up @ self.down)


class InjectedLinear(nn.Module):
    """A linear layer whose row blocks are adapted or frozen: y = x W_effᵀ + b in one product."""

    def __init__(self, base: nn.Linear, roles: str, adapters: dict[str, WeightAdapter]) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.roles = roles
        self.adapters = nn.ModuleDict(adapters)
        self.bypassed = False

    def effective_weight(self) -> Tensor:
        """The weight [out, in] that the layer multiplies with now."""
        if len(self.roles) == 1:
            return self.adapters[self.roles]()
        rows = self.weight.chunk(len(self.roles))
        blocks = [
            self.adapters[role]() if role in self.adapters else rows[i]
            for i, role in enumerate(self.roles)
        ]
        return torch.cat(blocks)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., out]."""
        weight = self.weight if self.bypassed else self.effective_weight()
        return linear(x, weight, self.bias)


def role_layers(model: SourceModel, *, skip_last_blocks: int = 0) -> list[RoleLayer]:
    """The linear layers with a role in the encoder blocks, but for the last `skip_last_blocks`."""
    blocks = model.blocks
    names = {id(m): n for n, m in model.network.named_modules()}
    found = []
    for number, block in enumerate(blocks[: max(0, len(blocks) - skip_last_blocks)]):
        for module in block.modules():
            if isinstance(module, nn.Linear):
                name = names[id(module)]
                roles = next((r for pattern, r in _ROLES if re.search(pattern, name)), "")
                if roles:
                    found.append(RoleLayer(name, module, number, roles))
    return found


def inject(
    model: SourceModel,
    roles: str,
    make_adapter: Callable[[Tensor], WeightAdapter],
    *,
    skip_last_blocks: int = 0,
) -> dict[str, nn.Parameter]:
    """Swap in adapters for the layers of `roles` (of "qkvom"); returns their trainable parameters.

    `make_adapter` gets a frozen weight [out, in]. Names are `LAYER.ROLE.PARAMETER`. Raises
    MethodError if the model has no layer of a wanted role.
    """
    layers = role_layers(model, skip_last_blocks=skip_last_blocks)
    missing = [r for r in roles if not any(r in layer.roles for layer in layers)]
    if missing:
        raise MethodError(
            f"model {model.name} has no linear layer of role {', '.join(missing)} (q, k, v, o: "
            "attention, m: MLP), which this method adapts."
        )
    trainable: dict[str, nn.Parameter] = {}
    for layer in layers:
        rows = layer.module.weight.detach().chunk(len(layer.roles))
        adapters = {r: make_adapter(rows[i]) for i, r in enumerate(layer.roles) if r in roles}
        if not adapters:
            continue
        model.network.set_submodule(layer.name, InjectedLinear(layer.module, layer.roles, adapters))
        for role, adapter in adapters.items():
            prefix = f"{layer.name}.{role}" if len(layer.roles) > 1 else layer.name
            trainable |= {f"{prefix}.{n}": p for n, p in adapter.named_parameters()}
    return trainable


@contextlib.contextmanager
def bypassed(model: SourceModel) -> Iterator[None]:
    """Within the block the model computes with its source weights, whatever was injected."""
    layers = [m for m in model.network.modules() if isinstance(m, InjectedLinear)]
    for layer in layers:
        layer.bypassed = True
    try:
        yield
    finally:
        for layer in layers:
            layer.bypassed = False


@torch.no_grad()
def merge(model: SourceModel) -> None:
    """Put plain linear layers with the adapted weights back in place, in the model itself."""
    injected = [(n, m) for n, m in model.network.named_modules() if isinstance(m, InjectedLinear)]
    for name, layer in injected:
        plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        plain = plain.to(layer.weight).requires_grad_(False)
        plain.weight.copy_(layer.effective_weight())
        if layer.bias is not None:
            plain.bias.copy_(layer.bias)
        model.network.set_submodule(name, plain)
