"""Continual-MAE on segmentation (the method: cmae.py).

Nothing was released, the form is ours: masked are groups of 16 x 16 pixels whose
prediction varies most over `views` passes of the head under dropout, in the first stage's
embedding; the HOG of a group is reconstructed from the mean of the head's map over it; the student
learns its own clean prediction's most likely classes.
"""

import torch
from torch import Tensor

from ctta_bench.errors import MethodError
from ctta_bench.methods.cmae import ContinualMAE
from ctta_bench.parts.hog import CELLS
from ctta_bench.parts.segmentation.masked import PIXELS, MaskedMaps, whole_groups
from ctta_bench.parts.segmentation.scales import hard_loss


class ContinualMAEMaps(ContinualMAE):
    """Consistency and reconstruction under a mask of uncertain groups of pixels."""

    passes_per_image = (2, 1)
    checked_with = {"lr": 1e-4}
    exempt = {"permutation": "dropout, drawn for the batch in its order, chooses the mask"}

    def setup(self) -> None:
        """As on images, of groups. Raises MethodError for a `score` of patches."""
        if self.hp.score != "channel_mean":
            raise MethodError(
                "Continual-MAE's score is that of head passes under dropout on "
                f"{self.model.name}, which segments; leave `score` out."
            )
        self.maps = MaskedMaps(self.model, asked_by="Continual-MAE")
        widths = self.maps.embedding_width, self.maps.width
        self.adapt_with(PIXELS // CELLS, embedded=widths[0], seen=widths[1])

    @torch.no_grad()
    def target_and_mask(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The clean prediction [n, classes, h, w], and the mask [n, groups]."""
        target, uncertainty = self.maps.logits_and_uncertainty(images, self.hp.views)
        return target, self.most(uncertainty)

    def consistency(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy against the clean prediction's most likely classes."""
        return hard_loss(logits, target)

    def masked_pass(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the head's means [n, groups, width], with masked groups hidden."""
        torch.clear_autocast_cache()
        logits, groups = self.maps.masked_pass(images, mask, self.mask_token)
        return logits, groups.to(images.dtype)

    def reconstruction_loss(self, tokens: Tensor, images: Tensor, mask: Tensor) -> Tensor:
        """Mean square error of the projected masked groups against their histograms."""
        return super().reconstruction_loss(tokens, whole_groups(images), mask)
