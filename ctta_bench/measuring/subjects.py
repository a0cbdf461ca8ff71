"""What is timed in turns: forward and backward passes of the plain model, and steps of methods."""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ctta_bench.measuring.workload import Workload
from ctta_bench.method import Method, softmax_entropy


class PlainModel:
    """The source model without a method: its forward pass, and its backward pass."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.network = workload, workload.model()
        self.parameters = dict(self.network.network.named_parameters())
        self.norms = tuple(self.network.norm_parameters())
        self._batches = itertools.cycle(workload.batches)

    def forward(self) -> Tensor:
        """Logits of one batch, without gradients."""
        with torch.no_grad(), autocast(self.workload):
            return self.network(next(self._batches))

    def backward(self, names: Sequence[str]) -> Sequence[Tensor]:
        """A forward pass, and the gradients of the entropy with respect to parameters `names`."""
        learning = [self.parameters[name] for name in names]
        self.network.requires_grad_(False)
        for parameter in learning:
            parameter.requires_grad_(True)
        with torch.enable_grad(), autocast(self.workload):
            logits = self.network(next(self._batches))
            loss = softmax_entropy(self.network.rows(logits)).mean()
        return torch.autograd.grad(loss, learning, allow_unused=True)

    def shared_with(self, method: Method) -> tuple[str, ...]:
        """Names of parameters that a method trains and that the plain model has as well.

        If there are none (adapters, prompts): those of the norm layers, because the gradient then
        passes through the whole network, too.
        """
        learning = {id(p) for p in method.trainable.values()}
        named = method.model.network.named_parameters()
        shared = tuple(
            name
            for name, value in named
            if id(value) in learning
            and name in self.parameters
            and value.shape == self.parameters[name].shape
        )
        return shared or self.norms or tuple(self.parameters)


class MethodSteps:
    """Steps of a method on the batches of a workload, with the number of passes of each turn.

    A turn is one step, or as many steps as the method takes for one update.
    """

    def __init__(self, workload: Workload, name: str) -> None:
        self.workload, self.name, self.method = workload, name, workload.method(name)
        self._batches = itertools.cycle(workload.batches)
        every = int(getattr(self.method.hp, "update_every", 1))
        self.batches = max(1, -(-every // workload.batch_size))
        self.images = self.batches * workload.batch_size
        self.passes: list[tuple[int, int]] = []

    def turn(self) -> None:
        """Do the steps of one turn."""
        counts = self.method.passes
        before = counts.forward_images, counts.backward_images
        for batch in itertools.islice(self._batches, self.batches):
            self.method(batch)
        after = counts.forward_images, counts.backward_images
        self.passes.append((after[0] - before[0], after[1] - before[1]))

    def extra_parameters(self) -> int:
        """Number of parameters in addition to the source model's: adapters, prompts."""
        own = {id(p) for p in self.method.model.network.parameters()}
        in_network = sum(p.numel() for p in self.method.model.network.parameters())
        outside = sum(p.numel() for p in self.method.trainable.values() if id(p) not in own)
        return in_network - self.method.model.source_parameters + outside


def autocast(workload: Workload) -> contextlib.AbstractContextManager[Any]:
    """The autocast context for a workload's precision, as in methods."""
    if workload.precision in ("float32", "float64"):
        return contextlib.nullcontext()
    return torch.autocast(workload.device.type, dtype=getattr(torch, workload.precision))
