"""Source: the unadapted source model, the reference of every gain."""

import torch
from torch import Tensor

from ctta_bench.method import Method
from ctta_bench.registry import METHODS


@METHODS.register_module("source")
class Source(Method):
    """The unadapted source model in evaluation mode."""

    display_name = "Source"
    adapts_layers = "nothing"
    losses = "none"
    extra_memory = "nothing"
    checked_against = "the model itself"
    tasks = frozenset({"classification", "segmentation"})
    passes_per_image = (1, 0)

    def adapt(self, images: Tensor) -> Tensor:
        """Logits of the frozen model; nothing is updated."""
        with torch.no_grad():
            return self.model(images)
