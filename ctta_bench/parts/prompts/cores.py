"""A set of prompts that grows, each with the moments of the images it was made for (DPCore)."""

import torch
from torch import Tensor


def moments(features: Tensor) -> tuple[Tensor, Tensor | None]:
    """Mean and unbiased deviation [d] of features [n, d]; no deviation of a single image."""
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    return features.mean(0), features.std(0) if len(features) > 1 else None


class PromptCores:
    """Means and deviations [cores, d], and prompts [cores, N, d]; empty at first.

    like: prompts [N, d]; std_weight: λ of the deviation in distances; temperature: τ of weights.
    """

    def __init__(self, like: Tensor, std_weight: float, temperature: float) -> None:
        self.std_weight, self.temperature = std_weight, temperature
        self.means, self.stds = like.new_zeros(0, like.shape[1]), like.new_zeros(0, like.shape[1])
        self.prompts = like.new_zeros(0, *like.shape)

    def __len__(self) -> int:
        return len(self.means)

    def weights(self, mean: Tensor, std: Tensor | None) -> Tensor:
        """How much of each core goes into a mixture [cores], the more the nearer; sums to 1."""
        apart = torch.linalg.vector_norm(self.means - mean, dim=1)
        if std is not None:
            apart = apart + self.std_weight * torch.linalg.vector_norm(self.stds - std, dim=1)
        return (-apart / self.temperature).softmax(0)

    def mixture(self, weights: Tensor) -> Tensor:
        """Prompts [N, d] of all cores, weighted."""
        return torch.einsum("c,cnd->nd", weights, self.prompts)

    def add(self, mean: Tensor, std: Tensor, prompts: Tensor) -> None:
        """One core more."""
        self.means = torch.cat([self.means, mean[None]])
        self.stds = torch.cat([self.stds, std[None]])
        self.prompts = torch.cat([self.prompts, prompts[None]])

    def move(self, rates: Tensor, mean: Tensor, std: Tensor | None, prompts: Tensor) -> None:
        """Each core towards these moments and prompts, by its rate [cores].

        Deviations only grow, as in the official code.
        """
        rates = rates[:, None]
        self.means = self.means + rates * (mean - self.means)
        if std is not None:
            self.stds = self.stds + rates * (std - self.stds).clamp_min(0)
        self.prompts = self.prompts + rates[..., None] * (prompts - self.prompts)
