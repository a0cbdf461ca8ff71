"""Prompts as further keys and values of a segmentor's attention, behind gates that start closed.

A SegFormer has no class token that prompts could stand beside, and reduces its keys and values by
a convolution. So the prompts of a stage are seen by every block of it as they are, under a softmax
of their own: what attention gives becomes A(x) + tanh(g) ⊙ A_prompt(x), with a gate g a head. At
g = 0 the network is the source model to the bit.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ctta_bench.errors import MethodError
from ctta_bench.model import SourceModel


class PrefixPrompts(nn.Module):
    """Prompts [P, C] for each stage of an encoder, and gates [heads] for each block."""

    def __init__(self, model: SourceModel, prompts: int, *, asked_by: str) -> None:
        super().__init__()
        blocks = blocks_by_stage(model, asked_by=asked_by)
        widths = [of_stage[0].attn.q.in_features for of_stage in blocks]
        self.prompts = nn.ParameterList(torch.empty(prompts, width) for width in widths)
        for prompt in self.prompts:
            nn.init.xavier_uniform_(prompt)
        self.gates = nn.ParameterList(
            torch.zeros(block.attn.num_heads) for of_stage in blocks for block in of_stage
        )


def blocks_by_stage(model: SourceModel, *, asked_by: str) -> list[list[Any]]:
    """The blocks of each stage. Raises MethodError where attention has no q, k, v of its own."""
    stages = getattr(model.network, "encoder_stages", [])
    blocks = [list(stage.blocks) for stage in stages]
    parts = ("q", "k", "v", "proj", "num_heads")
    if not blocks or not all(hasattr(b.attn, p) for of in blocks for b in of for p in parts):
        raise MethodError(
            f"{asked_by} cannot serve {model.name}: its prompts are keys and values of attention "
            "with linear layers q, k, v and proj in every stage."
        )
    return blocks


@contextlib.contextmanager
def prefixed(model: SourceModel, prefix: PrefixPrompts) -> Iterator[None]:
    """Within the block every attention of the model's encoder sees these prompts, too."""
    gates = iter(prefix.gates)
    with contextlib.ExitStack() as stack:
        stages = zip(model.network.encoder_stages, prefix.prompts, strict=True)
        for stage, prompts in stages:
            for block in stage.blocks:
                for handle in _attach(block.attn, prompts, next(gates)):
                    stack.callback(handle.remove)
        yield


def _attach(attention: Any, prompts: Tensor, gate: Tensor) -> list[Any]:
    """Hooks that keep the queries, and add what they find among the prompts before `proj`."""
    queries: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        queries.append(output)

    def add(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        found = among_prompts(queries.pop(), attention, prompts)
        opened = gate.tanh().repeat_interleave(found.shape[-1] // len(gate))
        return (inputs[0] + opened.to(found.dtype) * found,)

    return [
        attention.q.register_forward_hook(keep),
        attention.proj.register_forward_pre_hook(add),
    ]


def among_prompts(queries: Tensor, attention: Any, prompts: Tensor) -> Tensor:
    """Attention [n, N, C] of queries [n, N, C] to the prompts [P, C] alone."""

    def by_head(tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (attention.num_heads, -1)).transpose(-3, -2)

    prompts = prompts.to(queries.dtype)
    keys, values = (by_head(layer(prompts)) for layer in (attention.k, attention.v))
    keys, values = (x.to(queries.dtype).expand(len(queries), -1, -1, -1) for x in (keys, values))
    found = scaled_dot_product_attention(by_head(queries), keys, values)
    return found.transpose(1, 2).flatten(2)
