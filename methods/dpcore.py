"""DPCore (Zhang et al., ICML 2025, arXiv:2406.10737): a growing set of cores, each a prompt with
the feature statistics of the images for which it was learnt.

Official code: yunbeizhang/DPCore, for ImageNet only. Each batch is compared with all cores. Their
prompts are mixed by the distance of the statistics. If this mixture brings the batch's features
clearly closer to the source's, the batch is scored with it, the mixture is improved by one step,
and the cores move towards it. Otherwise new prompts are learnt on the batch in 50 steps, always
from the same random start; the batch is scored in the last of these passes, and the prompts become
a new core. Learning rates are those of single steps: every batch has a new optimiser.

Differs from the official code, unless `faithful: true`: source images are filtered by the entropy
of the source model (theirs: of the model with random prompts); a batch smaller than half the
largest so far makes no core. Always: a single image has no deviation, so only its mean counts
(theirs: NaN); the mixture's forward pass is made once, not twice. In theirs the stream lacks the
normalisation of the source images: `stats_preproc`.
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ctta_bench.method import Method, OptimizerHyperparameters
from ctta_bench.parts.prompts.class_token import check_class_token, prompted, start_prompts
from ctta_bench.parts.source.moments import (
    alignment_loss,
    batch_moments,
    statistics_of_certain,
)
from ctta_bench.registry import METHODS

moments = batch_moments  # its name in 0.1.0


class PromptCores:
    """The cores: means and deviations [cores, d], and prompts [cores, N, d]; none at first.

    like: prompts [N, d]; std_weight: λ of the deviation in distances; temperature: τ of weights.
    """

    def __init__(self, like: Tensor, std_weight: float, temperature: float) -> None:
        self.std_weight, self.temperature = std_weight, temperature
        self.means, self.stds = like.new_zeros(0, like.shape[1]), like.new_zeros(0, like.shape[1])
        self.prompts = like.new_zeros(0, *like.shape)

    def __len__(self) -> int:
        return len(self.means)

    def weights(self, mean: Tensor, std: Tensor | None) -> Tensor:
        """Weights [cores] of a mixture: larger for nearer cores; their sum is 1."""
        apart = torch.linalg.vector_norm(self.means - mean, dim=1)
        if std is not None:
            apart = apart + self.std_weight * torch.linalg.vector_norm(self.stds - std, dim=1)
        return (-apart / self.temperature).softmax(0)

    def mixture(self, weights: Tensor) -> Tensor:
        """Weighted sum [N, d] of the prompts of all cores."""
        return torch.einsum("c,cnd->nd", weights, self.prompts)

    def add(self, mean: Tensor, std: Tensor, prompts: Tensor) -> None:
        """Add a core."""
        self.means = torch.cat([self.means, mean[None]])
        self.stds = torch.cat([self.stds, std[None]])
        self.prompts = torch.cat([self.prompts, prompts[None]])

    def move(self, rates: Tensor, mean: Tensor, std: Tensor | None, prompts: Tensor) -> None:
        """Move each core towards these moments and prompts by its rate [cores].

        Deviations only grow, as in the official code.
        """
        rates = rates[:, None]
        self.means = self.means + rates * (mean - self.means)
        if std is not None:
            self.stds = self.stds + rates * (std - self.stds).clamp_min(0)
        self.prompts = self.prompts + rates[..., None] * (prompts - self.prompts)


@METHODS.register_module("dpcore")
class DPCore(Method):
    """Prompts from a set that grows with the domains, aligned with the source features."""

    display_name = "DPCore"
    year = 2025
    venue = "ICML"
    citation = "zhang2025dpcore"
    adapts_layers = "a growing set of prompts"
    losses = "distance of feature moments to the source's"
    extra_memory = "prompts with their moments, source statistics"
    paper = "https://arxiv.org/abs/2406.10737"
    checked_against = "official code"
    source_access = "unlabelled"
    batch_dependent = True
    passes_per_image = (2, 1)  # for a batch that the cores suit; else 52 and 50
    search_space = {"lr": (1e-3, 1.0), "steps": [10, 25, 50]}
    checked_with = {"similarity": 1e9, "steps": 1}  # one core, many batches
    exempt = {"learning_rate_zero_is_source": "prompts change the attention from the start"}

    class Hyperparameters(OptimizerHyperparameters):
        """Hyper-parameters of DPCore."""

        optimizer: Literal["sgd", "adam", "adamw"] = Field("adamw", description="update rule")
        lr: float = Field(0.1, ge=0, description="learning rate of the prompts")
        weight_decay: float = Field(0.01, ge=0, description="weight decay")
        prompts: int = Field(8, ge=1, description="N, prompt tokens")
        std_weight: float = Field(1.0, ge=0, description="λ of the deviation in all distances")
        temperature: float = Field(3.0, gt=0, description="τ of the cores' weights")
        similarity: float = Field(
            0.8, ge=0, description="ρ: no new core if the mixture's distance is below ρ × the raw"
        )
        core_rate: float = Field(0.999, ge=0, le=1, description="α, rate at which cores move")
        steps: int = Field(50, ge=1, description="steps of new prompts")
        source_samples: int = Field(300, ge=2, description="source images for the statistics")
        max_entropy: float = Field(
            1.0, gt=0, le=1, description="largest of a source image, of ln C"
        )
        stats_preproc: Literal["stream", "official"] = Field(
            "stream", description="of source images: as the stream, or as in the model's training"
        )
        faithful: bool = Field(False, description="filter and cores as in the official code")

    def setup(self) -> None:
        """Random prompts after the class token, and no core."""
        check_class_token(self.model, asked_by=self.title)
        start = start_prompts(self.model, self.hp.prompts)
        self.start_prompts, self.prompts = start.clone(), nn.Parameter(start)
        self.adapt_only({"prompts": self.prompts})
        self.optimizer = self.build_optimizer()
        self.cores = PromptCores(start, self.hp.std_weight, self.hp.temperature)
        self.largest_batch = 0

    def prepare(self, source: Any) -> None:
        """Mean and deviation of the features of source images with low entropy."""
        self.source = statistics_of_certain(
            self.model,
            source,
            samples=self.hp.source_samples,
            max_entropy=self.hp.max_entropy,
            normalised=self.hp.stats_preproc == "official",
            asked=self.predict if self.hp.faithful else None,
        )
        self.source_used = self.source.images

    def adapt(self, images: Tensor) -> Tensor:
        """One step on the mixture of cores, or many on new prompts; logits of the last pass."""
        with torch.no_grad():
            raw = self.model.features(images)
        self.largest_batch = max(self.largest_batch, len(images))
        logits = self.from_cores(images, raw) if len(self.cores) else None
        return self.new_prompts(images, raw) if logits is None else logits

    def from_cores(self, images: Tensor, raw: Tensor) -> Tensor | None:
        """Logits with the mixture, and one step; None if it is too far for raw features [n, d]."""
        weights = self.cores.weights(*batch_moments(raw))
        self.begin(self.cores.mixture(weights))
        features, logits = self.features_and_logits(images)
        loss = self.distance(features)
        if not bool(loss < self.hp.similarity * self.distance(raw)):
            return None
        if self.step(loss):
            rates = self.hp.core_rate * weights
            self.cores.move(rates, *batch_moments(features.detach()), self.prompts.detach())
        return logits

    def new_prompts(self, images: Tensor, raw: Tensor) -> Tensor:
        """Learn prompts from the random ones in many steps, and make them a core."""
        self.begin(self.start_prompts)
        stepped = False
        for _ in range(self.hp.steps):
            features, logits = self.features_and_logits(images)
            loss = self.distance(features)
            stepped = self.step(loss) or stepped
            if not bool(loss.isfinite()):
                break
        if stepped and (self.hp.faithful or 2 * len(images) >= self.largest_batch):
            mean, std = batch_moments(raw)
            self.cores.add(mean, self.source.std if std is None else std, self.prompts.detach())
        return logits

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits with the mixture of cores for these images; without cores, with random prompts."""
        prompts = self.start_prompts
        if len(self.cores):
            prompts = self.cores.mixture(
                self.cores.weights(*batch_moments(self.model.features(images)))
            )
        with prompted(self.model, prompts):
            return self.model(images)

    def features_and_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits with the prompts."""
        with prompted(self.model, self.prompts):
            return self.model.features_and_logits(images)

    def distance(self, features: Tensor) -> Tensor:
        """Distance of features [n, d] from the source's; a single image has no deviation."""
        return alignment_loss(features, self.source, self.hp.std_weight)

    @torch.no_grad()
    def begin(self, prompts: Tensor) -> None:
        """Set the prompts, and make a new optimiser."""
        self.prompts.copy_(prompts)
        self.optimizer = self.build_optimizer()
