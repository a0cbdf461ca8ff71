"""Segmentation with views at several scales: predictions at one size, and labels of pixels.

The views are those of the official code of CoTTA for ACDC: images at seven scales, each with its
mirror image. The probabilities of each view are flipped back, resized and added one after another:
memory holds only a few maps of the labels' size, whatever the number of views.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from ctta_bench.errors import MethodError
from ctta_bench.method import NEWER, MethodHyperparameters
from ctta_bench.model import SourceModel
from ctta_bench.names import renamed

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)

# In the order of use, from the images' own size on.
SCALES = (1.0, 1.25, 0.75, 1.5, 1.75, 0.5, 2.0)
MOST_VIEWS = 2 * len(SCALES)
Size = tuple[int, int]


class MapHyperparameters(MethodHyperparameters):
    """Hyper-parameters of methods with labels of pixels."""

    output_scale: float | None = Field(
        None,
        gt=0,
        description="segmentation: size of scores and labels over that of images; unset: of logits",
        json_schema_extra=NEWER,
    )


class View(NamedTuple):
    """Images at a scale, mirrored or not; the first of several views is the plain one."""

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
    """The first `count` views: the plain one, its mirror image, the next scale, and so on.

    Raises MethodError, which names the method `asked_by`, unless there are 1 to 14.
    """
    if not 1 <= count <= MOST_VIEWS:
        raise MethodError(
            f"{asked_by} supports 1 to {MOST_VIEWS} views for segmentation (seven scales, each "
            f"with its mirror image), not {count}; set `views`."
        )
    return views_at(SCALES)[:count]


def views_at(scales: Iterable[float]) -> list[View]:
    """Views at each scale, each with its mirror image; scale 1 comes first."""
    ordered = sorted(scales, key=lambda scale: scale != 1.0)
    return [View(scale, mirrored) for scale in ordered for mirrored in (False, True)]


def rescaled(images: Tensor, scale: float) -> Tensor:
    """Images [n, 3, H, W] resized by a scale (bilinear)."""
    height, width = images.shape[-2:]
    return resized(images, scaled_size((height, width), scale))


def scaled_size(size: Size, scale: float) -> Size:
    """Height and width at a scale, rounded to pixels."""
    return round(size[0] * scale), round(size[1] * scale)


def resized(maps: Tensor, size: Size) -> Tensor:
    """Maps [n, channels, H, W] resized (bilinear), in float32 or better."""
    maps = maps if maps.dtype == torch.float64 else maps.float()
    if tuple(maps.shape[-2:]) == size:
        return maps
    return interpolate(maps, size=size, mode="bilinear", align_corners=False)


def enlarged(logits: Tensor, images: Tensor, scale: float | None) -> Tensor:
    """Logits resized to `scale` times the size of the images; unchanged for None."""
    if scale is None:
        return logits
    height, width = images.shape[-2:]
    return resized(logits, scaled_size((height, width), scale))


def view_probabilities(
    views: Sequence[View],
    show: Callable[[float], Tensor],
    see: Callable[[Tensor], Tensor],
    size: Size | None,
) -> Iterator[Tensor]:
    """Probabilities [n, classes, *size] view by view, mirror images flipped back.

    `show(scale)` gives the images, `see(images)` their logits. `size` None is that of the logits of
    the first view.
    """
    for view in views:
        shown = show(view.scale)
        # Flipped back before they are enlarged.
        logits = see(shown.flip(-1)).flip(-1) if view.mirrored else see(shown)
        height, width = size = size or (logits.shape[-2], logits.shape[-1])
        yield resized(logits, (height, width)).softmax(1)  # unnamed: freed early


def averaged(seen: Iterable[Tensor]) -> OverViews:
    """Plain view, mean and variance of the probabilities of views."""
    views = iter(seen)
    plain = total = next(views)
    squares, count = [_mean_square(plain)], 1
    for count, probabilities in enumerate(views, start=2):
        squares.append(_mean_square(probabilities))
        # In place, except into the plain view's own map.
        total = plain + probabilities if count == 2 else total.add_(probabilities)
        del probabilities  # before the next view is computed
    mean = total if count == 1 else total.div_(count)
    if count == 1:
        return OverViews(plain, mean, float("nan"))
    # The variance needs only sums, not a second map.
    variance = (sum(squares) - count * _mean_square(mean)) / (count - 1)
    return OverViews(plain, mean, max(variance, 0.0) if variance == variance else variance)


def _mean_square(values: Tensor) -> float:
    # Class by class: the squares of all classes would be another map.
    sums = [one.square().sum(dtype=torch.float64) for one in values.unbind(1)]
    return float(torch.stack(sums).sum()) / values.numel()


def select_log_probabilities(over_views: OverViews, sure: Tensor | None) -> Tensor:
    """Log-probabilities [n, classes, H, W]: of the plain view where `sure`, else of the mean.

    sure: bool [n, 1, H, W]; None uses the mean everywhere.
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
    """The teacher's log-probabilities [n, classes, H, W], and their variance over the views.

    They are of the plain view where the anchor's confidence is above the threshold, elsewhere of
    the mean over the views. Their size is `scale` times that of the images; None: of the logits.
    """
    size = None if scale is None else scaled_size((images.shape[-2], images.shape[-1]), scale)
    over = averaged(view_probabilities(views, partial(rescaled, images), teacher, size))
    sure = None
    if len(views) > 1:
        height, width = over.mean.shape[-2:]
        sure = confident(anchor(images), (height, width), threshold)
    return select_log_probabilities(over, sure), over.variance


def confident(logits: Tensor, size: Size, threshold: float) -> Tensor:
    """Whether the largest probability is above a threshold, bool [n, 1, *size]."""
    return resized(logits, size).softmax(1).amax(1, keepdim=True) > threshold


def hard_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of logits [n, classes, h, w] against a target's most likely classes.

    target: [n, classes, H, W]; the logits are resized to its size.
    """
    height, width = target.shape[-2:]
    return cross_entropy(resized(logits, (height, width)), target.argmax(1))


def check_hard_labels(model: SourceModel, loss: str, *, asked_by: str) -> None:
    """Raise MethodError for the loss "symmetric" with segmentation, whose labels are hard."""
    if loss == "symmetric":
        raise MethodError(
            f"{asked_by} does not support the symmetric loss on {model.name}: segmentation has "
            "hard labels; set loss: cross_entropy."
        )
