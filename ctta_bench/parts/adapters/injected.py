"""Modules that replace a linear layer or a bare weight by an adapted one."""

from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ctta_bench.names import OldNames
from ctta_bench.parts.adapters import product
from ctta_bench.parts.adapters.thin import RowBlock
from ctta_bench.parts.adapters.weights import WeightAdapter

Form = Literal["auto", "weight", "activation", "merged"]


@runtime_checkable
class AdaptedLinear(Protocol):
    """A layer that replaces a linear one and can be merged back into one."""

    weight: Tensor
    bias: Tensor | None

    def effective_weight(self) -> Tensor:
        """The present effective weight [out, in]."""


class InjectedLinear(OldNames, nn.Module):
    """A linear layer with adapted and frozen row blocks: y = x W_effᵀ + b in one product.

    Each letter of `roles` is a row block of the base layer's weight; `adapters` has those that are
    adapted. `form` chooses the computation: through the effective weight with plain gradients
    ("weight"), through the activations ("activation"), or through the weight with gradients of the
    factors only ("merged"). All give the same result; "auto" takes the fastest for the number of
    tokens.
    """

    def __init__(self, base: nn.Linear, roles: str, adapters: dict[str, WeightAdapter]) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.roles = roles
        self.adapters = nn.ModuleDict(adapters)
        self.adapters_disabled = False
        self.form: Form = "auto"
        self.caches_weight = False
        self._whole: Tensor | None = None

    def effective_weight(self) -> Tensor:
        """The present effective weight [out, in]."""
        return adapted_rows(self.weight, self.roles, self.adapters)

    def row_blocks(self) -> list[RowBlock] | None:
        """The adapted row blocks with their factors; None if an adapter has no factors."""
        height, blocks = len(self.weight) // len(self.roles), []
        with torch.autocast(self.weight.device.type, enabled=False):
            for number, role in enumerate(self.roles):
                if role in self.adapters:
                    adapter: Any = self.adapters[role]
                    factors = adapter.factors()
                    if factors is None:
                        return None
                    blocks.append((slice(number * height, (number + 1) * height), factors))
        return blocks

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] to [..., out]."""
        if self.adapters_disabled:
            return linear(x, self.weight, self.bias)
        blocks = None if self.form == "weight" else self.row_blocks()
        if blocks is None:
            return linear(x, self.effective_weight(), self.bias)
        if self.form == "activation" or (self.form == "auto" and self._few(x)):
            return product.activation(x, self.weight, self.bias, blocks)
        return product.merged(x, self.weight, self.bias, blocks, self._cached_weight(blocks))

    def _few(self, x: Tensor) -> bool:
        """Whether there are so few tokens that computing the effective weight is not worth it."""
        tokens = x.numel() // self.in_features
        return tokens * (self.in_features + self.out_features) < self.weight.numel()

    def _cached_weight(self, blocks: list[RowBlock]) -> Tensor | None:
        if self.caches_weight and self._whole is None:
            with torch.no_grad():
                self._whole = product.assemble(self.weight, blocks)
        return self._whole

    def cache_weight(self, cache: bool) -> None:
        """Start or stop caching W_eff; while it is cached, no parameter may change."""
        self.caches_weight, self._whole = cache, None


class InjectedWeight(OldNames, nn.Module):
    """A torch parametrization that adapts a weight which another module reads directly."""

    def __init__(self, roles: str, adapters: dict[str, WeightAdapter]) -> None:
        super().__init__()
        self.roles = roles
        self.adapters = nn.ModuleDict(adapters)
        self.adapters_disabled = False

    def forward(self, weight: Tensor) -> Tensor:
        """The effective weight [out, in] of the frozen one."""
        return weight if self.adapters_disabled else adapted_rows(weight, self.roles, self.adapters)


def adapted_rows(weight: Tensor, roles: str, adapters: nn.ModuleDict) -> Tensor:
    """weight [out, in] with the row blocks of adapted roles replaced by adapted weights."""
    if len(roles) == 1:
        return adapters[roles]()
    rows = weight.chunk(len(roles))
    return torch.cat([adapters[r]() if r in adapters else rows[i] for i, r in enumerate(roles)])
