"""CoTTA (Wang et al., CVPR 2022, arXiv:2203.13591): the student learns from an averaged teacher.
Where the source model is unsure, the teacher's prediction is averaged over augmented views. A
random share of the student's weights is restored to the source (stochastic restore).

Official code: qinenergy/cotta. Its ImageNet form uses the symmetric cross-entropy, which the paper
does not mention (`loss: symmetric`). Only tensors named weight or bias learn and are restored, so a
ViT's class token and position table stay fixed. On BatchNorm all three networks normalise by the
batch.

On segmentation, as in the official code for ACDC, the views are the images at seven scales, each
also mirrored. The threshold applies to each pixel: below it the mean of the views' probabilities
replaces the teacher's plain prediction. The student learns the most likely class. BatchNorm uses
the source statistics. With one view the teacher predicts alone, without an anchor.

Differs from the official code, unless `faithful: true`: forward passes whose result is not used are
not made (theirs always makes the plain one, and in its CIFAR form all views); and a gradient that
is rounding noise makes no step (while teacher and student are equal, the gradient of the
cross-entropy is zero, and Adam would turn it into full steps). Not reproduced on segmentation:
thirteen views of the anchor whose result is not used, windows of 1,024 pixels, and a new Adam at
every domain and round, whose boundaries a method must not see.
"""

from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ctta_bench.method import (
    Method,
    OptimizerHyperparameters,
    ema_update,
    soft_cross_entropy,
    stochastic_restore,
    symmetric_cross_entropy,
)
from ctta_bench.model import SourceModel
from ctta_bench.parts.segmentation.scales import (
    MapHyperparameters,
    check_hard_labels,
    first_views,
    hard_loss,
    log_probabilities_over_views,
)
from ctta_bench.parts.views.batch import random_view
from ctta_bench.parts.views.passes import Augment, mean_over_views
from ctta_bench.registry import METHODS


@METHODS.register_module("cotta")
class CoTTA(Method):
    """Self-training on an averaged teacher's augmented predictions, with stochastic restore."""

    display_name = "CoTTA"
    year = 2022
    venue = "CVPR"
    citation = "wang2022cotta"
    adapts_layers = "all weights, with a teacher"
    losses = "cross-entropy to the teacher"
    extra_memory = "teacher and source model"
    paper = "https://arxiv.org/abs/2203.13591"
    checked_against = "official code and one more"
    tasks = frozenset({"classification", "segmentation"})
    passes_per_image = (3, 1)  # plus `views` - 1 where the anchor is unsure
    search_space = {"lr": (1e-5, 1e-2), "confidence_threshold": [0.1, 0.5, 0.72, 0.92]}
    checked_with = {"loss": "symmetric", "confidence_threshold": 0.0}  # no views, but a gradient
    segmentation_form = "CoTTAMaps"

    class Hyperparameters(OptimizerHyperparameters, MapHyperparameters):
        """Hyper-parameters of CoTTA."""

        optimizer: Literal["sgd", "adam", "adamw"] = Field("adam", description="update rule")
        loss: Literal["cross_entropy", "symmetric"] = Field(
            "cross_entropy", description="to the teacher, or the mean of both directions"
        )
        views: int = Field(32, ge=1, description="N, augmented views; segmentation: 1 to 14")
        confidence_threshold: float = Field(
            0.92, ge=0, description="p_th: views if the source model's (mean) confidence is lower"
        )
        teacher_momentum: float = Field(0.999, ge=0, le=1, description="α of the teacher")
        restore_probability: float = Field(0.01, ge=0, le=1, description="p of the restore")
        min_gradient_norm: float = Field(1e-6, ge=0, description="no step below this norm")
        faithful: bool = Field(False, description="make all passes and steps of the official code")

    augment: Augment = staticmethod(random_view)

    def setup(self) -> None:
        """Adapt every weight and bias; copy the model as teacher and as anchor."""
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_weights()

    def adapt_weights(self) -> None:
        """Every weight and bias learns, and is restored to its value in the anchor."""
        self.adapt_only(self.model.weight_parameters())
        self.optimizer = self.build_optimizer()
        self.teacher, self.anchor = self.frozen_copy(), self.frozen_copy()
        source = dict(self.anchor.network.named_parameters())
        self.restored = list(self.trainable.values())
        self.source = [source[name] for name in self.trainable]

    def adapt(self, images: Tensor) -> Tensor:
        """One step towards the teacher, then its EMA update; returns its logits from before."""
        target = self.predict(images)  # first, before the student's activations take memory
        loss = self.total_loss(self.model(images), target)
        if self.step(loss, least_norm=0.0 if self.hp.faithful else self.hp.min_gradient_norm):
            ema_update(self.teacher.parameters(), self.model.parameters(), self.hp.teacher_momentum)
            self.stochastic_restore()  # the next EMA averages the restored values
        return target

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """The teacher's logits, averaged over views if the anchor's mean confidence is low."""
        confidence = self.anchor(images).softmax(-1).amax(-1).mean()
        unsure = bool(confidence < self.hp.confidence_threshold)
        if self.hp.faithful:
            plain = self.teacher(images)
            always = self.hp.loss == "cross_entropy"
            averaged = self.average_over_views(images) if unsure or always else plain
            return averaged if unsure else plain
        return self.average_over_views(images) if unsure else self.teacher(images)

    def average_over_views(self, images: Tensor) -> Tensor:
        """Mean of the teacher's logits over N random views."""
        return mean_over_views(
            images,
            self.teacher,
            self.hp.views,
            size=self.model.preprocessing.size,
            augment=self.augment,
            together=not self.batch_dependent,
        )

    def total_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy of logits [n, classes] to the teacher's, or the mean of both ways."""
        symmetric = self.hp.loss == "symmetric"
        between = symmetric_cross_entropy if symmetric else soft_cross_entropy
        return between(logits, target).mean()

    def stochastic_restore(self) -> None:
        """Set each scalar of the weights to its source value with probability p."""
        stochastic_restore(self.restored, self.source, self.hp.restore_probability)

    @property
    def scored_model(self) -> SourceModel:
        """The teacher."""
        return self.teacher


class CoTTAMaps(CoTTA):
    """Segmentation: views at several scales, a threshold per pixel, hard labels."""

    passes_per_image = (5, 1)  # three views, the anchor, the student; up to 14 views
    checked_with = {"views": 3, "confidence_threshold": 0.3, "lr": 1e-4}
    exempt = {"learning_rate_zero_is_source": "scores are averaged over views"}

    def setup(self) -> None:
        """Adapt every weight and bias; copy teacher and anchor; choose the views."""
        check_hard_labels(self.model, self.hp.loss, asked_by=self.title)
        self.views = first_views(self.hp.views, asked_by=self.title)
        self.adapt_weights()

    def predict(self, images: Tensor) -> Tensor:
        """The teacher's log-probabilities, averaged over the views where the anchor is unsure."""
        target, _ = log_probabilities_over_views(
            images,
            self.views,
            self.teacher,
            self.anchor,
            scale=self.hp.output_scale,
            threshold=self.hp.confidence_threshold,
        )
        return target

    def total_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy of logits [n, classes, h, w] against the most likely classes."""
        return hard_loss(logits, target)


@torch.no_grad()
def calibrated_threshold(model: SourceModel, batches: Iterable[Tensor]) -> float:
    """p_th for a model: the 5 % quantile of its confidence on source images [n, 3, H, W], - 0.05.

    This is the paper's recipe; the published values belong to its convolutional networks.
    """
    seen = (model.rows(model(images)) for images in batches)
    confidences = torch.cat([rows.softmax(-1).amax(-1) for rows in seen])
    return float(confidences.float().quantile(0.05)) - 0.05
