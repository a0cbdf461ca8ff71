"""Moments of features: the source's, a batch's, running ones, and the distance between them.

A sample is an image; of feature maps, every place is one.
"""

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

RUNNING = 0.9  # share of the past in the moments of single images
LEAST_VARIANCE = 1e-12  # the root of less has no finite gradient


@dataclass
class SourceStatistics:
    """Mean and unbiased standard deviation [d] of source features, and how many made them."""

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

    batches: images [n, 3, H, W]; entropy_limit: keep images whose prediction has less entropy
    (nats), as the official code of PAID and DPCore does; None keeps all. `seen` gives other
    features [n, d] of images than the model's, `asked` other logits for the filter. Takes what
    there is if there are fewer. Raises DataError if no image, or a single one, is left.
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


def cached_statistics(
    source: Any, facts: dict[str, Any], make: Callable[[], SourceStatistics], like: Tensor
) -> SourceStatistics:
    """What `make` gives, or what a cell of like `facts` has kept of it, where `like` is."""
    return cached_statistics_of_maps(source, facts, lambda: [make()], like)[0]


def cached_statistics_of_maps(
    source: Any, facts: dict[str, Any], make: Callable[[], list[SourceStatistics]], like: Tensor
) -> list[SourceStatistics]:
    """What `make` gives, or what a cell of like `facts` has kept of it, where `like` is."""

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
    """Statistics over the places of maps, for each map of `forward_features` as rows [h·w, C].

    images: [1, 3, H, W] each, of which the first `samples` are read. Moments of each image are
    averaged; or, `pooled`, those of all places together, whose deviation also holds how images
    differ from each other, and which a single image never has. Raises DataError if there is none.
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
        raise DataError("the source set has no image for the statistics of its feature maps.")
    return [_statistics_of(sums, count, pooled) for sums in found]


def _moments_of(rows: Tensor, pooled: bool) -> list[Tensor]:
    """What is added up over images: mean and deviation; or number, sum and squares."""
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


def alignment_loss(
    features: Tensor,
    source: SourceStatistics,
    std_weight: float,
    *,
    single: Literal["skip", "ema", "error", "nan"] = "skip",
) -> Tensor:
    """‖μ_t - μ_s‖₂ + λ‖σ_t - σ_s‖₂ over features [n, d] (PAID, its objective), a scalar >= 0.

    σ_t is unbiased and undefined for one image: `single` says whether the term is left out ("skip",
    "ema"), is an error (MethodError), or becomes NaN as in the official code (even for λ = 0).
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
    """Moving averages of features and of their squares, from the source's on.

    They are defined for one image, too. What is kept has no gradient; a new image's share in what
    is returned does.
    """

    def __init__(self, source: SourceStatistics) -> None:
        self.mean = source.mean.clone()
        self.square = source.mean.square() + source.std.square()

    def update_statistics(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation [d] with the features [n, d] in them; kept if they are finite."""
        features = features.to(self.mean.dtype)
        mean = RUNNING * self.mean + (1 - RUNNING) * features.mean(0)
        square = RUNNING * self.square + (1 - RUNNING) * features.square().mean(0)
        if bool(square.isfinite().all()):
            self.mean, self.square = mean.detach(), square.detach()
        return mean, (square - mean.square()).clamp_min(LEAST_VARIANCE).sqrt()
