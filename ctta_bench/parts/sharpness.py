"""Sharpness-aware minimisation: the gradient is taken at the sharpest point nearby.

Foret et al., ICLR 2021, arXiv:2010.01412; SAR uses it for the entropy.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def ascend(parameters: Sequence[Tensor], radius: float) -> list[Tensor]:
    """θ ← θ + ρ g / ‖g‖ over all parameters with a gradient; returns copies of the old θ."""
    moving = [(p, p.grad) for p in parameters if p.grad is not None]
    values, gradients = [p.data for p, _ in moving], [g for _, g in moving]
    before = [p.detach().clone() for p in parameters]
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    scale = radius / (norm + 1e-12)
    torch._foreach_add_(values, list(torch._foreach_mul(gradients, scale)))
    return before


@torch.no_grad()
def descend(parameters: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Return exactly to the old θ."""
    torch._foreach_copy_(list(parameters), list(before))
