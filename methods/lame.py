"""LAME (Boudiaf et al., CVPR 2022, arXiv:2201.05718): predictions corrected by those of neighbours.

Official code: fiveai/LAME; the second implementation is mariodoebler/test-time-adaptation. No
parameter changes and there is no memory: for every batch, Laplacian-adjusted maximum likelihood
finds assignments Y that stay close to the predictions and agree between images of similar features.

Differs from the codes, unless `faithful: true`: the scored logits are log Y (theirs are Y itself,
whose softmax is not a confidence); and images without a distance to any other keep their prediction
(in theirs the width of the rbf kernel is then zero, and Y becomes NaN).
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from ctta_bench.method import Method, MethodHyperparameters
from ctta_bench.registry import METHODS


@METHODS.register_module("lame")
class LAME(Method):
    """Predictions of a batch, corrected to agree between neighbours in feature space."""

    display_name = "LAME"
    year = 2022
    venue = "CVPR"
    citation = "boudiaf2022lame"
    adapts_layers = "only the predictions"
    losses = "none; a fixed point in each batch"
    extra_memory = "nothing"
    paper = "https://arxiv.org/abs/2201.05718"
    checked_against = "second implementation"
    passes_per_image = (1, 0)
    search_space = {"affinity": ["knn", "rbf", "linear"], "neighbours": [1, 3, 5]}
    batch_dependent = True

    class Hyperparameters(MethodHyperparameters):
        """Hyper-parameters of LAME."""

        affinity: Literal["knn", "rbf", "linear"] = Field("knn", description="kernel of features")
        neighbours: int = Field(5, ge=1, description="k of knn, and of the width of rbf")
        symmetric: bool = Field(True, description="average the kernel with its transpose")
        weight: float = Field(1.0, ge=0, description="λ of the agreement")
        max_iterations: int = Field(100, ge=1, description="largest number of updates of Y")
        faithful: bool = Field(False, description="return Y, as the official code does")

    def setup(self) -> None:
        """Only check that the model offers features."""
        self.model.require_features(asked_by=self.title)

    def adapt(self, images: Tensor) -> Tensor:
        """Log-assignments; nothing is updated."""
        return self.predict(images)

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Log-assignments [n, classes]; their softmax is Y."""
        features = self.model.features(images)
        logits = self.model.head(features)
        with torch.autocast(self.device.type, enabled=False):
            # Distances in half precision give wrong neighbours.
            if logits.dtype != torch.float64:
                features, logits = features.float(), logits.float()
            unary = -(logits.softmax(-1) + 1e-10).log()
            log_assignments = self.solve(unary, self.kernel(normalize(features)))
        return log_assignments.exp() if self.hp.faithful else log_assignments

    def kernel(self, features: Tensor) -> Tensor:
        """Affinities W [n, n] of unit features [n, d]."""
        if self.hp.affinity == "linear":
            kernel = features @ features.T
        elif self.hp.affinity == "knn":
            kernel = nearest(features, self.hp.neighbours)
        else:
            kernel = gaussian(features, self.hp.neighbours)
            if not self.hp.faithful:
                kernel = kernel.nan_to_num(0.0)  # all images equal: no neighbours
        return (kernel + kernel.T) / 2 if self.hp.symmetric else kernel

    def solve(self, unary: Tensor, kernel: Tensor) -> Tensor:
        """Iterate Y = softmax(-U + λ W Y) until the energy is constant; returns log Y [n, C]."""
        log_y = (-unary).log_softmax(-1)
        last = torch.inf
        for iteration in range(self.hp.max_iterations):
            agreement = self.hp.weight * kernel @ log_y.exp()
            log_y = (agreement - unary).log_softmax(-1)
            # In float32 the energy becomes constant by rounding, sooner on some processors.
            y = log_y.double().exp()
            energy = float((y * (unary - agreement + y.clamp_min(1e-20).log())).sum())
            if iteration > 1 and abs(energy - last) <= 1e-8 * abs(last):
                break
            last = energy
        return log_y


def nearest(features: Tensor, k: int) -> Tensor:
    """1 for the k nearest others of each point; the nearest point counts as the point itself."""
    distances = all_distances(features)
    found = distances.topk(min(k + 1, len(features)), largest=False).indices[:, 1:]
    return torch.zeros_like(distances).scatter_(1, found, 1.0)


def gaussian(features: Tensor, k: int) -> Tensor:
    """exp(-d² / 2σ²), where σ is the mean distance to the k-th nearest, counting the point."""
    distances = all_distances(features)
    sigma = distances.topk(min(k, len(features)), largest=False).values[:, -1].mean()
    return (-distances.square() / (2 * sigma.square())).exp()


def all_distances(features: Tensor) -> Tensor:
    """Euclidean distances [n, n], from differences: by products, equal points would not get 0."""
    return torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
