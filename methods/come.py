"""COME (Zhang et al., ICLR 2025, arXiv:2410.10894): the entropy of an opinion in place of the
softmax's, in TENT, EATA and SAR. An opinion may also say "none of the classes".

Official code: BlueWhaleLab/COME. Logits z are evidence e = exp(z) for the classes. Beliefs e_c / S
and the uncertainty K / S, with S = Σ e + K, sum to 1; the entropy of these C + 1 masses is
minimised. The gradient has no component along z: the length of the logits, and with it the
uncertainty, is not trained. Parameters, filters, order and recovery are those of the host.

Differs from the official code, unless `faithful: true`: K is the number of classes, as in the paper
(theirs is 1000 for any benchmark), exponentials do not overflow (theirs do for logits above 88),
logits of length 0 have a gradient, and a reset clears everything (theirs keeps the average
prediction of EATA, and the momentum and moving average of SAR). Its SAR always recovers below 0.2.
Filters compare with 0.4 ln C as in the hosts, though the entropy of an opinion is lower for certain
images and reaches ln(C + 1): nearly every image passes.
"""

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from ctta_bench.method import Method, OptimizerHyperparameters
from ctta_bench.parts.fisher import fisher_of_source, weighted_drift
from ctta_bench.parts.selection import Selection
from ctta_bench.parts.sharpness import ascend, descend
from ctta_bench.registry import METHODS

MASS = 1e-7  # added to every mass before the logarithm
RELEASED = 1000.0  # K in the official code
RECOVERY = 0.2  # threshold of SAR in the official code


def opinion(logits: Tensor, prior_weight: float, *, shifted: bool = True) -> Tensor:
    """Beliefs in the classes and, last, the uncertainty: [n, classes + 1], in float32 or better.

    They sum to 1. logits: [n, classes]; prior_weight: K, above 0. All exponentials are divided by
    the largest of them; with `shifted=False` they are not, and overflow.
    """
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    weight = z.new_full((len(z), 1), prior_weight).log()
    masses = torch.cat([z, weight], -1)
    if shifted:
        return masses.softmax(-1)
    evidence = masses.exp()
    return evidence / evidence.sum(-1, keepdim=True)


def opinion_entropy(logits: Tensor, prior_weight: float, *, shifted: bool = True) -> Tensor:
    """Entropy [n] in nats of the opinion of logits [n, classes], from about 0 to ln(classes + 1).

    Its gradient has no component along the logits of an image.
    """
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    length = z.norm(dim=-1, keepdim=True)
    if shifted:
        length = torch.where(length > 0, length, 1.0)
    masses = opinion(z / length * length.detach(), prior_weight, shifted=shifted) + MASS
    return -(masses * masses.log()).sum(-1)


class OpinionHyperparameters(OptimizerHyperparameters):
    """Hyper-parameters of COME in every host."""

    prior_weight: float | None = Field(
        None, gt=0, description="K of the uncertainty K / S; the number of classes if not given"
    )
    faithful: bool = Field(
        False, description="the code's K of 1000, its overflow, and its incomplete resets"
    )


class OpinionMethod(Method):
    """A host whose loss is the entropy of opinions."""

    def entropy(self, logits: Tensor) -> Tensor:
        """Entropy [n] of the opinions, in nats."""
        released = RELEASED if self.hp.faithful else float(self.model.num_classes)
        prior_weight = released if self.hp.prior_weight is None else self.hp.prior_weight
        return opinion_entropy(logits, prior_weight, shifted=not self.hp.faithful)


@METHODS.register_module("come_tent")
class ComeTent(OpinionMethod):
    """TENT with the entropy of opinions."""

    display_name = "COME (TENT)"
    year = 2025
    venue = "ICLR"
    citation = "zhang2025come"
    adapts_layers = "norm layers"
    losses = "entropy of an opinion"
    extra_memory = "nothing"
    paper = "https://arxiv.org/abs/2410.10894"
    checked_against = "official code"
    passes_per_image = (1, 1)
    search_space = {"lr": (1e-5, 1e-1)}

    class Hyperparameters(OpinionHyperparameters):
        """Hyper-parameters of COME in TENT."""

    def setup(self) -> None:
        """Adapt the affine parameters of every norm layer."""
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_only(self.model.norm_parameters())
        self.optimizer = self.build_optimizer()

    def adapt(self, images: Tensor) -> Tensor:
        """Minimise the mean entropy of the opinions; returns the logits from before the step."""
        logits = self.model(images)
        self.step(self.entropy(logits).mean())
        return logits


@METHODS.register_module("come_eata")
class ComeEATA(OpinionMethod):
    """EATA with the entropy of opinions: in its margin, its weights and its loss."""

    display_name = "COME (EATA)"
    year = 2025
    venue = "ICLR"
    citation = "zhang2025come"
    adapts_layers = "norm layers"
    losses = "as EATA, with the entropy of an opinion"
    extra_memory = "an average prediction and the Fisher information"
    paper = "https://arxiv.org/abs/2410.10894"
    checked_against = "official code"
    passes_per_image = (1, 1)
    search_space = {"lr": (1e-5, 1e-1), "max_similarity": [0.05, 0.1, 0.4]}
    checked_with = {"margin": 1.0, "max_similarity": 2.0}  # every image is selected
    source_access = "unlabelled"

    class Hyperparameters(OpinionHyperparameters):
        """Hyper-parameters of COME in EATA."""

        margin: float = Field(0.4, ge=0, description="E0 as a share of ln C: reliable below it")
        max_similarity: float = Field(
            0.05,
            ge=0,
            description="ε: redundant if more similar (cosine) to the average prediction",
        )
        fisher_weight: float = Field(2000.0, ge=0, description="β of the Fisher term")
        source_samples: int = Field(
            2000, ge=1, description="source images for the Fisher information"
        )
        fisher_batch_size: int = Field(64, ge=1, description="images per squared gradient")

    def setup(self) -> None:
        """Adapt the affine parameters of every norm layer."""
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_only(self.model.norm_parameters())
        self.optimizer = self.build_optimizer()
        self.selection = Selection(self.hp.margin, self.hp.max_similarity, self.model.num_classes)

    def prepare(self, source: Any) -> None:
        """Fisher information F of the adapted parameters: of the cross-entropy, as in EATA."""
        parameters = list(self.trainable.values())
        self.start_values = [p.detach().clone() for p in parameters]
        self.fisher, self.source_used = fisher_of_source(
            self.model, parameters, source, self.hp, asked_by=self.title, instead="come_tent"
        )

    def adapt(self, images: Tensor) -> Tensor:
        """One step on the selected images; returns the logits from before the step."""
        logits = self.model(images)
        entropy = self.entropy(logits)
        predictions = logits.detach().softmax(-1, dtype=entropy.dtype)
        selected = self.selection.choose(entropy.detach(), predictions)
        if not bool(selected.any()):
            self.skip_update()
        elif self.step(self.total_loss(entropy[selected])):
            self.selection.update_average(predictions[selected])
        return logits

    def total_loss(self, entropy: Tensor) -> Tensor:
        """The weighted mean of entropies [n], plus β Σ F (θ - θ_source)²."""
        drift = weighted_drift(self.fisher, self.trainable.values(), self.start_values)
        return self.selection.weigh(entropy) + self.hp.fisher_weight * drift

    def reset(self) -> None:
        """Return to the state before the stream; with `faithful` the average is not reset."""
        average = self.selection.average
        super().reset()
        if self.hp.faithful:
            self.selection.average = average


@METHODS.register_module("come_sar")
class ComeSAR(OpinionMethod):
    """SAR with the entropy of opinions: in both filters, both losses and the moving average."""

    display_name = "COME (SAR)"
    year = 2025
    venue = "ICLR"
    citation = "zhang2025come"
    adapts_layers = "norm layers, except the last ones"
    losses = "as SAR, with the entropy of an opinion"
    extra_memory = "nothing"
    paper = "https://arxiv.org/abs/2410.10894"
    checked_against = "official code"
    passes_per_image = (2, 2)
    search_space = {"lr": (1e-5, 1e-1)}
    checked_with = {"margin": 10.0}  # every image is reliable

    class Hyperparameters(OpinionHyperparameters):
        """Hyper-parameters of COME in SAR."""

        margin: float = Field(0.4, ge=0, description="E0 as a share of ln C: reliable below it")
        rho: float = Field(0.05, ge=0, description="radius of the perturbation")
        recovery_threshold: float = Field(
            RECOVERY, ge=0, description="e_m in nats: the model is reset below it"
        )
        skip_last_blocks: int | None = Field(
            None, ge=0, description="last blocks with frozen norms; a quarter if not given"
        )

    def setup(self) -> None:
        """Adapt the norm layers, except those of the last blocks and the final one."""
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_only(self.model.early_norm_parameters(self.hp.skip_last_blocks))
        self.optimizer = self.build_optimizer()
        self.margin = self.hp.margin * math.log(self.model.num_classes)
        self.threshold = RECOVERY if self.hp.faithful else self.hp.recovery_threshold
        self.average: float | None = None

    def adapt(self, images: Tensor) -> Tensor:
        """Two passes: ascend to the sharpest point nearby, descend from it; logits of the first."""
        logits = self.model(images)
        entropy = self.entropy(logits)
        reliable = entropy < self.margin
        guard, parameters = not self.hp.faithful, list(self.trainable.values())
        if not self.backward(entropy[reliable].mean(), guard=guard):
            return logits
        before = ascend(parameters, self.hp.rho)
        entropy = self.entropy(self.model(images))[reliable]
        loss = entropy[entropy < self.margin].mean()
        self.optimizer_zero_grad()
        finite = self.backward(loss, guard=guard)
        descend(parameters, before)
        if finite and self.optimizer_step(guard=guard):
            self.recover(float(loss.detach()))
        return logits

    def recover(self, loss: float) -> None:
        """Update the moving average of the loss; reset the model if it is below e_m."""
        if math.isfinite(loss):
            self.average = loss if self.average is None else 0.9 * self.average + 0.1 * loss
        if self.average is None or self.average >= self.threshold:
            return
        average, momentum = self.average, self.optimizer.state_dict()
        self.reset()
        if self.hp.faithful:
            self.optimizer.load_state_dict(momentum)
            self.average = average
