"""Segmentation over views at several scales: predictions brought back to one size, and labels.

Views of the official code of CoTTA for ACDC: the images at seven scales, each with its mirror
image. Each view's probabilities are resized, and flipped back, and added up one after another: no
more than a few maps of the labels' size are kept, whatever the number of views.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from ctta_bench.errors import MethodError
from ctta_bench.method import NEWER, MethodHyperparameters
from ctta_bench.model import SourceModel

# Nearest to the images' own size first: few views are the ones that see most.
SCALES = (1.0, 1.25, 0.75, 1.5, 1.75, 0.5, 2.0)
MOST_VIEWS = 2 * len(SCALES)
Size = tuple[int, int]


class MapHyperparameters(MethodHyperparameters):
    """What methods share that learn from labels of pixels."""

    output_scale: float | None = Field(
        None,
        gt=0,
        description="segmentation: size of scores and labels, of that of the images; unset: logits",
        json_schema_extra=NEWER,
    )


class View(NamedTuple):
    """The images at a scale, mirrored or not; the first of several views is the plain one."""

    scale: float
    mirrored: bool


class OverViews(NamedTuple):
    """Probabilities [n, classes, H, W] of the plain view, and their mean over all views.

    `variance` is the unbiased variance over the views, averaged over all values; nan for one view.
    """

    plain: Tensor
    mean: Tensor
    variance: float


def first_views(count: int, *, asked_by: str) -> list[View]:
    """Plain view first, each followed by its mirror image. Raises MethodError for more than 14."""
    if not 1 <= count <= MOST_VIEWS:
        raise MethodError(
            f"{asked_by} has 1 to {MOST_VIEWS} views on segmentation (seven scales, each with its "
            f"mirror image), not {count}; set `views`."
        )
    return views_at(SCALES)[:count]


def views_at(scales: Iterable[float]) -> list[View]:
    """Each scale with its mirror image, beginning with 1."""
    ordered = sorted(scales, key=lambda scale: scale != 1.0)
    return [View(scale, mirrored) for scale in ordered for mirrored in (False, True)]


def rescaled(images: Tensor, scale: float) -> Tensor:
    """Images [n, 3, H, W] at a scale; bilinear."""
    height, width = images.shape[-2:]
    return resized(images, scaled_size((height, width), scale))


def scaled_size(size: Size, scale: float) -> Size:
    """Height and width at a scale, whole pixels."""
    return round(size[0] * scale), round(size[1] * scale)


def resized(maps: Tensor, size: Size) -> Tensor:
    """Maps [n, channels, H, W] at a size, in float32 or better; bilinear."""
    maps = maps if maps.dtype == torch.float64 else maps.float()
    if tuple(maps.shape[-2:]) == size:
        return maps
    return interpolate(maps, size=size, mode="bilinear", align_corners=False)


def enlarged(logits: Tensor, images: Tensor, scale: float | None) -> Tensor:
    """Logits at `scale` times the size of the images; as they are for None."""
    if scale is None:
        return logits
    height, width = images.shape[-2:]
    return resized(logits, scaled_size((height, width), scale))


def seen_over(
    views: Sequence[View],
    show: Callable[[float], Tensor],
    see: Callable[[Tensor], Tensor],
    size: Size | None,
) -> Iterator[Tensor]:
    """Probabilities [n, classes, *size] view by view, mirror images flipped back.

    `show` gives the images at a scale, `see` their logits; without a size that of the first view's
    logits is taken.
    """
    for view in views:
        shown = show(view.scale)
        # Flipped back while they are small.
        logits = see(shown.flip(-1)).flip(-1) if view.mirrored else see(shown)
        height, width = size = size or (logits.shape[-2], logits.shape[-1])
        yield resized(logits, (height, width)).softmax(1)  # with no name here, it is soon let go


def averaged(seen: Iterable[Tensor]) -> OverViews:
    """Plain view, mean and variance of probabilities that come one view after another."""
    views = iter(seen)
    plain = total = next(views)
    squares, count = [_mean_square(plain)], 1
    for count, probabilities in enumerate(views, start=2):
        squares.append(_mean_square(probabilities))
        # In place but for the plain view's own map.
        total = plain + probabilities if count == 2 else total.add_(probabilities)
        del probabilities  # before the next view is seen
    mean = total if count == 1 else total.div_(count)
    if count == 1:
        return OverViews(plain, mean, float("nan"))
    # Of the mean of all values no more than sums are needed: no second map.
    variance = (sum(squares) - count * _mean_square(mean)) / (count - 1)
    return OverViews(plain, mean, max(variance, 0.0) if variance == variance else variance)


def _mean_square(values: Tensor) -> float:
    # Class by class: a square of the whole would be another map.
    sums = [part.square().sum(dtype=torch.float64) for part in values.unbind(1)]
    return float(torch.stack(sums).sum()) / values.numel()


def where_sure(over_views: OverViews, sure: Tensor | None) -> Tensor:
    """Log-probabilities [n, classes, H, W]: of the plain view where `sure` [n, 1, H, W], else mean.

    Without `sure` the mean is taken everywhere.
    """
    plain, mean = over_views.plain, over_views.mean
    chosen = mean.clone() if sure is None else torch.where(sure, plain, mean)
    return chosen.clamp_min_(torch.finfo(chosen.dtype).tiny).log_()


@torch.no_grad()
def log_probabilities_over_views(
    images: Tensor,
    views: Sequence[View],
    teacher: SourceModel,
    anchor: SourceModel,
    *,
    scale: float | None,
    threshold: float,
) -> tuple[Tensor, float]:
    """Log-probabilities [n, classes, H, W] of the teacher, and the variance over the views.

    Those of the plain view where the anchor's confidence is above the threshold, elsewhere of the
    mean over the views; at `scale` times the size of the images, or that of the logits for None.
    """
    size = None if scale is None else scaled_size((images.shape[-2], images.shape[-1]), scale)
    over = averaged(seen_over(views, partial(rescaled, images), teacher, size))
    sure = None
    if len(views) > 1:
        height, width = over.mean.shape[-2:]
        sure = confident(anchor(images), (height, width), threshold)
    return where_sure(over, sure), over.variance


def confident(logits: Tensor, size: Size, threshold: float) -> Tensor:
    """Where the largest probability is above a threshold, bool [n, 1, *size]."""
    return resized(logits, size).softmax(1).amax(1, keepdim=True) > threshold


def hard_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of logits [n, classes, h, w] against a target's most likely classes.

    target: [n, classes, H, W], to whose size the logits are brought.
    """
    height, width = target.shape[-2:]
    return cross_entropy(resized(logits, (height, width)), target.argmax(1))


def check_hard_labels(model: SourceModel, loss: str, *, asked_by: str) -> None:
    """Raise MethodError for the loss "symmetric" on segmentation, whose labels are hard."""
    if loss == "symmetric":
        raise MethodError(
            f"{asked_by} learns hard labels on {model.name}, which segments: "
            "there is no symmetric loss of them; set loss: cross_entropy."
        )
