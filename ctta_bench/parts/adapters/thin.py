"""Sums over tokens that make the gradients of an adapted weight's factors, a few columns each.

With G = dYᵀX, the gradient of W_eff = c ⊙ (W + P Q), they are dP = c ⊙ G Qᵀ, dQ = (c ⊙ P)ᵀ G and
dc = rowsum(G ⊙ W_eff) / c; G itself, a product as large as the layer's, is never formed. On a CPU
the tokens are walked through in pieces that stay in a core's cache, so that each large tensor is
read once. Thin factors stand as rows [r, tokens]: products with a few columns are slow.
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
CACHED_VALUES = 2**19  # of a piece of a tensor: 2 MB, near what a core's cache holds


@dataclass(frozen=True)
class Origin:
    """How a product's input is made of tensors that others keep anyway.

    `build(*tensors, *shared)` makes rows of the input of like rows of `tensors`.
    """

    build: Callable[..., Tensor]
    tensors: Sequence[Tensor]
    shared: Sequence[Tensor | None] = ()


def origin_of(x: Tensor) -> Origin:
    """Where x [..., d] comes from: of a GELU or a LayerNorm the input, which these keep; else x."""
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
    """A product's input as rows [tokens, in], made piece by piece."""

    def __init__(self, origin: Origin, dtype: torch.dtype) -> None:
        self.origin, self.dtype = origin, dtype
        self.tensors = [tensor.reshape(-1, tensor.shape[-1]) for tensor in origin.tensors]

    def piece(self, tokens: slice) -> Tensor:
        """The rows of some tokens."""
        own = [tensor[tokens] for tensor in self.tensors]
        return self.origin.build(*own, *self.origin.shared).to(self.dtype)


def pieces(rows: Tensor, width: int) -> Iterator[slice]:
    """Ranges over rows [tokens, ...] of tensors of at most this width; on a GPU all at once."""
    count = max(1, len(rows))
    step = max(1, CACHED_VALUES // max(1, width)) if rows.device.type == "cpu" else count
    for start in range(0, len(rows), step):
        yield slice(start, start + step)


class ThinSums:
    """Gradients of the factors of `blocks`, from dy [tokens, out] and what entered the product.

    `y`, the product's output, is needed where c learns. Summed within a piece in the product's
    own precision, over pieces in float32 or better.
    """

    def __init__(
        self, blocks: Sequence[RowBlock], dy: Tensor, entered: ProductInput, y: Tensor | None
    ) -> None:
        self.blocks, self.entered = blocks, entered
        self.wide = torch.promote_types(dy.dtype, torch.float32)
        self.ups = [None if f.up is None else f.scaled_up().to(dy.dtype).T for _, f in blocks]
        self.ranks = [0 if up is None else len(up) for up in self.ups]
        # Where c learns, a row of ones below a block's Q X sums dY itself, at hardly any cost.
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
        # Summed over the tokens at last: to sum each piece would be to read it once more.
        products = None if y is None else torch.zeros_like(longest, dtype=self.wide)
        for tokens in pieces(dy, width):
            self._add(dy[tokens], tokens)
            if products is not None and y is not None:
                left, right = dy[tokens].to(self.wide), y[tokens].to(self.wide)
                products[: len(left)].addcmul_(left, right)
        self.products = None if products is None else products.sum(0)

    def _padded_down(self, dtype: torch.dtype) -> Tensor | None:
        """Q of all blocks, with room for rows of ones between them; None if there is no Q."""
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
                for factor in own[:-1]:  # the last row lies below what was just written
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
    """Gradient [out, 1] of a block's c: its row sums / c, and where that says nothing (a neuron of
    no length, or hidden by its bias) Σ_n dY (x (W + P Q)ᵀ)."""
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
