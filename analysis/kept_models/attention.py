"""Attention rollout: how much each patch contributes to the output of a vision transformer.

In each layer the heads are fused, the smallest values are discarded, the residual path is added as
identity, and rows are scaled to sum 1. The product over the layers is the rollout (Abnar and
Zuidema 2020, arXiv:2005.00928; discarding and the kinds of fusion as in jacobgil/vit-explain).

    A_l = (1 - ρ) fuse(heads) + ρ I,   rows scaled to 1;   rollout = A_L ... A_1

`ctta_bench.model.inside` records the matrices.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ctta_bench.errors import ConfigError, MethodError
from ctta_bench.model.inside import recorded_matrices

Fusion = Literal["mean", "max", "min"]
ROW_SUM_TOLERANCE = 1e-3  # accepts half precision, but no difference of two softmaxes


@dataclass(frozen=True)
class RolloutSettings:
    """How heads become one matrix. Raises ConfigError for a value out of range."""

    fusion: str = "mean"
    discard: float = 0.8
    residual: float = 0.5

    def __post_init__(self) -> None:
        if self.fusion not in get_args(Fusion):
            raise ConfigError(f"fusion {self.fusion!r}: choose mean, max or min.")
        for name in ("discard", "residual"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ConfigError(f"{name} {value}: choose at least 0 and less than 1.")


@torch.no_grad()
def attention_maps(model: nn.Module, images: Tensor) -> tuple[list[Tensor], Tensor]:
    """The attention matrices [n, heads, T, T] of every layer, and the logits [n, classes].

    Raises MethodError for a network without such matrices, with windows or strides (whose tokens
    differ from layer to layer), or with matrices whose rows do not sum to 1.
    """
    training = model.training
    model.eval()
    try:
        with recorded_matrices(model) as maps:
            logits = model(images)
    finally:
        model.train(training)
    name = getattr(model, "name", type(model).__name__)
    if any(a.shape != maps[0].shape or a.shape[-1] != a.shape[-2] for a in maps) or len(
        maps[0]
    ) != len(images):
        raise MethodError(
            f"{name}: its layers have different sets of tokens (windows or strides), and rollout "
            "needs the same tokens in all layers; choose a plain vision transformer."
        )
    for matrix in maps:
        if float((matrix.sum(-1) - 1).abs().max()) > ROW_SUM_TOLERANCE:
            raise MethodError(
                f"{name}: rows of its attention do not sum to 1, so rollout is not defined; choose "
                "a plain vision transformer."
            )
    return maps, logits


def rollout(maps: list[Tensor], settings: RolloutSettings | None = None) -> Tensor:
    """The rollout [n, T, T] of attention matrices [n, heads, T, T]; rows sum to 1, in float64.

    The smallest values of a fused matrix, a share `discard` of them per image, are set to 0. The
    attention of the first token to itself is never set to 0, as in the usual code.
    """
    settings = settings or RolloutSettings()
    tokens = maps[0].shape[-1]
    identity = torch.eye(tokens, dtype=torch.float64, device=maps[0].device)
    total = identity.expand(len(maps[0]), -1, -1)
    for matrix in maps:
        fused = _discard(_fuse(matrix.double(), settings.fusion), settings.discard)
        layer = (1 - settings.residual) * fused + settings.residual * identity
        sums = layer.sum(-1, keepdim=True)
        # Only without a residual path a row can be empty: then it is that of the identity.
        layer = torch.where(sums > 0, layer / sums.clamp_min(1e-300), identity)
        total = layer @ total
    return total


def _fuse(matrix: Tensor, fusion: str) -> Tensor:
    if fusion == "mean":
        return matrix.mean(1)
    return matrix.amax(1) if fusion == "max" else matrix.amin(1)


def _discard(fused: Tensor, share: float) -> Tensor:
    flat = fused.flatten(1)
    count = int(share * flat.shape[1])
    smallest = flat.topk(count, largest=False).indices
    mask = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, smallest, True)
    mask[:, 0] = False
    return flat.masked_fill(mask, 0).view_as(fused)


def patch_maps(network: Any, rolled: Tensor) -> Tensor:
    """Shares [n, rows, columns] of the patches in the input of the head; each map sums to 1.

    If the head reads the class token, this is the row of the class token; if it pools the patches,
    the mean over their rows. Class, distillation and register tokens have no place in the picture
    and are left out. Raises MethodError if the patches form no grid, or if no attention to a patch
    is left.
    """
    tokens = rolled.shape[-1]
    prefix = _prefix_tokens(network)
    rows, columns = _grid(network, tokens - prefix)
    reads_class_token = prefix > 0 and getattr(network, "global_pool", "token") == "token"
    queries = rolled[:, 0] if reads_class_token else rolled[:, prefix:].mean(1)
    patches = queries[:, prefix:]
    sums = patches.sum(-1, keepdim=True)
    if bool((sums <= 0).any()):
        raise MethodError(
            "no attention to any patch is left for an image: `discard` set so many values to 0 "
            "that only the token of the head is left; choose a lower value."
        )
    return (patches / sums).view(-1, rows, columns)


def _prefix_tokens(network: Any) -> int:
    if hasattr(network, "num_prefix_tokens"):
        return int(network.num_prefix_tokens)
    return 1 if hasattr(network, "class_token") else 0


def _grid(network: Any, patches: int) -> tuple[int, int]:
    """The grid of the network's patch embedding if the patches fill it, else a square."""
    stated = getattr(getattr(network, "patch_embed", None), "grid_size", None)
    if stated is not None and stated[0] * stated[1] == patches:
        return int(stated[0]), int(stated[1])
    side = round(max(patches, 0) ** 0.5)
    if side * side != patches or not side:
        raise MethodError(
            f"{patches} patches form no square grid, and the network has no patch_embed.grid_size."
        )
    return side, side


def spread(shares: Tensor) -> Tensor:
    """Entropy [n] of shares [n, rows, columns], divided by its maximum: 0: one patch, 1: all."""
    flat = shares.flatten(1)
    maximum = torch.log(torch.tensor(float(flat.shape[1]), dtype=flat.dtype))
    return torch.special.entr(flat).sum(1) / maximum
