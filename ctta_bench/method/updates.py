"""Losses, and updates of parameters, that many methods share."""

from collections.abc import Iterable

import torch
from torch import Tensor


def softmax_entropy(logits: Tensor) -> Tensor:
    """Shannon entropy [n] in nats of the softmax of logits [n, classes], in float32 or better.

    It is between 0 and ln(classes), and differentiable: `softmax_entropy(model(images)).mean()`.
    """
    log_p = logits.log_softmax(-1, dtype=_at_least_float32(logits))
    return -(log_p.exp() * log_p).sum(-1)


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy [n] in nats of softmax(logits) against softmax(target), both [n, classes].

    In float32 or better, with gradients to both.
    """
    log_p = logits.log_softmax(-1, dtype=_at_least_float32(logits))
    return -(target.softmax(-1, dtype=_at_least_float32(target)) * log_p).sum(-1)


def symmetric_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean of the cross-entropies [n] in both directions, of logits and target [n, classes]."""
    return (soft_cross_entropy(logits, target) + soft_cross_entropy(target, logits)) / 2


@torch.no_grad()
def ema_update(teacher: Iterable[Tensor], student: Iterable[Tensor], momentum: float) -> None:
    """θ' ← α θ' + (1 - α) θ with α = `momentum` in [0, 1], in place; tensors in the same order."""
    torch._foreach_lerp_(list(teacher), list(student), 1 - momentum)


@torch.no_grad()
def pull_to_source(parameters: Iterable[Tensor], source: Iterable[Tensor], momentum: float) -> None:
    """θ ← m θ + (1 - m) θ_source with m = `momentum` in [0, 1], in place (ROID, CMF)."""
    torch._foreach_lerp_(list(parameters), list(source), 1 - momentum)


@torch.no_grad()
def stochastic_restore(
    parameters: Iterable[Tensor], source: Iterable[Tensor], probability: float
) -> None:
    """Set each scalar of `parameters` back to its value in `source` with `probability`, in place.

    One independent draw per scalar (CoTTA, arXiv:2203.13591).
    """
    for parameter, value in zip(parameters, source, strict=True):
        chosen = torch.empty_like(parameter, dtype=torch.bool).bernoulli_(probability)
        parameter.copy_(torch.where(chosen, value, parameter))


def _at_least_float32(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32
