"""Moments of features: source statistics, batch moments, running moments, and their distance.

A sample is an image; for feature maps a position.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ctta_bench.errors import ConfigError, DataError, MethodError
from ctta_bench.method import softmax_entropy
from ctta_bench.model import SourceModel
from ctta_bench.names import OldNames, renamed

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)

RUNNING = 0.9  # momentum of the running moments
LEAST_VARIANCE = 1e-12  # the root of smaller values has no finite gradient


@dataclass
class SourceStatistics:
    """Mean and unbiased standard deviation [d] of source features, and the number of images."""

    mean: Tensor
    std: Tensor
    images: int


@torch.no_grad()
def source_statistics(
    model: SourceModel,
    batches: Iterable[Tensor],
    *,
    samples: int,
    entropy_limit: float | None,
    seen: Callable[[Tensor], Tensor] | None = None,
    asked: Callable[[Tensor], Tensor] | None = None,
) -> SourceStatistics:
    """Statistics of the features of the first `samples` source images that pass the filter.

    batches: images [n, 3, H, W] in [0, 1]; entropy_limit: use only images whose prediction has a
    lower entropy (nats), as the official code of PAID and DPCore; None uses all. `seen` replaces
    the model's features [n, d], `asked` the logits of the filter. Fewer images than `samples` are
    allowed. Raises DataError if fewer than two pass.
    """
    kept: list[Tensor] = []
    count = 0
    for images in batches:
        features = (seen or model.features)(images)
        if entropy_limit is not None:
            logits = asked(images) if asked else model.head(features)
            features = features[softmax_entropy(logits) < entropy_limit]
        kept.append(features if features.dtype == torch.float64 else features.float())
        count += len(features)
        if count >= samples:
            break
    features = torch.cat(kept)[:samples] if kept else torch.empty(0, 1)
    if len(features) < 2:
        raise DataError(
            f"{len(features)} source images are left for the statistics (filter: entropy < "
            f"{entropy_limit}); at least 2 are needed: raise source_samples or switch the "
            "entropy filter off."
        )
    return SourceStatistics(features.mean(0), features.std(0), len(features))


def statistics_of_certain(
    model: SourceModel,
    source: Any,
    *,
    samples: int,
    max_entropy: float,
    normalised: bool = False,
    asked: Callable[[Tensor], Tensor] | None = None,
) -> SourceStatistics:
    """Statistics of source images with an entropy below `max_entropy` · ln C, stored between cells.

    normalised: images as in the model's training, whatever the stream has. asked: the logits of the
    filter; as they may be random, the result is not stored.
    """
    facts: dict[str, Any] = {"samples": samples, "max_entropy": max_entropy}
    if normalised:
        facts["normalised"] = model.trained_preprocessing().record()

    def make() -> SourceStatistics:
        with model.with_trained_preprocessing() if normalised else contextlib.nullcontext():
            return source_statistics(
                model,
                source.batches(),
                samples=samples,
                entropy_limit=max_entropy * math.log(model.num_classes),
                asked=asked,
            )

    return make() if asked else cached_statistics(source, facts, make, model.mean)


def cached_statistics(
    source: Any, facts: dict[str, Any], make: Callable[[], SourceStatistics], like: Tensor
) -> SourceStatistics:
    """The statistics of `make`, or those that a cell with the same `facts` stored.

    `source.once` stores them; the result is on the device of `like`.
    """
    return cached_statistics_of_maps(source, facts, lambda: [make()], like)[0]


def cached_statistics_of_maps(
    source: Any, facts: dict[str, Any], make: Callable[[], list[SourceStatistics]], like: Tensor
) -> list[SourceStatistics]:
    """The same for several statistics, one per feature map."""

    def made() -> dict[str, Tensor]:
        found = make()
        tensors = {"images": torch.tensor(found[0].images)}
        for number, of_place in enumerate(found):
            name = str(number or "")
            tensors |= {f"mean{name}": of_place.mean, f"std{name}": of_place.std}
        return tensors

    found = source.once("statistics", facts, made)
    images, places = int(found["images"]), sum(name.startswith("mean") for name in found)
    return [
        SourceStatistics(
            found[f"mean{n}"].to(like.device), found[f"std{n}"].to(like.device), images
        )
        for n in ["", *map(str, range(1, places))]
    ]


@torch.no_grad()
def place_statistics(
    forward_features: Callable[[Tensor], Sequence[Tensor]],
    images: Iterable[Tensor],
    *,
    samples: int,
    pooled: bool,
) -> list[SourceStatistics]:
    """Statistics over positions, for each map of `forward_features(image)`, rows [h·w, C].

    images: [1, 3, H, W] each, of which the first `samples` are used. The moments of each image are
    averaged; with `pooled`, they are those of all positions together, whose deviation includes the
    differences between images. Raises DataError if there is no image.
    """
    found: list[list[Tensor]] = []
    count = 0
    for image in images:
        moments = [_moments_of(rows, pooled) for rows in forward_features(image)]
        before = found or [[torch.zeros_like(m) for m in of_map] for of_map in moments]
        both = zip(before, moments, strict=True)
        found = [[a + b for a, b in zip(*of_map, strict=True)] for of_map in both]
        count += 1
        if count == samples:
            break
    if not count:
        raise DataError("the source set has no image for the statistics of feature maps.")
    return [_statistics_of(sums, count, pooled) for sums in found]


def _moments_of(rows: Tensor, pooled: bool) -> list[Tensor]:
    """The sums over images: of mean and deviation; or number, sum and sum of squares."""
    rows = rows.double()
    if pooled:
        return [rows.new_tensor(len(rows)), rows.sum(0), rows.square().sum(0)]
    return [rows.mean(0), rows.std(0)]


def _statistics_of(sums: list[Tensor], count: int, pooled: bool) -> SourceStatistics:
    if not pooled:
        mean, std = (total / count for total in sums)
    else:
        places, total, squares = sums
        mean = total / places
        variance = (squares - places * mean.square()) / (places - 1)
        std = variance.clamp_min(0).sqrt()
    return SourceStatistics(mean.float(), std.float(), count)


def filter_limit(num_classes: int) -> float:
    """Entropy limit ln(C)/2 - 1 of the official PAID and DPCore code; > 0 from 8 classes on.

    Raises ConfigError where no image can pass.
    """
    limit = math.log(num_classes) / 2 - 1
    if limit <= 0:
        raise ConfigError(
            f"entropy_filter needs at least 8 classes (limit ln(C)/2 - 1), not {num_classes}."
        )
    return limit


def batch_moments(features: Tensor) -> tuple[Tensor, Tensor | None]:
    """Mean and unbiased deviation [d] of features [n, d]; None for that of a single image."""
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    return features.mean(0), features.std(0) if len(features) > 1 else None


def alignment_loss(
    features: Tensor,
    source: SourceStatistics,
    std_weight: float,
    *,
    single: Literal["skip", "ema", "error", "nan"] = "skip",
) -> Tensor:
    """‖μ_t - μ_s‖₂ + λ‖σ_t - σ_s‖₂ over features [n, d] (the loss of PAID), a scalar >= 0.

    σ_t is unbiased and undefined for one image. `single` chooses what happens then: the term is
    omitted ("skip", "ema"), MethodError is raised ("error"), or the loss is NaN as in the official
    code ("nan", even for λ = 0).
    """
    features = features if features.dtype == torch.float64 else features.float()
    mean = features.mean(0)
    if len(features) < 2 and single != "nan":
        if single == "error":
            raise MethodError(
                "one image has no standard deviation: use a batch of at least 2, a window, or "
                "single_image=skip."
            )
        return torch.linalg.vector_norm(mean - source.mean)
    std = features.std(0) if len(features) > 1 else features[0] * torch.nan
    return moment_distance(mean, std, source, std_weight)


def moment_distance(
    mean: Tensor, std: Tensor, source: SourceStatistics, std_weight: float
) -> Tensor:
    """‖μ - μ_s‖₂ + λ‖σ - σ_s‖₂ of moments [d], a scalar >= 0."""
    apart = torch.linalg.vector_norm(mean - source.mean)
    return apart + std_weight * torch.linalg.vector_norm(std - source.std)


class RunningMoments(OldNames):
    """Moving averages of features and of their squares, which start at the source statistics.

    They are defined for one image, too. The stored moments have no gradient; the returned ones have
    a gradient to the new features.
    """

    def __init__(self, source: SourceStatistics) -> None:
        self.mean = source.mean.clone()
        self.square = source.mean.square() + source.std.square()

    def update_statistics(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Update with features [n, d], if they are finite; returns mean and deviation [d]."""
        features = features.to(self.mean.dtype)
        mean = RUNNING * self.mean + (1 - RUNNING) * features.mean(0)
        square = RUNNING * self.square + (1 - RUNNING) * features.square().mean(0)
        if bool(square.isfinite().all()):
            self.mean, self.square = mean.detach(), square.detach()
        return mean, (square - mean.square()).clamp_min(LEAST_VARIANCE).sqrt()
