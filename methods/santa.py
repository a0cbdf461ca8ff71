"""SANTA (Chakrabarty et al., TMLR 2023): the source model is an anchor for the predictions, and
features are moved towards the source classes.

The authors' repository is empty; the second implementation is mariodoebler/test-time-adaptation.
There are two losses: the cross-entropy of the anchor, with the adapted predictions of an image and
of a view of it as targets; and the contrast of both with the nearest mean feature of a source
class, through a projector (as in RMT, without teacher and without source images during the stream).
The first is the cross-entropy the other way round: alone, it puts all probability on the class that
is most likely for the anchor. The scored logits are the model's before the update. Differs from
that code: a class without a source image has no mean (theirs: NaN).
"""

from pydantic import Field
from torch import Tensor

from ctta_bench.method import soft_cross_entropy
from ctta_bench.parts.families.contrast import ContrastHyperparameters, ContrastMethod
from ctta_bench.parts.views.batch import random_view
from ctta_bench.registry import METHODS


@METHODS.register_module("santa")
class SANTA(ContrastMethod):
    """Self-training of norm layers with a frozen anchor and contrast to the source classes."""

    display_name = "SANTA"
    year = 2023
    venue = "TMLR"
    citation = "chakrabarty2023santa"
    adapts_layers = "norm layers and a projector, with an anchor"
    losses = "cross-entropy of the source model, contrast with class means"
    extra_memory = "source model and class means"
    paper = "https://openreview.net/forum?id=V7guVYzvE4"
    checked_against = "second implementation (no official one)"
    source_access = "labelled"
    passes_per_image = (3, 2)
    search_space = {"lr": (1e-5, 1e-1), "contrast_weight": [0.0, 0.1, 1.0]}

    class Hyperparameters(ContrastHyperparameters):
        """Hyper-parameters of SANTA."""

        anchor_weight: float = Field(1.0, ge=0, description="weight of the anchor's loss")

    def setup(self) -> None:
        """Adapt the affine parameters of every norm layer, and the projector; copy the anchor."""
        self.batch_dependent = self.model.use_batch_statistics()
        self.adapt_only(self.model.norm_parameters())
        self.anchor = self.frozen_copy()
        self.adapt_only(self.trainable | self.projector_parameters())
        self.optimizer = self.build_optimizer()
        self.augment = random_view

    def adapt(self, images: Tensor) -> Tensor:
        """One step on both losses; returns the logits from before the step."""
        anchored = self.anchor(images)
        features, logits = self.model.features_and_logits(images)
        view = self.augment(images, self.model.preprocessing.size)
        of_view, view_logits = self.model.features_and_logits(view)
        surprise = [soft_cross_entropy(anchored, z) for z in (logits, view_logits)]
        loss = self.hp.anchor_weight * (surprise[0] + surprise[1]).mean() / 2
        self.step(loss + self.hp.contrast_weight * self.contrast(features, of_view))
        return logits
