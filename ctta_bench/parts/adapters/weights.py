"""Weights that adapt: a frozen matrix, and the small parameters that turn it into another."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.names import OldNames


@dataclass(frozen=True)
class Factors:
    """An adapted weight as W_eff = c ⊙ (W + P Q), beside a frozen W [out, in].

    `scale` c [out, 1], `up` P [out, r], `down` Q [r, in]; None for c = 1, and for no P Q. PAID's
    rotation is of this form (its compact WY form), LoRA's and DoRA's sums are.
    """

    scale: Tensor | None = None
    up: Tensor | None = None
    down: Tensor | None = None

    def of(self, weight: Tensor) -> Tensor:
        """W_eff [out, in], with gradient to the factors."""
        scaled = weight if self.scale is None else self.scale * weight
        if self.up is None or self.down is None:
            return scaled
        return torch.addmm(scaled, self.scaled_up(), self.down)

    def scaled_up(self) -> Tensor:
        """c ⊙ P [out, r]."""
        assert self.up is not None
        return self.up if self.scale is None else self.scale * self.up

    def tensors(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """c, P and Q."""
        return self.scale, self.up, self.down


class WeightAdapter(OldNames, nn.Module):
    """Turns a frozen weight [out, in] into the adapted one; holds its own trainable parameters.

    A subclass defines `factors`, and then its layer's gradients need no matrix product as large
    as the layer's own; or `forward`, where the adapted weight is of another form.
    """

    weight: Tensor

    def register_frozen_weight(self, weight: Tensor) -> None:
        """Keep the frozen weight, outside the saved state: it is the model's."""
        self.register_buffer("weight", weight, persistent=False)

    def factors(self) -> Factors | None:
        """What makes the effective weight, with gradient to the parameters; None: not of the form.

        In full precision: the factors are small, and what is merged must be what was computed.
        """
        return None

    def forward(self) -> Tensor:
        """The effective weight [out, in], with gradient to the adapter's parameters."""
        if type(self).factors is WeightAdapter.factors:
            raise MethodError(f"{type(self).__name__} computes no weight.")
        with torch.autocast(self.weight.device.type, enabled=False):
            factors = self.factors()
            assert factors is not None
            return factors.of(self.weight)


class LowRankWeight(WeightAdapter):
    """W + s B A (LoRA): A [rank, in] starts as a linear layer does, B [out, rank] at zero."""

    def __init__(self, weight: Tensor, rank: int, scale: float = 1.0) -> None:
        super().__init__()
        self.register_frozen_weight(weight)
        self.scale = scale
        self.down = nn.Parameter(weight.new_empty(rank, weight.shape[1]))
        self.up = nn.Parameter(weight.new_zeros(weight.shape[0], rank))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def factors(self) -> Factors:
        """At the start W to the bit."""
        return Factors(up=self.scale * self.up, down=self.down)
