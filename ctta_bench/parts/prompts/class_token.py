"""Prompt tokens after a ViT's class token, and the class token after every block (DPCore, FOA)."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.model import SourceModel
from ctta_bench.parts.encoder import hooked


def check_class_token(model: SourceModel, *, asked_by: str) -> None:
    """Raise MethodError unless the model is a timm ViT with a class token and features."""
    network = model.network
    if not isinstance(network, VisionTransformer) or network.cls_token is None:
        raise MethodError(
            f"{asked_by} does not support {model.name}: it uses the class token of a timm "
            "VisionTransformer, which this model lacks."
        )
    model.require_features(asked_by=asked_by)


def start_prompts(model: SourceModel, count: int) -> Tensor:
    """Random prompts [count, d], uniform within ±√(6 / (3 p² + d)) for patches of p pixels."""
    width, (height, breadth) = model.network.embed_dim, model.network.patch_embed.patch_size
    bound = math.sqrt(6 / (3 * height * breadth + width))
    return model.mean.new_empty(count, width).uniform_(-bound, bound)


@contextlib.contextmanager
def prompted(model: SourceModel, prompts: Tensor) -> Iterator[None]:
    """Context manager: prompts [P, d] follow the class token, without position embedding."""

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        tokens: Tensor = inputs[0]
        added = prompts.to(tokens.dtype).expand(len(tokens), -1, -1)
        return torch.cat([tokens[:, :1], added, tokens[:, 1:]], dim=1), *inputs[1:]

    handle = model.network.blocks[0].register_forward_pre_hook(enter)
    try:
        yield
    finally:
        handle.remove()


def class_tokens(model: SourceModel, images: Tensor) -> Tensor:
    """The normalised class token after every block [n, blocks, d].

    The norm is the first of the next block; after the last block it is that of the features.
    """
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        seen.append(output[:, 0])

    with contextlib.ExitStack() as stack:
        for block in model.network.blocks[1:]:
            stack.enter_context(hooked(block.norm1, keep))
        seen.append(model.features(images))
    precise = torch.promote_types(seen[0].dtype, torch.float32)
    return torch.stack([tokens.to(precise) for tokens in seen], dim=1)
