"""Gradients of the factors of an adapted weight, as sums over tokens with a few columns.

With G = dYᵀX, the gradient of W_eff = c ⊙ (W + P Q), they are dP = c ⊙ G Qᵀ, dQ = (c ⊙ P)ᵀ G and
dc = rowsum(G ⊙ W_eff) / c. G itself, a product as large as the layer's, is never computed. On a CPU
the tokens are processed in pieces that stay in a core's cache, so that each large tensor is read
once. Thin factors are stored as rows [r, tokens]: products with few columns are slow.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import gelu

from ctta_bench.names import renamed
from ctta_bench.parts.adapters.weights import Factors

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)

# Rows of a weight and the factors that adapt them; other rows are frozen.
RowBlock = tuple[slice, Factors]
CACHED_VALUES = 2**19  # of a piece of a tensor: 2 MB, about the size of a core's cache


@dataclass(frozen=True)
class Origin:
    """How to compute a product's input from tensors that autograd stores anyway.

    `build(*tensors, *shared)` computes rows of the input from the same rows of `tensors`.
    """

    build: Callable[..., Tensor]
    tensors: Sequence[Tensor]
    shared: Sequence[Tensor | None] = ()


def origin_of(x: Tensor) -> Origin:
    """The origin of x [..., d]: the stored input of a GELU or a LayerNorm; otherwise x itself."""
    node: Any = x.grad_fn
    kind = type(node).__name__
    if kind == "GeluBackward0":
        approximate = node._saved_approximate
        own = node._saved_self.detach()
        return Origin(lambda entered: gelu(entered, approximate=approximate), [own])
    if kind == "NativeLayerNormBackward0" and len(node._saved_normalized_shape) == 1:
        own = [node._saved_input, node._saved_result1, node._saved_result2]
        shared = [node._saved_weight, node._saved_bias]
        return Origin(
            _normalised,
            [tensor.detach() for tensor in own],
            [None if tensor is None else tensor.detach() for tensor in shared],
        )
    return Origin(lambda entered: entered, [x])


def _normalised(
    entered: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    values = torch.addcmul(-mean * rstd, entered, rstd)  # as torch's own kernel does
    if weight is not None and bias is not None:
        return torch.addcmul(bias, values, weight)
    return values if weight is None else values.mul_(weight)


class ProductInput:
    """The input of a product as rows [tokens, in], computed piece by piece."""

    def __init__(self, origin: Origin, dtype: torch.dtype) -> None:
        self.origin, self.dtype = origin, dtype
        self.tensors = [tensor.reshape(-1, tensor.shape[-1]) for tensor in origin.tensors]

    def piece(self, tokens: slice) -> Tensor:
        """The rows of these tokens."""
        own = [tensor[tokens] for tensor in self.tensors]
        return self.origin.build(*own, *self.origin.shared).to(self.dtype)


def pieces(rows: Tensor, width: int) -> Iterator[slice]:
    """Ranges over rows [tokens, ...] of tensors of at most this width; on a GPU one range."""
    count = max(1, len(rows))
    step = max(1, CACHED_VALUES // max(1, width)) if rows.device.type == "cpu" else count
    for start in range(0, len(rows), step):
        yield slice(start, start + step)


class ThinSums:
    """Gradients of the factors of `blocks`, from dy [tokens, out] and the product's input.

    `y`, the product's output, is needed if c is trained. Sums within a piece have the product's
    precision, sums over pieces float32 or better.
    """

    def __init__(
        self, blocks: Sequence[RowBlock], dy: Tensor, entered: ProductInput, y: Tensor | None
    ) -> None:
        self.blocks, self.entered = blocks, entered
        self.wide = torch.promote_types(dy.dtype, torch.float32)
        self.ups = [None if f.up is None else f.scaled_up().to(dy.dtype).T for _, f in blocks]
        self.ranks = [0 if up is None else len(up) for up in self.ups]
        # If c is trained, a row of ones below a block's Q X gives the sum of dY at almost no cost.
        self.ones = 0 if y is None else 1
        self.heights = [rank + self.ones for rank in self.ranks]
        self.of_ups = [
            torch.zeros(height, rows.stop - rows.start, dtype=self.wide, device=dy.device)
            for height, (rows, _) in zip(self.heights, blocks, strict=True)
        ]
        self.down = self._padded_down(dy.dtype)
        inputs = 0 if self.down is None else self.down.shape[1]
        self.of_down = torch.zeros(sum(self.ranks), inputs, dtype=self.wide, device=dy.device)
        width = max(dy.shape[1], inputs)
        longest = dy[next(pieces(dy, width), slice(0))]
        self.inside = dy.new_ones(sum(self.heights), len(longest))
        # Summed over the tokens at the end: summing each piece would read it again.
        products = None if y is None else torch.zeros_like(longest, dtype=self.wide)
        for tokens in pieces(dy, width):
            self._add(dy[tokens], tokens)
            if products is not None and y is not None:
                left, right = dy[tokens].to(self.wide), y[tokens].to(self.wide)
                products[: len(left)].addcmul_(left, right)
        self.products = None if products is None else products.sum(0)

    def _padded_down(self, dtype: torch.dtype) -> Tensor | None:
        """Q of all blocks, with empty rows between them for the ones; None if there is no Q."""
        downs = [f.down.to(dtype) for _, f in self.blocks if f.down is not None]
        if not downs:
            return None
        room = downs[0].new_zeros(self.ones, downs[0].shape[1])
        nothing = downs[0].new_zeros(0, downs[0].shape[1])
        own = [nothing if f.down is None else f.down.to(dtype) for _, f in self.blocks]
        return torch.cat([piece for down in own for piece in (room, down)][1:])

    def _add(self, dy: Tensor, tokens: slice) -> None:
        inside = self.inside[:, : len(dy)]
        own = inside.split(self.heights)
        if self.down is not None:
            x = self.entered.piece(tokens)
            torch.mm(self.down, x.T, out=inside[: len(self.down)])
            owners = zip(self.ups, self.blocks, strict=True)
            back = [up @ dy[:, rows].T for up, (rows, _) in owners if up is not None]
            _accumulate(self.of_down, torch.cat(back) if len(back) > 1 else back[0], x)
            if self.ones:
                for factor in own[:-1]:  # the last row of ones was not overwritten
                    factor[-1].fill_(1)
        for total, factor, (rows, _) in zip(self.of_ups, own, self.blocks, strict=True):
            _accumulate(total, factor, dy[:, rows])

    def gradients(self) -> list[Tensor | None]:
        """Gradients of c (not here), P and Q of every block."""
        found: list[Tensor | None] = []
        downs = self.of_down.split(self.ranks)
        for (_, factors), total, down in zip(self.blocks, self.of_ups, downs, strict=True):
            if factors.up is None or factors.down is None:
                found += [None, None, None]
                continue
            up = total[: len(down)].T.to(factors.up.dtype)
            up = up if factors.scale is None else factors.scale * up
            found += [None, up, down.to(factors.down.dtype)]
        return found

    def row_sums(self, number: int, bias: Tensor | None) -> Tensor:
        """rowsum(G ⊙ W_eff) of a block, Σ_n dY (y - b)."""
        rows, _ = self.blocks[number]
        assert self.products is not None
        products = self.products[rows]
        return products if bias is None else products - bias[rows] * self.of_ups[number][-1]


def _accumulate(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def scale_gradient(
    block: RowBlock,
    sums: Tensor,
    reliable: Tensor,
    weight: Tensor,
    dy: Tensor,
    entered: ProductInput,
) -> Tensor:
    """Gradient [out, 1] of a block's c: its row sums / c; Σ_n dY (x (W + P Q)ᵀ) for rows where
    that is undefined (a neuron of length 0) or inexact (a much larger bias)."""
    rows, factors = block
    assert factors.scale is not None
    gradient = sums.to(factors.scale.dtype) / factors.scale[:, 0]
    doubtful = (~reliable[rows]).nonzero().flatten()
    if len(doubtful):
        direction = weight[rows][doubtful]
        if factors.up is not None and factors.down is not None:
            direction = torch.addmm(direction, factors.up[doubtful], factors.down)
        again = entered.piece(slice(None)) @ direction.to(dy.dtype).T
        exact = (dy[:, rows][:, doubtful] * again).sum(0, dtype=sums.dtype)
        gradient[doubtful] = exact.to(gradient.dtype)
    return gradient[:, None]
