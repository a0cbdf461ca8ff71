"""Masks of groups of 16 x 16 pixels for a segmentation network; uncertainty of the groups.

A group is four by four positions of the first stage's map; groups at the right and lower edge may
be smaller. The uncertainty of a group is the variance of its predictions under dropout.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, pad

from ctta_bench.errors import MethodError
from ctta_bench.model import SourceModel
from ctta_bench.names import OldNames
from ctta_bench.parts.encoder import hooked
from ctta_bench.parts.prompts.placed import dropout_uncertainty
from ctta_bench.parts.segmentation.dropping import check_dropout, dropouts_of, dropping

PLACES, PIXELS = 4, 16  # along each side of a group
PROBE_SIDE = 32
DROPPED = 0.5


class MaskedMaps(OldNames):
    """Forward passes of a segmentation network with a masked embedding of the first stage.

    `embedding_width` is the width of the masked tokens, `width` that of the decode head's map
    before its dropout. Raises MethodError, which names the method `asked_by`, for other networks.
    """

    def __init__(self, model: SourceModel, *, asked_by: str) -> None:
        check_dropout(model, asked_by=asked_by)
        self.model = model
        probe = model.mean.new_zeros(1, 3, PROBE_SIDE, PROBE_SIDE)
        widths: list[int] = []

        def note(module: nn.Module, inputs: Any, embedded: tuple[Tensor, Any]) -> None:
            widths.append(embedded[0].shape[-1])
            height = embedded[1][0]
            if height * PIXELS != PROBE_SIDE * PLACES:
                raise MethodError(
                    f"{asked_by} does not support {model.name}: it needs patches of 4 pixels, not "
                    f"{PROBE_SIDE / height:g}."
                )

        with torch.no_grad(), hooked(self.embedding, note):
            self.width = self.seen_by_head(lambda: model(probe))[1].shape[1]
        self.embedding_width = widths[0]

    @property
    def embedding(self) -> nn.Module:
        """The patch embedding of the first stage."""
        stage: Any = self.model.network.encoder_stages[0]
        embedding: nn.Module = stage.embed
        return embedding

    @torch.no_grad()
    def logits_and_uncertainty(self, images: Tensor, passes: int) -> tuple[Tensor, Tensor]:
        """Logits [n, classes, h, w] of images, and the uncertainty [n, groups].

        By one pass of the encoder; the uncertainty is the variance of the probabilities over
        `passes` passes of the head.
        """
        maps = self.model.feature_maps(images)
        logits = self.model.decode(maps)
        with dropping(self.model, DROPPED):
            seen = (self.model.decode(maps).float().softmax(1) for _ in range(passes))
            variance = dropout_uncertainty(seen)
        return logits, by_group(variance.unsqueeze(1)).flatten(1)

    def masked_pass(self, images: Tensor, mask: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the head's features [n, groups, width], of masked images.

        mask: bool [n, groups]; token: [1, 1, embedding_width], replaces masked embeddings.
        """

        def hide(
            module: nn.Module, inputs: Any, embedded: tuple[Tensor, tuple[int, int]]
        ) -> tuple[Tensor, tuple[int, int]]:
            tokens, shape = embedded
            hidden = of_places(mask, shape).unsqueeze(-1)
            return torch.where(hidden, token.to(tokens.dtype), tokens), shape

        with hooked(self.embedding, hide):
            logits, features = self.seen_by_head(lambda: self.model(images))
        return logits, by_group(features).flatten(2).mT

    def seen_by_head(self, run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """The result of `run`, and the map [n, width, h, w] before the head's last dropout."""
        seen: list[Tensor] = []
        last = dropouts_of(self.model)[-1]
        with hooked(last, lambda module, inputs, output: seen.append(inputs[0])):
            return run(), seen[-1]


def by_group(maps: Tensor) -> Tensor:
    """Means over groups [n, channels, rows, columns] of maps [n, channels, h, w]."""
    return avg_pool2d(maps, PLACES, ceil_mode=True, count_include_pad=False)


def of_places(mask: Tensor, shape: tuple[int, int]) -> Tensor:
    """The mask [n, h·w] of the positions of a map, from a mask of groups [n, groups]."""
    height, width = shape
    grid = mask.view(len(mask), -(-height // PLACES), -(-width // PLACES))
    places = grid.repeat_interleave(PLACES, 1).repeat_interleave(PLACES, 2)
    return places[:, :height, :width].flatten(1)


def whole_groups(images: Tensor) -> Tensor:
    """Images [n, 3, H, W] with their last rows and columns repeated up to whole groups."""
    height, width = images.shape[-2:]
    return pad(images, (0, -width % PIXELS, 0, -height % PIXELS), mode="replicate")
