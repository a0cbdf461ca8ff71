"""Continual-MAE for segmentation (the method: cmae.py).

The authors released no code for segmentation; this form is ours. Masked are groups of 16 x 16
pixels whose prediction varies most over `views` passes of the head with dropout; the mask acts on
the embedding of the first stage. The HOG of a group is reconstructed from the mean of the head's
map over the group. The student learns the most likely classes of its own clean prediction.
"""

import torch
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.methods.cmae import ContinualMAE
from ctta_bench.parts.hog import CELLS
from ctta_bench.parts.segmentation.masked import PIXELS, MaskedMaps, whole_groups
from ctta_bench.parts.segmentation.scales import hard_loss


class ContinualMAEMaps(ContinualMAE):
    """Segmentation: consistency and reconstruction, with uncertain groups of pixels masked."""

    passes_per_image = (2, 1)
    checked_with = {"lr": 1e-4}
    exempt = {"permutation": "dropout, drawn in the order of the batch, chooses the mask"}

    def setup(self) -> None:
        """As in classification, with groups. Raises MethodError for a `score` of patches."""
        if self.hp.score != "channel_mean":
            raise MethodError(
                f"{self.title} on {self.model.name}, a segmentation model, scores groups by "
                f"passes of the head with dropout, not by {self.hp.score!r}; leave `score` out."
            )
        self.maps = MaskedMaps(self.model, asked_by=self.title)
        widths = self.maps.embedding_width, self.maps.width
        self.adapt_with(PIXELS // CELLS, embedded=widths[0], seen=widths[1])

    @torch.no_grad()
    def target_and_mask(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits [n, classes, h, w] of the clean images, and the mask [n, groups]."""
        target, uncertainty = self.maps.logits_and_uncertainty(images, self.hp.views)
        return target, self.most(uncertainty)

    def consistency(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy against the clean prediction's most likely classes."""
        return hard_loss(logits, target)

    def masked_pass(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the means of the head's map [n, groups, width], with groups masked."""
        torch.clear_autocast_cache()
        logits, groups = self.maps.masked_pass(images, mask, self.mask_token)
        return logits, groups.to(images.dtype)

    def reconstruction_loss(self, tokens: Tensor, images: Tensor, mask: Tensor) -> Tensor:
        """Mean squared error between projected masked groups and their histograms."""
        return super().reconstruction_loss(tokens, whole_groups(images), mask)
