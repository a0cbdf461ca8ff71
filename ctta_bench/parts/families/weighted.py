"""Self-training with sample weights by certainty and diversity: the base class of ROID and CMF.

Both select the images of a batch whose prediction differs from the average, and train on soft
likelihood ratios and on consistency with a view. Each then pulls the model to the source weights by
its own rule. Scored logits are corrected by the class prior of the batch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ctta_bench.method import NEWER, Method, OptimizerHyperparameters, softmax_entropy
from ctta_bench.method.updates import symmetric_cross_entropy
from ctta_bench.names import renamed
from ctta_bench.parts.views.batch import light_view

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)

BATCH_SHARE = 0.1  # share of a batch in the average prediction
CLIPPED = 0.99  # largest probability in a likelihood ratio


class SampleWeightingHyperparameters(OptimizerHyperparameters):
    """Hyper-parameters of ROID and CMF."""

    nesterov: bool = Field(True, description="Nesterov's momentum (SGD)")
    weighting: bool = Field(True, description="sample weights, and exclusion of images")
    consistency: bool = Field(True, description="the loss of consistency with a view")
    temperature: float = Field(1 / 3, gt=0, description="τ of the sample weights")
    prediction_rate: float = Field(
        BATCH_SHARE,
        ge=0,
        le=1,
        description="share of a batch in the average prediction, the reference of diversity",
        json_schema_extra=NEWER,
    )
    prior: Literal["logits", "probabilities", "off"] = Field(
        "logits", description="outputs that are multiplied by the batch's smoothed prior"
    )


class SampleWeightingMethod(Method):
    """Self-training of all norm layers with sample weights; subclasses pull to the source weights.

    A subclass defines `adapt`; its hyper-parameters derive from `SampleWeightingHyperparameters`.
    """

    search_space = {"lr": (1e-5, 1e-1), "prior": ["logits", "probabilities", "off"]}
    exempt = {
        "declared_passes": "the number of images in the second pass depends on the batch",
        "learning_rate_zero_is_source": "scores are multiplied by the batch's prior",
    }
    average: Tensor
    augment: Callable[[Tensor, tuple[int, int] | None], Tensor]

    def setup(self) -> None:
        """Adapt the affine parameters of every norm layer; the average prediction is uniform."""
        self.batch_dependent = self.model.use_batch_statistics() or self.hp.prior != "off"
        self.adapt_only(self.model.norm_parameters())
        self.optimizer = self.build_optimizer()
        self.source = [parameter.detach().clone() for parameter in self.trainable.values()]
        classes = self.model.num_classes
        self.average = self.model.mean.new_full((classes,), 1 / classes)
        self.full_batch = 0
        self.augment = light_view

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits corrected by the class prior of the batch."""
        return self.corrected(self.model(images))

    def update(self, images: Tensor, logits: Tensor) -> bool:
        """One step on the weighted images of a batch, then the EMA of the average prediction.

        images: [n, 3, H, W]; logits: [n, classes] of them, with gradient. Returns False, and counts
        a skipped update, if all weights are 0 or the loss is not finite.
        """
        entropy = softmax_entropy(logits)
        p = logits.detach().softmax(-1, dtype=entropy.dtype)
        weights = self.sample_weights(p, entropy.detach())
        self.full_batch = max(self.full_batch, len(images))
        if not bool((weights > 0).any()):
            self.skip_update()
            return False
        if not self.step(self.total_loss(images, logits, weights)):
            return False
        rate = self.hp.prediction_rate
        self.average = (1 - rate) * self.average + rate * p.mean(0)
        return True

    def sample_weights(self, p: Tensor, entropy: Tensor) -> Tensor:
        """Sample weights [n] of probabilities p [n, classes] and entropies [n] in nats.

        A weight is 0, which excludes the image, or in [1, e^(1/τ)]. All are 0 if all images are
        equal or one is not finite.
        """
        if not self.hp.weighting:
            return torch.ones_like(entropy) * entropy.isfinite().all()
        diversity = within_range(1 - cosine_similarity(self.average[None], p))
        weights = (diversity * within_range(-entropy) / self.hp.temperature).exp()
        # Comparisons with NaN are false.
        return torch.where(diversity >= diversity.mean(), weights, 0).nan_to_num(0)

    def total_loss(self, images: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
        """Sum of the weighted losses of the selected images over the size of a full batch.

        In the official code that size is configured, so that a short last batch takes a small
        step. Here it is the size of the largest batch so far.
        """
        kept = weights > 0
        loss = likelihood_ratio_loss(logits[kept])
        if self.hp.consistency:
            view = self.model(self.augment(images[kept], self.model.preprocessing.size))
            loss = loss + symmetric_cross_entropy(view, logits[kept])
        return (weights[kept] * loss).sum() / self.full_batch

    def corrected(self, logits: Tensor) -> Tensor:
        """Logits [n, classes] times the batch's prior, or log-probabilities plus its logarithm.

        Unchanged for a single image.
        """
        precise = torch.promote_types(logits.dtype, torch.float32)
        log_p = logits.log_softmax(-1, dtype=precise)
        p = log_p.exp()[logits.isfinite().all(-1)]
        if self.hp.prior == "off" or len(p) < 2:
            return logits
        prior = smoothed_prior(p)
        return logits * prior if self.hp.prior == "logits" else log_p + prior.log()


def within_range(values: Tensor) -> Tensor:
    """Values [n] shifted and scaled to [0, 1]; nan if all are equal."""
    return (values - values.min()) / (values.max() - values.min())


def likelihood_ratio_loss(logits: Tensor) -> Tensor:
    """Soft likelihood ratio loss [n]: -Σ p log(p / (1 - p) + 1e-5), with p at most 0.99.

    It has no gradient where a probability is larger; a certain image has about -4.5.
    """
    p = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    p = p.clamp(0, CLIPPED)
    return -(p * (p / (1 - p) + 1e-5).log()).sum(-1)


def smoothed_prior(p: Tensor) -> Tensor:
    """Mean [classes] of probabilities [n, classes], smoothed more for small n; sums to 1."""
    count, classes = p.shape
    prior = p.mean(0)
    smoothing = max(1 / count, 1 / classes) / prior.max()
    return (prior + smoothing) / (1 + smoothing * classes)
