"""Replace linear layers, selected by role, with adapted ones, and merge them back.

Roles: q, k, v (attention's inputs), o (its output), m (both layers of the MLP). A fused
projection is one matrix product over three row blocks, each with its own adapter, so that
PAID, LoRA and DoRA treat q, k and v as independent layers at the cost of one. In torch's
MultiheadAttention these matrices are bare parameters, not layers that are called.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ctta_bench.errors import MethodError
from ctta_bench.model import SourceModel
from ctta_bench.names import renamed
from ctta_bench.parts.adapters.injected import AdaptedLinear, InjectedLinear, InjectedWeight
from ctta_bench.parts.adapters.weights import WeightAdapter

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)

# The end of a layer's name, and the roles of its row blocks in order.
_ROLES: tuple[tuple[str, str], ...] = (
    (r"attn\.qkv$", "qkv"),
    (r"(attn|attention)\.(q|q_proj|query)$", "q"),
    (r"(attn|attention)\.(k|k_proj|key)$", "k"),
    (r"(attn|attention)\.(v|v_proj|value)$", "v"),
    (r"(attn|attention)\.(proj|out_proj|o_proj)$", "o"),
    (r"(mlp|ffn)\.(fc1|fc2|0|3)$", "m"),
)
# The weights of MultiheadAttention: one for all inputs, or three where their widths differ.
_BARE = {"in_proj_weight": "qkv", "q_proj_weight": "q", "k_proj_weight": "k", "v_proj_weight": "v"}


@dataclass(frozen=True)
class RoleLayer:
    """A linear layer of one encoder block and the roles of its equal row blocks."""

    name: str
    module: nn.Linear
    block: int
    roles: str


@dataclass(frozen=True)
class BareWeight:
    """The same for a weight that another module reads directly: there is no layer to replace."""

    name: str
    module: nn.Module
    parameter: str
    block: int
    roles: str


def role_layers(model: SourceModel, *, skip_last_blocks: int = 0) -> list[RoleLayer]:
    """The linear layers with a role in the encoder blocks, without the last `skip_last_blocks`."""
    bare = {id(weight.module) for weight in bare_weights(model)}
    found = []
    for number, name, module in _in_blocks(model, skip_last_blocks):
        if isinstance(module, nn.Linear) and id(module) not in bare:
            roles = next((r for pattern, r in _ROLES if re.search(pattern, name)), "")
            if roles:
                found.append(RoleLayer(name, module, number, roles))
    return found


def bare_weights(model: SourceModel, *, skip_last_blocks: int = 0) -> list[BareWeight]:
    """The weights with a role in each MultiheadAttention of the encoder blocks."""
    found = []
    for number, name, module in _in_blocks(model, skip_last_blocks):
        if isinstance(module, nn.MultiheadAttention):
            for parameter, roles in _BARE.items():
                if getattr(module, parameter) is not None:
                    found.append(BareWeight(name, module, parameter, number, roles))
            found.append(BareWeight(f"{name}.out_proj", module.out_proj, "weight", number, "o"))
    return found


def _in_blocks(model: SourceModel, skip_last: int) -> Iterator[tuple[int, str, nn.Module]]:
    blocks = model.blocks
    names = {id(m): n for n, m in model.network.named_modules()}
    for number, block in enumerate(blocks[: max(0, len(blocks) - skip_last)]):
        for module in block.modules():
            yield number, names[id(module)], module


def inject(
    model: SourceModel,
    roles: str,
    make_adapter: Callable[[Tensor], WeightAdapter],
    *,
    skip_last_blocks: int = 0,
    by: str = "this method",
) -> dict[str, nn.Parameter]:
    """Inject adapters into the layers of `roles` (letters of "qkvom").

        parameters = inject(model, "qv", lambda weight: LowRankWeight(weight, rank=6))

    `make_adapter` gets a frozen weight [out, in]. Returns the trainable parameters, by names
    `LAYER.ROLE.PARAMETER`. Raises MethodError, which names the method `by`, if the model has no
    layer of a role.
    """
    layers: list[RoleLayer | BareWeight] = [
        *role_layers(model, skip_last_blocks=skip_last_blocks),
        *bare_weights(model, skip_last_blocks=skip_last_blocks),
    ]
    missing = [r for r in roles if not any(r in layer.roles for layer in layers)]
    if missing:
        raise MethodError(
            f"{by} does not support {model.name}: it adapts linear layers of role "
            f"{', '.join(missing)} (q, k, v, o: attention, m: MLP), which this model lacks."
        )
    trainable: dict[str, nn.Parameter] = {}
    for layer in sorted(layers, key=lambda layer: layer.block):
        chosen = "".join(r for r in layer.roles if r in roles)
        if chosen:
            trainable |= _swap_in(model, layer, chosen, make_adapter)
    return trainable


def _swap_in(
    model: SourceModel,
    layer: RoleLayer | BareWeight,
    roles: str,
    make_adapter: Callable[[Tensor], WeightAdapter],
) -> dict[str, nn.Parameter]:
    parameter = layer.parameter if isinstance(layer, BareWeight) else "weight"
    rows = getattr(layer.module, parameter).detach().chunk(len(layer.roles))
    adapters = {r: make_adapter(rows[i]) for i, r in enumerate(layer.roles) if r in roles}
    if isinstance(layer, BareWeight):
        injected = InjectedWeight(layer.roles, adapters)
        parametrize.register_parametrization(layer.module, parameter, injected)
    else:
        swapped = InjectedLinear(layer.module, layer.roles, adapters)
        model.network.set_submodule(layer.name, swapped)
    alone = len(layer.roles) == 1 and parameter == "weight"
    return {
        f"{layer.name}.{name}" if alone else f"{layer.name}.{role}.{name}": value
        for role, adapter in adapters.items()
        for name, value in adapter.named_parameters()
    }


@contextlib.contextmanager
def cached_weights(model: SourceModel) -> Iterator[None]:
    """Context manager: effective weights are cached; parameters must not change meanwhile."""
    layers = [m for m in model.network.modules() if isinstance(m, InjectedLinear)]
    for layer in layers:
        layer.cache_weight(True)
    try:
        yield
    finally:
        for layer in layers:
            layer.cache_weight(False)


@contextlib.contextmanager
def adapters_disabled(model: SourceModel) -> Iterator[None]:
    """Context manager: the model computes with its source weights, without injected adapters."""
    kinds = (InjectedLinear, InjectedWeight)
    layers = [m for m in model.network.modules() if isinstance(m, kinds)]
    for layer in layers:
        layer.adapters_disabled = True
    try:
        yield
    finally:
        for layer in layers:
            layer.adapters_disabled = False


@torch.no_grad()
def merge(model: SourceModel) -> None:
    """Replace the adapted layers of the model, in place, by plain ones with the adapted weights."""
    adapted = [(n, m) for n, m in model.network.named_modules() if isinstance(m, AdaptedLinear)]
    for name, layer in adapted:
        outputs, inputs = layer.weight.shape
        plain = nn.Linear(inputs, outputs, bias=layer.bias is not None)
        plain = plain.to(layer.weight).requires_grad_(False)
        plain.weight.copy_(layer.effective_weight())
        if layer.bias is not None:
            plain.bias.copy_(layer.bias)
        model.network.set_submodule(name, plain)
    for module in list(model.network.modules()):
        if parametrize.is_parametrized(module):
            _merge_bare(module)


def _merge_bare(module: nn.Module) -> None:
    parametrizations: Any = module.parametrizations
    for parameter, chain in list(parametrizations.items()):
        if any(isinstance(link, InjectedWeight) for link in chain):
            parametrize.remove_parametrizations(module, parameter)
