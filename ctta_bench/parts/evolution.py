"""Search without gradients: an evolution strategy with cumulative step-size adaptation.

CMA-ES (Hansen and Ostermeier, 2001) with the identity as covariance. In the thousands of dimensions
of prompts its learning rates, of the order of 1 / n², hardly change the covariance along a stream,
and the matrix would take more memory than anything else. Weights, path, damping and the treatment
of injected points are those of pycma 4.4.
"""

import math

import torch
from torch import Tensor

STEEPEST = 1.0  # largest change of the logarithm of the step size


class EvolutionStrategy:
    """Minimises a function of float64 points [n] around a mean that starts at zero.

    points = search.ask()
    search.tell(points, injected, fitness)
    """

    def __init__(self, dimensions: int, population: int, step_size: float) -> None:
        half, n = (population + 1) / 2, dimensions
        raw = [math.log(half) - math.log(rank) for rank in range(1, population + 1)]
        weights = torch.tensor([w for w in raw if w > 0], dtype=torch.float64)
        self.weights = weights / weights.sum()
        self.parents_worth = float(1 / self.weights.square().sum())  # mu_eff
        self.rate = (self.parents_worth + 2) / (n + self.parents_worth + 3)
        excess = math.sqrt((self.parents_worth - 1) / (n + 1)) - 1
        self.damping = 1 + self.rate + 2 * max(0.0, excess)
        # The mean of ‖N(0, I)‖.
        self.expected = math.sqrt(2) * math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2))
        self.longest = math.sqrt(n) + 2 * n / (n + 2)
        self.population, self.step_size = population, step_size
        self.mean = torch.zeros(n, dtype=torch.float64)
        self.path = torch.zeros(n, dtype=torch.float64)

    def ask(self) -> Tensor:
        """A random population of points [population, n]."""
        drawn = torch.randn(self.population, len(self.mean), dtype=torch.float64)
        return self.mean + self.step_size * drawn

    def tell(self, asked: Tensor, injected: Tensor, fitness: Tensor) -> bool:
        """Move the mean towards the best of the asked and the injected points [k, n].

        fitness: [population + k], lower is better; values that are not finite rank last. Injected
        points that are too far from the mean to have been drawn are pulled closer. Returns False,
        and changes nothing, if too few points have a finite fitness.
        """
        fitness = torch.where(fitness.isfinite(), fitness.double(), torch.inf).cpu()
        if int(fitness.isfinite().sum()) < len(self.weights):
            return False
        best = fitness.argsort(stable=True)[: len(self.weights)]
        points = torch.cat([asked, self.pulled_closer(injected.double().cpu())])
        shift = self.weights @ points[best] - self.mean
        normalised = math.sqrt(self.parents_worth) / self.step_size * shift
        remembered = math.sqrt(self.rate * (2 - self.rate))
        self.path = (1 - self.rate) * self.path + remembered * normalised
        self.mean = self.mean + shift
        change = self.rate / self.damping * (float(self.path.norm()) / self.expected - 1)
        self.step_size *= math.exp(min(max(change, -STEEPEST), STEEPEST))
        return True

    def pulled_closer(self, points: Tensor) -> Tensor:
        """Points [k, n], moved to a likely distance from the mean if they are farther away."""
        apart = points - self.mean
        lengths = apart.norm(dim=1, keepdim=True) / self.step_size
        return self.mean + apart / (lengths / self.longest).clamp_min(1)
