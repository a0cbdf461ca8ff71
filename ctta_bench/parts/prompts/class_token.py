"""Prompt tokens after a ViT's class token, and the class token after every block (DPCore, FOA)."""

import contextlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from ctta_bench.model import SourceModel
from ctta_bench.parts.encoder import hooked


def check_class_token(model: SourceModel, *, asked_by: str) -> None:
    """Raise MethodError unless the model is a timm ViT with a class token and features."""
    model.require_tokens(class_token=True, asked_by=asked_by)
    model.require_features(asked_by=asked_by)


def start_prompts(model: SourceModel, count: int) -> Tensor:
    """Random prompts [count, d], uniform within ±√(6 / (3 p² + d)) for patches of p pixels."""
    width, (height, breadth) = model.network.embed_dim, model.network.patch_embed.patch_size
    bound = math.sqrt(6 / (3 * height * breadth + width))
    return model.mean.new_empty(count, width).uniform_(-bound, bound)


def prompted(model: SourceModel, prompts: Tensor) -> contextlib.AbstractContextManager[None]:
    """Context manager: prompts follow the class token, without position embedding.

    [P, d], the same for every image, or [n, P, d].
    """

    def enter(tokens: Tensor) -> Tensor:
        added = prompts.to(tokens.dtype).expand(len(tokens), -1, -1)
        return torch.cat([tokens[:, :1], added, tokens[:, 1:]], dim=1)

    return model.change_tokens(enter)


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
