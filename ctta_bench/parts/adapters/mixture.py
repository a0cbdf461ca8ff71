"""Mixtures of low-rank experts after the blocks of a SegFormer (BECoTTA, arXiv:2402.08712).

Each of E experts is a down-projection, GELU and an up-projection. A router of the image's domain
scores them on every token; the k best act, weighted by a softmax.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, softplus

NOISE = 0.01  # least deviation of the noise on scores


class Routing:
    """What the mixtures of a network share: the images' domains, and what they saw."""

    def __init__(self, *, faithful: bool = False) -> None:
        self.faithful = faithful
        self.noisy = faithful
        self.domains: Tensor | None = None  # int64 [n]; None: the first one
        self.seen: list[Tensor] | None = None  # scores [n, experts] of each mixture, if a list
        self.draw: Callable[[Tensor], Tensor] = torch.randn_like


class Mixture(nn.Module):
    """Tokens [n, T, d] plus the weighted output of the chosen experts.

    Scores are averaged over the tokens of an image. `routing.faithful` is the released code: sums
    over the tokens, scaled over the batch, always with noise; the first k experts for every image,
    with the weights of the first image, which have no gradient.
    """

    def __init__(
        self, width: int, rank: int, *, experts: int, chosen: int, domains: int, routing: Routing
    ) -> None:
        super().__init__()
        self.experts, self.chosen, self.routing = experts, chosen, routing
        self.down = nn.Parameter(torch.randn(experts, rank, width) * width**-0.5)
        self.down_bias = nn.Parameter(torch.zeros(experts, rank))
        self.up = nn.Parameter(torch.zeros(experts, width, rank))  # so that it starts as nothing
        self.up_bias = nn.Parameter(torch.zeros(experts, width))
        self.routers = nn.Parameter(torch.randn(domains, 2 * experts, width) * width**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [n, T, d]."""
        weights, numbers = self.gates(self.scores(tokens))
        down, up = self.down[numbers], self.up[numbers]  # [n, k, rank, d], [n, k, d, rank]
        hidden = torch.einsum("ntd,nkrd->nktr", tokens, down)
        hidden = gelu(hidden + self.down_bias[numbers].unsqueeze(2)) * weights[..., None, None]
        shift = (weights.unsqueeze(-1) * self.up_bias[numbers]).sum(1, keepdim=True)
        return tokens + torch.einsum("nktr,nkdr->ntd", hidden, up) + shift

    def scores(self, tokens: Tensor) -> Tensor:
        """Scores [n, experts]: of each expert by the router of the image's domain."""
        domains = self.routing.domains
        routers = self.routers[:1] if domains is None else self.routers[domains]
        scores = tokens @ routers[:, : self.experts].mT
        if self.routing.noisy:
            deviation = softplus(tokens @ routers[:, self.experts :].mT) + NOISE
            scores = scores + self.routing.draw(scores) * deviation
        if self.routing.seen is not None:
            self.routing.seen.append(scores.mean(1))
        return scores.sum(1) if self.routing.faithful else scores.mean(1)

    def gates(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [n, k] of scores [n, experts], and the numbers [n, k] of their experts."""
        best = scores.topk(self.chosen, dim=1)
        if not self.routing.faithful:
            return best.values.softmax(1), best.indices
        values = best.values.detach()
        if len(values) > 1:
            values = (values - values.min()) / (values.max() - values.min())
        numbers = torch.arange(self.chosen, device=scores.device)
        shape = values.shape
        return values[:1].softmax(1).expand(shape), numbers.expand(shape)


def mix(block: Any, inputs: Any, output: Tensor) -> Tensor:
    """A hook after a block: its mixture."""
    mixed: Tensor = block.mixture(output)
    return mixed
