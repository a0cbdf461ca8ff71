"""Fisher information of parameters, and the penalty on their changes that it weighs.

As in EATA (Niu et al., ICML 2022, arXiv:2204.02610): the labels are the model's own predictions,
and the squared gradient is that of a whole batch, so that the scale depends on the batch size.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ctta_bench.errors import DataError


def fisher_of_source(
    model: Callable[[Tensor], Tensor],
    parameters: Sequence[Tensor],
    source: Any,
    hp: Any,
    *,
    asked_by: str,
    instead: str,
) -> tuple[list[Tensor], int]:
    """`fisher_information` of source data; hp: with `fisher_batch_size` and `source_samples`.

    Raises DataError without a source image, which names the method and another one.
    """
    batches = source.batches(hp.fisher_batch_size)
    fisher, used = fisher_information(model, parameters, batches, hp.source_samples)
    if not used:
        raise DataError(
            f"{asked_by} needs source images for its Fisher information, and there are none; use "
            f"`{instead}`, or a benchmark with a source set."
        )
    return fisher, used


@torch.enable_grad()
def fisher_information(
    model: Callable[[Tensor], Tensor],
    parameters: Sequence[Tensor],
    batches: Iterable[Tensor],
    samples: int,
) -> tuple[list[Tensor], int]:
    """Mean over batches of the squared gradient, a tensor for each parameter, and images used.

    The gradient is that of the cross-entropy on source images [n, 3, H, W], of which the first
    `samples` are used; the last batch may be smaller. Without any image all are 0.
    """
    fisher = [torch.zeros_like(parameter) for parameter in parameters]
    count = used = 0
    for images in batches:
        some = images[: samples - used]
        logits = model(some)
        loss = cross_entropy(logits, logits.argmax(-1))
        for total, gradient in zip(fisher, torch.autograd.grad(loss, parameters), strict=True):
            total += gradient.square()
        count, used = count + 1, used + len(some)
        if used >= samples:
            break
    torch._foreach_div_(fisher, max(count, 1))
    return fisher, used


def weighted_drift(
    fisher: Iterable[Tensor], parameters: Iterable[Tensor], start: Iterable[Tensor]
) -> Tensor:
    """Σ F (θ - θ_start)², a scalar."""
    moved = zip(fisher, parameters, start, strict=True)
    return torch.stack([(f * (p - before).square()).sum() for f, p, before in moved]).sum()
