"""ViDA for segmentation (the method: vida.py).

The authors released no code for segmentation; they refer to CoTTA's code for ACDC, whose views,
anchor and hard labels are used here (without warm-up or restore). U comes from the probabilities of
the views, which also make the label: they are predicted with the scales of the previous batch. Key
and value share their down-projections, as they are one layer in the authors' SegFormer.
"""

from torch import Tensor

from ctta_bench.methods.vida import SHARE, ViDA, ViDALinear, inject_adapters
from ctta_bench.parts.adapters.injection import RoleLayer
from ctta_bench.parts.segmentation.scales import (
    check_hard_labels,
    first_views,
    hard_loss,
    log_probabilities_over_views,
)


class ViDAMaps(ViDA):
    """Segmentation: CoTTA's views and hard labels; key and value share down-projections."""

    passes_per_image = (5, 1)  # three views, the anchor, the student; up to 14 views
    checked_with = ViDA.checked_with | {"optimizer": "adam", "loss": "cross_entropy", "views": 3}

    def setup(self) -> None:
        """As in classification, with an anchor and the views."""
        check_hard_labels(self.model, self.hp.loss, asked_by=self.title)
        self.views = first_views(self.hp.views, asked_by=self.title)
        self.anchor = self.frozen_copy()
        super().setup()

    def inject(self) -> list[ViDALinear]:
        """Add the adapters; a value layer uses the down-projections of its key layer."""
        hp = self.hp
        found = inject_adapters(self.model, hp.rank_low, hp.rank_high, self.scales)
        keys = {attention_of(layer): adapted for layer, adapted in found if layer.roles == "k"}
        for layer, adapted in found:
            if layer.roles == "v" and attention_of(layer) in keys:
                adapted.share_down(keys[attention_of(layer)])
        return [adapted for _, adapted in found]

    def adapt(self, images: Tensor) -> Tensor:
        """One step on labels over the views, which also give the uncertainty."""
        target, variance = self.teacher_log_probabilities(images)
        self.scale_by_uncertainty(SHARE * variance)
        self.update(images, target)
        return target

    def predict(self, images: Tensor) -> Tensor:
        """The teacher's log-probabilities over the views."""
        return self.teacher_log_probabilities(images)[0]

    def teacher_log_probabilities(self, images: Tensor) -> tuple[Tensor, float]:
        """The teacher's log-probabilities [n, classes, H, W], and the variance over the views."""
        return log_probabilities_over_views(
            images,
            self.views,
            self.teacher,
            self.anchor,
            scale=self.hp.output_scale,
            threshold=self.hp.confidence_threshold,
        )

    def total_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy of logits [n, classes, h, w] against the most likely classes."""
        return hard_loss(logits, target)


def attention_of(layer: RoleLayer) -> str:
    """The name of the module that contains a projection."""
    return layer.name.rpartition(".")[0]
