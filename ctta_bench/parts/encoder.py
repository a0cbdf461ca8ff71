"""Between the blocks of an encoder: consecutive parts, and hooks on what enters and leaves."""

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
    """First and last block of each part: the stages of a convolutional network, or `count` equal
    runs of a transformer's blocks.

    Raises MethodError if there is neither.
    """
    blocks = model.blocks or [c for c in model.network.children() if is_stage(c)]
    if not blocks:
        raise MethodError(
            f"{asked_by} finds no encoder blocks or stages in {model.name} to divide into parts."
        )
    count = len(blocks) if is_stage(blocks[0]) else min(count, len(blocks))
    bounds = [len(blocks) * i // count for i in range(count + 1)]
    return [(blocks[i], blocks[j - 1]) for i, j in itertools.pairwise(bounds)]


def is_stage(module: nn.Module) -> bool:
    """Whether a module is a stage of a convolutional network."""
    inside = list(module.modules())
    return all(any(isinstance(m, kind) for m in inside) for kind in (nn.Conv2d, nn.BatchNorm2d))


class Segment(nn.Module):
    """Consecutive blocks of an encoder, from `first` to `last`, and a module around them.

    `meta(output, entered)` gives what leaves, from what the frozen blocks give and what entered
    them; without it only the shapes are noted. While `measuring`, `distance` becomes the mean
    absolute distance of the two, whose gradient moves this part's `meta` alone.
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
        """Keep the input; unless `through_frozen`, no gradient crosses the frozen blocks."""
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
    """The first block of each of `stages` equal runs. Raises MethodError if there are none."""
    if not isinstance(model.network, VisionTransformer):
        raise MethodError(
            f"{asked_by} cannot serve {model.name}: its prompts stand before the class token of a "
            "timm VisionTransformer, which this model is not."
        )
    blocks = list(model.network.blocks)
    if stages and len(blocks) % stages:
        raise MethodError(
            f"{asked_by} cannot serve {model.name}: its {len(blocks)} blocks make no {stages} "
            "equal stages; set `stages` to a divisor."
        )
    return blocks[:: len(blocks) // stages] if stages else []


@contextlib.contextmanager
def hooked(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Within the block `hook` sees, and may replace, what `module` gives."""
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
