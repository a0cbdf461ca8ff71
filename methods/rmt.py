"""RMT, the robust mean teacher (Döbler et al., CVPR 2023, arXiv:2211.13081): all weights learn from
an averaged teacher, from a contrastive loss with the source classes, and from source images.

Official code: mariodoebler/test-time-adaptation. There are three losses: the symmetric
cross-entropy of an image and of a view of it to the teacher; the contrast of both with the nearest
mean feature of a source class, through a projector; and the cross-entropy of labelled source
images, which are replayed during the stream (`source_weight: 0` leaves them out). Scored are the
sums of both networks' logits. A warm-up trains student and teacher together on source images
without labels.

Differs from the official code: theirs splits the network in a way that breaks timm's models, ours
takes features and logits of one pass; the mean features are computed after a warm-up, not before;
the warm-up has its own optimiser, whose moments are not used later; a class without a source image
has no mean (theirs: NaN); and after a reset the replay starts again with the first source images.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ctta_bench.errors import MethodError
from ctta_bench.method import WarmupHyperparameters, ema_update, symmetric_cross_entropy
from ctta_bench.model import SourceModel
from ctta_bench.parts.families.contrast import ContrastHyperparameters, ContrastMethod
from ctta_bench.parts.source.replay import Replay
from ctta_bench.parts.views.batch import random_view
from ctta_bench.registry import METHODS


@METHODS.register_module("rmt")
class RMT(ContrastMethod):
    """Mean teacher with a contrastive loss and source replay."""

    display_name = "RMT"
    year = 2023
    venue = "CVPR"
    citation = "doebler2023rmt"
    adapts_layers = "all weights and a projector, with a teacher and source replay"
    losses = "cross-entropy to the teacher, contrast with class means, labels of source images"
    extra_memory = "teacher, class means and source images"
    paper = "https://arxiv.org/abs/2211.13081"
    checked_against = "official code"
    source_access = "labelled"
    warmup_access = "unlabelled"
    stream_only = frozenset(
        {"temperature", "source_samples", "target_weight", "contrast_weight", "source_weight"}
    )
    passes_per_image = (4, 3)
    search_space = {"lr": (1e-5, 1e-1), "teacher_momentum": [0.9, 0.99, 0.999]}
    exempt = {"learning_rate_zero_is_source": "scores are sums of two networks' logits"}

    class Hyperparameters(ContrastHyperparameters, WarmupHyperparameters):
        """Hyper-parameters of RMT."""

        target_weight: float = Field(1.0, ge=0, description="weight of the loss to the teacher")
        source_weight: float = Field(1.0, ge=0, description="weight of the loss on source images")
        teacher_momentum: float = Field(0.999, ge=0, le=1, description="α of the teacher")
        warmup_schedule: Literal["constant", "cosine", "steps", "linear"] = Field(
            "linear", description="of the warm-up's rate; linear rises until its end"
        )

    def setup(self) -> None:
        """Adapt every weight and bias, and the projector; copy the teacher."""
        self.batch_dependent = self.model.use_batch_statistics()
        self.weights: dict[str, nn.Parameter] = self.model.weight_parameters()
        self.adapt_only(self.weights | self.projector_parameters())
        self.optimizer = self.build_optimizer()
        self.teacher = self.frozen_copy()
        self.augment = random_view

    def prepare(self, source: Any) -> None:
        """Compute the mean features of the classes; prepare the source replay."""
        super().prepare(source)
        if self.hp.source_weight:
            self.replay = Replay(source)

    def adapt(self, images: Tensor) -> Tensor:
        """One step on the three losses, then the teacher's; returns the scores from before both."""
        with torch.no_grad():
            target = self.teacher(images)
        features, logits = self.model.features_and_logits(images)
        view = self.augment(images, self.model.preprocessing.size)
        of_view, view_logits = self.model.features_and_logits(view)
        towards = [symmetric_cross_entropy(z, target) for z in (logits, view_logits)]
        loss = self.hp.target_weight * (towards[0] + towards[1]).mean() / 2
        loss = loss + self.hp.contrast_weight * self.contrast(features, of_view)
        if self.hp.source_weight:
            shown, labels = self.replay.draw(len(images))
            loss = loss + self.hp.source_weight * cross_entropy(self.model(shown), labels)
        self.update(loss)
        return logits + target

    def update(self, loss: Tensor) -> None:
        """One step, then the EMA update of the teacher."""
        if self.step(loss):
            ema_update(self.teacher.parameters(), self.model.parameters(), self.hp.teacher_momentum)

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """The sum of the student's and the teacher's logits."""
        return self.model(images) + self.teacher(images)

    @property
    def scored_model(self) -> SourceModel:
        """Raises MethodError: two networks are scored, so there is no single one."""
        raise MethodError(
            "RMT has no plain network to store or export, as it scores the sum of two networks' "
            "logits; run it with keep_models: none."
        )

    # -- warm-up

    def warmup_parameters(self) -> dict[str, nn.Parameter]:
        """The network's weights; the projector is not trained."""
        return self.weights

    def warmup_result(self) -> Mapping[str, Tensor]:
        """Both networks: the teacher differs from the student."""
        named = self.teacher.weight_parameters()
        return self.weights | {f"teacher.{name}": value for name, value in named.items()}

    def warm_up(self, images: Tensor, labels: Tensor | None) -> None:
        """One step of the student towards the teacher, then the teacher's EMA update."""
        with torch.no_grad():
            target = self.teacher(images)
        self.update(symmetric_cross_entropy(self.model(images), target).mean())
