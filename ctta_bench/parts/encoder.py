"""Segments of an encoder, and hooks on their inputs and outputs."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.model import SourceModel
from ctta_bench.names import renamed

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)


def encoder_segments(
    model: SourceModel, count: int, *, asked_by: str
) -> list[tuple[nn.Module, nn.Module]]:
    """First and last block of each segment: the stages of a convolutional network with BatchNorm,
    or `count` equal segments of a transformer's blocks.

    Raises MethodError, which names the method `asked_by`, if the model has neither.
    """
    blocks = model.blocks or [c for c in model.network.children() if is_stage(c)]
    if not blocks:
        raise MethodError(
            f"{asked_by} does not support {model.name}: it has no blocks of a transformer, and no "
            "stages with BatchNorm."
        )
    count = len(blocks) if is_stage(blocks[0]) else min(count, len(blocks))
    bounds = [len(blocks) * i // count for i in range(count + 1)]
    return [(blocks[i], blocks[j - 1]) for i, j in itertools.pairwise(bounds)]


def is_stage(module: nn.Module) -> bool:
    """Whether a module is a stage of a convolutional network with BatchNorm."""
    inside = list(module.modules())
    return all(any(isinstance(m, kind) for m in inside) for kind in (nn.Conv2d, nn.BatchNorm2d))


class Segment(nn.Module):
    """Consecutive blocks of an encoder, from `first` to `last`, with an adapter `meta`.

    The output of the segment is `meta(output, entered)`, of the frozen blocks' output and input;
    without `meta` only the shapes are recorded. While `measuring` is set, `distance` is the mean
    absolute distance of adapted and frozen output; its gradient reaches only this `meta`.
    """

    def __init__(self, first: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.meta: nn.Module | None = None
        self.shapes: list[torch.Size] = []
        self.through_frozen = True
        self.measuring = False
        self.entered: Tensor | None = None
        self.distance: Tensor | None = None
        first.register_forward_pre_hook(self.enter)
        last.register_forward_hook(self.leave)

    def enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Store the input; without `through_frozen`, no gradient passes the frozen blocks."""
        self.entered = inputs[0]
        return inputs if self.through_frozen else (inputs[0].detach(), *inputs[1:])

    def leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """The adapted output."""
        entered, self.entered = self.entered, None
        assert entered is not None
        if self.meta is None:
            self.shapes = [entered.shape, output.shape]
            return output
        if self.measuring:
            source = output.detach()
            with torch.enable_grad():
                local = self.meta(source, entered.detach())
                self.distance = (local - source).abs().mean()
            if not torch.is_grad_enabled():
                return local.detach()
        return self.meta(output, entered)


def stage_starts(model: SourceModel, stages: int, *, asked_by: str) -> list[nn.Module]:
    """The first block of each of `stages` equal stages of a ViT.

    Raises MethodError, which names the method `asked_by`, if the model has no such stages.
    """
    if not isinstance(model.network, VisionTransformer):
        raise MethodError(
            f"{asked_by} does not support {model.name}: its prompts precede the class token of a "
            "timm VisionTransformer, which this model is not."
        )
    blocks = list(model.network.blocks)
    if stages and len(blocks) % stages:
        raise MethodError(
            f"{asked_by} does not support {stages} stages on {model.name}, which has "
            f"{len(blocks)} blocks; set `stages` to a divisor."
        )
    return blocks[:: len(blocks) // stages] if stages else []


@contextlib.contextmanager
def hooked(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Context manager: `hook` receives, and may replace, the output of `module`."""
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
