"""How much each value of a parameter matters, to hold on to what matters most.

The path integral of synaptic intelligence (Zenke et al., ICML 2017, arXiv:1703.04200), closed at
every change of domain.
"""

import torch
from torch import Tensor

from ctta_bench.names import OldNames


class PathImportance(OldNames):
    """Λ: how much of the loss's decrease each value of a parameter brought, over the domains.

    `work` is Σ -g δ within the present domain, `start` the value at its beginning, `anchor` the
    value ω* at the end of the last.
    """

    def __init__(self, parameter: Tensor, damping: float) -> None:
        self.damping = damping
        self.importance = torch.zeros_like(parameter)
        self.work = torch.zeros_like(parameter)
        self.start = parameter.detach().clone()
        self.anchor = parameter.detach().clone()

    def accumulate(self, gradient: Tensor, movement: Tensor) -> None:
        """Note a step: the gradient before it, and the movement it made."""
        self.work = self.work - gradient * movement

    def close_domain(self, parameter: Tensor) -> None:
        """Λ ← max(Λ + work / (Δ² + ξ), 0) with Δ the movement over the domain; begin the next."""
        moved = parameter.detach() - self.start
        gained = self.work / (moved.square() + self.damping)
        self.importance = (self.importance + gained).clamp_min(0)
        self.work = torch.zeros_like(self.work)
        self.start = parameter.detach().clone()
        self.anchor = parameter.detach().clone()

    def penalty(self, parameter: Tensor) -> Tensor:
        """Σ Λ_i (ω_i - ω*_i)²."""
        return (self.importance * (parameter - self.anchor).square()).sum()
