"""CoTTA (Wang et al., CVPR 2022, arXiv:2203.13591): an averaged teacher, averaged over augmented
views where the source model is unsure, and stochastic restoration of the student.

Official code: qinenergy/cotta. Its ImageNet form trains on the symmetric cross-entropy, of which
the paper says nothing (`loss: symmetric`). Only tensors named weight or bias learn and are
restored, so a ViT's class token and position table stay. On BatchNorm all three networks normalise
by the batch.

On segmentation, as in the official code for ACDC, views are the images at seven scales, each with
its mirror image; the threshold is that of each pixel, below which the mean of the views'
probabilities stands for the teacher's plain ones; the student learns the most likely class. All
BatchNorm keeps the source's statistics. One view is the teacher alone, without an anchor.

Differs from the official code, unless `faithful: true`: forward passes that are not used are left
out (theirs always makes the plain one, and in its CIFAR form all views), and a gradient that is
rounding noise takes no step: while teacher and student are equal, that of the cross-entropy is
zero, and Adam would make full steps of it. Not reproduced on segmentation: thirteen views of the
anchor that nobody reads, windows of 1,024 pixels, and an Adam made anew at every domain and round,
whose borders a method must not know.
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
from ctta_bench.parts.views.passes import Augment, at_least_float32, over_views
from ctta_bench.registry import METHODS


@METHODS.register_module("cotta")
class CoTTA(Method):
    """Learning from an averaged teacher's augmented predictions, with stochastic restoration."""

    display_name = "CoTTA"
    year = 2022
    venue = "CVPR"
    citation = "wang2022cotta"
    adapts_layers = "all weights, with a teacher"
    paper = "https://arxiv.org/abs/2203.13591"
    checked_against = "official code and one more"
    tasks = frozenset({"classification", "segmentation"})
    passes_per_image = (3, 1)  # and `views` - 1 more where the anchor is unsure
    search_space = {"lr": (1e-5, 1e-2), "confidence_threshold": [0.1, 0.5, 0.72, 0.92]}
    checked_with = {"loss": "symmetric", "confidence_threshold": 0.0}  # no view, yet a gradient
    segmentation_form = "CoTTAMaps"

    class Hyperparameters(OptimizerHyperparameters, MapHyperparameters):
        """Hyper-parameters of CoTTA."""

        optimizer: Literal["sgd", "adam", "adamw"] = Field("adam", description="update rule")
        loss: Literal["cross_entropy", "symmetric"] = Field(
            "cross_entropy", description="towards the teacher, or the mean of both directions"
        )
        views: int = Field(32, ge=1, description="N, augmented views; segmentation: 1 to 14")
        confidence_threshold: float = Field(
            0.92, ge=0, description="p_th: views below this (mean) confidence of the source model"
        )
        teacher_momentum: float = Field(0.999, ge=0, le=1, description="α of the teacher")
        restore_probability: float = Field(0.01, ge=0, le=1, description="p of a restoration")
        min_gradient_norm: float = Field(1e-6, ge=0, description="no step below this norm")
        faithful: bool = Field(False, description="passes and steps as in the official code")

    augment: Augment = staticmethod(random_view)

    def setup(self) -> None:
        """Adapt every weight and bias; copy teacher and anchor."""
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_weights()

    def adapt_weights(self) -> None:
        """Every weight and bias learns, and is restored to the anchor's."""
        self.adapt_only(self.model.weight_parameters())
        self.optimizer = self.build_optimizer()
        self.teacher, self.anchor = self.frozen_copy(), self.frozen_copy()
        source = dict(self.anchor.network.named_parameters())
        self.restored = list(self.trainable.values())
        self.source = [source[name] for name in self.trainable]

    def adapt(self, images: Tensor) -> Tensor:
        """One step towards the teacher, which follows; returns its logits from before."""
        target = self.predict(images)  # first: with the student's activations there is less room
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
        total: Tensor | float = 0.0
        for logits in over_views(
            images,
            self.teacher,
            self.hp.views,
            size=self.model.preprocessing.size,
            augment=self.augment,
            together=not self.batch_dependent,
        ):
            total = total + at_least_float32(logits).sum(0)
        return total / self.hp.views

    def total_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy of logits [n, classes] to the teacher's, or of both directions."""
        symmetric = self.hp.loss == "symmetric"
        between = symmetric_cross_entropy if symmetric else soft_cross_entropy
        return between(logits, target).mean()

    def stochastic_restore(self) -> None:
        """Set a random share p of the weights' scalars back to the source."""
        stochastic_restore(self.restored, self.source, self.hp.restore_probability)

    @property
    def scored_model(self) -> SourceModel:
        """The teacher."""
        return self.teacher


class CoTTAMaps(CoTTA):
    """On segmentation: views at several scales, a threshold for each pixel, hard labels."""

    passes_per_image = (5, 1)  # three views, the anchor, the student; up to 14 views
    checked_with = {"views": 3, "confidence_threshold": 0.3, "lr": 1e-4}
    exempt = {"learning_rate_zero_is_source": "scores are averaged over views"}

    def setup(self) -> None:
        """Adapt every weight and bias; copy teacher and anchor; choose the views."""
        check_hard_labels(self.model, self.hp.loss, asked_by="CoTTA")
        self.views = first_views(self.hp.views, asked_by="CoTTA")
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
    """p_th for a model, from source images [n, 3, H, W]: the 5 % quantile of its confidence - 0.05.

    This is the paper's recipe; its published values are those of its convolutional networks.
    """
    seen = (model.rows(model(images)) for images in batches)
    confidences = torch.cat([rows.softmax(-1).amax(-1) for rows in seen])
    return float(confidences.float().quantile(0.05)) - 0.05
