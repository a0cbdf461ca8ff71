"""Products with adapted weights c ⊙ (W + P Q), in two forms with the same result.

Plain differentiation through W_eff computes the gradient of a whole weight, a product as large as
the layer's own. `merged` multiplies with W_eff once forward and once backward, and otherwise only
with r columns (thin.py). To save memory it stores neither W_eff nor an input that a norm or an
activation made: both are cheap to compute again. `activation` never computes W_eff, which is faster
if there are fewer tokens than neurons.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from ctta_bench.parts.adapters.thin import (
    Origin,
    ProductInput,
    RowBlock,
    ThinSums,
    origin_of,
    pieces,
    scale_gradient,
)
from ctta_bench.parts.adapters.weights import Factors


@torch.no_grad()
def assemble(weight: Tensor, blocks: Sequence[RowBlock]) -> Tensor:
    """The effective weight [out, in], a new tensor: `weight` with adapted row blocks."""
    whole, end = torch.empty_like(weight), 0
    for rows, factors in blocks:
        whole[end : rows.start] = weight[end : rows.start]
        _adapt_into(whole[rows], weight[rows], factors)
        end = rows.stop
    whole[end:] = weight[end:]
    return whole


def _adapt_into(whole: Tensor, weight: Tensor, factors: Factors) -> None:
    """Write c ⊙ (W + P Q) to `whole`, in pieces that stay in the cache for the second pass."""
    up = None if factors.up is None else factors.scaled_up()
    for rows in pieces(whole, 4 * whole.shape[1]):
        if factors.scale is None:
            whole[rows].copy_(weight[rows])
        else:
            torch.mul(weight[rows], factors.scale[rows], out=whole[rows])
        if up is not None and factors.down is not None:
            whole[rows].addmm_(up[rows], factors.down)


def activation(
    x: Tensor, weight: Tensor, bias: Tensor | None, blocks: Sequence[RowBlock]
) -> Tensor:
    """x [..., in] to [..., out] through the activations: (x Wᵀ + (x Qᵀ) Pᵀ) ⊙ c + b."""
    y = linear(x, weight)
    made, end = [], 0
    for rows, factors in blocks:
        piece = y[..., rows]
        if factors.up is not None and factors.down is not None:
            piece = piece + linear(linear(x, factors.down), factors.up)
        if factors.scale is not None:
            piece = piece * factors.scale.T.to(piece.dtype)
        made += [y[..., end : rows.start], piece]
        end = rows.stop
    y = torch.cat([*made, y[..., end:]], -1)
    return y if bias is None else y + bias.to(y.dtype)


def merged(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    blocks: Sequence[RowBlock],
    whole: Tensor | None = None,
) -> Tensor:
    """x [..., in] to [..., out] through W_eff: `whole`, or computed forward and backward."""
    rows = [rows for rows, _ in blocks]
    tensors = [tensor for _, factors in blocks for tensor in factors.tensors()]
    result: Tensor = _Merged.apply(x, weight, bias, whole, rows, origin_of(x), *tensors)
    return result


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        whole: Tensor | None,
        rows: list[slice],
        origin: Origin,
        *factors: Tensor | None,
    ) -> Tensor:
        dtype, scaled = _compute_dtype(x), any(scale is not None for scale in factors[::3])
        with torch.autocast(x.device.type, enabled=False):
            used = assemble(weight, _row_blocks(rows, factors)) if whole is None else whole
            offset = None if bias is None else bias.to(dtype)
            y = linear(x.to(dtype), used.to(dtype), offset)
            reliable = _reliable_rows(used, offset, dtype) if scaled else None
        ctx.rows, ctx.dtype, ctx.x_shape, ctx.x_dtype = rows, dtype, x.shape, x.dtype
        ctx.build, ctx.shared = origin.build, origin.shared
        output = y if scaled else None
        ctx.save_for_backward(weight, bias, whole, output, reliable, *factors, *origin.tensors)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        weight, bias, whole, y, reliable, *others = ctx.saved_tensors
        count = 3 * len(ctx.rows)
        blocks = _row_blocks(ctx.rows, others[:count])
        with torch.autocast(dy.device.type, enabled=False):
            dy, dx = dy.reshape(-1, dy.shape[-1]), None
            if ctx.needs_input_grad[0]:
                used = assemble(weight, blocks) if whole is None else whole
                dx = (dy @ used.to(dy.dtype)).view(ctx.x_shape).to(ctx.x_dtype)
                del used
            entered = ProductInput(Origin(ctx.build, others[count:], ctx.shared), ctx.dtype)
            thin = ThinSums(blocks, dy, entered, None if y is None else y.reshape(dy.shape))
            gradients = thin.gradients()
            for i, block in enumerate(blocks):
                if block[1].scale is not None:
                    sums = thin.row_sums(i, bias)
                    gradients[3 * i] = scale_gradient(block, sums, reliable, weight, dy, entered)
        return dx, None, None, None, None, None, *gradients


def _row_blocks(rows: Sequence[slice], factors: Sequence[Tensor | None]) -> list[RowBlock]:
    return [(own, Factors(*factors[3 * i : 3 * i + 3])) for i, own in enumerate(rows)]


def _compute_dtype(x: Tensor) -> torch.dtype:
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return x.dtype


def _reliable_rows(whole: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Rows of W_eff large enough to recover their product from output and bias."""
    limits = torch.finfo(dtype)
    least = torch.full_like(whole[:, 0], limits.tiny**0.5)
    if bias is not None:
        least = least.maximum(limits.eps**0.5 * bias.abs().to(least.dtype))
    return torch.linalg.vector_norm(whole, dim=1) > least
