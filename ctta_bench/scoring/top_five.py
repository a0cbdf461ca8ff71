"""The top-5 error of benchmarks with at least 100 classes, as in papers on ImageNet."""

from typing import TYPE_CHECKING

from ctta_bench.registry import MEASURES
from ctta_bench.scoring.measures import Measure, Outputs

if TYPE_CHECKING:
    from torch import Tensor


@MEASURES.register_module("top5_error", place=40)
class TopFiveError(Measure):
    """Share of images in % whose label is not among the five largest logits."""

    head, caption, factor, worst = "top-5 error %", "Top-5 error", 100, 1.0
    fewest_classes = 100

    def score(self, outputs: Outputs) -> "Tensor":
        """1 if the label is not among the five, else 0."""
        five = outputs.logits.topk(5, dim=1).indices
        return (five != outputs.labels.view(-1, 1)).all(1).float()
