"""Importance of each value of a parameter, for a penalty against forgetting.

The path integral of synaptic intelligence (Zenke et al., ICML 2017, arXiv:1703.04200), evaluated at
every change of domain.
"""

import torch
from torch import Tensor

from ctta_bench.names import OldNames


class PathImportance(OldNames):
    """Λ: the contribution of each value of a parameter to the decrease of the loss, over domains.

    `work` is Σ -g δ within the present domain, `start` the value at its beginning, `anchor` the
    value ω* at the end of the last domain.
    """

    def __init__(self, parameter: Tensor, damping: float) -> None:
        self.damping = damping
        self.importance = torch.zeros_like(parameter)
        self.work = torch.zeros_like(parameter)
        self.start = parameter.detach().clone()
        self.anchor = parameter.detach().clone()

    def accumulate(self, gradient: Tensor, movement: Tensor) -> None:
        """Add a step to `work`: the gradient before it, and the change of the parameter."""
        self.work = self.work - gradient * movement

    def close_domain(self, parameter: Tensor) -> None:
        """Λ ← max(Λ + work / (Δ² + ξ), 0) with Δ the change over the domain; begin the next."""
        moved = parameter.detach() - self.start
        gained = self.work / (moved.square() + self.damping)
        self.importance = (self.importance + gained).clamp_min(0)
        self.work = torch.zeros_like(self.work)
        self.start = parameter.detach().clone()
        self.anchor = parameter.detach().clone()

    def penalty(self, parameter: Tensor) -> Tensor:
        """Σ Λ_i (ω_i - ω*_i)²."""
        return (self.importance * (parameter - self.anchor).square()).sum()
