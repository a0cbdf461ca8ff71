"""Adapted weights: a frozen matrix, and a few parameters that change it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctta_bench.errors import MethodError
from ctta_bench.names import OldNames


@dataclass(frozen=True)
class Factors:
    """The factors of an adapted weight W_eff = c ⊙ (W + P Q), without the frozen W [out, in].

    `scale` c [out, 1], `up` P [out, r], `down` Q [r, in]; None for c = 1, and for no P Q. PAID's
    rotation (in its compact WY form) and the sums of LoRA and DoRA have this form.
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
    """Base of adapters: a frozen weight [out, in] and the trainable parameters that change it.

    A subclass calls `register_frozen_weight` and defines `factors`, which gives fast gradients; or
    `forward`, if its adapted weight has another form than `Factors`.
    """

    weight: Tensor

    def register_frozen_weight(self, weight: Tensor) -> None:
        """Set the frozen weight as a buffer; it is not saved with the adapter."""
        self.register_buffer("weight", weight, persistent=False)

    def factors(self) -> Factors | None:
        """The factors of the effective weight, with gradient; None if it has another form.

        They are computed in full precision, so that a merged weight equals the computed one.
        """
        return None

    def forward(self) -> Tensor:
        """The effective weight [out, in], with gradient to the adapter's parameters."""
        if type(self).factors is WeightAdapter.factors:
            raise MethodError(f"{type(self).__name__}: define factors() or forward().")
        with torch.autocast(self.weight.device.type, enabled=False):
            factors = self.factors()
            assert factors is not None
            return factors.of(self.weight)


class LowRankWeight(WeightAdapter):
    """W + s B A (LoRA): A [rank, in] starts as torch's linear layers do, B [out, rank] at zero."""

    def __init__(self, weight: Tensor, rank: int, scale: float = 1.0) -> None:
        super().__init__()
        self.register_frozen_weight(weight)
        self.scale = scale
        self.down = nn.Parameter(weight.new_empty(rank, weight.shape[1]))
        self.up = nn.Parameter(weight.new_zeros(weight.shape[0], rank))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def factors(self) -> Factors:
        """The factors; at the start W_eff is bit-identical to W."""
        return Factors(up=self.scale * self.up, down=self.down)
