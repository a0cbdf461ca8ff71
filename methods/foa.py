"""FOA (Niu et al., ICML 2024, arXiv:2404.01650): prompts found by an evolution strategy, without a
backward pass, and features shifted to the source mean. Its components: `foa_shift`, the shift only,
and `foa_bp`, the same loss and shift with gradients of the norm layers.

Official code: mr-eggplant/FOA. Each batch is predicted with 28 candidates: 27 drawn, and the best
of the previous batch. The best of them on the batch itself is scored. Differs from the official
code: CMA-ES adapts its step size only (see parts/evolution.py; theirs, pycma, has a matrix that
stays the identity up to 1e-4 in 2,304 dimensions, and changed its step-size rule in 4.5); source
statistics come from the benchmark's source set (theirs: from the clean versions of the test
images); for a single image, on which theirs fails, the fitness is the entropy; there is no reset at
new domains.
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from ctta_bench.method import OptimizerHyperparameters, softmax_entropy
from ctta_bench.parts.evolution import EvolutionStrategy
from ctta_bench.parts.families.shifting import ShiftHyperparameters, ShiftMethod, distance
from ctta_bench.parts.prompts.class_token import prompted, start_prompts
from ctta_bench.registry import METHODS

FULL_BATCH = 64  # batch size for which the weight of the distance is given


@METHODS.register_module("foa_shift")
class FOAShift(ShiftMethod):
    """Features shifted by the difference between source mean and running mean of the stream."""

    display_name = "FOA shift"
    year = 2024
    venue = "ICML"
    citation = "niu2024foa"
    adapts_layers = "the mean of the features"
    losses = "none"
    extra_memory = "source statistics and a feature mean"
    paper = "https://arxiv.org/abs/2404.01650"
    checked_against = "official code"
    source_access = "unlabelled"
    passes_per_image = (1, 0)
    search_space = {"history": [0.8, 0.9, 0.95, 0.99], "shift_weight": (0.0, 1.0)}

    class Hyperparameters(ShiftHyperparameters):
        """Hyper-parameters of the shift."""

    @torch.no_grad()
    def adapt(self, images: Tensor) -> Tensor:
        """Logits of the shifted features; then the running mean is updated."""
        features = self.forward_features(images)[:, -1]
        logits = self.shifted_logits(features)
        self.update_statistics(features)
        return logits


@METHODS.register_module("foa_bp")
class FOABP(ShiftMethod):
    """FOA's loss, on means, minimised over all norm layers by gradients; and a feature shift."""

    display_name = "FOA-BP"
    year = 2024
    venue = "ICML"
    citation = "niu2024foa"
    adapts_layers = "norm layers and the mean of the features"
    losses = "entropy and distance of feature moments"
    extra_memory = "source statistics and a feature mean"
    paper = "https://arxiv.org/abs/2404.01650"
    checked_against = "official code"
    source_access = "unlabelled"
    passes_per_image = (1, 1)
    search_space = {"lr": (1e-5, 1e-1), "distance_weight": (1.0, 100.0)}
    all_blocks = True
    exempt = {"learning_rate_zero_is_source": "features are shifted without any learning"}

    class Hyperparameters(OptimizerHyperparameters, ShiftHyperparameters):
        """Hyper-parameters of the form with gradients."""

        lr: float = Field(5e-3, ge=0, description="learning rate")
        distance_weight: float = Field(30.0, ge=0, description="λ of the distance")

    def setup(self) -> None:
        """Adapt the affine parameters of every norm layer."""
        super().setup()
        self.adapt_only(self.model.norm_parameters())
        self.optimizer = self.build_optimizer()

    def adapt(self, images: Tensor) -> Tensor:
        """One step; returns the shifted logits from before the step."""
        tokens = self.forward_features(images)
        loss = softmax_entropy(self.model.head(tokens[:, -1])).mean()
        if len(images) > 1:
            loss = loss + self.hp.distance_weight * distance(tokens, self.source)
        logits = self.shifted_logits(tokens[:, -1].detach())
        if self.step(loss):
            self.update_statistics(tokens[:, -1])
        return logits


@METHODS.register_module("foa")
class FOA(ShiftMethod):
    """Prompts sampled by an evolution strategy, the best for each batch; and a feature shift."""

    display_name = "FOA"
    year = 2024
    venue = "ICML"
    citation = "niu2024foa"
    adapts_layers = "prompts, by search, and the mean of the features"
    losses = "entropy and distance of feature moments, searched"
    extra_memory = "source statistics and the search's mean"
    paper = "https://arxiv.org/abs/2404.01650"
    checked_against = "official code"
    source_access = "unlabelled"
    passes_per_image = (28, 0)
    search_space = {"step_size": (0.01, 1.0), "distance_weight": (0.01, 10.0)}
    all_blocks = True
    batch_dependent = True
    exempt = {"scored_logits": "the candidate that is best on the batch itself is scored"}

    class Hyperparameters(ShiftHyperparameters):
        """Hyper-parameters of FOA."""

        prompts: int = Field(3, ge=1, description="P, prompt tokens")
        candidates: int = Field(27, ge=4, description="K - 1, candidates drawn per batch")
        step_size: float = Field(1.0, gt=0, description="σ of the first draws")
        distance_weight: float = Field(0.4, ge=0, description="λ of the distance")

    def setup(self) -> None:
        """Random prompts after the class token, and a search that starts at zero."""
        super().setup()
        self.prompts = nn.Parameter(start_prompts(self.model, self.hp.prompts))
        self.adapt_only({"prompts": self.prompts})
        dimensions = self.prompts.numel()
        self.search = EvolutionStrategy(dimensions, self.hp.candidates, self.hp.step_size)

    def predict(self, images: Tensor) -> Tensor:
        """Shifted logits with the best prompts of the previous batch."""
        with torch.no_grad(), prompted(self.model, self.prompts):
            return super().predict(images)

    @torch.no_grad()
    def adapt(self, images: Tensor) -> Tensor:
        """Evaluate all candidates and update the search; returns the best one's shifted logits."""
        asked, last = self.search.ask(), self.prompts.detach().flatten()[None]
        fitness, features = [], []
        for candidate in torch.cat([asked.to(last), last]):
            with prompted(self.model, candidate.view_as(self.prompts)):
                tokens = self.forward_features(images)
            fitness.append(self.fitness(tokens))
            features.append(tokens[:, -1])
        values = torch.stack(fitness)
        if not self.search.tell(asked, last, values):
            self.skip_update()
            return self.predict(images)
        best = int(values.nan_to_num(torch.inf).argmin())
        self.loss = values[best]
        self.prompts.copy_(
            (asked.to(last)[best] if best < len(asked) else last[0]).view_as(self.prompts)
        )
        logits = self.shifted_logits(features[best])
        self.update_statistics(torch.stack(features))
        return logits

    def fitness(self, tokens: Tensor) -> Tensor:
        """Weighted squared distance from the source moments, plus the sum of the entropies."""
        entropy = softmax_entropy(self.model.head(tokens[:, -1])).sum()
        if len(tokens) < 2:
            return entropy
        weight = self.hp.distance_weight * len(tokens) / FULL_BATCH
        return weight * len(self.source.mean) * distance(tokens, self.source) + entropy
